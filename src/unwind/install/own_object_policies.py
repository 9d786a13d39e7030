"""Admission policies that guard Unwind's own objects: records, keys, Leases, registration, webhooks, CRDs, namespace.

A cluster-admin counts as the manager (`api.admission.BY_MANAGER`), and the most likely accidents are a cluster-admin's:
`kubectl delete crd inventories.unwind.dev` would lose every record. So the manager's right alone does not guard what
cannot be recovered. Deleting a record requires its uid as precondition, which the manager always sends and kubectl
never does. CRDs and the namespace cannot be deleted at all while these policies exist: `unwind uninstall` removes the
policies first.

Policies do not apply to policies. The manager restores deleted ones (`protection.controller`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names, unwind
from unwind.api.admission import BY_MANAGER, policy_and_binding, resource_rule
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
from unwind.api.rights import READ, Contribution, Right
from unwind.install.running_managers import LEASE_PREFIX
from unwind.server.manager_names import CERTIFICATE, MANAGER, REGISTRATION, manager_object

if TYPE_CHECKING:
    from unwind.api.rights import Setting

Object = dict[str, Any]

_CREATE, _UPDATE, _DELETE = "CREATE", "UPDATE", "DELETE"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
# The name of the object, not of the request, which is empty for deletecollection.
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
    # The manager's keys. Its certificate may be written by another controller, such as cert-manager.
    f" || (request.resource.resource == '{SECRETS.plural}'"
    f" && {_NAME}.startsWith('{MANAGER}-') && {_NAME} != '{CERTIFICATE}')"
)
# The namespace controller may delete the content of a terminating namespace, except Inventories, which have finalizers.
_CLEARED = f"!({_IS_INVENTORY}) && {_IS_DELETE} && has(namespaceObject.metadata.deletionTimestamp)"
_OLD = "request.kind.kind + ' ' + oldObject.metadata.name"
_LOST = "Without its records, Unwind does not know what it deployed."
_MARKED = " || ".join(
    f"oldObject.metadata.?labels[?'{label}'].orValue('') == '{names.MANAGED_BY_UNWIND}'"
    # Helm replaces the value of the first.
    for label in (names.MANAGED_BY_LABEL, names.PART_OF_LABEL)
)
_GROUP = f"oldObject.metadata.name.endsWith('.{unwind.GROUP}')"
_SERVED = f"object.spec.versions.exists(version, version.name == '{unwind.INVENTORIES.version}' && version.served)"


records_name = manager_object("records")
"""The name of the policy that guards records, keys, Leases and the registration of a manager."""
kinds_name = manager_object("kinds")
"""The name of the policy that guards the kinds, the namespace and the webhooks of a manager."""


def _records(setting: Setting) -> list[Object]:
    """Only the manager writes its records, keys and Leases; deleting records and keys requires their uid."""
    spec = {
        "matchConstraints": {
            # Matched before any CEL, because Leases and ConfigMaps of other namespaces are written all the time.
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
                "messageExpression": f"{_CALLED} + ' can be written by Unwind only. Leave it as it is; to remove"
                " Unwind, use `unwind uninstall`'",
                "reason": "Forbidden",
            },
            {
                "expression": f"!({_IS_DELETE}) || request.resource.resource == '{LEASES.plural}' || {_BY_UID}"
                f" || ({_CLEARED})",
                "messageExpression": f"{_CALLED} + ' is a record of Unwind. {_LOST} To delete it anyway, send its uid"
                " as a precondition; to remove Unwind, use `unwind uninstall`'",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_and_binding(records_name(setting.namespace), spec)


def _kinds(setting: Setting) -> list[Object]:
    """Unwind's CRDs and namespace cannot be deleted until uninstall; only Unwind changes its webhook configurations."""
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
                "messageExpression": f"{_OLD} + ' contains the records of Unwind. {_LOST} To remove Unwind, use `unwind"
                " uninstall`'",
                "reason": "Forbidden",
            },
            {
                "expression": BY_MANAGER,
                "messageExpression": f"{_OLD} + ' can be changed by Unwind only. Use `unwind install` to update it'",
                "reason": "Forbidden",
            },
            {
                "expression": f"!({_IS_DELETE}) || {is_kind} || {is_namespace} || {_BY_UID}",
                "messageExpression": f"{_OLD} + ' registers the webhooks of Unwind. To delete it anyway, send its"
                " uid as a precondition; to remove Unwind, use `unwind uninstall`'",
                "reason": "Forbidden",
            },
            {
                "expression": f"{_IS_DELETE} || !({is_kind}) || !({_GROUP}) || {_SERVED}",
                "messageExpression": f"{_OLD} + ' must serve version {unwind.INVENTORIES.version}: Unwind reads"
                " its records in this version'",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_and_binding(kinds_name(setting.namespace), spec)


def _manifests(setting: Setting) -> list[Object]:
    return [*_records(setting), *_kinds(setting)]


GUARDING = Contribution(
    name="guarding",
    everywhere=(
        Right(
            VALIDATING_ADMISSION_POLICIES.group,
            tuple(
                kind.plural
                for kind in (
                    VALIDATING_ADMISSION_POLICIES,
                    VALIDATING_ADMISSION_POLICY_BINDINGS,
                    VALIDATING_WEBHOOK_CONFIGURATIONS,
                )
            ),
            READ,
            why="Watches its policies and webhooks, to restore them if they are changed or deleted.",
        ),
    ),
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)
