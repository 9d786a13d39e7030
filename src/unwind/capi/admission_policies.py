"""The admission policies that keep Cluster API's gate closed while add-ons have to be removed.

Each closes one way around the gate: the ExtensionConfig, the annotation that records Cluster API's permission to
delete, foreground deletion, and deletion of the namespace.
"""

from __future__ import annotations

from typing import Any

from unwind.api import capi, names, policies, sveltos, unwind
from unwind.api.admission import BY_MANAGER, policy_and_binding, resource_rule
from unwind.api.policies import PolicyGate
from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import ClusterDeletionBehavior, ClusterType
from unwind.api.unwind import Cause, Effort, Gate, Phase, StepState
from unwind.server.manager_names import MANAGER, manager_object

Object = dict[str, Any]

# All objects of the kind; if there are none, the policy allows the request.
_ALL: Object = {"selector": {}, "parameterNotFoundAction": "Allow"}
# Every Teardown that the manager wrote.
_RECORDS: Object = _ALL | {
    "selector": {"matchExpressions": [{"key": names.SET_ASIDE_LABEL, "operator": "DoesNotExist"}]}
}


def extension_name(namespace: str) -> str:
    """The name of a manager's ExtensionConfig.

    Cluster API does not accept a dot in it, nor more than 63 characters; the same holds for a namespace's name.
    """
    return namespace


guard_name = manager_object("gate")
"""The policy that protects a manager's ExtensionConfig."""
marks_name = manager_object("marks")
"""The policy that refuses ok-to-delete on Clusters that are not being deleted."""
held_marks_name = manager_object("held-marks")
"""The policy that refuses ok-to-delete on Clusters that a Teardown holds."""
foreground_name = manager_object("foreground")
"""The policy that refuses the foreground deletion of gated Clusters."""
namespaces_name = manager_object("gated-namespaces")
"""The policy that refuses the deletion of Namespaces with gated Clusters."""


def annotation(of: str, name: str) -> str:
    """CEL: an annotation of an object, as an optional value."""
    return f"{of}.metadata.?annotations[?'{name}']"


# CEL over one Teardown (params). It must decide as unwind.teardown.deletion_gate.of_teardown does: this policy must
# never refuse what our hook allowed. Unknown values block: a Teardown without a plan, a new effort or state.
_LENIENT = [effort.value for effort in Effort if effort is not Effort.ENFORCE]
_LAST = [phase.value for phase in Phase if phase.finished]
_STEPS = "has(params.status) && has(params.status.steps) ? params.status.steps.{}.map(step, step.name) : []"
_TEARDOWN: list[Object] = [
    {
        "name": "isCluster",
        "expression": f"params.spec.target.kind == '{capi.CLUSTERS.kind}'"
        f" && (!has(params.spec.target.group) || params.spec.target.group == '{capi.CLUSTERS.group}')"
        f" && params.spec.?cause.orValue('') != '{Cause.REQUESTED}'",
    },
    {
        "name": "finished",
        "expression": f"has(params.status) && has(params.status.phase) && params.status.phase in {_LAST}",
    },
    {"name": "removed", "expression": _STEPS.format(f"filter(step, step.state == '{StepState.REMOVED}')")},
    {"name": "named", "expression": _STEPS.replace(".{}", "")},
]
# A step that status names twice is not done. `indexOf` is native: a macro here would exceed the cost limit of CEL for
# large plans, and the policy would then refuse every change.
_NAMED_TWICE = "variables.named.indexOf(step.name) != variables.named.lastIndexOf(step.name)"
_HOLDS = (
    "variables.isCluster && !variables.finished && (!has(params.spec.plan) || (has(params.spec.plan.steps)"
    f" && params.spec.plan.steps.exists(step, !(step.effort in {_LENIENT})"
    f" && (!(step.name in variables.removed) || {_NAMED_TWICE}))))"
)
_TEARDOWNS: Object = {"apiVersion": unwind.TEARDOWNS.api_version, "kind": unwind.TEARDOWNS.kind}


