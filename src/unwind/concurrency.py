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
    except* UnwindError as failures:
        raise first_failure(failures) from None
    finally:
        for one in work:
            one.close()  # what was never begun; on all others it does nothing


def first_failure(failures: BaseExceptionGroup[UnwindError]) -> UnwindError:
    """The one to tell, of several that happened side by side."""
    inner = failures.exceptions[0]
    return first_failure(inner) if isinstance(inner, BaseExceptionGroup) else inner
