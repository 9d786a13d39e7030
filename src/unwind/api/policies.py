"""API types of `unwind.dev/v1alpha1`: TeardownPolicy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from unwind.api import annotation_values
from unwind.api.annotation_values import OnDeadline
from unwind.api.fields import ATOMIC, Model, Word, doc, list_map, rule
from unwind.api.meta import Condition, LabelSelector, ObjectMeta, SelectorRequirement
from unwind.api.resources import BUILT_IN_GROUPS, Resource
from unwind.api.unwind import GROUP, Effort, Gate

TEARDOWN_POLICIES = Resource(GROUP, "v1alpha1", "teardownpolicies", "TeardownPolicy", namespaced=False)

CONFLICTS_SHOWN = 100
"""How many conflicts with other policies the status names."""
_REQUIREMENTS = 32
_GLOB = "^[-a-z0-9.*?]+$"
_NAMESPACE = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_STEP = "^[-A-Za-z0-9.*?]+(/[-a-z0-9.*?]+){0,2}$"


class SourceKind(Word):
    """A deployer whose objects become steps of a teardown."""

    FLUX = "Flux"
    """Kustomizations and HelmReleases of Flux."""
    HELM_RELEASE_PROXY = "HelmReleaseProxy"
    """HelmReleaseProxies of the Cluster API add-on provider for Helm (CAAPH)."""
    HELM = "Helm"
    """Helm releases on the member that no other deployer drives."""
    PROFILE = "Profile"
    """ClusterProfiles and Profiles of Sveltos that Unwind deploys. Their clusterDeletionBehavior counts as well."""
    WORK = "Work"
    """Works of a Karmada member that is the cluster. Its removeStrategy counts as well. Only Enforce."""


class Suspended(Word):
    """What becomes of the objects of a handle whose deployer would leave them: it is suspended, or set to keep them."""

    HOLD = "Hold"
    """The handle is held by name, until a user decides."""
    REMOVE = "Remove"
    """Unwind deletes the handle, which its deployer then leaves, and removes the objects itself."""


_VALUES = rule(
    "self.all(one, (one.operator in ['In', 'NotIn']) == (has(one.values) && size(one.values) > 0))",
    "In and NotIn need values; Exists and DoesNotExist have none",
)


class PolicySelector(LabelSelector, frozen=True, kw_only=True):
    """Selects objects by their labels. An empty selector selects nothing."""

    match_expressions: Annotated[
        tuple[SelectorRequirement, ...],
        doc(
            "Further requirements on the labels.",
            maxItems=_REQUIREMENTS,
            **ATOMIC,
            **{"x-kubernetes-validations": [_VALUES]},
        ),
    ] = ()


class SourceSelector(Model, frozen=True, kw_only=True):
    """Selects handles (the objects of a deployer) by name. `*` and `?` are wildcards."""

    namespaces: Annotated[
        tuple[str, ...],
        doc(
            "Namespaces of the handles; without it, any. For Helm: namespaces of the releases on the member.",
            items={"type": "string", "pattern": _GLOB, "maxLength": 63},
            minItems=1,
            maxItems=64,
            **ATOMIC,
        ),
    ] = ()
    names: Annotated[
        tuple[str, ...],
        doc(
            "Names of the handles; without it, any.",
            items={"type": "string", "pattern": _GLOB, "maxLength": 253},
            minItems=1,
            maxItems=64,
            **ATOMIC,
        ),
    ] = ()


class PolicySource(Model, frozen=True, kw_only=True):
    """Where steps come from, and how persistently they are removed."""

    kind: Annotated[str, doc("Where the steps come from.", required=True, choice=SourceKind)] = ""
    effort: Annotated[str, doc("How persistently the steps are removed.", required=True, choice=Effort)] = ""
    selector: Annotated[
        SourceSelector | None,
        doc("Which handles; without it, all. Required for Helm.", minProperties=1),
    ] = None
    namespaces: Annotated[
        tuple[str, ...],
        doc(
            "Namespaces that handles may be in, besides the namespace of the Cluster. Handles in other namespaces are"
            " shown, but are no steps.",
            items={"type": "string", "pattern": _NAMESPACE, "maxLength": 63},
            maxItems=64,
            **ATOMIC,
        ),
    ] = ()
    suspended: Annotated[
        str,
        doc(
            "Only for Flux: what becomes of a Kustomization or HelmRelease whose objects Flux would leave, because it"
            " is suspended, or keeps them (deletionPolicy Orphan, prune false). Hold: it is held. Remove: Unwind"
            " removes its objects itself. It counts only if every policy that selects the handle says Remove.",
            choice=Suspended,
            default=Suspended.HOLD.value,
        ),
    ] = Suspended.HOLD.value


_HELM_SELECTOR = rule(
    "self.all(one, one.kind != 'Helm' || has(one.selector))",
    "a source of kind Helm needs a selector",
)
_WORK_EFFORT = rule(
    "self.all(one, one.kind != 'Work' || one.effort == 'Enforce')",
    "a source of kind Work needs the effort Enforce: Works go when their member is unjoined",
)
_SUSPENDED = rule(
    f"self.all(one, one.suspended == '{Suspended.HOLD}' || one.kind == '{SourceKind.FLUX}')",
    f"suspended: {Suspended.REMOVE} is only possible for a source of kind {SourceKind.FLUX}",
)


class DrainPhase(Word):
    """When the objects of a kind are deleted during a drain. A phase starts when the one before it is done."""

    LOAD_BALANCERS = "LoadBalancers"
    """Together with load balancers."""
    VOLUMES = "Volumes"
    """Together with volumes, after load balancers."""
    NODES = "Nodes"
    """At the end: everything before it may need a node."""


_CUSTOM = ", ".join(f"'{group}'" for group in sorted(BUILT_IN_GROUPS) if "." in group)
_SETTLE = {"pattern": annotation_values.DURATION_PATTERN, "minLength": 1, "maxLength": 32}


class DrainedResource(Model, frozen=True, kw_only=True):
    """A kind whose objects stand for something outside the cluster."""

    group: Annotated[
        str,
        doc(
            "API group of the kind. Built-in kinds cannot be named.",
            required=True,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$",
            maxLength=253,
            **{"x-kubernetes-validations": [rule(f"!(self in [{_CUSTOM}])", "built-in kinds cannot be drained")]},
        ),
    ] = ""
    kind: Annotated[str, doc("The kind.", required=True, pattern="^[A-Z][A-Za-z0-9]*$", maxLength=63)] = ""
    effort: Annotated[str, doc("How persistently the objects are deleted.", required=True, choice=Effort)] = ""
    phase: Annotated[
        str,
        doc("When they are deleted during the drain.", choice=DrainPhase, default=DrainPhase.LOAD_BALANCERS.value),
    ] = DrainPhase.LOAD_BALANCERS.value
    settle: Annotated[
        str,
        doc(
            "How long to wait after they are gone, if no finalizer shows that what they stand for is gone (for example"
            " 2m). Without it, such objects are in the ledger.",
            **_SETTLE,
        ),
    ] = ""

    @property
    def name(self) -> str:
        """KIND.GROUP."""
        return f"{self.kind}.{self.group}"


class PolicyDrain(Model, frozen=True, kw_only=True):
    """Objects on the cluster that are deleted with it, whoever created them, because they stand for something outside
    it that costs money."""

    load_balancers: Annotated[
        str,
        doc("Services of type LoadBalancer, Ingresses and Gateways. Without it, they are left.", choice=Effort),
    ] = ""
    volumes: Annotated[
        str,
        doc(
            "PersistentVolumeClaims whose volume has the reclaim policy Delete. Without it, they are left.",
            choice=Effort,
        ),
    ] = ""
    resources: Annotated[
        tuple[DrainedResource, ...], doc("Further kinds, by their custom resources.", maxItems=32, **ATOMIC)
    ] = ()
    exclude: Annotated[
        PolicySelector | None,
        doc("Labels of objects that are left. An empty selector selects nothing."),
    ] = None
    serving: Annotated[
        tuple[str, ...],
        doc(
            "Further steps that are removed after the drain, because their controllers clean up for it. NAME,"
            " NAMESPACE/NAME or KIND/NAMESPACE/NAME; `*` and `?` are wildcards. Known controllers need not be named.",
            items={"type": "string", "pattern": _STEP, "maxLength": 512},
            maxItems=64,
            **ATOMIC,
        ),
    ] = ()
    settle: Annotated[
        str,
        doc(
            "How long to wait after load balancers are gone, if no finalizer shows that the cloud has deleted them (for"
            " example 2m). Without it, such load balancers are in the ledger.",
            **_SETTLE,
        ),
    ] = ""

    @property
    def efforts(self) -> list[tuple[str, str]]:
        """The names of what it mentions, each with the effort. A kind may be mentioned twice."""
        found = [("loadBalancers", self.load_balancers), ("volumes", self.volumes)]
        return [
            *((name, effort) for name, effort in found if effort),
            *((resource.name, resource.effort) for resource in self.resources),
        ]


class NotificationEvent(Word):
    """What a sink is told about."""

    HELD = "Held"
    """The teardown has been held for longer than heldLongerThan."""
    FORCE_RELEASED = "ForceReleased"
    """The cluster was released before everything was removed: by a user, or because its deadline passed."""
    COMPLETE = "Complete"
    """The teardown is complete."""
    LEFT_BEHIND = "LeftBehind"
    """The teardown has ended, and objects were left behind or could not be verified."""


SINKS = 8
"""How many sinks a policy may name."""
HELD_LONGER_THAN = "15m"
"""After which time a held teardown is notified of, if the policy does not say."""
URL_PATTERN = r"^https://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-\"$-~]*)?$"
"""Only https, no user, no fragment, and no character that could end the request."""


class SigningKey(Model, frozen=True, kw_only=True):
    """A key in a Secret of Unwind's own namespace."""

    secret_name: Annotated[
        str,
        doc(
            'Name of the Secret in the namespace of Unwind. It needs the label unwind.dev/notification-key: "true".',
            required=True,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            maxLength=253,
        ),
    ] = ""
    key: Annotated[
        str,
        doc(
            "Key of the Secret with 24 bytes or more, or whsec_ and their base64.",
            required=True,
            pattern="^[-._a-zA-Z0-9]+$",
            maxLength=253,
        ),
    ] = ""


