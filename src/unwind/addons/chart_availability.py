"""Whether charts can be had: asked of their repositories with Helm, and remembered for a short while.

Helm asks as it will when the chart is deployed: the same registries, ranges of versions, proxies and certificates. An
index may take longer than a hook has time; what was begun for one request is there for the next.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from unwind import logs
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.helm.charts import Chart
from unwind.kube.workqueue import Queue

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.helm.program import Helm

log = logs.get(__name__)

# Seconds. Whoever asks again meanwhile gets the same answer; what was missing is looked for again sooner.
_FOUND_HOLDS, _MISSING_HOLDS = 60.0, 5.0
# Seconds after which an answer is forgotten altogether.
_KEEP = 600.0
# Seconds for one question, whatever a repository does.
_PATIENCE = 60.0
# Each is a process of some 100 MB and a core, beside those that deploy.
_SIDE_BY_SIDE = 1
# What is said lands in the conditions of Clusters.
_PASSWORD = re.compile(r"://[^/\s@]*@")
LOOKING = "it is being looked for"


class Where(NamedTuple):
    """A chart, and where it should be."""

    chart: str
    repository: str
    version: str

    def __str__(self) -> str:
        of = f" of {self.repository}" if self.repository else ""
        return _PASSWORD.sub("://", f"chart {self.chart}{' ' if self.version else ''}{self.version}{of}")


class ChartLookup(NamedTuple):
    """What was found out, and when."""

    why_not: str
    at: float


class ChartAvailability:
    """Looks for charts, as a part of the process."""

    name = "charts"
    ready = True

    def __init__(self, helm: Helm | None, *, clock: Clock = SYSTEM) -> None:
        """`helm`: None where there is no such program; then nobody can tell, and no chart is said to be there."""
        self._helm = helm
        self._clock = clock
        self._answers: dict[Where, ChartLookup] = {}
        self._asked: dict[Where, asyncio.Event] = {}
        self._queue: Queue[Where] = Queue(self._look, per_group=_SIDE_BY_SIDE, clock=clock, failed=_failed)

    async def run(self) -> None:
        """Look for what is asked for, until cancelled."""
        await self._queue.run()

    async def why_not(self, where: Where, *, within: float) -> str:
        """Why a chart cannot be had; empty if it can.

        Where that is not known within so many seconds: why it could not be had before, or LOOKING.
        """
        if self._helm is None:
            return "there is no helm program here to look for it, and whoever runs Unwind has to install one"
        answer = self._known(where)
        if answer is None:
            asked = self._asked.setdefault(where, asyncio.Event())
            self._queue.add(where)
            last = self._answers.get(where)
            try:
                async with asyncio.timeout(max(0.0, within)):
                    await asked.wait()
            except TimeoutError:
                # An old no may still be told, so that the words do not change with each question. An old yes may not.
                return (last.why_not if last else "") or LOOKING
            answer = self._answers.get(where)
        return answer.why_not if answer else LOOKING

    def _known(self, where: Where) -> ChartLookup | None:
        """An answer that still holds."""
        now = self._clock.monotonic()
        for one in [one for one, it in self._answers.items() if now - it.at > _KEEP]:
            del self._answers[one]
        answer = self._answers.get(where)
        holds = answer and now - answer.at <= (_MISSING_HOLDS if answer.why_not else _FOUND_HOLDS)
        return answer if holds else None

    async def _look(self, where: Where) -> float | None:
        if self._known(where) is None:
            self._answers[where] = ChartLookup(await self._ask(where), self._clock.monotonic())
        if asked := self._asked.pop(where, None):
            asked.set()
        return None

    async def _ask(self, where: Where) -> str:
        assert self._helm  # noqa: S101 - nothing is asked without it
        chart = Chart(release="", namespace="", chart=where.chart, repository=where.repository, version=where.version)
        try:
            await self._helm.look(chart, within=_PATIENCE)
        except UnwindError as error:
            return str(error)
        return ""


def _failed(where: Where, error: Exception) -> None:
    log.warning("it is looked for again", object=str(where), exc_info=error)
