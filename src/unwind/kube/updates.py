"""Writes to objects that others change too: compare-and-swap, merge patches, finalizers, and which field manager wrote
a field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import UNKNOWN_USER
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unwind.api.meta import NamedObject, ObjectMeta
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

UNKNOWN = "unknown"
WORTH_TELLING = 0.5
"""Seconds that a wait has to last before a status reports it."""
IN_TIME = 2.0
"""Seconds after which a status reports what is not urgent."""
# Every conflict means that another client wrote the object. After so many in a row, the caller retries later.
_TRIES = 8


async def revise(
    client: Client,
    resource: Resource,
    read: Object,
    change: Callable[[Object], Object | None],
    *,
    subresource: str | None = None,
) -> Object | None:
    """The object with a change made to it; None if there was nothing to change, or it is gone.

    `change` makes a merge patch of the object as it is, or None. It is called again with what another client wrote
    meanwhile, and never with another object of the same name. Raises NotFoundError if the object is there and has
    no such subresource.
    """
    metadata = read["metadata"]
    tries = _TRIES
    while True:
        patch = change(read)
        if patch is None:
            return None
        try:
            return await client.revise(resource, read, patch, subresource=subresource)
        except (ConflictError, NotFoundError) as refusal:
            tries -= 1
            try:
                read = await client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
            except NotFoundError:
                return None
            if read["metadata"]["uid"] != metadata["uid"]:
                return None
            if not tries or isinstance(refusal, NotFoundError):
                raise


def cached(meta: ObjectMeta) -> Object:
    """An object of a cache, for `revise`: if the cache is stale, the patch fails with a conflict and is made again."""
    read: Object = {
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": list(meta.finalizers),
    }
    return {"metadata": read | {"namespace": meta.namespace} if meta.namespace else read}


async def annotate(
    client: Client, resource: Resource, meta: NamedObject, annotations: Mapping[str, str | None], *, field_manager: str
) -> None:
    """Set annotations of the object with this uid, or remove those that are None. Nothing if it is gone, or if another
    client writes it: either comes as an event."""
    patch = {"metadata": {"uid": meta.uid, "annotations": annotations}}
    try:
        await client.patch(resource, meta.name, patch, namespace=meta.namespace, field_manager=field_manager)
    except (NotFoundError, ConflictError):
        return


async def set_finalizer(
    client: Client, resource: Resource, meta: ObjectMeta, finalizer: str, *, wanted: bool
) -> Object | None:
    """Add or remove a finalizer of the object with this metadata; returns the object if it had to be changed."""

    def change(now: Object) -> Object | None:
        have = now["metadata"].get("finalizers") or []
        if (finalizer in have) is wanted:
            return None
        left = [item for item in have if item != finalizer]
        return {"metadata": {"finalizers": [*left, str(finalizer)] if wanted else left}}

    return await revise(client, resource, cached(meta), change)


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


def who_set(obj: Object, annotation: str) -> str:
    """The field manager that set an annotation last: a program, not a user."""
    return who_wrote(obj, "metadata", "annotations", annotation)


def not_seen(field_manager: str) -> str:
    """The text for an unknown user, with the field manager as a hint."""
    return f"{UNKNOWN_USER} (field manager {field_manager})"


def who_wrote(obj: Object, *path: str) -> str:
    """The field manager that wrote a field last; UNKNOWN if the API server does not track it: it does not for an
    object that was created without any field."""
    writers = [
        (field.get("time", ""), field.get("manager", ""))
        for field in obj["metadata"].get("managedFields") or ()
        if _has(field.get("fieldsV1", {}), path)
    ]
    return max(writers)[1] if writers else UNKNOWN


def _has(fields: Object, path: tuple[str, ...]) -> bool:
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True


def difference(before: Object, after: Object) -> Object:
    """The merge patch that makes one object of the other (pure). Fields of `after` are never None."""
    patch: Object = {key: None for key in before if key not in after}
    for key, value in after.items():
        there = before.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            if inner := difference(there, value):
                patch[key] = inner
        elif key not in before or value != there:
            patch[key] = value
    return patch


def merged(before: Object, patch: Object) -> Object:
    """An object after a merge patch (pure)."""
    after = {key: value for key, value in before.items() if key not in patch}
    for key, value in patch.items():
        if isinstance(value, dict):
            there = before.get(key)
            after[key] = merged(there if isinstance(there, dict) else {}, value)
        elif value is not None:
            after[key] = value
    return after