_SELECTOR = "{}.spec.?namespaceSelector"
_NARROWED = (
    "request.operation == 'UPDATE'"
    f" && {_SELECTOR.format('object')} != {_SELECTOR.format('oldObject')}"
    f" && !({_SELECTOR.format('object')}.hasValue()"
    " && object.spec.namespaceSelector.?matchLabels.orValue({}).size() == 0"
    " && object.spec.namespaceSelector.?matchExpressions.orValue([]).size() == 0)"
)
_GUARDED = (
    "'ExtensionConfig ' + oldObject.metadata.name + ' blocks ' + params.spec.title + ' until its add-ons are removed:"
    " without it, or with a narrower namespaceSelector, Cluster API would delete the cluster at once. Wait until"
    " Teardown ' + params.metadata.name + ' is finished, or release the cluster with the annotation"
    f" {names.FORCE_RELEASE_ANNOTATION}'"
)


def extension_guard(namespace: str) -> list[Object]:
    """While a Teardown blocks a cluster, its ExtensionConfig cannot be deleted or narrowed to fewer namespaces.

    Cluster API drops an extension as soon as its deletion is requested: a finalizer would be too late.
    """
    policy = {
        "paramKind": _TEARDOWNS,
        "matchConstraints": {"resourceRules": [resource_rule(capi.EXTENSION_CONFIGS, "UPDATE", "DELETE")]},
        # Match by the object, not by the name of the request, which is empty for deletecollection.
        "matchConditions": [
            {"name": "ours", "expression": f"oldObject.metadata.name == '{extension_name(namespace)}'"},
            {"name": "gone-or-narrowed", "expression": f"request.operation == 'DELETE' || ({_NARROWED})"},
        ],
        "variables": _TEARDOWN,
        "validations": [{"expression": f"!({_HOLDS})", "messageExpression": _GUARDED, "reason": "Forbidden"}],
    }
    return policy_and_binding(guard_name(namespace), policy, paramRef=_RECORDS)


_MARKED = (
    f"{annotation('object', names.OK_TO_DELETE_ANNOTATION)}.hasValue()"
    f" && !{annotation('oldObject', names.OK_TO_DELETE_ANNOTATION)}.hasValue()"
)
_TERMINATING = "has(object.metadata.deletionTimestamp)"
_NOT_DELETED = (
    "'Cluster ' + object.metadata.namespace + '/' + object.metadata.name + ' is not being deleted: with the annotation"
    f" {names.OK_TO_DELETE_ANNOTATION} Cluster API would later delete it without calling any hook. To release a cluster"
    f" that is being deleted, annotate it with {names.FORCE_RELEASE_ANNOTATION}'"
)
_HELD = (
    "params.spec.title + ' is blocked until its add-ons are removed: the annotation"
    f" {names.OK_TO_DELETE_ANNOTATION} would release it without a ledger. Wait until Teardown '"
    f" + params.metadata.name + ' is finished, or annotate the Cluster with {names.FORCE_RELEASE_ANNOTATION}=REASON'"
)


def _unmarked(namespace: str) -> list[Object]:
    """Refuses the mark ok-to-delete on a Cluster that is not being deleted.

    Cluster API writes the mark by name when it allows a deletion. If another Cluster was created under that name in the
    same moment, it would get the mark, and Cluster API would never call the hook for it (seen with v1.14.2).
    """
    policy = {
        # Not CREATE: a moved or restored Cluster brings all its annotations. The manager removes the mark.
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "UPDATE")]},
        "validations": [
            {
                "expression": f"!({_MARKED}) || {_TERMINATING}",
                "messageExpression": _NOT_DELETED,
                "reason": "Forbidden",
            }
        ],
    }
    return policy_and_binding(marks_name(namespace), policy)


def _unmarked_while_held(namespace: str) -> list[Object]:
    """Refuses the mark ok-to-delete on a Cluster while its Teardown blocks, even for Cluster API.

    Cluster API writes the mark after our hook allows it, which happens only after the status that this policy reads was
    written. If the API server's copy of the Teardown is stale for a moment, Cluster API calls the hook and retries.
    """
    policy = {
        "paramKind": _TEARDOWNS,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "UPDATE")]},
        # Evaluated before any Teardown is read, so that other updates cost nothing.
        "matchConditions": [{"name": "marked", "expression": f"{_MARKED} && {_TERMINATING}"}],
        "variables": _TEARDOWN,
        "validations": [
            {
                "expression": f"params.spec.target.?uid.orValue('') != object.metadata.uid || !({_HOLDS})",
                "messageExpression": _HELD,
                "reason": "Forbidden",
            }
        ],
    }
    return policy_and_binding(held_marks_name(namespace), policy, paramRef=_RECORDS)


