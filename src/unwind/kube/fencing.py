"""Fences: work that was started for a shard writes nothing after the shard is lost.

A fence represents one tenure of a shard: once lost, it stays lost, even if the shard comes back. A task carries its
fence in a context variable, and so does every task that it starts, unless it is started `unfenced`. `Client` checks it
before each write, to whichever API server. Other programs that write, such as Helm, must run in a `scope`.

A `Drain` stops work of our own accord: no new write starts, and those that have started are answered first.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable
from weakref import WeakValueDictionary

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from contextvars import Context
    from types import TracebackType

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

    __slots__ = ("__weakref__", "_fences", "_lost", "_scopes", "key")

    def __init__(self, key: str, fences: Fences) -> None:
        self.key = key
        self._fences = fences
        self._lost = False
        self._scopes: list[asyncio.Timeout] = []

    @property
    def holds(self) -> bool:
        if not self._lost and not self._fences.owner.owns(self.key):
            self._lost = True
            now = asyncio.get_running_loop().time()
            for scope in self._scopes:
                scope.reschedule(now)
        return not self._lost

    @property
    def lost(self) -> FencedError:
        """The error to raise once it is lost."""
        return FencedError(
            f"this replica lost the shard of {self.key}, so it writes nothing more for it; another replica continues"
        )

    @property
    def unsettled(self) -> float:
        owner = self._fences.owner
        return owner.unsettled(self.key) if isinstance(owner, Successor) else 0.0

    def enter(self, scope: asyncio.Timeout) -> None:
        """End a scope when the fence is lost."""
        self._scopes.append(scope)
        self._fences.keep_checking()

    def leave(self, scope: asyncio.Timeout) -> None:
        self._scopes.remove(scope)


_current: ContextVar[Fence | None] = ContextVar("unwind_fence", default=None)


class Drain:
    """The writes of one piece of work, so that it can be stopped at a moment when none is on its way."""

    __slots__ = ("_idle", "_stopped", "_writes")

    def __init__(self) -> None:
        self._writes = 0
        self._stopped = False
        self._idle = asyncio.Event()

    def context(self) -> Context:
        """A copy of this task's context in which every write belongs to this drain."""
        context = copy_context()
        context.run(_drain.set, self)
        return context

    async def stop(self) -> None:
        """Refuse further writes, and return when those that have started are answered."""
        self._stopped = True
        while self._writes:
            self._idle.clear()
            await self._idle.wait()

    def __enter__(self) -> None:
        if self._stopped:
            raise FencedError("this work is stopped, so nothing more is written for it")
        self._writes += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writes -= 1
        if not self._writes:
            self._idle.set()


_drain: ContextVar[Drain | None] = ContextVar("unwind_drain", default=None)
_UNDRAINED = nullcontext()


def fenced_write() -> AbstractContextManager[None]:
    """The context of a write. Raises FencedError if this task works for a lost shard, or its work is stopped."""
    check_fence()
    return _drain.get() or _UNDRAINED


def check_fence() -> None:
    """Raise FencedError if this task works for a lost shard."""
    fence = _current.get()
    if fence is not None and not fence.holds:
        raise fence.lost


def unsettled() -> float:
    """Seconds for which a write of the former owner of this task's shard may still arrive."""
    fence = _current.get()
    return fence.unsettled if fence is not None else 0.0


def unfenced() -> Context:
    """A copy of this task's context without its fence: to start a task in it that others use, also after the shard is
    lost."""
    context = copy_context()
    context.run(_current.set, None)
    context.run(_drain.set, None)
    return context


class _Scope:
    """Cancels its body when the fence is lost, and raises FencedError. Every reconciliation opens one, so it is written
    out rather than generated."""

    __slots__ = ("_fence", "_limit")

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._fence.enter(self._limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fence.leave(self._limit)
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._fence.lost from None


def scope() -> AbstractAsyncContextManager[None]:
    """Cancel the body when this task's shard is lost, and raise FencedError."""
    fence = _current.get()
    if fence is None:
        return nullcontext()
    if not fence.holds:
        raise fence.lost
    return _Scope(fence)


class Fences:
    """The fences of one controller."""

    def __init__(self, owner: ShardOwner) -> None:
        self.owner = owner
        self._fences: WeakValueDictionary[str, Fence] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None
        owner.subscribe(self._check_all)

    def around(
        self, reconcile: Callable[[K], Awaitable[float | None]], shard: Callable[[K], str | None]
    ) -> Callable[[K], Awaitable[float | None]]:
        """The reconciler, fenced: it is cancelled when the shard of its key is lost, and neither it nor a task that it
        started writes anything after that. If the shard belongs to another replica, it is still called, to clean up,
        but cannot write. `shard`: the key that decides; None if nothing may be written."""

        async def fenced(key: K) -> float | None:
            # A worker has the context of the task that added its key, which may be stopped.
            _drain.set(None)
            decides = shard(key)
            if decides is None:
                return await reconcile(key)
            fence = self._fences.get(decides)
            if fence is None or not fence.holds:
                fence = self._fences[decides] = Fence(decides, self)
            token = _current.set(fence)
            try:
                if not fence.holds:
                    return await reconcile(key)
                async with _Scope(fence):
                    return await reconcile(key)
            finally:
                _current.reset(token)

        return fenced

    def keep_checking(self) -> None:
        """Check every fence from time to time, until none is left."""
        if self._timer is None:
            # Unfenced: the timer would keep the fence of its caller, and that would keep the timer.
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._on_timer, context=unfenced())

    def _on_timer(self) -> None:
        self._timer = None
        self._check_all()
        if self._fences:
            self.keep_checking()

    def _check_all(self) -> None:
        for fence in list(self._fences.values()):
            _ = fence.holds
