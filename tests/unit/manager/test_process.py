"""The order in which the manager process starts and stops its components."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.kube.shards import Shards
from unwind.manager.context import ManagerOptions
from unwind.manager.process import _Process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Signal:
    """What the process waits for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.now = asyncio.Event()


class Part:
    """A component that records its start and its end."""

    ready = True

    def __init__(self, name: str, events: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.drained = False
        self._events = events
        self._fails = fails

    async def run(self) -> None:
        self._events.append(f"{self.name} started")
        try:
            if self._fails:
                await asyncio.sleep(0)
                raise ValueError(self.name)
            await asyncio.Event().wait()
        finally:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)  # a component may take a while to end
            self._events.append(f"{self.name} ended{' drained' if self.drained else ''}")


class Leases(Part, Shards):
    """Shards are recognized by their type."""


class Process(_Process):
    """The process, with these components."""

    def __init__(self, events: list[str], *, fails: bool = False) -> None:
        super().__init__(ManagerOptions(), AsyncExitStack())
        self.events = events
        self._parts = [Leases("shards", events), Part("controller", events, fails=fails), Part("recorder", events)]
        self._shared = [self._members()]

    @asynccontextmanager
    async def _members(self) -> AsyncIterator[None]:
        self.events.append("members opened")
        try:
            yield
        finally:
            self.events.append("members closed")


async def test_what_components_share_is_there_before_them_and_ends_after_them_but_before_the_shards() -> None:
    events: list[str] = []
    stopping = Signal()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(Process(events).work(cast("Any", stopping)))
        while "recorder started" not in events:
            await asyncio.sleep(0)
        stopping.asked.set()
    assert events[0] == "members opened"
    assert sorted(events[1:4]) == ["controller started", "recorder started", "shards started"]
    assert sorted(events[4:6]) == ["controller ended", "recorder ended"]
    assert events[6:] == ["members closed", "shards ended drained"]


async def test_a_component_that_fails_ends_the_others_before_what_they_share() -> None:
    events: list[str] = []
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(10):
            await Process(events, fails=True).work(cast("Any", Signal()))
    assert raised.group_contains(ValueError, match="controller")
    assert events.index("members closed") > events.index("recorder ended")
    assert events[-1] == "shards ended"  # not drained: the next owner waits for the last possible write
