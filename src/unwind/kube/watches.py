"""Shared watches of one cluster, open as long as a task waits for something.

One per resource, without selectors and with metadata only (docs/architecture.md, The process). A subscriber waits
either for the absence of one object, or for any change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeVar

from unwind.clock import SYSTEM
from unwind.errors import UnwindError, will_retry
from unwind.kube import decoding, fencing
from unwind.kube.decoding import Key
from unwind.kube.dial import Probe
from unwind.kube.errors import AnotherClusterError, UnreachableError, UnwatchedError
from unwind.kube.informers import Informer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.api.resources import Resource
    from unwind.clock import Clock, Timer
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata

K = TypeVar("K")
S = TypeVar("S")

# Deletions come in bursts: an unused watch is likely to be needed again soon.
LINGER = 10.0


class Subscription:
    """An event to wait for; it keeps its watch open until it is closed."""

    def __init__(self, followed: _Followed) -> None:
        self._followed: _Followed | None = followed
        self._told = asyncio.Event()
        self._error: UnreachableError | None = None

    @property
    def happened(self) -> bool:
        return self._told.is_set() and self._error is None

    @property
    def lost(self) -> bool:
        """Whether its watch ended before it happened: it will not be notified any more."""
        return self._error is not None

    async def wait(self) -> None:
        """Return as soon as it has happened. Raises UnreachableError if its watch ends first."""
        await self._told.wait()
        if self._error:
            raise self._error

    def close(self) -> None:
        """Stop waiting. Closing twice does nothing."""
        if self._followed:
            self._followed.leave(self)
            self._followed = None

    def tell(self) -> None:
        """Mark it as happened."""
        self._told.set()

    def lose(self, error: UnreachableError) -> None:
        """Mark it as lost: it will not be notified any more."""
        if not self._told.is_set():
            self._error = error
            self._told.set()


class Absence(Subscription):
    """The absence of one object: DELETED on the watch, or missing from a list that was started later."""

    def __init__(self, followed: _Followed, key: Key, uid: str) -> None:
        super().__init__(followed)
        self.key = key
        self.uid = uid
        self.since = followed.informer.lists

    @property
    def seen(self) -> Metadata | None:
        """The object as the watch shows it; None means nothing, because it may not have been reported yet."""
        held = self.namesake
        return held if held is not None and held.uid == self.uid else None

    @property
    def namesake(self) -> Metadata | None:
        """The object with its name as the watch shows it, which may have another uid."""
        return self._followed.informer.cache.get(self.key) if self._followed else None


class Changes(Subscription):
    """A change among the objects of one resource: all of them, those of a namespace, or one."""

    def __init__(self, followed: _Followed, namespace: str | None, name: str | None) -> None:
        super().__init__(followed)
        self.namespace = namespace
        self.name = name


class _Followed:
    """One watched resource and its subscriptions."""

    def __init__(self, watches: Watches, resource: Resource) -> None:
        self.resource = resource
        self.informer: Informer[Metadata] = Informer(
            watches.client,
            decoding.metadata(resource),
            clock=watches.clock,
            troubled=self._failed,
            confirm=watches.confirmation,
            listed=self._listed,
        )
        self._watches = watches
        self._absences: dict[str, set[Absence]] = {}
        # By namespace and name, None for any: among ten thousand subscriptions, an event finds its own.
        self._changes: dict[tuple[str | None, str | None], set[Changes]] = {}
        self._lingering: Timer | None = None
        self._trouble: UnwindError | None = None
        self._news = asyncio.Event()
        self.informer.subscribe(self._changed)
        self.task = fencing.unfenced().run(self._start)  # all subscribers share it

    def _start(self) -> asyncio.Task[None]:
        task = self._watches.tasks.create_task(self._run())
        task.add_done_callback(self._ended)
        return task

    async def _run(self) -> None:
        try:
            await self.informer.run()
        except Exception as error:  # noqa: BLE001 - one watch that fails ends no other
            self._trouble = UnwindError(f"watch failed ({error!r:.200})")
            self._watches.troubled(error)

    def _ended(self, _: object) -> None:
        """The watch has ended: notify all subscriptions."""
        self._watches.forget(self)
        self._news.set()
        why = self._trouble or "with the connection to the cluster"
        lost = UnreachableError(
            f"cannot wait for {self.resource.plural}: their watch was closed ({why})",
            remedy="will retry with a new watch; if it happens again, check the connection to the cluster",
        )
        for absences in self._absences.values():
            for absence in absences:
                absence.lose(lost)
        for changes in self._changes.values():
            for change in changes:
                change.lose(lost)

    async def until_synced(self) -> None:
        """Return when the cache is synced; raise the error that prevents it, so that the caller can report it."""
        if not self.informer.synced:
            await self._news.wait()
            if self._trouble:
                lost = UnreachableError if isinstance(self._trouble, UnreachableError) else UnwatchedError
                raise lost(f"cannot watch {self.resource.plural}: {will_retry(self._trouble)}")
            if not self.informer.synced:
                raise UnreachableError(
                    f"cannot watch {self.resource.plural}: the watch was closed (with the connection to the cluster)",
                    remedy="will retry with a new watch; if it happens again, check the connection to the cluster",
                )

    def _failed(self, error: Exception) -> None:
        if isinstance(error, UnwindError):
            self._trouble = error
            self._news.set()
            self._watches.interrupt()
        self._watches.troubled(error)

    def enter(self, one: Absence | Changes) -> None:
        if self._lingering:
            self._lingering.cancel()
            self._lingering = None
        if isinstance(one, Absence):
            self._absences.setdefault(one.uid, set()).add(one)
        else:
            self._changes.setdefault((one.namespace, one.name), set()).add(one)

    def leave(self, one: Subscription) -> None:
        if isinstance(one, Absence):
            _discard(self._absences, one.uid, one)
        elif isinstance(one, Changes):
            _discard(self._changes, (one.namespace, one.name), one)
        if not self._absences and not self._changes and self._lingering is None:
            self._lingering = self._watches.clock.call_later(LINGER, self._end)

    def _end(self) -> None:
        self.task.cancel()
        self._watches.forget(self)

    def _changed(self, change: Change[Metadata]) -> None:
        if change.new is None and change.old is not None:
            for absence in self._absences.get(change.old.uid, ()):
                # By key and uid: an object with the uid of another one says nothing about that one.
                if absence.key == change.key:
                    absence.tell()
        if self._changes:
            namespace, name = change.key
            for choice in ((namespace, name), (namespace, None), (None, name), (None, None)):
                for item in self._changes.get(choice, ()):
                    item.tell()

    def _listed(self) -> None:
        """Objects that were gone before the watch started are missing from the list."""
        self._trouble = None
        self._news.set()
        for waiting in self._absences.values():
            for absence in waiting:
                if absence.since < self.informer.lists and absence.seen is None:
                    absence.tell()


def _discard(waiting: dict[K, set[S]], key: K, one: S) -> None:
    waiting[key].discard(one)
    if not waiting[key]:
        del waiting[key]


class Watches:
    """The watches of one cluster; use it as an async context manager."""

    def __init__(
        self,
        client: Client,
        *,
        cluster: str = "",
        clock: Clock = SYSTEM,
        troubled: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`cluster`: the uid of its kube-system namespace, to detect another cluster at its address."""
        self.client = client
        self.cluster = cluster
        self.clock = clock
        self.troubled = troubled
        self.tasks = asyncio.TaskGroup()
        self.probe = Probe(client, clock=clock)
        self._followed: dict[Resource, _Followed] = {}
        self._interrupted = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        for followed in list(self._followed.values()):
            followed.task.cancel()
        # An exception of the body is raised as it is, and not in a group.
        await self.tasks.__aexit__(None, None, None)

    @property
    def open(self) -> frozenset[Resource]:
        """The watched resources."""
        return frozenset(self._followed)

    async def absence(self, resource: Resource, *, name: str, uid: str, namespace: str = "") -> Absence:
        """Subscribe to the absence of the object with this uid. Call it before the DELETE, to miss nothing.

        Raises UnreachableError if the resource cannot be watched.
        """
        followed = self._follow(resource)
        absence = Absence(followed, Key(namespace, name), uid)
        await self._enter(followed, absence)
        return absence

    async def changes(self, resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Changes:
        """Subscribe to changes. Call it before reading the current state, so that nothing is missed."""
        followed = self._follow(resource)
        changes = Changes(followed, namespace, name)
        await self._enter(followed, changes)
        return changes

    @property
    def confirmation(self) -> Callable[[], Awaitable[None]] | None:
        """The check before a list is used; None if none is needed. A pinned client has verified each connection that a
        list came by."""
        return self.confirm if self.cluster and self.client.cluster != self.cluster else None

    async def confirm(self) -> None:
        """Raise if another cluster answers."""
        found = await self.client.cluster_uid()
        if found != self.cluster:
            raise AnotherClusterError(self.client.connection.server, found=found, expected=self.cluster)

    async def until_interrupted(self) -> None:
        """Return when a watch fails the next time. It retries by itself, and its subscriptions are not told: they would
        have to subscribe again. Each retry that fails counts."""
        await self._interrupted.wait()

    def interrupt(self) -> None:
        self._interrupted.set()
        self._interrupted = asyncio.Event()

    def forget(self, followed: _Followed) -> None:
        if self._followed.get(followed.resource) is followed:
            del self._followed[followed.resource]

    def _follow(self, resource: Resource) -> _Followed:
        if resource not in self._followed:
            self._followed[resource] = _Followed(self, resource)
        return self._followed[resource]

    async def _enter(self, followed: _Followed, one: Absence | Changes) -> None:
        followed.enter(one)
        try:
            await followed.until_synced()
        except BaseException:
            one.close()
            raise
