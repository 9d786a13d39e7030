"""A crashed process does nothing more."""

from __future__ import annotations

import asyncio

import pytest

from unwind.testing.crashes import Died, Life


async def test_nothing_runs_in_what_was_abandoned_not_even_finally() -> None:
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            ran.append("first")
            await asyncio.sleep(0)
            ran.append("second")
        finally:
            ran.append("finally")

    async with Life(dies_at=2) as life:
        with pytest.raises(Died):
            await life.live(work(), within=10)
        for _ in range(10):
            await asyncio.sleep(0)
        assert ran == ["first"]
        assert [place.function for place in life.places] == ["work", "sleep", "__sleep0"]


async def test_a_time_limit_that_was_set_in_it_reaches_nobody() -> None:
    over = asyncio.Event()
    caught: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            caught.append("time is over")

    async with Life(dies_at=1) as life:
        with pytest.raises(Died):
            await life.live(work(), within=10)
        # Later than the limit: the next run is not affected by it.
        asyncio.get_running_loop().call_later(0.05, over.set)
        await over.wait()
        assert not caught


async def test_tasks_that_belong_to_somebody_else_go_on() -> None:
    done = asyncio.Event()

    async def other() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.set()

    async def work() -> None:
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group, Life(dies_at=1) as life:
        group.create_task(other())
        with pytest.raises(Died):
            await life.live(work(), within=10)
        await done.wait()


async def test_what_comes_out_of_a_life_that_goes_on_is_what_was_returned_or_raised() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("no")

    async with Life() as life:
        assert await life.live(answer(), within=10) == 42
        with pytest.raises(KeyError):
            await life.live(fail(), within=10)
        assert life.suspensions == 2
