"""A clock for tests that stands still until it is advanced."""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class StillClock:
    """Stands still, so that everything must happen by events; only `advance` moves it."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._order = count()
        self._timers: list[tuple[float, int, _Timer]] = []

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._elapsed + seconds, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Advance the time, and run the timers that are due, in order."""
        until = self._elapsed + seconds
        while self._timers and self._timers[0][0] <= until:
            self._elapsed, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()
        self._elapsed = until

    @property
    def waiting(self) -> list[float]:
        """Seconds until each timer is due."""
        return sorted(due - self._elapsed for due, _, timer in self._timers if not timer.cancelled)
