"""Watches on objects in memory: changes are reported at once, and tests can trigger events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.kube.views import Key, Metadata
from unwind.kube.watches import Absence, Changes, Subscription, Watches
from unwind.testing.scripting import checkpoint

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.testing.objects import Objects


class Following(Watches):
    """Subscriptions to objects in memory. It opens nothing, and needs no event loop."""

    def __init__(self, objects: Objects, *, clock: Clock, cluster: str) -> None:
        super().__init__(objects.client, cluster=cluster, clock=clock)
        self._of = objects
        self._waiting: list[_Absence | _Changes] = []

    async def absence(self, resource: Resource, *, name: str, uid: str, namespace: str = "") -> Absence:
        await checkpoint()
        absence = _Absence(self, resource, Key(namespace, name), uid)
        self._waiting.append(absence)
        return absence

    async def changes(self, resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Changes:
        await checkpoint()
        changes = _Changes(self, resource, namespace or None, name)
        self._waiting.append(changes)
        return changes

    async def confirm(self) -> None:
        await checkpoint()

    def fire(self) -> None:
        """Notify all subscriptions of changes."""
        for one in list(self._waiting):
            if isinstance(one, Changes):
                one.tell()

    def changed(self, resource: Resource, obj: Object) -> None:
        """Notify the subscriptions of an object that was added or changed."""
        metadata = obj["metadata"]
        for one in list(self._waiting):
            if (
                isinstance(one, _Changes)
                and one.resource == resource
                and one.namespace in (None, metadata.get("namespace"))
                and one.name in (None, metadata["name"])
            ):
                one.tell()

    def removed(self, resource: Resource, obj: Object) -> None:
        """Notify the subscriptions of an object that was removed."""
        self.changed(resource, obj)
        for one in list(self._waiting):
            if isinstance(one, _Absence) and one.uid == obj["metadata"]["uid"]:
                one.tell()

    def seen(self, resource: Resource, key: Key) -> Metadata | None:
        obj = self._of.get(resource, key.name, namespace=key.namespace)
        return msgspec.convert(obj["metadata"], Metadata, strict=False) if obj else None

    def leave(self, one: Subscription) -> None:
        self._waiting = [other for other in self._waiting if other is not one]

    @property
    def waiting(self) -> int:
        """Number of subscriptions."""
        return len(self._waiting)


class _Absence(Absence):
    def __init__(self, following: Any, resource: Resource, key: Key, uid: str) -> None:
        # It only needs to be removed from what it belongs to and, below, to read the current state.
        Subscription.__init__(self, following)
        self.resource = resource
        self.key = key
        self.uid = uid
        self._following: Following = following

    @property
    def seen(self) -> Metadata | None:
        held = self._following.seen(self.resource, self.key)
        return held if held is not None and held.uid == self.uid else None


class _Changes(Changes):
    def __init__(self, following: Any, resource: Resource, namespace: str | None, name: str | None) -> None:
        super().__init__(following, namespace, name)
        self.resource = resource
