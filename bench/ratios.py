"""How a benchmark is told: medians of alternating runs, as a ratio against a limit measured beside them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RUNS = 5


class Ratio(msgspec.Struct, frozen=True):
    """One line of the table."""

    work: str
    against: str
    took: float
    limit: float
    goal: float

    @property
    def value(self) -> float:
        return self.took / self.limit

    def __str__(self) -> str:
        verdict = "ok" if self.value <= self.goal else "MISSED"
        return (
            f"{self.work:<44} {self.took:8.2f} s   {self.against:<40} {self.limit:8.2f} s   "
            f"{self.value:5.2f} x (goal {self.goal} x) {verdict}"
        )


async def alternate(
    first: Callable[[], Awaitable[float]], second: Callable[[], Awaitable[float]], *, runs: int = RUNS
) -> tuple[float, float]:
    """Do both in turn, so that whatever else the machine does hits both; return the median seconds of each."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        took[0].append(await first())
        took[1].append(await second())
    return statistics.median(took[0]), statistics.median(took[1])
