"""The admission policies that keep Cluster API's gate closed while add-ons have to be removed.

Each closes one way around the gate: the ExtensionConfig, the annotation by which Cluster API remembers that it may go
on, foreground deletion, and the deletion of the namespace.
"""

from __future__ import annotations

from typing import Any

from unwind.api import capi, names, sveltos, unwind
from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import ClusterDeletionBehavior, ClusterType
from unwind.api.unwind import Cause, Effort, Phase, StepState
from unwind.installing.addressing import MANAGER
from unwind.installing.policies import policy_and_binding, resource_rule

Object = dict[str, Any]

# Every object of the kind; where there is none, nothing is held.
_ALL: Object = {"selector": {}, "parameterNotFoundAction": "Allow"}
# Every Teardown that the manager wrote.
_RECORDS: Object = _ALL | {
    "selector": {"matchExpressions": [{"key": names.SET_ASIDE_LABEL, "operator": "DoesNotExist"}]}
}


def extension_name(namespace: str) -> str:
    """The name of a manager's ExtensionConfig.

    Cluster API accepts no dot in it and at most 63 characters, and so does a namespace's name.
    """
    return namespace


def guard_name(namespace: str) -> str:
    """The policy that protects a manager's ExtensionConfig."""
    return f"{MANAGER}-gate.{namespace}"


def marks_name(namespace: str) -> str:
    """The policy that refuses ok-to-delete on Clusters that are not being deleted."""
    return f"{MANAGER}-marks.{namespace}"


def held_marks_name(namespace: str) -> str:
    """The policy that refuses ok-to-delete on Clusters that a Teardown holds."""
    return f"{MANAGER}-held-marks.{namespace}"


def foreground_name(namespace: str) -> str:
    """The policy that refuses the foreground deletion of gated Clusters."""
    return f"{MANAGER}-foreground.{namespace}"


def namespaces_name(namespace: str) -> str:
    """The policy that refuses the deletion of Namespaces with gated Clusters."""
    return f"{MANAGER}-gated-namespaces.{namespace}"


def annotation(of: str, name: str) -> str:
    """CEL: an annotation of an object, as an optional value."""
    return f"{of}.metadata.?annotations[?'{name}']"


# CEL over one Teardown (params). It says the same as unwind.gating.gate.of_teardown: a yes to Cluster API must never
# meet a refusal here. What is not known holds: a Teardown without a plan, an effort or a state that is new.
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
    "'ExtensionConfig ' + oldObject.metadata.name + ' holds ' + params.spec.title + ' until its add-ons are removed:"
    " without it, or with a narrower namespaceSelector, Cluster API lets the cluster go at once. Wait until Teardown '"
    " + params.metadata.name + ' is finished, or let the cluster go with the annotation"
    f" {names.FORCE_RELEASE_ANNOTATION}'"
)


def guard(namespace: str) -> list[Object]:
    """While a Teardown holds a cluster, its ExtensionConfig stays, and stays in charge of every namespace.

    Cluster API drops an extension as soon as it is being deleted: a finalizer would be too late.
    """
    policy = {
        "paramKind": _TEARDOWNS,
        "matchConstraints": {"resourceRules": [resource_rule(capi.EXTENSION_CONFIGS, "UPDATE", "DELETE")]},
        # By the object, and not by the name of the request: that has none when a whole collection is deleted.
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
    f" {names.OK_TO_DELETE_ANNOTATION} Cluster API would delete it one day without calling any hook. To let a cluster"
    f" go that is being deleted, annotate it with {names.FORCE_RELEASE_ANNOTATION}'"
)
_HELD = (
    "params.spec.title + ' is held until its add-ons are removed: the annotation"
    f" {names.OK_TO_DELETE_ANNOTATION} would release it without a ledger. Wait until Teardown '"
    f" + params.metadata.name + ' is finished, or annotate the Cluster with {names.FORCE_RELEASE_ANNOTATION}=REASON'"
)


