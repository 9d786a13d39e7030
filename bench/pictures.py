"""Pictures: thousands of steps drawn while somebody waits, and how that grows."""

from __future__ import annotations

import asyncio
import random
import time

from bench.ratios import Ratio, alternate
from unwind.render.picture import Box, Column, Picture
from unwind.render.svg import svg

STEPS = 2_000
WAVES = 8
SEED = 10


async def main() -> None:
    once, twice = picture(STEPS), picture(2 * STEPS)
    single, double = await alternate(lambda: drawing(once), lambda: drawing(twice))
    print(Ratio(f"draw {STEPS:,} steps, each with three arrows", "a second", single, 1.0, goal=0.5))
    print(Ratio("draw twice as many", "the same once", double, single, goal=3))


def picture(steps: int) -> Picture:
    """A plan that is being carried out, at random and without a circle."""
    chance = random.Random(SEED)  # noqa: S311 - the same picture every time
    waves: list[list[Box]] = [[] for _ in range(WAVES)]
    for number in range(steps):
        waves[number % WAVES].append(
            Box(
                name=f"ClusterProfile/profile-{number:04}",
                effort=chance.choice(("Enforce", "Try", "Leave")),
                objects=chance.randint(1, 40),
                state=chance.choice(("Removing", "Removed", "Waiting")),
                blocked="something is in the way" if chance.random() < 0.01 else "",
            )
        )
    edges = tuple(
        (chance.choice(waves[wave]).name, chance.choice(waves[chance.randint(wave + 1, WAVES - 1)]).name)
        for wave in range(WAVES - 1)
        for _ in range(steps // WAVES * 3)
    )
    columns = tuple(Column(title=f"wave {number}", boxes=tuple(boxes)) for number, boxes in enumerate(waves, 1))
    return Picture(title="Cluster fleet/prod-7", columns=columns, edges=edges)


async def drawing(drawn: Picture) -> float:
    began = time.perf_counter()
    assert svg(drawn).endswith("</svg>\n")
    return time.perf_counter() - began


if __name__ == "__main__":
    asyncio.run(main())
