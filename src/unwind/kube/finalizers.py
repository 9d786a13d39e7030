"""Adds and removes Unwind's finalizers, and leaves those of other controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import revise

if TYPE_CHECKING:
    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object


async def set_finalizer(
    client: Client, resource: Resource, meta: ObjectMeta, finalizer: str, *, wanted: bool
) -> Object | None:
    """Add or remove a finalizer of the object with this metadata; returns the object if it had to be changed."""
    read: Object = {
        "name": meta.name,
        "namespace": meta.namespace or None,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": list(meta.finalizers),
    }

    def change(now: Object) -> Object | None:
        have = now["metadata"].get("finalizers") or []
        if (finalizer in have) is wanted:
            return None
        left = [item for item in have if item != finalizer]
        return {"metadata": {"finalizers": [*left, str(finalizer)] if wanted else left}}

    return await revise(client, resource, {"metadata": read}, change)


async def discard(
    client: Client, resource: Resource, name: str, *, uid: str, finalizer: str, namespace: str | None = None
) -> None:
    """Delete exactly this object and remove Unwind's finalizer. Finalizers of other controllers stay."""
    try:
        # The response is the object as it waits for its finalizers, or a Status if it had none.
        found = await client.delete(resource, name, uid=uid, namespace=namespace)
        while found["kind"] == resource.kind and found["metadata"]["uid"] == uid:
            have = found["metadata"].get("finalizers") or []
            left = [item for item in have if item != finalizer]
            if left == have:
                return
            try:
                found = await client.revise(resource, found, {"metadata": {"finalizers": left}})
            except ConflictError:
                found = await client.get(resource, name, namespace=namespace)
            else:
                return
    except (NotFoundError, ConflictError):
        pass  # another client was faster, or the name belongs to another object by now