# CEL over one ClusterSummary (params), equal to cluster_deletion_behavior.behaviour in addons/. An unknown value
# blocks; the default is to remove without blocking the cluster.
_LETTING_GO = [ClusterDeletionBehavior.LEAVE.value, ClusterDeletionBehavior.REMOVE.value]
_SUMMARY: list[Object] = [
    {
        "name": "behaviour",
        "expression": "params.spec.?clusterProfileSpec.?clusterDeletionBehavior.orValue("
        f"{annotation('params', names.DELETION_BEHAVIOR_ANNOTATION)}.orValue('{ClusterDeletionBehavior.REMOVE}'))",
    },
    {
        "name": "gates",
        "expression": f"params.spec.clusterType == '{ClusterType.CAPI}' && !(variables.behaviour in {_LETTING_GO})",
    },
]
_SUMMARIES: Object = {"apiVersion": sveltos.CLUSTER_SUMMARIES.api_version, "kind": sveltos.CLUSTER_SUMMARIES.kind}
# As in the API server: if the request does not say, an existing finalizer decides.
_FOREGROUND = (
    "request.options.?propagationPolicy.hasValue()"
    " ? request.options.propagationPolicy == 'Foreground'"
    " : !request.options.?orphanDependents.hasValue()"
    " && 'foregroundDeletion' in oldObject.metadata.?finalizers.orValue([])"
)
_NOT_IN_FOREGROUND = (
    "'Cluster ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' has add-ons that must be removed"
    " before it is deleted (ClusterSummary ' + params.metadata.name + '): foreground deletion would delete its control"
    " plane and machines at once. Delete it in the background: kubectl delete cluster.' + request.resource.group + ' '"
    " + oldObject.metadata.name + ' -n ' + oldObject.metadata.namespace + ' (without --cascade=foreground; in Argo CD,"
    " set the finalizer resources-finalizer.argocd.argoproj.io/background or the sync option"
    " PrunePropagationPolicy=background)'"
)


def _not_in_foreground(namespace: str) -> list[Object]:
    """Refuses foreground deletion of a gated Cluster.

    The garbage collector would delete everything that the Cluster owns at once, and Cluster API would call the hook
    afterwards. Orphaning deletes nothing, so it is allowed.
    """
    policy = {
        "paramKind": _SUMMARIES,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "DELETE")]},
        # Cluster API calls no hooks for a Cluster without ClusterClass, so it is not gated.
        "matchConditions": [
            {"name": "foreground", "expression": _FOREGROUND},
            {"name": "has-hooks", "expression": "oldObject.?spec.?topology.hasValue()"},
        ],
        "variables": _SUMMARY,
        "validations": [
            {
                "expression": "params.spec.clusterName != oldObject.metadata.name || !variables.gates",
                "messageExpression": _NOT_IN_FOREGROUND,
                "reason": "Forbidden",
            }
        ],
    }
    # The summaries in the namespace of the Cluster: a namespaced param kind without a namespace here.
    return policy_and_binding(foreground_name(namespace), policy, paramRef=_ALL)


_NAMESPACE_HOLDS = (
    "'Namespace ' + oldObject.metadata.name + ' contains Cluster ' + params.spec.clusterName + ', which has add-ons"
    " that must be removed before it is deleted (ClusterSummary ' + params.metadata.name + '). Delete the Cluster"
    f" first and wait until it is gone: kubectl delete cluster.{capi.CLUSTERS.group} ' + params.spec.clusterName"
    " + ' -n ' + oldObject.metadata.name"
)


def _not_with_clusters(namespace: str) -> list[Object]:
    """Refuses deletion of a Namespace with a gated Cluster: everything in it would be deleted at once."""
    policy = {
        "paramKind": _SUMMARIES,
        "matchConstraints": {"resourceRules": [resource_rule(NAMESPACES, "DELETE")]},
        "variables": _SUMMARY,
        "validations": [
            {"expression": "!variables.gates", "messageExpression": _NAMESPACE_HOLDS, "reason": "Forbidden"}
        ],
    }
    # The API server uses the Namespace itself as the namespace of the request, so these are the summaries in it.
    return policy_and_binding(namespaces_name(namespace), policy, paramRef=_ALL)


