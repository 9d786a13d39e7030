"""Ends are opened once, when they are needed, and an end that breaks takes nothing down."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import TransientError
from unwind.deleters.registration import External, Kinds
from unwind.external.external_deletion import Ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.deleters.context import End
    from unwind.kube.client import Client

CLIENT = cast("Client", None)


class Doors:
    """What can be opened, and how often it was."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.refuses: Exception | None = None
        self.may_open = asyncio.Event()
        self.breaks = asyncio.Event()

    @property
    def external(self) -> External:
        return External(name="store", kinds=(Kinds("example.dev/*", "*"),), open=self._open)

    @asynccontextmanager
    async def _open(self, _: Client) -> AsyncIterator[End]:
        await self.may_open.wait()
        if self.refuses:
            raise self.refuses
        self.opened += 1
        try:
            # What is opened in one task and closed in another breaks: a task group is such a thing.
            async with asyncio.TaskGroup() as group:
                breaking = group.create_task(self._break())
                yield KubernetesEnd()
                breaking.cancel()
        finally:
            self.closed += 1

    async def _break(self) -> None:
        await self.breaks.wait()
        raise ConnectionError("the line is dead")


async def test_many_who_need_an_end_at_once_share_one_that_is_closed_in_the_end() -> None:
    doors = Doors()
    external = doors.external
    async with asyncio.TaskGroup() as tasks:
        ends = Ends(CLIENT, tasks)
        asking = [asyncio.ensure_future(ends.get(external)) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        doors.may_open.set()
        found = await asyncio.gather(*asking[1:])
        assert len({id(item) for item in found}) == 1
        assert (doors.opened, doors.closed) == (1, 0)
        for task in tasks._tasks:
            task.cancel()
    assert doors.closed == 1


async def test_an_end_that_cannot_be_opened_is_tried_again_by_the_next_who_asks() -> None:
    doors = Doors()
    doors.may_open.set()
    doors.refuses = PermissionError("no credentials")
    external = doors.external
    async with asyncio.TaskGroup() as tasks:
        ends = Ends(CLIENT, tasks)
        with pytest.raises(TransientError, match="cannot connect to store: no credentials"):
            await ends.get(external)
        doors.refuses = None
        await ends.get(external)
        assert doors.opened == 1
        # It breaks while nobody looks: the next who asks gets another one.
        doors.breaks.set()
        while not doors.closed:
            await asyncio.sleep(0)
        doors.breaks.clear()
        await asyncio.sleep(0)
        await ends.get(external)
        assert doors.opened == 2
        for task in tasks._tasks:
            task.cancel()
