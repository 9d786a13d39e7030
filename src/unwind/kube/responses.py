"""Decodes responses of an API server: objects, pages of lists, watch events. A proxy may return anything else."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.kube.errors import UnreadableError

Object = dict[str, Any]


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: Object


class _ListMeta(
    msgspec.Struct,
    rename={
        "continue_": "continue",
        "resource_version": "resourceVersion",
        "remaining_item_count": "remainingItemCount",
    },
):
    resource_version: str = ""
    continue_: str = ""
    remaining_item_count: int = 0
    """Number of items on the following pages, if the server knows it: not with a selector."""


class Page(msgspec.Struct):
    """A page of a list, with undecoded items."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None
    kind: str = ""


def read(body: bytes | msgspec.Raw, type_: Any, what: str) -> Any:
    """Decode a response. Raises UnreadableError, because a proxy may return anything."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(
            f"cannot decode the response of the API server to a request for {what} ({error})"
        ) from error


def object_of(body: bytes | msgspec.Raw, what: str, *, key: str = "uid") -> Object:
    """The object in a response, with this key in its metadata."""
    found: Object = read(body, dict, what)
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
        raise UnreadableError(f"the response of the API server to a request for {what} is not an object")
    return found
