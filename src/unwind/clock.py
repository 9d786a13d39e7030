"""Injectable clock, so that rules and queues can be tested without real time."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """Current time, timers and sleep."""

    def now(self) -> dt.datetime:
        """The wall-clock time, for timestamps."""

    def monotonic(self) -> float:
        """Monotonic seconds, for durations."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `seconds`."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""


class SystemClock:
    """The real clock."""

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        # CLOCK_BOOTTIME advances while the machine sleeps, unlike Linux' plain monotonic clock: a Lease that expired
        # during that sleep must be seen as expired.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()
