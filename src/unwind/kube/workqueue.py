"""The work queue: keys to reconcile, one worker per key at a time, fair among clusters."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from unwind.clock import SYSTEM
from unwind.kube.fencing import FencedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from unwind.clock import Clock, Timer

K = TypeVar("K", bound="Hashable")


JITTER = random.Random()  # noqa: S311 - no secret in it
"""The random source of jitter, one for the process: each takes 2.5 KB, and thousands of retries may run."""


class Backoff(msgspec.Struct, frozen=True):
    """Exponential back-off with jitter, up to a limit."""

    first: float = 0.5
    limit: float = 300.0
    jitter: float = 0.2

    def after(self, failures: int, chance: random.Random) -> float:
        """The wait after so many consecutive failures."""
        # 2.0 ** 1100 exceeds a float.
        wait = min(self.limit, self.first * 2.0 ** min(failures - 1, 64))
        return wait * chance.uniform(1 - self.jitter, 1 + self.jitter)


class Queue(Generic[K]):
    """Keys to reconcile.

    A key has one worker at a time; if it is added meanwhile, it is reconciled once more afterwards. Each group (a
    cluster) has its own limit and none is shared: a group whose workers all hang delays no other. A worker is a task,
    and a waiting task costs next to nothing.

    A worker runs in the context of the last `add` of its key, so that it carries the fence of its caller. A key that
    its fence refused is not retried: its owner adds it again when the shard is ours again.
    """

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        group: Callable[[K], Hashable] = lambda _: None,
        per_group: int = 8,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        clock: Clock = SYSTEM,
        failed: Callable[[K, Exception], object] = lambda *_: None,
        chance: random.Random | None = None,
    ) -> None:
        """`reconcile` returns after how many seconds to requeue the key, or None."""
        self._reconcile = reconcile
        self._group = group
        self._per_group = per_group
        self._backoff = backoff
        self._clock = clock
        self._failed = failed
        self._chance = chance or JITTER
        self._waiting: dict[Hashable, deque[K]] = {}
        self._queued: set[K] = set()
        self._working: dict[K, bool] = {}
        """Keys with a worker, and whether they were added meanwhile."""
        self._busy: dict[Hashable, int] = {}
        self._failures: dict[K, int] = {}
        self._timers: dict[K, tuple[float, Timer]] = {}
        self._contexts: dict[K, Context] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def add(self, key: K) -> None:
        """Reconcile the key as soon as its group has a free worker."""
        self._contexts[key] = copy_context()
        self._add(key)

    def _add(self, key: K) -> None:
        self._cancel_timer(key)
        if key in self._working:
            self._working[key] = True
        elif key not in self._queued:
            self._queued.add(key)
            group = self._group(key)
            self._waiting.setdefault(group, deque()).append(key)
            self._dispatch(group)

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile the key later; of several requests, the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        self._contexts[key] = copy_context()
        due = self._clock.monotonic() + seconds
        if key in self._timers:
            if self._timers[key][0] <= due:
                return
            self._cancel_timer(key)
        self._timers[key] = (due, self._clock.call_later(seconds, lambda: self._due(key)))

    def failures(self, key: K) -> int:
        """Number of consecutive failures."""
        return self._failures.get(key, 0)

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._queued)

    @property
    def working(self) -> int:
        """Number of keys that are being reconciled."""
        return len(self._working)

    async def run(self) -> None:
        """Run until cancelled; the workers are cancelled with it."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                for group in list(self._waiting):
                    self._dispatch(group)
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # before the workers end: keys that are added meanwhile wait for the next run

    def _due(self, key: K) -> None:
        del self._timers[key]
        self._add(key)

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer[1].cancel()

    def _dispatch(self, group: Hashable) -> None:
        """Start workers for the waiting keys of a group, up to its limit."""
        waiting = self._waiting.get(group)
        while self._tasks and waiting and self._busy.get(group, 0) < self._per_group:
            key = waiting.popleft()
            self._queued.discard(key)
            self._working[key] = False
            self._busy[group] = self._busy.get(group, 0) + 1
            work = self._work(key, group)
            try:
                self._tasks.create_task(work, context=self._contexts.pop(key, None))
            except RuntimeError:
                # The queue is stopping, and its task group takes no more tasks.
                work.close()
                return
        if waiting is not None and not waiting:
            del self._waiting[group]

    async def _work(self, key: K, group: Hashable) -> None:
        again: float | None = None
        try:
            again = await self._reconcile(key)
            self._failures.pop(key, None)
        except FencedError:
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001 - one key that fails must not take the others down
            self._failures[key] = self._failures.get(key, 0) + 1
            again = self._backoff.after(self._failures[key], self._chance)
            self._failed(key, error)
        finally:
            added = self._working.pop(key)
            self._busy[group] -= 1
            if not self._busy[group]:
                del self._busy[group]
        if added:
            self._add(key)
        elif again is not None:
            self.add_after(key, again)
        self._dispatch(group)
