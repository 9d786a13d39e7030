"""Policies that guard Unwind's own objects: records, keys, Leases, registration, webhooks, kinds and namespace.

A cluster-admin counts as the manager (see `policies.BY_MANAGER`), and the accidents that matter most are a
cluster-admin's: `kubectl delete crd inventories.unwind.dev` would lose every record. So what is lost for ever is not
guarded by the manager's right alone. Records are deleted with a uid as precondition, which the manager always sends and
kubectl never does. Kinds and the namespace are not deleted at all while these policies are there: `unwind uninstall`
removes the policies first.

Policies do not apply to policies. The manager makes them again where they vanished (`controllers.protecting.keeping`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names, unwind
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import Contribution
from unwind.installing.addressing import CERTIFICATE, MANAGER
from unwind.installing.managers import LEASE_PREFIX
from unwind.installing.policies import BY_MANAGER, policy_and_binding, resource_rule
from unwind.installing.registration import REGISTRATION

if TYPE_CHECKING:
    from unwind.api.rights import Setting

Object = dict[str, Any]

_CREATE, _UPDATE, _DELETE = "CREATE", "UPDATE", "DELETE"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
# Of the object, and not of the request: the request has no name when a whole collection is deleted.
_IT = "(object != null ? object : oldObject)"
_NAME = f"{_IT}.metadata.?name.orValue('')"
_CALLED = f"request.kind.kind + ' ' + request.namespace + '/' + {_NAME}"
_BY_UID = "request.options.?preconditions.?uid.orValue('') != ''"
_IS_DELETE = f"request.operation == '{_DELETE}'"
_IS_INVENTORY = f"request.resource.group == '{unwind.GROUP}'"
_OURS = (
    f"{_IS_INVENTORY}"
    f" || (request.resource.resource == '{LEASES.plural}' && {_NAME}.startsWith('{LEASE_PREFIX}'))"
    f" || (request.resource.resource == '{CONFIG_MAPS.plural}' && {_NAME} == '{REGISTRATION}')"
    # Keys of the manager's. Its certificate may be another's, such as cert-manager's.
    f" || (request.resource.resource == '{SECRETS.plural}'"
    f" && {_NAME}.startsWith('{MANAGER}-') && {_NAME} != '{CERTIFICATE}')"
)
# Once the namespace goes, its controller clears it. Inventories have finalizers, and are not cleared.
_CLEARED = f"!({_IS_INVENTORY}) && {_IS_DELETE} && has(namespaceObject.metadata.deletionTimestamp)"
_OLD = "request.kind.kind + ' ' + oldObject.metadata.name"
_LOST = "Without its records, Unwind does not know what it deployed."
_MARKED = f"oldObject.metadata.?labels[?'{names.MANAGED_BY_LABEL}'].orValue('') == '{names.MANAGED_BY_UNWIND}'"
_GROUP = f"oldObject.metadata.name.endsWith('.{unwind.GROUP}')"
_SERVED = f"object.spec.versions.exists(version, version.name == '{unwind.INVENTORIES.version}' && version.served)"


def records_name(namespace: str) -> str:
    """The name of the policy that guards records, keys, Leases and the registration of a manager."""
    return f"{MANAGER}-records.{namespace}"


def kinds_name(namespace: str) -> str:
    """The name of the policy that guards the kinds, the namespace and the webhooks of a manager."""
    return f"{MANAGER}-kinds.{namespace}"


def _records(setting: Setting) -> list[Object]:
    """Only the manager writes its records, keys and Leases; records and keys are deleted by their uid only."""
    spec = {
        "matchConstraints": {
            # Before any CEL: Leases and ConfigMaps are written all the time, in other namespaces.
            "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: setting.namespace}},
            "resourceRules": [
                resource_rule(unwind.INVENTORIES, _CREATE, _UPDATE, _DELETE),
                resource_rule(LEASES, _CREATE, _UPDATE, _DELETE),
                resource_rule(CONFIG_MAPS, _UPDATE, _DELETE),
                resource_rule(SECRETS, _CREATE, _UPDATE, _DELETE),
            ],
        },
        "matchConditions": [
            {"name": "ours", "expression": _OURS},
        ],
        "validations": [
            {
                "expression": f"{BY_MANAGER} || ({_CLEARED})",
                "messageExpression": f"{_CALLED} + ' is written by Unwind only'",
                "reason": "Forbidden",
            },
            {
                "expression": f"!({_IS_DELETE}) || request.resource.resource == '{LEASES.plural}' || {_BY_UID}"
                f" || ({_CLEARED})",
                "messageExpression": f"{_CALLED} + ' is a record of Unwind. {_LOST} To delete it all the same, send its"
                " uid as a precondition; to remove Unwind, use `unwind uninstall`'",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_and_binding(records_name(setting.namespace), spec)


def _kinds(setting: Setting) -> list[Object]:
    """The kinds and the namespace stay until Unwind is uninstalled; its webhooks are changed by it only."""
    is_kind, is_namespace = (
        f"request.resource.resource == '{resource.plural}'" for resource in (CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES)
    )
    webhooks = (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)
    spec = {
        "matchConstraints": {
            "resourceRules": [
                resource_rule(CUSTOM_RESOURCE_DEFINITIONS, _UPDATE, _DELETE),
                resource_rule(NAMESPACES, _DELETE),
                *(resource_rule(kind, _UPDATE, _DELETE) for kind in webhooks),
            ],
        },
        "matchConditions": [
            {
                "name": "ours",
                "expression": f"{is_kind} ? ({_GROUP} || {_MARKED})"
                f" : {is_namespace} ? oldObject.metadata.name == '{setting.namespace}'"
                f" : oldObject.metadata.name.startsWith('{MANAGER}-')"
                f" && oldObject.metadata.name.endsWith('.{setting.namespace}')",
            },
        ],
        "validations": [
            {
                "expression": f"!({_IS_DELETE}) || !({is_kind} || {is_namespace})",
                "messageExpression": f"{_OLD} + ' holds the records of Unwind. {_LOST} To remove Unwind, use `unwind"
                " uninstall`'",
                "reason": "Forbidden",
            },
            {
                "expression": BY_MANAGER,
                "messageExpression": f"{_OLD} + ' is changed by Unwind only'",
                "reason": "Forbidden",
            },
            {
                "expression": f"!({_IS_DELETE}) || {is_kind} || {is_namespace} || {_BY_UID}",
                "messageExpression": f"{_OLD} + ' has the API server ask Unwind. To delete it all the same, send its"
                " uid as a precondition; to remove Unwind, use `unwind uninstall`'",
                "reason": "Forbidden",
            },
            {
                "expression": f"{_IS_DELETE} || !({is_kind}) || !({_GROUP}) || {_SERVED}",
                "messageExpression": f"{_OLD} + ' must go on serving version {unwind.INVENTORIES.version}: Unwind reads"
                " its records by it'",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_and_binding(kinds_name(setting.namespace), spec)


def _manifests(setting: Setting) -> list[Object]:
    return [*_records(setting), *_kinds(setting)]


GUARDING = Contribution(
    name="guarding",
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)
