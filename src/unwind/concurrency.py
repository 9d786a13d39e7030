"""Doing things side by side, with an owner and a bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable

T = TypeVar("T")


async def side_by_side(work: Iterable[Coroutine[object, object, object]], *, limit: int) -> None:
    """Do all of it, at most `limit` at a time; the first failure ends the rest and is raised as it is."""
    bound = asyncio.Semaphore(limit)
    work = list(work)

    async def bounded(one: Coroutine[object, object, object]) -> None:
        async with bound:
            await one

    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(bounded(one))
    except ExceptionGroup as failures:
        raise to_tell(failures) from None
    finally:
        for one in work:
            one.close()  # what was never begun; on all others it does nothing


async def unless(told: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do the work, unless it is told otherwise before it is done; whether it was done."""

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


class Together(Generic[T]):
    """A question that many have at the same time, asked once for all of them.

    Everybody gets an answer to a question that was put after they came: nothing is older than if they had asked alone.
    """

    def __init__(self) -> None:
        self._asking: dict[Hashable, asyncio.Future[None]] = {}
        """Questions that are being asked; done when there is an answer."""
        self._waiting: dict[Hashable, asyncio.Future[T]] = {}
        """Questions that are about to be asked: the answer, for those who came in time."""

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        """The answer. `key`: what makes two questions the same."""
        while (waiting := self._waiting.get(key)) is not None:
            # Somebody is about to ask. If they give up, another one has to.
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                return waiting.result()
        loop = asyncio.get_running_loop()
        answer = self._waiting[key] = loop.create_future()
        try:
            if before := self._asking.get(key):
                await asyncio.wait([before])
            else:
                await asyncio.sleep(0)  # whoever comes in the same moment is in time for this one
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
            answer.exception()  # nobody need have waited for it
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
    """What to raise for several failures side by side: the first that a person has to know; all, if one is a bug.

    For use in a plain `except`: what is raised in an `except*` is wrapped in a group by Python before 3.11.4.
    """
    known, bugs = failures.split(UnwindError)
    return bugs or (_first(known) if known else failures)


def _first(failures: ExceptionGroup[UnwindError]) -> UnwindError:
    inner = failures.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner
