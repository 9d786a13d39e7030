"""Objects of one resource, with indexes; and what changed in it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from unwind.kube.views import Stamp

T = TypeVar("T")


class Change(msgspec.Struct, Generic[T], frozen=True):
    """One object appeared (no `old`), changed, or disappeared (no `new`)."""

    key: Key
    old: T | None
    new: T | None


class Store(Protocol[T]):
    """What takes in the objects that an informer tells of."""

    def __len__(self) -> int: ...

    def get(self, key: Key) -> T | None:
        """The object, where it is kept."""

    def keys(self) -> Iterable[Key]:
        """Of all that was taken in and not taken out."""

    def put(self, obj: T) -> list[Change[T]]:
        """Take in an object as it is now; return what that changed, for those who want it told."""

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[T]]:
        """Take an object out, if it is the one with this uid."""


class Cache(Generic[T]):
    """The objects by key, and by whatever they are indexed by. Reading never scans."""

    def __init__(
        self,
        stamp: Callable[[T], Stamp],
        *,
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
    ) -> None:
        self._stamp = stamp
        self._objects: dict[Key, T] = {}
        self._functions = dict(indexes or {})
        # The keys of a value are a dict for its order: what is listed comes in the order in which it appeared.
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
        """The objects that an index has under a value, or the first few of them."""
        return [self._objects[key] for key in islice(self._indexes[index].get(value, ()), limit)]

    def count(self, index: str, value: Hashable) -> int:
        """How many those are, in the same time however many."""
        return len(self._indexes[index].get(value, ()))

    def put(self, obj: T) -> list[Change[T]]:
        """Take in an object as it is now; return what that changed, which may be nothing."""
        key, uid, version = self._stamp(obj)
        old = self._objects.get(key)
        if old is None:
            self._store(key, None, obj)
            return [Change(key, None, obj)]
        _, old_uid, old_version = self._stamp(old)
        if old_uid != uid:
            # Deleted and made again while nobody looked: two things happened, to two objects.
            self._store(key, old, obj)
            return [Change(key, old, None), Change(key, None, obj)]
        if old_version == version:
            return []
        self._store(key, old, obj)
        return [Change(key, old, obj)]

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[T]]:
        """Take an object out, if it is the one with this uid; return what that changed."""
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
