"""The time of an API server, known from the Date headers of its answers.

A deadline counts from a deletionTimestamp, which the API server wrote. A manager whose own clock is wrong would release
a cluster too early, or never: so it counts by the clock of the API server.
"""

from __future__ import annotations

import datetime as dt
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from unwind.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.clock import Clock, Timer

# A Date header is cut off to a second, and an answer takes a while. What differs more is another clock, or a mistake.
_SLACK = 2.0
# A single answer that is far off changes nothing: two in a row do, if so many seconds are between them.
_APART = 1.0


class ServerTime:
    """An estimate of the server's time of day, at most a moment behind it, and not ahead of it.

    Each Date header is a lower bound: it was written before the answer came. Between answers a monotonic clock counts.
    The estimate goes back only if the server's clock was set back: a deadline may come late then, and never early.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._header = b""
        self._offset: float | None = None
        """The server's time, as a timestamp, minus our monotonic clock."""
        self._doubt: tuple[float, float] | None = None
        """An offset that is far off, and when it was first seen."""

    def observe(self, header: bytes) -> None:
        """Take notice of the Date header of an answer that has just come."""
        if header == self._header:
            return  # within the same second there is nothing new in it
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
        """The server's time of day; None before the first answer."""
        if self._offset is None:
            return None
        return dt.datetime.fromtimestamp(self._clock.monotonic() + self._offset, dt.UTC)


class ServerClock:
    """A clock whose time of day is that of an API server. Waits go by the clock of this machine."""

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
