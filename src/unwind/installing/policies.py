"""Common parts of Unwind's admission policies: policy with binding, resource rules, CEL check for the manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import unwind
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import Right

if TYPE_CHECKING:
    from unwind.api.resources import Resource

Object = dict[str, Any]

MANAGE = Right(unwind.GROUP, (unwind.TEARDOWNS.plural,), ("manage",))
"""The custom verb that makes a user the manager. Only the manager's role grants it."""
BY_MANAGER = f"authorizer.group('{unwind.GROUP}').resource('{unwind.TEARDOWNS.plural}').check('manage').allowed()"
"""CEL: whether the request comes from a manager. Several managers may share a cluster, so no user name is compared.

A user with the verb `*` on everything (cluster-admin) counts as the manager, too: such a user could do all of it
without Unwind.
"""


def policy_and_binding(name: str, spec: Object, **binding: Any) -> list[Object]:
    """A ValidatingAdmissionPolicy that fails closed, and the binding that makes it deny.

    The API server's defaults are written out, because the manager compares existing policies with this.
    """
    defaults = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    return [
        _object(VALIDATING_ADMISSION_POLICIES, name)
        | {"spec": {"failurePolicy": "Fail"} | spec | {"matchConstraints": defaults | spec["matchConstraints"]}},
        _object(VALIDATING_ADMISSION_POLICY_BINDINGS, name)
        | {"spec": {"policyName": name, "validationActions": ["Deny"]} | binding},
    ]


def resource_rule(resource: Resource, *operations: str) -> Object:
    """The rule that matches requests for a resource, in every version."""
    return {
        "apiGroups": [resource.group],
        "apiVersions": ["*"],
        "resources": [resource.plural],
        "operations": list(operations),
        "scope": "*",
    }


def _object(resource: Resource, name: str) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
