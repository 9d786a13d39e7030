"""Refuses to remove a feature while an object still needs it, such as its finalizer or its hold on a Machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import capi, features
from unwind.api.features import Feature
from unwind.api.names import MACHINE_GATE_ANNOTATION, PAUSED_ANNOTATION, PAUSED_BY_GATE, Finalizer
from unwind.api.unwind import TEARDOWNS
from unwind.errors import UnwindError
from unwind.install import existing_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.features import Features
    from unwind.api.meta import ObjectMeta
    from unwind.api.rights import Setting
    from unwind.kube.client import Client

_FINALIZERS = {
    Finalizer.PROFILE: frozenset({Feature.ADDONS}),
    Finalizer.SUMMARY: frozenset({Feature.ADDONS}),
    Finalizer.MEMBER: frozenset({Feature.KARMADA}),
    Finalizer.WORK: frozenset({Feature.KARMADA}),
    Finalizer.EXTERNAL: frozenset({Feature.EXTERNAL}),
    Finalizer.CREDENTIALS: frozenset({Feature.ADDONS, Feature.KARMADA}),
    Finalizer.HANDLE: features.COMPANIONS,
    Finalizer.COPIED_KUBECONFIG: features.COMPANIONS,
}
"""The features whose controllers remove a finalizer."""
_SHOWN = 5


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
