"""Clocks: an injectable one, so that rules can be tested without real time, and the time of an API server.

A deadline counts from a deletionTimestamp, which the API server set. A manager with a wrong clock would release a
cluster too early or never, so deadlines use the API server's clock, estimated from the Date headers of its responses.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# A Date header is truncated to a second, and a response takes a while. A larger difference is another clock or an
# error.
_SLACK = 2.0
# A single response that is far off changes nothing: two in a row do, if so many seconds are between them.
_APART = 1.0


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


class ServerTime:
    """An estimate of the server's time, at most a moment behind it, and never ahead of it.

    Each Date header is a lower bound: it was written before the response arrived. A monotonic clock counts between
    responses. The estimate goes back only if the server's clock was set back: a deadline may then be late, but never
    early.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._header = b""
        self._offset: float | None = None
        """The server's time, as a timestamp, minus our monotonic clock."""
        self._doubt: tuple[float, float] | None = None
        """An offset that is far off, and when it was first seen."""

    def observe(self, header: bytes) -> None:
        """Process the Date header of a response that has just arrived."""
        if header == self._header:
            return  # nothing new within the same second
        try:
            date = parsedate_to_datetime(header.decode("ascii"))
        except (ValueError, UnicodeDecodeError):
            return
        self._header = header
        now = self._clock.monotonic()
        offset = date.replace(tzinfo=date.tzinfo or dt.UTC).timestamp() - now
        if self._offset is None or abs(offset - self._offset) <= _SLACK:
            self._offset = offset if self._offset is None else max(offset, self._offset)
            self._doubt = None
        elif self._doubt is None or abs(offset - self._doubt[0]) > _SLACK:
            self._doubt = (offset, now)
        elif now - self._doubt[1] >= _APART:
            self._offset, self._doubt = offset, None

    def now(self) -> dt.datetime | None:
        """The server's time; None before the first response."""
        if self._offset is None:
            return None
        return dt.datetime.fromtimestamp(self._clock.monotonic() + self._offset, dt.UTC)


class ServerClock:
    """A clock with the time of an API server. Waits use this machine's clock."""

    def __init__(self, time: ServerTime, clock: Clock = SYSTEM) -> None:
        self._time = time
        self._clock = clock

    def now(self) -> dt.datetime:
        return self._time.now() or self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
