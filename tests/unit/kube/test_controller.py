"""The base of controllers: what is enqueued, fenced, measured and logged."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from tests.owners import Owner
from unwind.errors import UnwindError
from unwind.kube import fencing
from unwind.kube.controller import Controller, ControllerDeps
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.manager.health import new_registry
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Caches:
    ready = False

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def subscribe(self, listed: Callable[[], None]) -> None:
        self.told.append(listed)


class Fruits(Controller[str]):
    name = "fruits"
    name_in_metrics = "fruit"

    def __init__(self, owner: Owner, *, errors: tuple[Exception, ...] = ()) -> None:
        self.caches = Caches()
        self.registry = new_registry()
        self.clock = StillClock()
        self.keys = ["apple", "pear"]
        self.done: list[str] = []
        self.errors = list(errors)
        client = Objects(resources=()).client
        shared = ControllerDeps(
            client=client,
            owner=owner,
            metrics=Metrics(self.registry),
            recorder=Recorder(client, instance="test"),
            clock=self.clock,
        )
        super().__init__(shared, self.caches)

    def _enqueue_all(self) -> None:
        for key in self.keys:
            self._queue.add(key)

    async def _reconcile(self, key: str) -> float | None:
        if self.errors:
            raise self.errors.pop(0)
        fencing.check_fence()
        self.done.append(key)
        return None

    def measured(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"controller": "fruit"})


@asynccontextmanager
async def running(fruits: Fruits) -> AsyncIterator[None]:
    task = asyncio.ensure_future(fruits.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle(fruits: Fruits) -> None:
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0)
            if not fruits._queue.depth + fruits._queue.working:
                return


async def test_all_keys_are_reconciled_when_a_cache_is_synced_and_when_shards_change() -> None:
    owner = Owner()
    fruits = Fruits(owner)
    async with running(fruits):
        for told in fruits.caches.told:
            told()
        await idle(fruits)
        assert sorted(fruits.done) == ["apple", "pear"]
        owner.lose_all()
        await idle(fruits)
        assert len(fruits.done) == 2  # nothing is written for another replica's shard
        owner.gain_all()
        await idle(fruits)
        assert sorted(fruits.done[2:]) == ["apple", "pear"]
    assert fruits.measured("unwind_reconcile_seconds_count") == 6


async def test_it_is_ready_when_its_caches_are() -> None:
    fruits = Fruits(Owner())
    assert not fruits.ready
    fruits.caches.ready = True
    assert fruits.ready


async def test_a_failed_reconcile_is_logged_counted_and_retried() -> None:
    bug = ValueError()
    fruits = Fruits(Owner(), errors=(UnwindError("it is sour"), bug))
    fruits.keys = ["apple"]
    logged: list[Any] = []
    async with running(fruits):
        with capture_logs() as logged:
            fruits._enqueue_all()
            for _ in range(2):
                await idle(fruits)
                fruits.clock.advance(10)
            await idle(fruits)
    told = [(item["event"], item["object"], item["why"], item["exc_info"]) for item in logged]
    event = "reconcile failed, will retry"
    assert told == [(event, "apple", "it is sour", None), (event, "apple", "ValueError", bug)]
    assert fruits.done == ["apple"]
    assert fruits.measured("unwind_reconcile_errors_total") == 2
