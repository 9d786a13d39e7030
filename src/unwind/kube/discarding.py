"""Deletes objects that only Unwind's own finalizer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client


async def discard(
    client: Client, resource: Resource, name: str, *, uid: str, finalizer: str, namespace: str | None = None
) -> None:
    """Delete exactly this object and remove Unwind's finalizer. Finalizers of other controllers stay."""
    try:
        # The response is the object as it waits for its finalizers, or a Status if it had none.
        found = await client.delete(resource, name, uid=uid, namespace=namespace)
        while found["kind"] == resource.kind and found["metadata"]["uid"] == uid:
            have = found["metadata"].get("finalizers") or []
            left = [one for one in have if one != finalizer]
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
