"""Time, handed in: rules and queues never look at a clock of their own."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Have it not called."""


class Clock(Protocol):
    """What there is to know of time, and the only ways to wait for it."""

    def now(self) -> dt.datetime:
        """The time of day, for what people and other systems read."""

    def monotonic(self) -> float:
        """Seconds that only grow, for how long something took."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Have something called once, after so many seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        # Goes on while the machine sleeps, which the plain monotonic clock of Linux does not: a Lease that ran out
        # during that sleep must be seen to have run out.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()