def _unmarked(namespace: str) -> list[Object]:
    """A Cluster that is not being deleted is not marked ok-to-delete.

    Cluster API writes the mark by name when it lets a Cluster go. Where another was made under that name in the same
    moment, it would get the mark, and Cluster API would never ask about it (seen with v1.14.2).
    """
    policy = {
        # Not CREATE: a Cluster that is moved or restored brings all its annotations. The manager removes the mark.
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
    """A Cluster whose Teardown holds it is not marked ok-to-delete, not even by Cluster API.

    Cluster API writes the mark after our yes, which is answered only after the status that this policy reads was
    written. Should the API server's copy of the Teardown be older for a moment, Cluster API asks and writes again.
    """
    policy = {
        "paramKind": _TEARDOWNS,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "UPDATE")]},
        # Decided before any Teardown is looked at: other updates cost nothing.
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


# CEL over one ClusterSummary (params): what unwind.controllers.teardowns.drafting.behaviour says. A word that is not
# known holds; where nothing is said, the default is to remove, and the cluster does not wait.
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
# As the API server decides it: without a word in the request, a finalizer that is there already decides.
_FOREGROUND = (
    "request.options.?propagationPolicy.hasValue()"
    " ? request.options.propagationPolicy == 'Foreground'"
    " : !request.options.?orphanDependents.hasValue()"
    " && 'foregroundDeletion' in oldObject.metadata.?finalizers.orValue([])"
)
_NOT_IN_FOREGROUND = (
    "'Cluster ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' has add-ons that must be removed"
    " before it goes (ClusterSummary ' + params.metadata.name + '): foreground deletion would delete its control plane"
    " and machines at once. Delete it in the background: kubectl delete cluster.' + request.resource.group + ' '"
    " + oldObject.metadata.name + ' -n ' + oldObject.metadata.namespace + ' (without --cascade=foreground; in Argo CD,"
    " set the finalizer resources-finalizer.argocd.argoproj.io/background or the sync option"
    " PrunePropagationPolicy=background)'"
)


def _not_in_foreground(namespace: str) -> list[Object]:
    """A gated Cluster is not deleted in the foreground.

    The garbage collector would delete everything the Cluster owns at once, and Cluster API's hook would be called
    afterwards. Orphaning deletes nothing, so it passes.
    """
    policy = {
        "paramKind": _SUMMARIES,
        "matchConstraints": {"resourceRules": [resource_rule(capi.CLUSTERS, "DELETE")]},
        # Cluster API calls no hook about a Cluster without ClusterClass: it is not gated.
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
    # Those in the namespace of the Cluster: a namespaced kind without a namespace here.
    return policy_and_binding(foreground_name(namespace), policy, paramRef=_ALL)


_NAMESPACE_HOLDS = (
    "'Namespace ' + oldObject.metadata.name + ' contains Cluster ' + params.spec.clusterName + ', which has add-ons"
    " that must be removed before it goes (ClusterSummary ' + params.metadata.name + '). Delete the Cluster first, and"
    f" wait until it is gone: kubectl delete cluster.{capi.CLUSTERS.group} ' + params.spec.clusterName"
    " + ' -n ' + oldObject.metadata.name"
)


def _not_with_clusters(namespace: str) -> list[Object]:
    """A Namespace with a gated Cluster is not deleted: everything in it would be deleted at once."""
    policy = {
        "paramKind": _SUMMARIES,
        "matchConstraints": {"resourceRules": [resource_rule(NAMESPACES, "DELETE")]},
        "variables": _SUMMARY,
        "validations": [
            {"expression": "!variables.gates", "messageExpression": _NAMESPACE_HOLDS, "reason": "Forbidden"}
        ],
    }
    # The API server takes the Namespace itself for the namespace of the request, so these are the summaries in it.
    return policy_and_binding(namespaces_name(namespace), policy, paramRef=_ALL)


def gate_policies(namespace: str) -> list[Object]:
    """All of them but the guard of the ExtensionConfig, which is applied right before that."""
    return [
        *_unmarked(namespace),
        *_unmarked_while_held(namespace),
        *_not_in_foreground(namespace),
        *_not_with_clusters(namespace),
    ]
