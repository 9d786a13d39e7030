"""Whether charts can be had is asked once, and remembered for a short while."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons.chart_availability import LOOKING, ChartAvailability, Where
from unwind.helm.program import Helm, HelmError
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.helm.charts import Chart

WEB = Where("web", "http://charts.example", "1.0.0")


class Scripted(Helm):
    """Answers as it is told, when it is told."""

    def __init__(self, *answers: str) -> None:
        super().__init__(Path("helm"))
        self.answers = list(answers)
        self.asked = 0
        self.free = asyncio.Event()
        self.free.set()

    async def look(self, chart: Chart, *, within: float) -> None:
        self.asked += 1
        await self.free.wait()
        if why := self.answers.pop(0):
            raise HelmError(why)


@asynccontextmanager
async def looking(helm: Helm | None, clock: StillClock) -> AsyncIterator[ChartAvailability]:
    charts = ChartAvailability(helm, clock=clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charts.run())
        yield charts
        task.cancel()


@asynccontextmanager
async def asking_again(first: str, then: str, *, after: float) -> AsyncIterator[tuple[Scripted, ChartAvailability]]:
    """Charts whose first answer has expired, and whose next one has not come yet."""
    helm, clock = Scripted(first, then), StillClock()
    async with looking(helm, clock) as charts:
        assert await charts.why_not(WEB, within=10) == (f"{first}; will retry" if first else "")
        clock.advance(after)
        helm.free.clear()
        yield helm, charts


async def test_a_chart_that_is_there_is_asked_for_once_in_a_while() -> None:
    helm, clock = Scripted("", "gone"), StillClock()
    async with looking(helm, clock) as charts:
        for _ in range(3):
            assert await charts.why_not(WEB, within=10) == ""
        assert helm.asked == 1
        clock.advance(61)
        assert await charts.why_not(WEB, within=10) == "gone; will retry"


async def test_a_chart_that_is_missing_is_looked_for_again_sooner() -> None:
    helm, clock = Scripted("not found", ""), StillClock()
    async with looking(helm, clock) as charts:
        assert await charts.why_not(WEB, within=10) == "not found; will retry"
        assert await charts.why_not(WEB, within=10) == "not found; will retry"
        clock.advance(6)
        assert await charts.why_not(WEB, within=10) == ""
        assert helm.asked == 2


async def test_what_takes_longer_than_a_request_has_is_there_for_the_next_one() -> None:
    helm, clock = Scripted(""), StillClock()
    helm.free.clear()
    async with looking(helm, clock) as charts:
        assert await charts.why_not(WEB, within=0) == LOOKING
        assert await charts.why_not(WEB, within=0) == LOOKING
        helm.free.set()
        assert await charts.why_not(WEB, within=10) == ""
        assert helm.asked == 1


async def test_while_a_missing_chart_is_looked_for_again_the_old_reason_is_told() -> None:
    async with asking_again("not found", "", after=6) as (helm, charts):
        assert await charts.why_not(WEB, within=0) == "not found; will retry"
        helm.free.set()
        assert await charts.why_not(WEB, within=10) == ""


async def test_that_a_chart_was_there_once_is_not_enough() -> None:
    async with asking_again("", "gone", after=61) as (_, charts):
        assert await charts.why_not(WEB, within=0) == LOOKING


async def test_several_requests_at_once_ask_once() -> None:
    helm, clock = Scripted(""), StillClock()
    async with looking(helm, clock) as charts:
        answers = await asyncio.gather(*(charts.why_not(WEB, within=10) for _ in range(20)))
    assert set(answers) == {""}
    assert helm.asked == 1


async def test_without_helm_no_chart_is_said_to_be_there() -> None:
    async with looking(None, StillClock()) as charts:
        assert "the helm program is not installed; use the image of Unwind" in await charts.why_not(WEB, within=10)


async def test_while_nobody_looks_no_chart_is_said_to_be_there() -> None:
    assert await ChartAvailability(Scripted(""), clock=StillClock()).why_not(WEB, within=0) == LOOKING


def test_a_password_in_an_address_is_not_told() -> None:
    told = str(Where("web", "https://me:secret@charts.example", ""))
    assert told == "chart web of https://charts.example"
