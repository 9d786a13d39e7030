"""Objects of earlier versions, and of features that are no longer installed: an install deletes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import features
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CUSTOM_RESOURCE_DEFINITIONS
from unwind.install.existing_objects import look
from unwind.install.manifests import called, everything, resource_of
from unwind.server.manager_names import MANAGER, granted_role, is_ours, with_install_labels

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.api.rights import Setting
    from unwind.kube.client import Client

Object = dict[str, Any]

_ROLES = (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES)


def retired_rights(setting: Setting) -> list[Object]:
    """What version 0.1.0 installed and this one does not: its rules are in the roles of the features."""
    names = (f"{MANAGER}-{name}:{setting.namespace}" for name in ("profiles", "gate"))
    return [with_install_labels(manifest) for name in names for manifest in granted_role(setting, name, rules=[])]


async def find_obsolete(client: Client, setting: Setting) -> list[tuple[Resource, Object]]:
    """The objects to delete, in order: first the rights, so that a running manager does not restore the others."""
    kept = {_key(manifest) for manifest in everything(setting)}
    whole = everything(msgspec.structs.replace(setting, features=features.ALL))
    found: list[tuple[Resource, Object]] = []
    for manifest in (*retired_rights(setting), *reversed(whole)):
        # CRDs stay: their objects are user data.
        if _key(manifest) in kept or resource_of(manifest) == CUSTOM_RESOURCE_DEFINITIONS:
            continue
        there = await look(client, manifest)
        if there.existing is not None and is_ours(there.existing):
            found.append((there.resource, there.existing))
    return sorted(found, key=lambda one: one[0] not in _ROLES)


def _key(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], called(manifest)
