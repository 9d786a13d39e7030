"""What can be protected, and what depends on an object of each kind (pure)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Form(Enum):
    """How a field tells how many there are."""

    NUMBER = auto()
    ITEMS = auto()
    """As many as the list has."""
    BOUND = auto()
    """One, if it says Bound."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A field of an object that says how much depends on it."""

    path: tuple[str, str]
    form: Form
    what: str
    """As it is called in a denial."""
    default: int = 0
    """What counts where the field is not there: what the API would put there."""

    def of(self, obj: Mapping[str, Any]) -> int:
        """How many. Raises ValueError where the field is no such thing."""
        outer = obj.get(self.path[0])
        value = outer.get(self.path[1]) if isinstance(outer, dict) else None
        if value is None:
            return self.default
        match self.form:
            case Form.NUMBER if isinstance(value, int) and not isinstance(value, bool):
                return value
            case Form.ITEMS if isinstance(value, list):
                return len(value)
            case Form.BOUND if isinstance(value, str):
                return int(value == "Bound")
        raise ValueError(f"{'.'.join(self.path)} is {value!r}")

    def cel(self, obj: str, *, some: Callable[[str], str], none: str, unread: str) -> str:
        """The same as an expression in the language of admission policies, where `obj` is the object's name.

        Its value is `some` of the count where there is something, `none` where there is nothing, and `unread` where
        the field is no such thing.
        """
        outer = f"{obj}.{self.path[0]}"
        value = f"{outer}.{self.path[1]}"
        there = f"has({outer}) && has({value}) && {value} != null"
        unsaid = some(str(self.default)) if self.default > 0 else none
        # The type is looked at when it runs: a custom resource may have anything there.
        type_, holds, count = {
            Form.NUMBER: ("int", f"{value} > 0", value),
            Form.ITEMS: ("list", f"size({value}) > 0", f"size({value})"),
            Form.BOUND: ("string", f"{value} == 'Bound'", "1"),
        }[self.form]
        return f"(!({there}) ? {unsaid} : type({value}) != {type_} ? {unread} : {holds} ? {some(count)} : {none})"


class Rest(Enum):
    """What of the rest of the cluster depends on an object."""

    CONTENTS = auto()
    """A namespace: active Pods, bound claims."""
    RESOURCES = auto()
    """A CRD: its custom resources."""


class Controlled(Enum):
    """What the label means on an object that has a controller (an owner with `controller: true`).

    Such an object often has its labels from a template, and its controller must be able to replace it.
    """

    PROTECTED = auto()
    """The same as on any other object."""
    FREE_FOR_CONTROLLERS = auto()
    """The controllers of Kubernetes may delete it: rollouts delete old ReplicaSets, CronJobs delete old Jobs."""
    FREE = auto()
    """Nothing: which controllers delete objects of the kind is not known."""


class ProtectedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind whose objects can be protected."""

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    namespaced: bool = True
    count: Count | None = None
    """What `Cascading` goes by, where the object itself says it."""
    rest: Rest | None = None
    """What it goes by, where only the rest of the cluster does. Such an object is asked about without a label, too."""
    cascading: bool = True
    """Whether the word Cascading says something of it. If not, it is an unknown value, which holds."""
    controlled: Controlled = Controlled.PROTECTED
    exempt: bool = False
    """Whether the label does not protect its objects at all."""

    @property
    def built_in(self) -> bool:
        """Whether it is Kubernetes' own, and always served; otherwise a CRD defines it."""
        return self.group in _BUILT_IN

    @property
    def resource(self) -> str:
        """As kubectl calls it: deployments.apps."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


REPLICAS = Count(path=("spec", "replicas"), form=Form.NUMBER, what="replicas", default=1)
_SCHEDULED = Count(path=("status", "currentNumberScheduled"), form=Form.NUMBER, what="scheduled pods")
_ACTIVE_PODS = Count(path=("status", "active"), form=Form.NUMBER, what="active pods")
_ACTIVE_JOBS = Count(path=("status", "active"), form=Form.ITEMS, what="active jobs")
_CLAIM = Count(path=("status", "phase"), form=Form.BOUND, what='"Bound" status pvc')
_VOLUME = Count(path=("status", "phase"), form=Form.BOUND, what='"Bound" status pv')
_MATCHING = Count(path=("status", "matchingClusters"), form=Form.ITEMS, what="matching clusters")

_BUILT_IN = frozenset(
    {
        "",
        "apps",
        "autoscaling",
        "batch",
        "policy",
        *(
            f"{item}.k8s.io"
            for item in (
                "admissionregistration",
                "apiextensions",
                "apiregistration",
                "certificates",
                "coordination",
                "discovery",
                "events",
                "flowcontrol.apiserver",
                "networking",
                "node",
                "rbac.authorization",
                "resource",
                "scheduling",
                "storage",
            )
        ),
    }
)
_KRUISE = "apps.kruise.io"

NAMESPACE = ProtectedKind(
    group="", plural="namespaces", kind="Namespace", versions=("v1",), namespaced=False, rest=Rest.CONTENTS
)
DEFINITION = ProtectedKind(
    group="apiextensions.k8s.io",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    versions=("v1", "v1beta1"),
    namespaced=False,
    rest=Rest.RESOURCES,
)
KINDS: tuple[ProtectedKind, ...] = (
    NAMESPACE,
    DEFINITION,
    ProtectedKind(group="apps", plural="deployments", kind="Deployment", versions=("v1",), count=REPLICAS),
    ProtectedKind(group="apps", plural="statefulsets", kind="StatefulSet", versions=("v1",), count=REPLICAS),
    ProtectedKind(
        group="apps",
        plural="replicasets",
        kind="ReplicaSet",
        versions=("v1",),
        count=REPLICAS,
        controlled=Controlled.FREE_FOR_CONTROLLERS,
    ),
    ProtectedKind(group=_KRUISE, plural="clonesets", kind="CloneSet", versions=("v1alpha1",), count=REPLICAS),
    ProtectedKind(
        group=_KRUISE, plural="statefulsets", kind="StatefulSet", versions=("v1alpha1", "v1beta1"), count=REPLICAS
    ),
    ProtectedKind(
        group=_KRUISE, plural="uniteddeployments", kind="UnitedDeployment", versions=("v1alpha1",), count=REPLICAS
    ),
    # On these Cascading is no protection, as in Kruise: nothing goes with them.
    ProtectedKind(group="", plural="services", kind="Service", versions=("v1",)),
    ProtectedKind(group="networking.k8s.io", plural="ingresses", kind="Ingress", versions=("v1",)),
    ProtectedKind(group="", plural="secrets", kind="Secret", versions=("v1",)),
    ProtectedKind(group="", plural="configmaps", kind="ConfigMap", versions=("v1",)),
    ProtectedKind(group="apps", plural="daemonsets", kind="DaemonSet", versions=("v1",), count=_SCHEDULED),
    ProtectedKind(
        group="batch",
        plural="jobs",
        kind="Job",
        versions=("v1",),
        count=_ACTIVE_PODS,
        controlled=Controlled.FREE_FOR_CONTROLLERS,
    ),
    ProtectedKind(group="batch", plural="cronjobs", kind="CronJob", versions=("v1",), count=_ACTIVE_JOBS),
    ProtectedKind(
        group="", plural="persistentvolumeclaims", kind="PersistentVolumeClaim", versions=("v1",), count=_CLAIM
    ),
    ProtectedKind(
        group="", plural="persistentvolumes", kind="PersistentVolume", versions=("v1",), namespaced=False, count=_VOLUME
    ),
    # What depends on a whole cluster cannot be counted from here: it is protected always, or not.
    ProtectedKind(
        group=capi.CLUSTERS.group,
        plural="clusters",
        kind="Cluster",
        versions=("v1beta1", "v1beta2"),
        cascading=False,
    ),
    ProtectedKind(
        group=karmada.CLUSTERS.group,
        plural="clusters",
        kind="Cluster",
        versions=("v1alpha1",),
        namespaced=False,
        cascading=False,
    ),
    ProtectedKind(
        group=sveltos.CONFIG_GROUP,
        plural="clusterprofiles",
        kind="ClusterProfile",
        versions=("v1beta1",),
        namespaced=False,
        count=_MATCHING,
    ),
)
"""The kinds that OpenKruise's users know, and those of which something can be counted. Each has a policy that says
more than `Always`; all other kinds share one."""

EXEMPT: tuple[ProtectedKind, ...] = tuple(
    ProtectedKind(group=group, plural=plural, kind=kind, versions=("v1",), exempt=True)
    for group, plural, kind in (
        ("discovery.k8s.io", "endpointslices", "EndpointSlice"),
        ("", "endpoints", "Endpoints"),
        ("", "events", "Event"),
        ("events.k8s.io", "events", "Event"),
        ("coordination.k8s.io", "leases", "Lease"),
    )
)
"""Kinds that controllers write and delete all the time. EndpointSlices and Endpoints get a copy of their Service's
labels: if they could not be deleted, a protected Service could not be scaled down."""

_BY_NAME = {(kind.group, kind.kind): kind for kind in (*KINDS, *EXEMPT)}


def of(group: str, kind: str) -> ProtectedKind | None:
    """The kind, if it is one of those above."""
    return _BY_NAME.get((group, kind))


def of_any(group: str, kind: str, *, plural: str, version: str, namespaced: bool = True) -> ProtectedKind:
    """Any kind: `Always` protects its objects, unless they have a controller."""
    return of(group, kind) or ProtectedKind(
        group=group,
        plural=plural,
        kind=kind,
        versions=(version,),
        namespaced=namespaced,
        controlled=Controlled.FREE,
    )


# What the label on an object does not protect it against (pure).

_ADMISSION = VALIDATING_ADMISSION_POLICIES.group


def not_against(kind: ProtectedKind, word: DeleteProtection, *, owners: Iterable[str] = ()) -> Iterator[str]:
    """One sentence each. `owners`: what the object belongs to, as a person calls it."""
    yield (
        f"whoever may change it can take the label {DELETE_PROTECTION_LABEL} away, and delete it then: who may is"
        " decided by RBAC (update, patch)"
    )
    if word is DeleteProtection.CASCADING:
        yield f"its deletion as soon as {_nothing_left(kind)}"
    for owner in owners:
        if kind.controlled is Controlled.FREE_FOR_CONTROLLERS:
            yield f"the deletion of {owner}, which owns it: Kubernetes' controllers may delete it, also in a rollout"
            continue
        yield (
            f"the deletion of {owner}, which owns it: in the foreground it hangs on this object until the label is"
            " gone, in the background it goes and leaves this object behind"
        )
    if kind.namespaced:
        yield (
            "the deletion of its namespace while no manager runs: all else in there goes, and the namespace hangs on"
            " this object. While one runs, it is refused"
        )
    if not kind.built_in:
        yield (
            f"the deletion of the CRD {kind.plural}.{kind.group} while no manager runs: the API server asks nobody, and"
            " this object is gone. While one runs, it is refused"
        )
    if (kind.group, kind.kind) == ("", "Pod"):
        yield "evictions: `kubectl drain` and the kubelet remove a Pod without a DELETE"
    match kind.rest:
        case Rest.CONTENTS:
            yield "the deletion of single objects in it: what must stay needs the label itself"
        case Rest.RESOURCES:
            yield "the deletion of single resources of it: what must stay needs the label itself"
        case None:
            yield f"changes: {_changes(kind)}"


def unprotectable(kind: ProtectedKind, *, controller: str = "") -> tuple[str, str] | None:
    """Why the label would not protect an object, and what to do instead; None if it would. `controller`: its
    controller, as a person calls it."""
    if kind.group == _ADMISSION:
        return (
            f"the API server asks no admission policy about a {kind.kind}",
            "restrict with RBAC who may delete it",
        )
    if kind.exempt:
        return (
            f"a {kind.kind} cannot be protected: controllers write and delete it all the time",
            "protect the object that it belongs to",
        )
    if controller and kind.controlled is Controlled.FREE:
        return f"{controller} controls it, and must be able to delete it", f"protect {controller} instead"
    return None


def disk_warning(volume: Mapping[str, Any]) -> str:
    """What a person must know who protects a PersistentVolume; empty if there is nothing."""
    spec, status = volume.get("spec") or {}, volume.get("status") or {}
    claim = spec.get("claimRef") or {}
    if spec.get("persistentVolumeReclaimPolicy") != "Delete" or status.get("phase") != "Bound":
        return ""
    where, name = claim.get("namespace", ""), claim.get("name", "")
    return (
        f"deleting PersistentVolumeClaim {where}/{name} deletes the disk behind this PersistentVolume, whose reclaim"
        f" policy is Delete: protect the claim, too (`unwind protect pvc/{name} -n {where}`), or set"
        " persistentVolumeReclaimPolicy: Retain"
    )


def _nothing_left(kind: ProtectedKind) -> str:
    match kind.rest:
        case Rest.CONTENTS:
            return "no active Pod and no bound claim is in it"
        case Rest.RESOURCES:
            return "there are no resources of it"
    return f"it has no {kind.count.what}" if kind.count else "somebody asks for it"


def _changes(kind: ProtectedKind) -> str:
    if kind.count and kind.count.what == "replicas":
        return "it can be scaled to zero, and its Pods can be deleted one by one"
    return "whoever may write it can make it useless"
