"""Rights and the admission policy for Teardowns and Inventories.

The admission policy on Teardowns: only the manager writes records, and a request needs the requester's own rights.

The manager runs a request with its own rights. So the API server checks each request against the rights of the user who
creates it, by a ValidatingAdmissionPolicy: it needs no webhook to be available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import caaph, capi, flux, karmada, names, sveltos, unwind
from unwind.api.admission import BY_MANAGER, MANAGE, policy_and_binding, resource_rule
from unwind.api.annotation_values import VolumePolicy
from unwind.api.resources import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from unwind.api.rights import READ, Contribution, Right
from unwind.api.unwind import REASON_LENGTH, Cause, Phase
from unwind.server.manager_names import manager_object

if TYPE_CHECKING:
    from unwind.api.rights import Setting


_TARGET = "object.spec.target"
_GROUP, _NAMESPACE, _UID = (f"{_TARGET}.?{field}.orValue('')" for field in ("group", "namespace", "uid"))
_ANNOTATIONS, _LABELS = (f"{{}}.metadata.?{field}.orValue({{{{}}}})" for field in ("annotations", "labels"))
_BY = "{}.spec.?requestedBy.orValue('')"
RESOURCE_NAME = "^[a-z][a-z0-9-]*$"
"""The resources that a request may name. No subresource (pods/exec) and no wildcard: RBAC rules that match those mean
something else."""
_AS_SUCH = " || ".join(
    f"({_GROUP} == '{kind.group}' && {_TARGET}.kind == '{kind.kind}')"
    for kind in (
        capi.CLUSTERS,
        sveltos.SVELTOS_CLUSTERS,
        karmada.CLUSTERS,
        sveltos.CLUSTER_PROFILES,
        sveltos.PROFILES,
    )
)
# The API server authorises the deletion of a Namespace in that namespace. The scope of other kinds is unknown
# here: the manager verifies by discovery that a target has a namespace if, and only if, its kind is namespaced.
_WHERE = f"{_GROUP} == '{NAMESPACES.group}' && {_TARGET}.kind == '{NAMESPACES.kind}' ? {_TARGET}.name : {_NAMESPACE}"
_ENTITLED = (
    f"variables.resource.matches('{RESOURCE_NAME}')"
    f" && authorizer.group({_GROUP}).resource(variables.resource).namespace({_WHERE})"
    f".name({_TARGET}.name).check('delete').allowed()"
)
_MAY_DELETE_CLAIMS = (
    f"authorizer.group('').resource('{PERSISTENT_VOLUME_CLAIMS.plural}').namespace({_WHERE}).check('delete').allowed()"
)
# The manager holds a handle of a deployer with a finalizer, and tells its parent not to apply it.
_IS_HANDLE = " || ".join(
    f"({_GROUP} == '{kind.group}' && {_TARGET}.kind == '{kind.kind}')"
    for kind in (flux.KUSTOMIZATIONS, flux.HELM_RELEASES, caaph.HELM_RELEASE_PROXIES)
)
_MAY_PATCH = _ENTITLED.replace("check('delete')", "check('patch')")
_FINISHED = [phase.value for phase in Phase if phase.finished]
_REASON = f"[?'{names.CANCEL_REASON_ANNOTATION}']"
_REASON_BY = f"[?'{names.CANCEL_REASON_BY_ANNOTATION}']"
_VARIABLES = {
    "new": "request.operation == 'CREATE'",
    "gone": "request.operation == 'DELETE'",
    "it": "request.operation == 'DELETE' ? oldObject : object",
    "requested": f"variables.it.spec.?cause.orValue('') == '{Cause.REQUESTED.value}'",
    "manager": BY_MANAGER,
    "said": f"{_ANNOTATIONS.format('variables.it')}[?'{names.RESOURCE_ANNOTATION}'].orValue('')",
    # The Cluster stays, and what its deletion would drain is drained. So the right to delete the Cluster is needed.
    "drains": f"variables.said == '{names.DRAIN_RESOURCE}'"
    f" && variables.it.spec.target.?group.orValue('') == '{capi.CLUSTERS.group}'"
    f" && variables.it.spec.target.kind == '{capi.CLUSTERS.kind}'",
    "resource": f"variables.drains ? '{capi.CLUSTERS.plural}' : variables.said",
    "volumes": f"{_ANNOTATIONS.format('variables.it')}[?'{names.VOLUMES_ANNOTATION}'].orValue('')",
    "asks": "variables.new && variables.requested",
    # Whoever may delete the target may also keep it.
    "cancels": f"{_BY.format('variables.it')} == request.userInfo.username"
    f" || ({_ENTITLED.replace(_TARGET, 'variables.it.spec.target')})",
    "explains": "request.operation == 'UPDATE' && ("
    + " || ".join(
        " != ".join(f"{_ANNOTATIONS.format(it)}{key}" for it in ("object", "oldObject"))
        for key in (_REASON, _REASON_BY)
    )
    + ")",
}

_OF_CANCELLATIONS = (names.CANCEL_REASON_ANNOTATION, names.CANCEL_REASON_BY_ANNOTATION)
_OF_REQUESTS = (names.RESOURCE_ANNOTATION, names.MAX_OBJECTS_ANNOTATION, names.VOLUMES_ANNOTATION)


def _same(field: str, *other: str) -> str:
    """CEL: the update changes none of Unwind's own annotations or labels, except those with a rule of their own."""
    now, before = field.format("object"), field.format("oldObject")
    ours = f"(k.startsWith('{names.PREFIX}') && !(k in {list(other)}))" if other else f"k.startsWith('{names.PREFIX}')"
    return (
        f"{now}.all(k, !{ours} || (k in {before} && {before}[k] == {now}[k])) && {before}.all(k, !{ours} || k in {now})"
    )


