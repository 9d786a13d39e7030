"""What a deletion remembers, so that no step is done twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unwind.api.names import MEMO_ANNOTATION
from unwind.deleting.outcomes import PermanentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

    Save = Callable[[Mapping[str, str | None]], Awaitable[None]]
    """Writes values, and takes out those that are None, before it returns."""

# Together with the prefix of the annotation they fit into the 63 characters of a name.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_KEY = re.compile(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?")
LIMIT = 4096
"""Bytes for all of it: it is written into the object, or into an inventory that has 500 of them."""


class Memo:
    """What one deleter remembers of one object. Reading costs nothing; `put` returns when it is written down.

    It outlives the object: what has to be known after the object is gone, such as that it is to be purged, is put here
    before.
    """

    def __init__(self, values: dict[str, str], save: Save, *, scope: str = "") -> None:
        """`values` by `deleter.key`; all deleters of one deletion share it, each sees its own."""
        self._values = values
        self._save = save
        self._scope = scope

    def of(self, scope: str) -> Memo:
        """What another deleter remembers."""
        return Memo(self._values, self._save, scope=scope)

    def scopes(self) -> set[str]:
        """The deleters that remember something."""
        return {key.partition(".")[0] for key in self._values} if self._values else set()

    def get(self, key: str) -> str | None:
        return self._values.get(f"{self._scope}.{key}")

    def __getitem__(self, key: str) -> str:
        return self._values[f"{self._scope}.{key}"]

    def __contains__(self, key: object) -> bool:
        return f"{self._scope}.{key}" in self._values

    def __iter__(self) -> Iterator[str]:
        prefix = f"{self._scope}."
        return (key.removeprefix(prefix) for key in self._values if key.startswith(prefix))

    async def put(self, key: str, value: str = "true") -> None:
        """Remember it; when this returns, a crash does not lose it."""
        if not _KEY.fullmatch(key):
            raise PermanentError(f"{key!r} cannot be the key of a memo", remedy="use up to 24 of a-z, 0-9 and -")
        full = f"{self._scope}.{key}"
        if self._values.get(full) == value:
            return
        size = len(value.encode()) + sum(len(v.encode()) for k, v in self._values.items() if k != full)
        if size > LIMIT:
            raise PermanentError(f"a memo has room for {LIMIT} bytes, not {size}", remedy="remember less")
        await self._save({full: value})
        self._values[full] = value

    async def drop(self, key: str) -> None:
        """Remember it no longer."""
        full = f"{self._scope}.{key}"
        if full in self._values:
            await self._save({full: None})
            del self._values[full]


def in_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """What an object's annotations remember."""
    return {
        key.removeprefix(MEMO_ANNOTATION): value
        for key, value in annotations.items()
        if key.startswith(MEMO_ANNOTATION)
    }


def on_object(client: Client, resource: Resource, obj: Object) -> Memo:
    """The memo that is kept on the object itself, which must bear our finalizer so that it stays until the end."""
    metadata = obj["metadata"]

    async def save(values: Mapping[str, str | None]) -> None:
        annotations = {f"{MEMO_ANNOTATION}{key}": value for key, value in values.items()}
        # With the uid: another object of the same name has nothing to do with it.
        patch = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
        await client.patch(resource, metadata["name"], patch, namespace=metadata.get("namespace"))

    return Memo(in_annotations(metadata.get("annotations") or {}), save)


def nowhere() -> Memo:
    """A memo for a single try, and for tests: it is lost with the process."""

    async def save(_: Mapping[str, str | None]) -> None:
        pass

    return Memo({}, save)
