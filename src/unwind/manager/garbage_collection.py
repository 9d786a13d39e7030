"""When Python collects garbage: between bursts of work instead of in them."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL = 1.0
# Shares of one core.
_BUSY = 0.5
_CALM = 0.2
# New objects that were not freed.
_MANY = 50_000
# Collections take at most one part in this many of the time.
_SHARE = 100


def tune() -> None:
    """Collect less often than by default. Each collection traverses the objects of thousands of requests in flight,
    none of which is garbage: that took a sixth of the processor time of a removal.

    In the middle of work, the first collection is after half a million new objects that were not freed, and all
    generations are collected after two million, as a bound for the memory.
    """
    gc.freeze()  # imported modules are never garbage
    gc.set_threshold(500_000, 2, 2)


class GarbageCollection:
    """A component that collects all generations when a burst of work is over: what a removal leaves behind in reference
    cycles is freed then, when the objects of its requests are gone and need not be traversed."""

    name = "garbage-collection"
    ready = True

    def __init__(
        self,
        *,
        interval: float = _INTERVAL,
        used: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.monotonic,
        new_objects: Callable[[], int] = lambda: gc.get_count()[0],
    ) -> None:
        """`used`: the processor time of the process; `now`: the time; both in seconds. `new_objects`: how many were
        created since the last collection and are not freed."""
        self._interval = interval
        self._used = used
        self._now = now
        self._new_objects = new_objects
        self._after_burst = False
        self._not_before = 0.0

    async def run(self) -> None:
        """Collect until cancelled."""
        since, used = self._now(), self._used()
        while True:
            await asyncio.sleep(self._interval)
            before, since = since, self._now()
            used_before, used = used, self._used()
            self.look((used - used_before) / max(since - before, self._interval))

    def look(self, share: float) -> None:
        """Collect if it is time to. `share`: of one core that the process used lately."""
        if share >= _BUSY:
            self._after_burst = True
        due = self._after_burst or self._new_objects() >= _MANY
        if due and share <= _CALM and self._now() >= self._not_before:
            self._after_burst = False
            began = self._now()
            gc.collect()
            # With a large cache this takes long, and little of the cache is garbage.
            self._not_before = self._now() + _SHARE * (self._now() - began)