class PolicyNotification(Model, frozen=True, kw_only=True):
    """A sink: an address that is told what happens to the clusters of the policy."""

    url: Annotated[
        str,
        doc(
            "Address of the sink. Only https. Private and loopback addresses are refused, unless the option"
            " --notification-hosts of the manager allows the host.",
            required=True,
            pattern=URL_PATTERN,
            maxLength=2048,
        ),
    ] = ""
    signing_key: Annotated[SigningKey, doc("The key that signs each notification.", required=True)] = SigningKey()
    # Not `on`, which is a boolean in the YAML of kubectl.
    events: Annotated[
        tuple[str, ...],
        doc(
            "What the sink is told about.",
            required=True,
            items={"type": "string", "enum": [word.value for word in NotificationEvent]},
            minItems=1,
            maxItems=len(NotificationEvent),
            **{"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    held_longer_than: Annotated[
        str,
        doc(
            "For Held: how long a teardown must be held (for example 15m).",
            pattern=annotation_values.DURATION_PATTERN,
            minLength=1,
            maxLength=32,
            default=HELD_LONGER_THAN,
        ),
    ] = HELD_LONGER_THAN


_SOMETHING = rule(
    f"size(self.sources) > 0 || has(self.drain) || self.gate != '{Gate.AUTO}'",
    "a policy needs sources, drain or a gate",
)


class OnDelete(Word):
    """What a DELETE of a Cluster with the gate Admission does."""

    REFUSE = "Refuse"
    """It is refused, and the message has the command."""
    REQUEST = "Request"
    """It is the request: the manager pauses Cluster API for the Cluster, so that the teardown starts."""


class PolicyAdmission(Model, frozen=True, kw_only=True):
    """How the gate Admission answers."""

    on_delete: Annotated[
        str,
        doc(
            "What a DELETE of the Cluster does. Request: it starts the teardown, as `unwind delete` does. Without a"
            " manager that answers, it is refused. If several policies say `gate: Admission`, all must say Request.",
            choice=OnDelete,
            default=OnDelete.REFUSE.value,
        ),
    ] = OnDelete.REFUSE.value


_ADMISSION = rule(f"!has(self.admission) || self.gate == '{Gate.ADMISSION}'", f"admission needs gate: {Gate.ADMISSION}")


class TeardownPolicySpec(Model, frozen=True, kw_only=True):
    """Which clusters, and what is removed from them when they are deleted."""

    cluster_selector: Annotated[
        PolicySelector, doc("Labels of the Clusters. An empty selector selects nothing.", required=True)
    ] = PolicySelector()
    namespace_selector: Annotated[
        PolicySelector | None,
        doc("Labels of the namespaces of the Clusters; without it, any. An empty selector selects nothing."),
    ] = None
    sources: Annotated[
        tuple[PolicySource, ...],
        doc(
            "Where steps come from. If several sources select a handle, Leave and Enforce take precedence over Try. A"
            " policy without sources only chooses a gate.",
            default=[],
            maxItems=32,
            **ATOMIC,
            **{"x-kubernetes-validations": [_HELM_SELECTOR, _WORK_EFFORT, _SUSPENDED]},
        ),
    ] = ()
    drain: Annotated[
        PolicyDrain | None,
        doc("Objects that cost money outside the cluster, and are deleted before it.", minProperties=1),
    ] = None
    order: Annotated[
        tuple[tuple[str, ...], ...],
        doc(
            "Order of steps, also of different deployers: the steps of each group are removed before those of the next"
            " group. It does not change the order of a deployer among its own steps. NAME, NAMESPACE/NAME or"
            " KIND/NAMESPACE/NAME; `*` and `?` are wildcards.",
            items={
                "type": "array",
                "items": {"type": "string", "pattern": _STEP, "maxLength": 512},
                "maxItems": 256,
                **ATOMIC,
            },
            maxItems=64,
            **ATOMIC,
        ),
    ] = ()
    deadline: Annotated[
        str,
        doc(
            "Time limit for the deletion of a cluster (for example 2h). Without it, the deletion waits forever.",
            pattern=annotation_values.DURATION_PATTERN,
            minLength=1,
            maxLength=32,
        ),
    ] = ""
    on_deadline: Annotated[
        str, doc("What to do when the deadline has passed.", choice=OnDeadline, default=OnDeadline.HOLD.value)
    ] = OnDeadline.HOLD.value

    gate: Annotated[
        str,
        doc(
            "What holds the deletion of a cluster. Auto: the hook, where Cluster API calls it. Machines and"
            " Admission need the feature `gates`. If several policies select a cluster, the strictest counts:"
            " Admission, Machines, Hook, Auto, None.",
            choice=Gate,
            default=Gate.AUTO.value,
        ),
    ] = Gate.AUTO.value
    admission: Annotated[PolicyAdmission | None, doc("How the gate Admission answers.")] = None
    notifications: Annotated[
        tuple[PolicyNotification, ...],
        doc(
            "Sinks that are told what happens to the clusters. If several policies select a cluster, all of their"
            " sinks are.",
            maxItems=SINKS,
            **ATOMIC,
        ),
    ] = ()


class PolicyGate(Word):
    """What holds the deletion of a selected cluster."""

    ARMED = "Armed"
    """The deletion of the cluster waits for Unwind."""
    NOT_ARMED = "NotArmed"
    """Cluster API would delete the cluster without waiting for Unwind, until that is corrected."""
    NOT_AVAILABLE = "NotAvailable"
    """No hook is called for the cluster, and no policy chooses another gate: its deletion cannot be held."""
    NOT_CHOSEN = "NotChosen"
    """The policies choose no gate (None): the deletion is not held."""
    NOT_NEEDED = "NotNeeded"
    """Nothing is enforced, so the deletion does not wait."""


NOT_STEPS_SHOWN = 5


class PolicyCluster(Model, frozen=True, kw_only=True):
    """A cluster that the policy selects."""

    namespace: Annotated[str, doc("Namespace of the Cluster.", required=True)] = ""
    name: Annotated[str, doc("Name of the Cluster.", required=True)] = ""
    uid: Annotated[str, doc("Unique id of the Cluster.", required=True)] = ""
    gate: Annotated[str, doc("What holds the deletion of the cluster.", choice=PolicyGate)] = ""
    gate_kind: Annotated[
        str,
        doc(
            "The gate that all policies of the cluster choose together: Hook, Machines, Admission or None.", choice=Gate
        ),
    ] = ""
    gate_message: Annotated[
        str, doc("Why the cluster has this gate, and what is missing, for example: 7/8 Machines armed.")
    ] = ""
    steps: Annotated[
        int, doc("Number of steps that the policy finds for the cluster on the management cluster.", minimum=0)
    ] = 0
    not_steps: Annotated[
        tuple[str, ...],
        doc(
            "Handles for the cluster that are not steps, because their namespace is in no sources[].namespaces. At most"
            f" {NOT_STEPS_SHOWN} are named.",
            **ATOMIC,
        ),
    ] = ()
    no_longer_matches: Annotated[
        bool,
        doc(
            "The labels of the Cluster or of its Namespace changed, and the selectors no longer match. The cluster"
            " stays selected until a selector or the annotation unwind.dev/reselect of the policy changes."
        ),
    ] = False


class PolicyConflict(Model, frozen=True, kw_only=True):
    """A step that one policy wants removed and another one wants left."""

    cluster: Annotated[str, doc("The Cluster, as NAMESPACE/NAME.", required=True)] = ""
    step: Annotated[str, doc("Name of the step.", required=True)] = ""
    enforced_by: Annotated[tuple[str, ...], doc("Policies with the effort Enforce.", **ATOMIC)] = ()
    left_by: Annotated[tuple[str, ...], doc("Policies with the effort Leave.", **ATOMIC)] = ()


class PolicySink(Model, frozen=True, kw_only=True):
    """A sink of the policy."""

    id: Annotated[
        str,
        doc("Identifies the address and the key. Teardowns record what was sent under this id.", required=True),
    ] = ""
    host: Annotated[str, doc("Host of the address.")] = ""
    since: Annotated[
        datetime | None, doc("Since when the policy names the sink. What ended before that is not sent to it.")
    ] = None


class TeardownPolicyStatus(Model, frozen=True, kw_only=True):
    """What the policy selects. Only the manager writes it: it records which clusters the policy selected."""

    observed_generation: Annotated[int, doc("The generation that the status describes.", minimum=0)] = 0
    selectors: Annotated[
        str, doc("Identifies the clusterSelector and the namespaceSelector for which the clusters were selected.")
    ] = ""
    reselect: Annotated[
        str, doc("The value of the annotation unwind.dev/reselect for which the clusters were selected.")
    ] = ""
    selected: Annotated[int, doc("Number of clusters that the policy selects.", minimum=0)] = 0
    steps: Annotated[int, doc("Number of steps that the policy finds for its clusters.", minimum=0)] = 0
    clusters: Annotated[tuple[PolicyCluster, ...], doc("The clusters that the policy selects.", **ATOMIC)] = ()
    conflicts: Annotated[
        tuple[PolicyConflict, ...],
        doc(
            "The first steps that another policy handles differently. They hold their cluster, and nothing of them is"
            " deleted.",
            maxItems=CONFLICTS_SHOWN,
            **ATOMIC,
        ),
    ] = ()
    sinks: Annotated[tuple[PolicySink, ...], doc("The sinks of notifications.", **ATOMIC)] = ()
    conditions: Annotated[tuple[Condition, ...], doc("Conditions of the policy.", **list_map("type"))] = ()


class TeardownPolicy(Model, frozen=True, kw_only=True):
    """What is removed from clusters when they are deleted, in which order, and what holds their deletion."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        TeardownPolicySpec,
        doc("The policy.", required=True, **{"x-kubernetes-validations": [_SOMETHING, _ADMISSION]}),
    ] = TeardownPolicySpec()
    status: Annotated[TeardownPolicyStatus, doc("What the policy selects.")] = TeardownPolicyStatus()
