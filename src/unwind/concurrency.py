"""Bounded concurrency, cancellable work, and single flight."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable

T = TypeVar("T")


async def gather_limited(work: Iterable[Coroutine[object, object, object]], *, limit: int) -> None:
    """Run all coroutines, at most `limit` at a time; the first failure cancels the rest and is raised unwrapped."""
    work = list(work)
    if not work:
        return
    # In a task of its own: before Python 3.13, a TaskGroup whose task fails while it exits leaves a cancellation
    # pending in its parent (`Task.cancelling`). Timeouts and `Cancellation` would take it for one of the caller.
    try:
        await asyncio.create_task(_gather(work, limit))
    finally:
        for call in work:
            call.close()  # closes those that never started; no effect on others


async def _gather(work: Iterable[Coroutine[object, object, object]], limit: int) -> None:
    bound = asyncio.Semaphore(limit)

    async def bounded(call: Coroutine[object, object, object]) -> None:
        async with bound:
            await call

    try:
        async with asyncio.TaskGroup() as group:
            for call in work:
                group.create_task(bounded(call))
    except ExceptionGroup as failures:
        raise to_tell(failures) from None


async def unless(told: asyncio.Event, work: Awaitable[None]) -> bool:
    """Run the work until it is done or `told` is set; returns whether it was done."""

    async def do() -> None:
        await work

    try:
        async with asyncio.TaskGroup() as group:
            doing = group.create_task(do())
            waiting = group.create_task(told.wait())
            await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            done = doing.done() and not doing.cancelled()
            doing.cancel()
            waiting.cancel()
    except ExceptionGroup as failures:
        raise to_tell(failures) from None
    return done


class Runs(Protocol):
    """Runs until it is cancelled."""

    async def run(self) -> None: ...


async def run_all(*parts: Runs) -> None:
    """Run all of them until cancelled; the failure of one ends the others."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part.run())


class SingleFlight(Generic[T]):
    """Single flight: concurrent callers with the same key share one call.

    Each caller gets the result of a call that began after it arrived, so no result is staler than with separate calls.
    """

    def __init__(self) -> None:
        self._asking: dict[Hashable, asyncio.Future[None]] = {}
        """Calls in flight; done when there is a result."""
        self._waiting: dict[Hashable, asyncio.Future[T]] = {}
        """Calls about to start: the result, for callers that arrived in time."""

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        """The result. `key`: identifies equal calls."""
        while (waiting := self._waiting.get(key)) is not None:
            # Another caller is about to start the call. If it is cancelled, the next one must start it.
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                return waiting.result()
        loop = asyncio.get_running_loop()
        answer = self._waiting[key] = loop.create_future()
        try:
            if before := self._asking.get(key):
                await asyncio.wait([before])
            else:
                await asyncio.sleep(0)  # callers of the same loop iteration join this call
        except BaseException:
            answer.cancel()
            raise
        finally:
            del self._waiting[key]
        asking = self._asking[key] = loop.create_future()
        try:
            found = await question()
        except Exception as error:
            answer.set_exception(error)
            answer.exception()  # retrieved, in case no caller waits for it
            raise
        except BaseException:
            answer.cancel()
            raise
        else:
            answer.set_result(found)
            return found
        finally:
            asking.set_result(None)
            if self._asking.get(key) is asking:
                del self._asking[key]


def to_tell(failures: ExceptionGroup[Exception]) -> Exception:
    """The error to raise for several concurrent failures: the first UnwindError, or all if one is a bug.

    For use in a plain `except`: before Python 3.11.4, what is raised in `except*` is wrapped in a group.
    """
    known, bugs = failures.split(UnwindError)
    return bugs or (_first(known) if known else failures)


def _first(failures: ExceptionGroup[UnwindError]) -> UnwindError:
    inner = failures.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner
