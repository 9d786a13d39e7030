"""Doing things side by side, with an owner and a bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable


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


def to_tell(failures: ExceptionGroup[Exception]) -> Exception:
    """What to raise for several failures side by side: the first that a person has to know; all, if one is a bug.

    For use in a plain `except`: what is raised in an `except*` is wrapped in a group by Python before 3.11.4.
    """
    known, bugs = failures.split(UnwindError)
    return bugs or (_first(known) if known else failures)


def _first(failures: ExceptionGroup[UnwindError]) -> UnwindError:
    inner = failures.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner
