"""Objects of earlier versions, and of features that are no longer installed: refuse while they are in use, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, features
from unwind.api.features import Feature
from unwind.api.names import MACHINE_GATE_ANNOTATION, PAUSED_ANNOTATION, PAUSED_BY_GATE, Finalizer
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.unwind import TEARDOWNS
from unwind.errors import UnwindError
from unwind.install import existing_objects
from unwind.install.existing_objects import look
from unwind.install.manifests import called, everything, resource_of
from unwind.server.manager_names import MANAGER, granted_role, is_ours, with_install_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.features import Features
    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.api.rights import Setting
    from unwind.kube.client import Client

Object = dict[str, Any]

_ROLES = (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES)
_FINALIZERS = {
    Finalizer.PROFILE: frozenset({Feature.ADDONS}),
    Finalizer.SUMMARY: frozenset({Feature.ADDONS}),
    Finalizer.MEMBER: frozenset({Feature.KARMADA}),
    Finalizer.WORK: frozenset({Feature.KARMADA}),
    Finalizer.EXTERNAL: frozenset({Feature.EXTERNAL}),
    Finalizer.CREDENTIALS: frozenset({Feature.ADDONS, Feature.KARMADA}),
    Finalizer.HANDLE: features.COMPANIONS,
}
"""The features whose controllers remove a finalizer."""
_SHOWN = 5


def retired_rights(setting: Setting) -> list[Object]:
    """What version 0.1.0 installed and this one does not: its rules are in the roles of the features."""
    names = (f"{MANAGER}-{name}:{setting.namespace}" for name in ("profiles", "gate"))
    return [with_install_labels(manifest) for name in names for manifest in granted_role(setting, name, rules=[])]


async def refuse_in_use(client: Client, setting: Setting, before: Features) -> None:
    """Raise UnwindError if an object still needs a feature that is removed."""
    if not (removed := before - setting.features):
        return
    ends = {finalizer for finalizer, by in _FINALIZERS.items() if by & removed and not by & setting.features}
    held = [
        f"{resource.kind} {it.namespace}/{it.name}" if it.namespace else f"{resource.kind} {it.name}"
        for kind in await existing_objects.served_kinds(client)
        for resource, it in await existing_objects.bearers(client, kind, existing_objects.our_finalizers)
        if ends & set(it.finalizers)
    ]
    if Feature.GATES in removed:
        held += await _held_by_gates(client)
    if Feature.CAPI in removed:
        running = await existing_objects.unfinished_teardowns(client)
        held += [
            f"{TEARDOWNS.kind} {item.metadata.name}"
            for item in running
            if item.spec.target.group == capi.CLUSTERS.group
        ]
    if held:
        shown = ", ".join(held[:_SHOWN]) + (f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")
        raise UnwindError(
            f"cannot remove feature {features.written(removed)}: Unwind still holds {shown}",
            remedy="delete them and wait until they are gone (Machines: choose another gate in TeardownPolicies), or"
            f" install with --features {features.written(before | setting.features)}",
        )


async def _held_by_gates(client: Client) -> list[str]:
    """Machines and Clusters that Cluster API would never delete, because nothing removes our annotation any more."""
    marks: dict[tuple[str, str], Callable[[ObjectMeta], bool]] = {
        (capi.MACHINES.group, capi.MACHINES.plural): lambda it: MACHINE_GATE_ANNOTATION in it.annotations,
        (capi.CLUSTERS.group, capi.CLUSTERS.plural): lambda it: it.annotations.get(PAUSED_ANNOTATION) == PAUSED_BY_GATE,
    }
    return [
        f"{resource.kind} {it.namespace}/{it.name}"
        for kind in await existing_objects.served_kinds(client)
        if (mark := marks.get((kind.resource.group, kind.resource.plural)))
        for resource, it in await existing_objects.bearers(client, kind, mark)
    ]


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
