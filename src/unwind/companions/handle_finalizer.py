"""Lets go of a handle: removes Unwind's finalizer, and undoes what was written for a deletion that did not come.

The remover of a step writes both before its DELETE. If that is not sent, because the manager is killed or the handle
was changed concurrently, and the teardown ends some other way, the handle stays, and its deployer must act on it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import Finalizer
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import revise

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object


def release_patch(handle: Object, before_stay: Callable[[Object], Object]) -> Object | None:
    """The merge patch that lets go of a handle; None if there is nothing to do (pure). `before_stay`: the patch that
    restores one that stays. One that is being deleted does not."""
    meta = handle["metadata"]
    patch = {} if meta.get("deletionTimestamp") else dict(before_stay(handle))
    have = meta.get("finalizers") or []
    if Finalizer.HANDLE in have:
        left = [item for item in have if item != Finalizer.HANDLE]
        patch["metadata"] = patch.get("metadata", {}) | {"finalizers": left}
    return patch or None


async def release(client: Client, resource: Resource, handle: Object, before_stay: Callable[[Object], Object]) -> bool:
    """Let go of a handle that was just read. Returns whether it had to be changed."""
    return bool(await revise(client, resource, handle, lambda now: release_patch(now, before_stay)))


async def release_by_uid(
    client: Client, resource: Resource, meta: ObjectMeta, before_stay: Callable[[Object], Object]
) -> None:
    """Let go of the handle with this name and uid, if it is still there."""
    try:
        found = await client.get(resource, meta.name, namespace=meta.namespace or None)
    except NotFoundError:
        return
    if found["metadata"]["uid"] == meta.uid:
        await release(client, resource, found, before_stay)