def _only(field: str, *allowed: str) -> str:
    """CEL: a new object carries none of Unwind's own annotations or labels except these."""
    return f"{field.format('object')}.all(k, !k.startsWith('{names.PREFIX}') || k in {list(allowed)})"


_FINALIZERS = "{}.metadata.?finalizers.orValue([])"
_SAME_FINALIZER = " == ".join(
    f"('{names.Finalizer.TEARDOWN}' in {_FINALIZERS.format(it)})" for it in ("object", "oldObject")
)
"""CEL: the update neither adds nor removes the finalizer."""


def _rule(expression: str, message: str) -> dict[str, Any]:
    """`message`: a CEL expression."""
    return {"expression": expression, "messageExpression": message, "reason": "Forbidden"}


_RULES = [
    _rule(
        "!variables.new || variables.requested || variables.manager",
        "'only the manager creates Teardowns with cause ' + variables.it.spec.?cause.orValue('')"
        f" + '; to request a deletion, use cause {Cause.REQUESTED.value}'",
    ),
    _rule(
        # The records of the manager have other names, so that no request can take the name of one.
        f"!variables.new || variables.requested == object.metadata.name.startsWith('{names.REQUEST_PREFIX}')",
        f"'Teardown ' + object.metadata.name + ': names that begin with {names.REQUEST_PREFIX} are for cause"
        f" {Cause.REQUESTED.value}, and only for that'",
    ),
    _rule("!variables.asks || !has(object.spec.plan)", "'only the manager writes spec.plan: leave it out'"),
    _rule(
        f"!variables.asks || {_BY.format('object')} == request.userInfo.username",
        f"'spec.requestedBy is ' + {_BY.format('object')} + ', but the user is ' + request.userInfo.username"
        " + ': set it to this user'",
    ),
    _rule(
        f"!variables.asks || variables.drains || !({_AS_SUCH})",
        f"'cannot request deletion of ' + {_TARGET}.kind + ': delete the object itself with kubectl'",
    ),
    _rule(f"!variables.asks || {_UID} != ''", "'spec.target.uid is required: a request is for exactly one object'"),
    _rule(
        f"!variables.asks || ({_ENTITLED})",
        f"request.userInfo.username + ' may not delete ' + {_TARGET}.kind + ' ' + {_TARGET}.name"
        f" + ' (annotation {names.RESOURCE_ANNOTATION}: ' + variables.said + '): ask an administrator for the right'",
    ),
    _rule(
        f"!variables.asks || !({_IS_HANDLE}) || ({_MAY_PATCH})",
        f"request.userInfo.username + ' may not patch ' + {_TARGET}.kind + ' ' + {_TARGET}.name"
        " + ', which an orderly deletion of it requires: ask an administrator for the right'",
    ),
    _rule(
        f"!variables.asks || variables.volumes in ['', '{VolumePolicy.RETAIN}']"
        f" || (variables.volumes == '{VolumePolicy.DELETE}' && {_MAY_DELETE_CLAIMS})",
        f"request.userInfo.username + ' may not set {names.VOLUMES_ANNOTATION}: ' + variables.volumes"
        f" + ' (known: {VolumePolicy.DELETE}, {VolumePolicy.RETAIN}; {VolumePolicy.DELETE} requires the right to delete"
        f" {PERSISTENT_VOLUME_CLAIMS.plural} there)'",
    ),
    _rule(
        "!variables.new || variables.manager"
        f" || (!has(object.metadata.ownerReferences) && {_only(_LABELS)}"
        f" && {_only(_ANNOTATIONS, *_OF_REQUESTS)})",
        f"'a request must not have ownerReferences, nor labels or annotations {names.PREFIX}* other than"
        f" {', '.join(_OF_REQUESTS)}: remove them'",
    ),
    _rule(
        "request.operation != 'UPDATE' || variables.manager || (object.spec == oldObject.spec"
        " && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
        f" && {_same(_LABELS)} && {_same(_ANNOTATIONS, *_OF_CANCELLATIONS)} && {_SAME_FINALIZER})",
        "'only the manager changes the spec, the ownerReferences, and the labels, annotations and finalizers"
        f" {names.PREFIX}* of a Teardown: request another deletion with `unwind delete`'",
    ),
    _rule(
        # The manager records this text with its author, and decides nothing by it.
        "!variables.explains || (variables.requested && variables.cancels"
        f" && !(oldObject.?status.?phase.orValue('') in {_FINISHED})"
        f" && {_ANNOTATIONS.format('object')}{_REASON}.orValue('') != ''"
        f" && size({_ANNOTATIONS.format('object')}{_REASON}.orValue('')) <= {REASON_LENGTH}"
        f" && {_ANNOTATIONS.format('object')}{_REASON_BY}.orValue('') == request.userInfo.username)",
        f"'cannot set {names.CANCEL_REASON_ANNOTATION} of Teardown ' + object.metadata.name + ': it must be an"
        " unfinished request; the user must be its requester or have the right to delete its target;"
        f" {names.CANCEL_REASON_BY_ANNOTATION} must be ' + request.userInfo.username + '; and the reason must have 1 to"
        f" {REASON_LENGTH} characters'",
    ),
    _rule(
        # The ledger of objects left behind is stored in inventories that are deleted with the record.
        "!variables.gone || variables.manager"
        " || (variables.requested && variables.cancels"
        f" && !(oldObject.?status.?phase.orValue('') in {_FINISHED} && oldObject.?status.?left.orValue(0) > 0))",
        "'Teardown ' + oldObject.metadata.name + ' is a record: only the manager deletes it. '"
        f" + (variables.requested ? 'A request may be cancelled by its requester (' + {_BY.format('oldObject')}"
        " + '), and by users who may delete its target; a finished request with a ledger stays'"
        " : 'The deletion of ' + oldObject.spec.target.kind + ' ' + oldObject.spec.target.name"
        " + ' cannot be cancelled')",
    ),
]


