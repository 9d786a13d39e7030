"""Waits for states of objects, as structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.kube import object_watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

T = TypeVar("T")


async def until_struct(
    client: Client,
    resource: Resource,
    name: str,
    type_: type[T],
    state: Callable[[T], bool],
    called: str = "as it should be",
    *,
    namespace: str | None = None,
    within: float = 60.0,
) -> T:
    """Return the object as soon as it is so; on timeout, raise an AssertionError with its last status."""
    last: Object = {}

    def look(found: Object | None) -> bool:
        nonlocal last
        last = found or {}
        return found is not None and state(msgspec.convert(found, type_))

    try:
        found = await object_watch.until(client, resource, name, look, called, namespace=namespace, within=within)
    except Exception as error:
        raise AssertionError(f"{error}: {last.get('status')}") from error
    return msgspec.convert(found, type_)
