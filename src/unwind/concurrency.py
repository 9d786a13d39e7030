"""Doing things side by side, with an owner and a bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable


async def side_by_side(work: Iterable[Awaitable[object]], *, limit: int) -> None:
    """Do all of it, at most `limit` at a time; the first failure ends the rest and is raised as it is."""
    bound = asyncio.Semaphore(limit)

    async def bounded(one: Awaitable[object]) -> None:
        async with bound:
            await one

    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(bounded(one))
    except* UnwindError as failures:
        raise _first(failures) from None


def _first(failures: BaseExceptionGroup[UnwindError]) -> UnwindError:
    inner = failures.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