# Clusters that TeardownPolicies hold: `status.clusters` of each (params) names them. Only the manager writes it.

_POLICIES: Object = {"apiVersion": policies.TEARDOWN_POLICIES.api_version, "kind": policies.TEARDOWN_POLICIES.kind}
_SELECTED = "params.?status.?clusters.orValue([])"
_IS_HELD = f"one.?gate.orValue('') == '{PolicyGate.ARMED}'"
_HELD_BY_POLICY = (
    "'Cluster ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' is held by TeardownPolicy '"
    " + params.metadata.name + ': foreground deletion would delete its control plane, infrastructure and machines at"
    " once. Delete it in the background: kubectl delete cluster.' + request.resource.group + ' '"
    " + oldObject.metadata.name + ' -n ' + oldObject.metadata.namespace + ' (without --cascade=foreground)'"
)
_NAMESPACE_HELD_BY_POLICY = (
    "'Namespace ' + oldObject.metadata.name + ' contains Clusters that TeardownPolicy ' + params.metadata.name"
    " + ' holds: their machines and infrastructure would be deleted at once. Delete the Clusters first and wait until"
    " they are gone'"
)


policy_foreground_name = manager_object("policy-foreground")
"""The policy that refuses the foreground deletion of Clusters that a TeardownPolicy holds."""
policy_namespaces_name = manager_object("policy-namespaces")
"""The policy that refuses the deletion of Namespaces with Clusters that a TeardownPolicy holds."""
machines_name = manager_object("held-machines")
"""The policy that keeps our annotation on the Machines of Clusters that a Teardown holds."""


def held_by_policies(namespace: str) -> list[Object]:
    """Refuses the two ways around the gate of a Cluster that a TeardownPolicy holds: the garbage collector and the
    namespace controller delete machines and infrastructure directly, not through Cluster API."""
    foreground = {
        "paramKind": _POLICIES,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "DELETE")]},
        "matchConditions": [{"name": "foreground", "expression": _FOREGROUND}],
        "validations": [
            {
                "expression": f"!{_SELECTED}.exists(one, one.uid == oldObject.metadata.uid && {_IS_HELD})",
                "messageExpression": _HELD_BY_POLICY,
                "reason": "Forbidden",
            }
        ],
    }
    with_namespace = {
        "paramKind": _POLICIES,
        "matchConstraints": {"resourceRules": [resource_rule(NAMESPACES, "DELETE")]},
        "validations": [
            {
                "expression": f"!{_SELECTED}.exists(one, one.namespace == oldObject.metadata.name && {_IS_HELD})",
                "messageExpression": _NAMESPACE_HELD_BY_POLICY,
                "reason": "Forbidden",
            }
        ],
    }
    return [
        *policy_and_binding(policy_foreground_name(namespace), foreground, paramRef=_ALL),
        *policy_and_binding(policy_namespaces_name(namespace), with_namespace, paramRef=_ALL),
    ]


_DISARMED = (
    f"{annotation('oldObject', names.MACHINE_GATE_ANNOTATION)}.hasValue()"
    f" && !{annotation('object', names.MACHINE_GATE_ANNOTATION)}.hasValue()"
)
_OF_CLUSTER = (
    "params.spec.target.?namespace.orValue('') == oldObject.metadata.namespace"
    f" && params.spec.target.name == oldObject.metadata.?labels[?'{names.CLUSTER_NAME_LABEL}'].orValue('')"
)
_MACHINE_HELD = (
    "'Machine ' + oldObject.metadata.name + ' is held until Teardown ' + params.metadata.name + ' of '"
    f" + params.spec.title + ' is finished: without the annotation {names.MACHINE_GATE_ANNOTATION} Cluster API would"
    f" terminate it. To release the cluster, annotate the Cluster with {names.FORCE_RELEASE_ANNOTATION}=REASON'"
)


_PAUSED = "{}.metadata.?annotations[?'" + names.PAUSED_ANNOTATION + "'].orValue('') == '" + names.PAUSED_BY_GATE + "'"
_MOVED = (
    f"{annotation('oldObject', names.DELETE_FOR_MOVE_ANNOTATION)}.hasValue() && oldObject.?spec.?paused.orValue(false)"
)
_NOT_DIRECTLY = (
    "'Cluster ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' is held by TeardownPolicy '"
    " + params.metadata.name + ': what must be removed from it goes first. Delete it with: unwind delete cluster/'"
    " + oldObject.metadata.name + ' -n ' + oldObject.metadata.namespace"
)
_STILL_PAUSED = (
    "'Cluster ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' is held until its teardown is"
    f" finished: only Unwind removes the annotation {names.PAUSED_ANNOTATION}. To release the cluster, annotate it with"
    f" {names.FORCE_RELEASE_ANNOTATION}=REASON'"
)
# A cluster-admin counts as the manager, so the field manager of the request must be the manager's, too.
_NOT_THE_MANAGER = f"request.options.?fieldManager.orValue('') != '{names.MACHINES_FIELD_MANAGER}' || !{BY_MANAGER}"


DELETIONS = f"{MANAGER}-deletions"
"""Prefix of the name of the policy that refuses to delete Clusters with the gate Admission."""


def deletions_name(namespace: str) -> str:
    """The policy that refuses to delete Clusters with the gate Admission."""
    return f"{DELETIONS}.{namespace}"


pauses_name = manager_object("pauses")
"""The policy that keeps Cluster API paused for Clusters with the gate Admission that are being deleted."""


def deletion_guard(namespace: str) -> list[Object]:
    """Refuses to delete a Cluster with the gate Admission, also while no manager runs.

    Not if Cluster API is paused for it: then nothing of it is deleted until the manager has seen its gate open. And not
    for `clusterctl move`, which deletes a paused Cluster without its machines.
    """
    deletion = {
        "paramKind": _POLICIES,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "DELETE")]},
        "matchConditions": [
            {"name": "not-held", "expression": f"!({_PAUSED.format('oldObject')})"},
            {"name": "not-moved", "expression": f"!({_MOVED})"},
            {"name": "not-deleted", "expression": "!has(oldObject.metadata.deletionTimestamp)"},
        ],
        "validations": [
            {
                "expression": f"!{_SELECTED}.exists(one, one.uid == oldObject.metadata.uid"
                f" && one.?gateKind.orValue('') == '{Gate.ADMISSION}')",
                "messageExpression": _NOT_DIRECTLY,
                "reason": "Forbidden",
            }
        ],
    }
    pause = {
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "UPDATE")]},
        "matchConditions": [
            {
                "name": "unpaused",
                "expression": f"has(oldObject.metadata.deletionTimestamp) && {_PAUSED.format('oldObject')}"
                f" && !({_PAUSED.format('object')})",
            },
            {"name": "not-the-manager", "expression": _NOT_THE_MANAGER},
        ],
        "validations": [{"expression": "false", "messageExpression": _STILL_PAUSED, "reason": "Forbidden"}],
    }
    return [
        *policy_and_binding(deletions_name(namespace), deletion, paramRef=_ALL),
        *policy_and_binding(pauses_name(namespace), pause),
    ]


def machines_guard(namespace: str) -> list[Object]:
    """While a Teardown holds a Cluster, only the manager takes our annotation off its Machines.

    A cluster-admin counts as the manager, so the field manager of the request must be the manager's, too: neither
    `kubectl annotate` nor `unwind hooks disarm` have that.
    """
    policy = {
        "paramKind": _TEARDOWNS,
        "matchConstraints": {"resourceRules": [resource_rule(capi.MACHINES, "UPDATE")]},
        # Evaluated before any Teardown is read: Cluster API updates Machines all the time.
        "matchConditions": [
            {"name": "disarmed", "expression": _DISARMED},
            {"name": "not-the-manager", "expression": _NOT_THE_MANAGER},
        ],
        "variables": _TEARDOWN,
        "validations": [
            {
                "expression": f"!({_OF_CLUSTER}) || !({_HOLDS})",
                "messageExpression": _MACHINE_HELD,
                "reason": "Forbidden",
            }
        ],
    }
    return policy_and_binding(machines_name(namespace), policy, paramRef=_RECORDS)


def gate_policies(namespace: str, *, addons: bool) -> list[Object]:
    """All gate policies except the guard of the ExtensionConfig, which is applied right before the ExtensionConfig.

    `addons`: ClusterSummaries are installed. A policy with a param kind that is not served refuses every request.
    """
    of_addons = [*_not_in_foreground(namespace), *_not_with_clusters(namespace)] if addons else []
    return [*_unmarked(namespace), *_unmarked_while_held(namespace), *of_addons]
