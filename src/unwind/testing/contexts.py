"""Creates the context of a deleter for a test, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.meta import ObjectRef, named_ref
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.memo import Memo
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects
from unwind.testing.scripts import checkpoint, interruptible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.fields import Unknown
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.kube.watches import Watches


def memo(kept: dict[str, str] | None = None) -> Memo:
    """A memo in a dict, by `deleter.key`. Pass the same dict to the next context to keep it."""
    stored: dict[str, str] = {} if kept is None else kept

    async def save(values: Mapping[str, str | None]) -> None:
        await checkpoint()
        for key, value in values.items():
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        await checkpoint()

    # Each process has its own copy of what it read; only `save` writes to the dict.
    return Memo(dict(stored), save)


def reference(resource: Resource, obj: Object) -> ObjectRef:
    """A reference to the object."""
    metadata = obj["metadata"]
    return named_ref(resource, metadata["name"], namespace=metadata.get("namespace") or "", uid=metadata["uid"])


def context(
    obj: Object,
    *,
    objects: Objects | None = None,
    kept: dict[str, str] | None = None,
    deleter: str = "",
    clients: tuple[object, ...] = (),
    clock: Clock | None = None,
    absent: bool = False,
    policy: DeletePolicy | Unknown | None = None,
    teardown: str = "",
    resource: Resource | None = None,
    client: Client | None = None,
    watches: Watches | None = None,
) -> DeleteContext:
    """The context for a deleter of this object. Everything has a sensible default.

    `objects`: what the client, the resolver and `ctx.changes` find; by default only the object itself. `kept`: stores
    the memo, by `deleter.key`. `clients`: found by `ctx.client_of(…)`. `client` and `watches`: of a real server.
    """
    clock = clock or (objects.clock if objects else StillClock())
    server = objects or Objects(clock=clock)
    if objects is None and client is None and not absent:
        obj = server.put(obj)
    elif "uid" not in obj["metadata"]:
        found = server.get(resource or server.resource(obj), obj["metadata"]["name"], namespace=_namespace(obj))
        obj = found or {**obj, "metadata": {"uid": "uid-0", **obj["metadata"]}}
    resource = resource or server.resource(obj)
    client, watches = client or server.client, watches or server.watches
    remembered = memo(kept)
    return DeleteContext(
        resource=resource,
        ref=reference(resource, obj),
        memo=remembered.of(deleter) if deleter else remembered,
        resolver=Resolver(client),
        watches=watches,
        clients=(client, *(interruptible(obj) for obj in clients)),
        clock=clock,
        absent=absent,
        policy=policy,
        teardown=teardown,
        cluster=watches.cluster,
        deleter=deleter,
    )


def _namespace(obj: Object) -> str:
    return obj["metadata"].get("namespace") or "default"
