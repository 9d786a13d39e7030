"""Side by side: bounded, the first failure ends the rest, and is raised as it is. Together: asked once for many."""

from __future__ import annotations

import asyncio

import pytest

from unwind.concurrency import SingleFlight, gather_limited, unless
from unwind.errors import UnwindError


async def test_no_more_than_the_limit_are_under_way_at_once() -> None:
    under_way = most = 0

    async def one() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await gather_limited((one() for _ in range(50)), limit=7)
    assert most == 7


async def test_the_first_failure_ends_the_rest_and_is_raised_as_it_is() -> None:
    begun = []

    async def fail() -> None:
        raise UnwindError("no room", remedy="make some")

    async def hang(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    with pytest.raises(UnwindError, match="no room; make some"):
        await gather_limited([hang(1), fail(), hang(2), hang(3)], limit=2)
    assert 3 not in begun


async def test_a_failure_leaves_no_cancellation_pending_in_the_caller() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise UnwindError("no room")

    with pytest.raises(UnwindError):
        await gather_limited([fail(), asyncio.Event().wait()], limit=2)
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_when_the_caller_is_cancelled_everything_ends_before_it_does() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    async def call() -> None:
        try:
            await gather_limited([slow(), slow()], limit=2)
        finally:
            ended.append("caller")

    task = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["slow", "slow", "caller"]


async def test_what_is_a_bug_stays_a_group_of_bugs() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await gather_limited([bug()], limit=1)


class Oracle:
    """Answers with a number that grows with each question, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()

    async def __call__(self) -> int:
        self.asked += 1
        mine = self.asked
        await self.let.wait()
        return mine


async def a_moment() -> None:
    """Long enough for whoever can go on to do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_in_the_same_moment_shares_the_question() -> None:
    together, oracle = SingleFlight[int](), Oracle()
    oracle.let.set()
    assert await asyncio.gather(*(together.ask("a", oracle) for _ in range(5))) == [1] * 5


async def test_when_the_one_who_is_about_to_ask_gives_up_another_one_does() -> None:
    together, oracle = SingleFlight[int](), Oracle()
    oracle.let.set()
    first, second = (asyncio.create_task(together.ask("a", oracle)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    assert first.cancelled()


async def test_who_comes_while_a_question_is_asked_shares_the_next_one() -> None:
    together, oracle = SingleFlight[int](), Oracle()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(together.ask("a", oracle))
        await a_moment()
        others = [group.create_task(together.ask("a", oracle)) for _ in range(20)]
        elsewhere = group.create_task(together.ask("b", oracle))
        await a_moment()
        assert oracle.asked == 2
        oracle.let.set()
    assert (first.result(), elsewhere.result()) == (1, 2)
    assert {item.result() for item in others} == {3}
    assert oracle.asked == 3


async def test_a_later_question_is_asked_anew() -> None:
    together, oracle = SingleFlight[int](), Oracle()
    oracle.let.set()
    assert [await together.ask("a", oracle) for _ in range(3)] == [1, 2, 3]


async def test_when_the_one_who_asks_gives_up_another_one_does() -> None:
    together, oracle = SingleFlight[int](), Oracle()
    first = asyncio.create_task(together.ask("a", oracle))
    await a_moment()
    second = asyncio.create_task(together.ask("a", oracle))
    await a_moment()
    third = asyncio.create_task(together.ask("a", oracle))
    await a_moment()
    second.cancel()
    await a_moment()
    first.cancel()
    oracle.let.set()
    assert await third == 2
    assert first.cancelled()
    assert second.cancelled()


async def test_a_failure_is_everybodys() -> None:
    together, let = SingleFlight[int](), asyncio.Event()

    async def fail() -> int:
        await let.wait()
        raise UnwindError("nobody knows")

    asked = [asyncio.create_task(together.ask("a", fail)) for _ in range(3)]
    await asyncio.sleep(0)
    let.set()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(item) for item in told] == ["nobody knows"] * 3
    with pytest.raises(UnwindError):
        await together.ask("a", fail)


async def test_work_is_done_unless_it_is_told_otherwise_before() -> None:
    told, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.TaskGroup() as group:
        doing = group.create_task(unless(told, work()))
        await begun.wait()
        told.set()
    assert doing.result() is False
    assert ended.is_set()
    assert await unless(asyncio.Event(), asyncio.sleep(0)) is True


async def test_what_the_work_raises_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise UnwindError("no")

    with pytest.raises(UnwindError, match="no"):
        await unless(asyncio.Event(), work())
