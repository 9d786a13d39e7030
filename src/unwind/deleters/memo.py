"""The memo of a deletion: records steps that must not be repeated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unwind.api.names import MEMO_ANNOTATION
from unwind.deleters.outcomes import PermanentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

    Save = Callable[[Mapping[str, str | None]], Awaitable[None]]
    """Saves values, and removes those that are None, before it returns."""

# Together with the prefix of the annotation they fit into the 63 characters of an annotation name.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_KEY = re.compile(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?")
LIMIT = 4096
"""Maximum size in bytes: it is stored on the object, or in an Inventory with up to 500 entries."""


class Memo:
    """What one deleter records about one object. Reading is free; `put` returns once the value is saved.

    It outlives the object: record what must be known after the object is gone, for example that it must be purged,
    beforehand.
    """

    def __init__(self, values: dict[str, str], save: Save, *, scope: str = "") -> None:
        """`values` by `deleter.key`. All deleters of one deletion share it, and each sees only its own keys."""
        self._values = values
        self._save = save
        self._scope = scope

    def of(self, scope: str) -> Memo:
        """The memo of another deleter."""
        return Memo(self._values, self._save, scope=scope)

    def nested(self) -> Memo:
        """A memo with scopes of its own, stored inside the scope of this one."""
        prefix, outer = f"{self._scope}.", self._values

        async def save(values: Mapping[str, str | None]) -> None:
            changes = {f"{prefix}{key}": value for key, value in values.items()}
            await self._save(changes)
            for key, value in changes.items():
                if value is None:
                    outer.pop(key, None)
                else:
                    outer[key] = value

        return Memo({key.removeprefix(prefix): value for key, value in outer.items() if key.startswith(prefix)}, save)

    def scopes(self) -> set[str]:
        """The deleters that have recorded something."""
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
        """Record a value; once this returns, a crash does not lose it."""
        if not _KEY.fullmatch(key):
            raise PermanentError(f"invalid memo key {key!r}", remedy="use up to 24 of a-z, 0-9 and -")
        full = f"{self._scope}.{key}"
        if self._values.get(full) == value:
            return
        size = len(value.encode()) + sum(len(v.encode()) for k, v in self._values.items() if k != full)
        if size > LIMIT:
            raise PermanentError(
                f"cannot record {key}: memo too large: {size} bytes, the limit is {LIMIT}",
                remedy=f"deleter {self._scope}: store less in ctx.memo",
            )
        await self._save({full: value})
        self._values[full] = value

    async def drop(self, key: str) -> None:
        """Remove a value."""
        full = f"{self._scope}.{key}"
        if full in self._values:
            await self._save({full: None})
            del self._values[full]


def in_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """The memo values in an object's annotations."""
    return {
        key.removeprefix(MEMO_ANNOTATION): value
        for key, value in annotations.items()
        if key.startswith(MEMO_ANNOTATION)
    }


def on_object(client: Client, resource: Resource, obj: Object) -> Memo:
    """A memo that is stored on the object itself, which must have Unwind's finalizer so that it stays until the end."""
    metadata = obj["metadata"]

    async def save(values: Mapping[str, str | None]) -> None:
        annotations = {f"{MEMO_ANNOTATION}{key}": value for key, value in values.items()}
        # With the uid as a precondition: another object of the same name must not get it.
        patch = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
        await client.patch(resource, metadata["name"], patch, namespace=metadata.get("namespace"))

    return Memo(in_annotations(metadata.get("annotations") or {}), save)


def nowhere() -> Memo:
    """A memo in memory only, for a single try and for tests: it is lost with the process."""

    async def save(_: Mapping[str, str | None]) -> None:
        pass

    return Memo({}, save)
