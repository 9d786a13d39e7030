"""Side by side: bounded, the first failure ends the rest, and is raised as it is."""

from __future__ import annotations

import asyncio

import pytest

from unwind.concurrency import side_by_side
from unwind.errors import UnwindError


async def test_no_more_than_the_limit_are_under_way_at_once() -> None:
    under_way = most = 0

    async def one() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await side_by_side((one() for _ in range(50)), limit=7)
    assert most == 7


async def test_the_first_failure_ends_the_rest_and_is_raised_as_it_is() -> None:
    begun = []

    async def fail() -> None:
        raise UnwindError("no room", remedy="make some")

    async def hang(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    with pytest.raises(UnwindError, match="no room: make some"):
        await side_by_side([hang(1), fail(), hang(2), hang(3)], limit=2)
    assert 3 not in begun


async def test_what_is_a_bug_stays_a_group_of_bugs() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await side_by_side([bug()], limit=1)
