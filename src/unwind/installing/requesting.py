"""What keeps requests to delete something honest: who asks is who they say, and has the right to it themselves.

The manager deletes for them, with rights that they may not have. So the API server holds each request against the
rights of who makes it, by a policy: no webhook has to be there for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, karmada, names, sveltos, unwind
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import Contribution
from unwind.api.unwind import Cause
from unwind.installing.addressing import MANAGER
from unwind.installing.policies import policy_and_binding, resource_rule

if TYPE_CHECKING:
    from unwind.api.rights import Setting

_TARGET = "object.spec.target"
_GROUP, _NAMESPACE = (f"{_TARGET}.?{field}.orValue('')" for field in ("group", "namespace"))
_RESOURCE, _RESOURCE_BEFORE = (
    f"{of}.metadata.?annotations[?'{names.RESOURCE_ANNOTATION}'].orValue('')" for of in ("object", "oldObject")
)
_IS_NEW = "request.operation == 'CREATE'"
_BY = "object.spec.?requestedBy.orValue('')"
_ENTITLED = (
    f"authorizer.group({_GROUP}).resource({_RESOURCE}).namespace({_NAMESPACE})"
    f".name({_TARGET}.name).check('delete').allowed()"
)
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


def requests_name(namespace: str) -> str:
    """What the policy is called that looks at requests: one for each manager."""
    return f"{MANAGER}-requests.{namespace}"


def _manifests(setting: Setting) -> list[dict[str, Any]]:
    name = requests_name(setting.namespace)
    validations = [
        {
            # What it is about is frozen by the kind itself; who asked for it is frozen here.
            "expression": f"{_IS_NEW} ? {_BY} == request.userInfo.username"
            f" : {_BY} == oldObject.spec.?requestedBy.orValue('')",
            "messageExpression": f"'spec.requestedBy is ' + {_BY} + ', and not ' + request.userInfo.username",
            "reason": "Forbidden",
        },
        {
            "expression": f"!({_IS_NEW}) || !({_AS_SUCH})",
            "messageExpression": f"'a ' + {_TARGET}.kind + ' is deleted as such: its controllers do the rest'",
            "reason": "Forbidden",
        },
        {
            # By this word rights are asked for, so it stays what it was when they were.
            "expression": f"{_IS_NEW} ? {_RESOURCE} != '' && {_ENTITLED} : {_RESOURCE} == {_RESOURCE_BEFORE}",
            "messageExpression": f"request.userInfo.username + ' may not delete ' + {_TARGET}.kind + ' '"
            f" + {_TARGET}.name + ' (annotation {names.RESOURCE_ANNOTATION}: ' + {_RESOURCE} + ')'",
            "reason": "Forbidden",
        },
    ]
    policy = {
        "matchConstraints": {"resourceRules": [resource_rule(unwind.TEARDOWNS, "CREATE", "UPDATE")]},
        "matchConditions": [
            {"name": "asked-for", "expression": f"object.spec.?cause.orValue('') == '{Cause.REQUESTED.value}'"}
        ],
        "validations": validations,
    }
    return policy_and_binding(name, policy)


REQUESTS = Contribution(
    name="requests",
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)