requests_name = manager_object("requests")
"""The name of the policy on Teardowns; one per manager."""


def _manifests(setting: Setting) -> list[dict[str, Any]]:
    policy = {
        # Not the status subresource: RBAC guards it, and no role for users grants it.
        "matchConstraints": {"resourceRules": [resource_rule(unwind.TEARDOWNS, "CREATE", "UPDATE", "DELETE")]},
        "variables": [{"name": name, "expression": expression} for name, expression in _VARIABLES.items()],
        "validations": _RULES,
    }
    return policy_and_binding(requests_name(setting.namespace), policy)


REQUESTS = Contribution(
    name="requests",
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)


# The rights that the manager needs for its records: Teardowns and Inventories.

RECORDS = Contribution(
    name="records",
    everywhere=(
        Right(
            unwind.GROUP,
            ("teardowns",),
            (*READ, "create", "patch", "delete"),
            why="Records each deletion in a Teardown, and deletes old records.",
        ),
        Right(unwind.GROUP, ("teardowns/status",), ("patch",), why="Reports progress and blockers."),
        MANAGE,
    ),
    at_home=(
        Right(
            unwind.GROUP,
            ("inventories",),
            ("get", "list", "create", "patch", "delete"),
            why="Records what was deployed, and what was left behind.",
        ),
    ),
)
