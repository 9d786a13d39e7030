"""Fences: work that was started for a shard ends with the shard, and nothing else does."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.eventually import eventually
from tests.owners import Owner
from unwind.kube import fencing
from unwind.kube.fencing import Drain, FencedError, Fences
from unwind.kube.workqueue import Queue


class NewOwner(Owner):
    """An owner that has just taken over from a process that may still write."""

    def unsettled(self, key: str) -> float:
        return 3.0


async def forever(_: str) -> float | None:
    await asyncio.Event().wait()
    return None


async def test_work_is_cancelled_when_its_owner_tells_of_the_loss() -> None:
    owner = Owner()
    work = asyncio.ensure_future(Fences(owner).around(forever, str)("key"))
    await asyncio.sleep(0)
    owner.lose_all()
    with pytest.raises(FencedError, match="lost the shard of key"):
        await work


async def test_work_is_cancelled_also_when_nobody_tells_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_LOOK", 0.01)
    owner = Owner()
    work = asyncio.ensure_future(Fences(owner).around(forever, str)("key"))
    await asyncio.sleep(0)
    owner.lose_all(told=False)
    async with asyncio.timeout(10):
        with pytest.raises(FencedError):
            await work


async def test_a_fence_that_was_lost_stays_lost_and_another_is_made_for_what_comes_next() -> None:
    owner = Owner()
    results: list[str] = []
    go = asyncio.Event()

    async def late() -> None:
        await go.wait()
        try:
            fencing.check_fence()
        except FencedError:
            results.append("refused")

    tasks: list[asyncio.Task[None]] = []

    async def reconcile(key: str) -> float | None:
        fencing.check_fence()
        if key == "first":
            tasks.append(asyncio.create_task(late()))
        results.append(key)
        return None

    fences = Fences(owner)
    await fences.around(reconcile, lambda _: "shard")("first")
    owner.lose_all()
    owner.gain_all()
    await fences.around(reconcile, lambda _: "shard")("second")
    go.set()
    await tasks[0]
    assert results == ["first", "second", "refused"]


async def test_what_is_not_ours_is_called_and_cannot_write() -> None:
    owner = Owner()
    owner.lose_all(told=False)
    called: list[str] = []

    async def reconcile(key: str) -> float | None:
        called.append(key)
        with pytest.raises(FencedError):
            fencing.check_fence()
        return None

    await Fences(owner).around(reconcile, str)("key")
    assert called == ["key"]


async def test_a_timeout_inside_is_no_loss() -> None:
    async def slow(_: str) -> float | None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
        return None

    with pytest.raises(TimeoutError):
        await Fences(Owner()).around(slow, str)("key")


async def test_a_shared_task_does_not_carry_the_fence_of_the_task_that_started_it() -> None:
    owner, go, results = NewOwner(), asyncio.Event(), list[str]()

    async def write(name: str) -> None:
        await go.wait()
        try:
            fencing.check_fence()
            results.append(f"{name} writes")
        except FencedError:
            results.append(f"{name} is refused")

    async def reconcile(_: str) -> float | None:
        tasks.create_task(write("own"))
        fencing.unfenced().run(tasks.create_task, write("shared"))
        fencing.check_fence()  # the caller keeps its fence
        assert fencing.unsettled() == 3.0
        return None

    async with asyncio.TaskGroup() as tasks:
        await Fences(owner).around(reconcile, str)("key")
        owner.lose_all()
        go.set()
    assert results == ["own is refused", "shared writes"]


async def test_fences_are_not_checked_any_more_when_no_work_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_LOOK", 0.01)
    fences = Fences(Owner())

    async def reconcile(_: str) -> float | None:
        return None

    await fences.around(reconcile, str)("key")

    def over() -> bool:
        gc.collect()
        return not fences._timer

    await eventually(over, "the end of the checks", within=10)
    assert not fences._fences


async def test_nothing_is_fenced_outside() -> None:
    fencing.check_fence()
    assert fencing.unsettled() == 0
    async with fencing.scope():
        pass


async def test_it_is_known_how_long_the_former_owner_may_write() -> None:
    found: list[float] = []

    async def reconcile(_: str) -> float | None:
        found.append(fencing.unsettled())
        return None

    await Fences(NewOwner()).around(reconcile, str)("key")
    assert found == [3.0]


async def test_a_queue_works_on_a_key_under_the_fence_of_who_added_it() -> None:
    owner = Owner()
    told: list[str] = []

    async def write(key: str) -> float | None:
        try:
            fencing.check_fence()
        except FencedError:
            told.append(f"{key} refused")
            raise
        told.append(key)
        return None

    writes: Queue[str] = Queue(write, per_group=1)

    async def reconcile(key: str) -> float | None:
        writes.add(key)
        return None

    fenced = Fences(owner).around(reconcile, str)
    await fenced("lost")
    owner.lose_all()
    writes.add("free")  # started later, without a fence
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writes.run())
        await eventually(lambda: len(told) >= 2, within=10)
        assert told == ["lost refused", "free"]
        assert writes.failures("lost") == 0
        running.cancel()


async def test_a_drain_waits_for_the_writes_that_have_started_and_refuses_others() -> None:
    drain, answered, order = Drain(), asyncio.Event(), list[str]()

    async def write(name: str) -> None:
        try:
            with fencing.fenced_write():
                await answered.wait()
            order.append(f"{name} answered")
        except FencedError:
            order.append(f"{name} refused")

    first = asyncio.create_task(write("first"), context=drain.context())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(drain.stop())
    await asyncio.sleep(0)
    await asyncio.create_task(write("second"), context=drain.context())
    assert not stopping.done()
    answered.set()
    await stopping
    order.append("stopped")
    await first
    assert order == ["second refused", "first answered", "stopped"]
    # Other work goes on, also in a worker that was added by the stopped work, and in shared tasks.
    await write("other")
    refused: list[bool] = []

    async def reconcile(_: str) -> float | None:
        with fencing.fenced_write():
            refused.append(False)
        return None

    async def work() -> None:
        await Fences(Owner()).around(reconcile, str)("key")

    await asyncio.create_task(work(), context=drain.context())
    await asyncio.create_task(write("shared"), context=drain.context().run(fencing.unfenced))
    assert order[3:] == ["other answered", "shared answered"]
    assert refused == [False]
