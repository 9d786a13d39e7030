"""The work queue: one worker per key, no starvation, no lost keys."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.kube.workqueue import Backoff, Queue
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def running(queue: Queue[str]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        yield
        task.cancel()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Work:
    """A reconciler that records its keys, and waits for the test where a key says so."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.active: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.failing: set[str] = set()
        self.again: dict[str, float] = {}

    async def __call__(self, key: str) -> float | None:
        assert key not in self.active, "one worker a key"
        self.active.append(key)
        try:
            if key in self.gates:
                await self.gates[key].wait()
            if key in self.failing:
                raise RuntimeError(key)
            self.done.append(key)
            return self.again.get(key)
        finally:
            self.active.remove(key)


@asynccontextmanager
async def working_on_a() -> AsyncIterator[tuple[Work, Queue[str]]]:
    """A queue whose worker has the key `a`, and waits for its gate."""
    work = Work()
    work.gates["a"] = asyncio.Event()
    queue: Queue[str] = Queue(work)
    async with running(queue):
        queue.add("a")
        await settle()
        yield work, queue


async def test_a_key_added_twice_before_its_turn_is_worked_on_once() -> None:
    work = Work()
    queue: Queue[str] = Queue(work)
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert queue.depth == 2
    async with running(queue):
        await settle()
    assert work.done == ["a", "b"]


async def test_a_key_added_while_it_is_worked_on_is_worked_on_once_more() -> None:
    async with working_on_a() as (work, queue):
        for _ in range(3):
            queue.add("a")
        work.gates["a"].set()
        await settle()
    assert work.done == ["a", "a"]


async def test_a_cluster_that_hangs_never_starves_the_others() -> None:
    work = Work()
    queue: Queue[str] = Queue(work, group=lambda key: key.split("/")[0], per_group=2)
    hanging = [f"hung/{number}" for number in range(50)]
    for key in hanging:
        work.gates[key] = asyncio.Event()
    async with running(queue):
        for key in hanging:
            queue.add(key)
        for number in range(10):
            queue.add(f"well/{number}")
        await settle()
        assert work.done == [f"well/{number}" for number in range(10)]
        assert len(work.active) == 2, "a cluster has no more workers than its bound"


async def test_failures_are_retried_later_and_later_until_one_succeeds() -> None:
    work, clock = Work(), StillClock()
    work.failing.add("a")
    failed: list[str] = []
    backoff = Backoff(first=1.0, limit=8.0, jitter=0.0)
    queue: Queue[str] = Queue(work, clock=clock, backoff=backoff, failed=lambda key, _: failed.append(key))
    waits = []
    async with running(queue):
        queue.add("a")
        for _ in range(5):
            await settle()
            waits.append(clock.waiting[0])
            clock.advance(clock.waiting[0])
        work.failing.clear()
        await settle()
        assert queue.failures("a") == 0
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert work.done == ["a"]
    assert failed == ["a"] * 5


async def test_an_event_does_not_wait_for_the_back_off() -> None:
    work, clock = Work(), StillClock()
    work.failing.add("a")
    queue: Queue[str] = Queue(work, clock=clock)
    async with running(queue):
        queue.add("a")
        await settle()
        work.failing.clear()
        queue.add("a")
        await settle()
    assert work.done == ["a"], "and the clock stood still"
    assert clock.waiting == []


async def test_of_several_delays_the_earliest_holds() -> None:
    work, clock = Work(), StillClock()
    queue: Queue[str] = Queue(work, clock=clock)
    async with running(queue):
        queue.add_after("a", 10)
        queue.add_after("a", 5)
        queue.add_after("a", 20)
        assert clock.waiting == [5]
        clock.advance(5)
        await settle()
        clock.advance(100)
        await settle()
    assert work.done == ["a"]


async def test_a_reconciler_can_ask_to_be_called_again() -> None:
    work, clock = Work(), StillClock()
    work.again["a"] = 30.0
    queue: Queue[str] = Queue(work, clock=clock)
    async with running(queue):
        queue.add("a")
        await settle()
        clock.advance(30)
        await settle()
    assert work.done == ["a", "a"]


async def test_what_is_added_while_a_queue_ends_waits_for_its_next_run() -> None:
    done: list[str] = []

    async def reconcile(key: str) -> None:
        try:
            if key == "first":
                await asyncio.Event().wait()
        finally:
            done.append(key)
            queue.add("late")

    queue: Queue[str] = Queue(reconcile)
    queue.add("first")
    async with running(queue):
        await settle()
    assert done == ["first"]
    async with running(queue):
        await settle()
    assert done[:2] == ["first", "late"]


async def test_a_queue_that_is_cancelled_cancels_its_workers() -> None:
    async with working_on_a() as (work, _):
        assert work.active == ["a"]
    assert work.active == []
    assert work.done == []


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_no_wait_is_longer_than_the_limit_allows(failures: int, seed: int) -> None:
    backoff = Backoff(first=0.5, limit=300.0, jitter=0.2)
    assert 0 < backoff.after(failures, random.Random(seed)) <= 360.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(0, 2**32))
async def test_whatever_is_added_is_worked_on_after_it_was_added(steps: list[tuple[str, bool]], seed: int) -> None:
    """However adds and workers interleave, every added key gets a run that started later."""
    begun: dict[str, int] = {}
    added: dict[str, int] = {}
    moment = 0
    chance = random.Random(seed)

    async def reconcile(key: str) -> None:
        nonlocal moment
        moment += 1
        begun[key] = moment
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    queue: Queue[str] = Queue(reconcile, per_group=2)
    async with running(queue):
        await asyncio.sleep(0)
        for key, pause in steps:
            moment += 1
            added[key] = moment
            queue.add(key)
            if pause:
                await asyncio.sleep(0)
        while queue.depth or queue.working:
            await asyncio.sleep(0)
    assert all(begun[key] > when for key, when in added.items())


async def test_a_key_that_is_added_while_the_queue_breaks_off_is_not_started() -> None:
    class BrokenOffError(BaseException):
        """What ends the whole queue."""

    async def reconcile(key: str) -> None:
        started.append(key)
        # Between the end of this task and that of the queue, as the handler of an informer does.
        loop.call_soon(loop.call_soon, add)
        raise BrokenOffError

    def add() -> None:
        try:
            queue.add("late")
        except RuntimeError as error:
            raised.append(error)

    loop = asyncio.get_running_loop()
    started: list[str] = []
    raised: list[RuntimeError] = []
    queue: Queue[str] = Queue(reconcile, group=lambda key: key)
    queue.add("first")
    with pytest.raises(BaseExceptionGroup):
        await queue.run()
    assert (started, raised) == (["first"], [])
