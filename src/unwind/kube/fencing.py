"""Fences: work that was started for a shard writes nothing after the shard is lost.

A fence represents one tenure of a shard: once lost, it stays lost, even if the shard comes back. A task carries its
fence in a context variable, and so does every task that it starts. `Client` checks it before each write, to whichever
API server. Other programs that write, such as Helm, must run in a `scope`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable
from weakref import WeakValueDictionary

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

K = TypeVar("K")
# An owner reports a loss when it notices it. It may be too busy, or cut off: this is how often running work checks.
_LOOK = 1.0


class FencedError(UnwindError):
    """The shard was lost, so nothing more is written for it."""


class ShardOwner(Protocol):
    """Decides which keys this process may act for: its shards."""

    def owns(self, key: str) -> bool:
        """Whether it may act for the key now. `Fences` checks before every write."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call this function when that changes."""


@runtime_checkable
class Successor(Protocol):
    """An owner that may take over from another process."""

    def unsettled(self, key: str) -> float:
        """Seconds for which a write of the former owner may still arrive."""


class Fence:
    """The permission to write for one key, until its shard is lost."""

    def __init__(self, key: str, owner: ShardOwner) -> None:
        self.key = key
        self._owner = owner
        self._lost = False
        self._scopes: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        if not self._lost and not self._owner.owns(self.key):
            self._lost = True
            now = asyncio.get_running_loop().time()
            for scope in self._scopes:
                scope.reschedule(now)
        return not self._lost

    @property
    def lost(self) -> FencedError:
        """The error to raise once it is lost."""
        return FencedError(f"this replica lost the shard of {self.key}, so nothing more is written for it")

    @property
    def unsettled(self) -> float:
        return self._owner.unsettled(self.key) if isinstance(self._owner, Successor) else 0.0

    def enter(self, scope: asyncio.Timeout) -> None:
        """End a scope when the fence is lost."""
        self._scopes.add(scope)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def leave(self, scope: asyncio.Timeout) -> None:
        self._scopes.discard(scope)
        if not self._scopes and self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look) if self.holds else None


_current: ContextVar[Fence | None] = ContextVar("unwind_fence", default=None)


def check() -> None:
    """Raise FencedError if this task works for a lost shard."""
    fence = _current.get()
    if fence is not None and not fence.holds:
        raise fence.lost


def unsettled() -> float:
    """Seconds for which a write of the former owner of this task's shard may still arrive."""
    fence = _current.get()
    return fence.unsettled if fence is not None else 0.0


@asynccontextmanager
async def scope() -> AsyncIterator[None]:
    """Cancel the body when this task's shard is lost, and raise FencedError."""
    fence = _current.get()
    if fence is None:
        yield
        return
    if not fence.holds:
        raise fence.lost
    limit = asyncio.timeout(None)
    try:
        async with limit:
            fence.enter(limit)
            try:
                yield
            finally:
                fence.leave(limit)
    except TimeoutError:
        if limit.expired():
            raise fence.lost from None
        raise


class Fences:
    """The fences of one controller."""

    def __init__(self, owner: ShardOwner) -> None:
        self._owner = owner
        self._fences: WeakValueDictionary[str, Fence] = WeakValueDictionary()
        owner.subscribe(self._look)

    def around(
        self, reconcile: Callable[[K], Awaitable[float | None]], shard: Callable[[K], str | None]
    ) -> Callable[[K], Awaitable[float | None]]:
        """The reconciler, fenced: it is cancelled when the shard of its key is lost, and neither it nor a task that it
        started writes anything after that. If the shard belongs to another replica, it is still called, to clean up,
        but cannot write. `shard`: the key that decides; None if nothing may be written."""

        async def fenced(key: K) -> float | None:
            decides = shard(key)
            if decides is None:
                return await reconcile(key)
            fence = self._fences.get(decides)
            if fence is None or not fence.holds:
                fence = self._fences[decides] = Fence(decides, self._owner)
            token = _current.set(fence)
            try:
                if not fence.holds:
                    return await reconcile(key)
                async with scope():
                    return await reconcile(key)
            finally:
                _current.reset(token)

        return fenced

    def _look(self) -> None:
        for fence in list(self._fences.values()):
            _ = fence.holds
