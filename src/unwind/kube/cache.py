"""An indexed cache of the objects of one resource, and the changes to it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from unwind.kube.decoding import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from unwind.kube.decoding import Stamp

T = TypeVar("T")


class Change(msgspec.Struct, Generic[T], frozen=True):
    """One object was added (no `old`), changed, or removed (no `new`)."""

    key: Key
    old: T | None
    new: T | None


class Store(Protocol[T]):
    """Stores the objects that an informer receives."""

    def __len__(self) -> int: ...

    def get(self, key: Key) -> T | None:
        """The object, if it is stored."""

    def keys(self) -> Iterable[Key]:
        """The keys of all stored objects."""

    def put(self, obj: T) -> list[Change[T]]:
        """Store an object; returns the changes to report."""

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[T]]:
        """Remove an object if it has this uid."""


class Cache(Generic[T]):
    """Objects by key and by index. Reading never scans."""

    def __init__(
        self,
        stamp: Callable[[T], Stamp],
        *,
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
    ) -> None:
        self._stamp = stamp
        self._objects: dict[Key, T] = {}
        self._functions = dict(indexes or {})
        # The keys of an index value are a dict for its order: they are listed in the order in which they appeared.
        self._indexes: dict[str, dict[Hashable, dict[Key, None]]] = {name: {} for name in self._functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def keys(self) -> Iterable[Key]:
        return self._objects.keys()

    def by(self, index: str, value: Hashable, *, limit: int | None = None) -> list[T]:
        """The objects with an index value, or the first few of them."""
        return [self._objects[key] for key in islice(self._indexes[index].get(value, ()), limit)]

    def count(self, index: str, value: Hashable) -> int:
        """The number of objects with an index value, in constant time."""
        return len(self._indexes[index].get(value, ()))

    def put(self, obj: T) -> list[Change[T]]:
        """Store an object; returns the changes, if any."""
        key, uid, version = self._stamp(obj)
        old = self._objects.get(key)
        if old is None:
            self._store(key, None, obj)
            return [Change(key, None, obj)]
        _, old_uid, old_version = self._stamp(old)
        if old_uid != uid:
            # Deleted and recreated between two events: two changes, to two objects.
            self._store(key, old, obj)
            return [Change(key, old, None), Change(key, None, obj)]
        if old_version == version:
            return []
        self._store(key, old, obj)
        return [Change(key, old, obj)]

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[T]]:
        """Remove an object if it has this uid; returns the changes."""
        old = self._objects.get(key)
        if old is None or (uid is not None and self._stamp(old).uid != uid):
            return []
        del self._objects[key]
        self._index(key, old, None)
        return [Change(key, old, None)]

    def _store(self, key: Key, old: T | None, new: T) -> None:
        self._objects[key] = new
        self._index(key, old, new)

    def _index(self, key: Key, old: T | None, new: T | None) -> None:
        for name, function in self._functions.items():
            index = self._indexes[name]
            if old is None and new is not None:  # a list brings thousands of these
                for value in function(new):
                    index.setdefault(value, {})[key] = None
                continue
            before = set(function(old)) if old is not None else set()
            after = set(function(new)) if new is not None else set()
            for value in before - after:
                keys = index[value]
                del keys[key]
                if not keys:
                    del index[value]
            for value in after - before:
                index.setdefault(value, {})[key] = None
