"""Poll a condition that cannot be watched. For the state of an object, use `unwind.kube.object_watch`."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
_SELDOM = 0.25


@overload
async def eventually(
    check: Callable[[], Awaitable[T]], called: str = "", *, within: float = 60.0, every: float = 0.02
) -> T: ...


@overload
async def eventually(check: Callable[[], T], called: str = "", *, within: float = 60.0, every: float = 0.02) -> T: ...


async def eventually(
    check: Callable[[], object], called: str = "", *, within: float = 60.0, every: float = 0.02
) -> object:
    """The first true result of the check; on timeout, an AssertionError with the last result.

    A check that has to be awaited costs a server time: it is repeated less and less often."""
    last: object = None
    deadline = asyncio.timeout(within)
    try:
        async with deadline:
            while True:
                result = check()
                if inspect.isawaitable(result):
                    last = await result
                    pause, every = every, max(every, min(every * 1.5, _SELDOM))
                else:
                    last, pause = result, every
                if last:
                    return last
                await asyncio.sleep(pause)
    except TimeoutError:
        if not deadline.expired():
            raise
    raise AssertionError(_timed_out(within, called, last))


def eventually_sync(check: Callable[[], T], called: str = "", *, within: float = 60.0, every: float = 0.02) -> T:
    """The same without an event loop, for tests that run programs and block."""
    deadline = time.monotonic() + within
    while not (last := check()):
        assert time.monotonic() < deadline, _timed_out(within, called, last)
        time.sleep(every)
    return last


def _timed_out(within: float, called: str, last: object) -> str:
    return f"timed out after {within:g}s waiting for {called or 'a condition'}; the last result was {last!r}"
