"""Checks whether Helm charts are available in their repositories, and caches the answers for a short time.

Helm resolves the chart as it does for a deployment: same registries, version ranges, proxies and certificates.
Loading a repository index may take longer than a hook's timeout: a lookup goes on after its request, and the next
request gets the result.
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

# Seconds that an answer is reused. A missing chart is looked up again sooner.
_FOUND_HOLDS, _MISSING_HOLDS = 60.0, 5.0
# Seconds after which an answer is dropped from the cache.
_KEEP = 600.0
# Timeout of one lookup, in seconds.
_PATIENCE = 60.0
# Each lookup is a process of about 100 MB and one core, in addition to running deployments.
_SIDE_BY_SIDE = 1
# Credentials in a URL: Cluster API writes the message into the conditions of Clusters.
_PASSWORD = re.compile(r"://[^/\s@]*@")
LOOKING = "lookup in progress"


class Where(NamedTuple):
    """A chart reference: name, repository and version."""

    chart: str
    repository: str
    version: str

    def __str__(self) -> str:
        of = f" of {self.repository}" if self.repository else ""
        return _PASSWORD.sub("://", f"chart {self.chart}{' ' if self.version else ''}{self.version}{of}")


class ChartLookup(NamedTuple):
    """The result of a lookup, with its time."""

    why_not: str
    at: float


class ChartAvailability:
    """Looks up charts in the background."""

    name = "charts"
    ready = True

    def __init__(self, helm: Helm | None, *, clock: Clock = SYSTEM) -> None:
        """`helm`: None if the helm binary is not installed; then no chart is reported as available."""
        self._helm = helm
        self._clock = clock
        self._answers: dict[Where, ChartLookup] = {}
        self._asked: dict[Where, asyncio.Event] = {}
        self._queue: Queue[Where] = Queue(self._look, per_group=_SIDE_BY_SIDE, clock=clock, failed=_failed)

    async def run(self) -> None:
        """Process lookups until cancelled."""
        await self._queue.run()

    async def why_not(self, where: Where, *, within: float) -> str:
        """Why a chart is not available; empty if it is.

        If there is no answer within so many seconds: the previous error, or LOOKING.
        """
        if self._helm is None:
            return (
                "cannot look up the chart: the helm program is not installed; use the image of Unwind, or install Helm"
                " 3"
                " where the manager runs"
            )
        answer = self._known(where)
        if answer is None:
            asked = self._asked.setdefault(where, asyncio.Event())
            self._queue.add(where)
            last = self._answers.get(where)
            try:
                async with asyncio.timeout(max(0.0, within)):
                    await asked.wait()
            except TimeoutError:
                # A stale error may be repeated, so that the message does not change with each request. A stale success
                # may not.
                return (last.why_not if last else "") or LOOKING
            answer = self._answers.get(where)
        return answer.why_not if answer else LOOKING

    def _known(self, where: Where) -> ChartLookup | None:
        """A cached answer that has not expired."""
        now = self._clock.monotonic()
        for place in [place for place, it in self._answers.items() if now - it.at > _KEEP]:
            del self._answers[place]
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
    log.warning("chart lookup failed, will retry", object=str(where), exc_info=error)
