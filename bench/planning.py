"""Planning: many clusters at once, how it grows, and what it costs to follow a plan to its end."""

from __future__ import annotations

import asyncio
import random
import time

from bench.ratios import Ratio, alternate
from unwind.api.meta import ObjectRef
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import Effort
from unwind.planning.progress import PlanProgress
from unwind.planning.waves import Draft, plan

CLUSTERS = 2_000
PROFILES = 50
DEPENDENCIES = CLUSTERS * PROFILES * 5
SEED = 6


async def main() -> None:
    once = fleet(CLUSTERS)
    assert sum(len(draft.depends_on) for drafts in once for draft in drafts) == DEPENDENCIES
    twice = once + fleet(CLUSTERS, seed=SEED + 1)
    single, double = await alternate(lambda: planning(once), lambda: planning(twice))
    what = f"{CLUSTERS:,} clusters x {PROFILES} profiles"
    print(Ratio(f"plan {what}", "a second", single, 1.0, goal=1))
    print(Ratio("plan twice as many", "the same once", double, single, goal=2.5))
    followed, planned = await alternate(lambda: following(once), lambda: planning(once))
    print(Ratio("follow those plans to the end", "making them", followed, planned, goal=2))


def fleet(clusters: int, *, seed: int = SEED) -> list[list[Draft]]:
    """Clusters with profiles that depend on five others each, on average, at random and without a circle."""
    chance = random.Random(seed)  # noqa: S311 - the same fleet every time
    pairs = [(above, below) for below in range(PROFILES) for above in range(below)]
    drafts: list[list[Draft]] = []
    for cluster in range(clusters):
        needs: list[list[str]] = [[] for _ in range(PROFILES)]
        for above, below in chance.sample(pairs, PROFILES * 5):
            needs[above].append(f"profile-{below:02}")
        drafts.append([draft(f"profile-{number:02}", cluster, needs[number], chance) for number in range(PROFILES)])
        chance.shuffle(drafts[-1])
    return drafts


def draft(name: str, cluster: int, needs: list[str], chance: random.Random) -> Draft:
    summary = ObjectRef(
        group=CLUSTER_SUMMARIES.group,
        version=CLUSTER_SUMMARIES.version,
        kind=CLUSTER_SUMMARIES.kind,
        namespace="fleet",
        name=f"{name}-capi-cluster-{cluster}",
        uid=f"{cluster}-{name}",
    )
    effort = chance.choice((Effort.LEAVE, Effort.TRY, Effort.ENFORCE, Effort.ENFORCE))
    return Draft(
        name=name,
        object=summary,
        kind=CLUSTER_PROFILES.kind,
        declared=name,
        depends_on=tuple(needs),
        effort=effort,
        objects=20,
    )


async def planning(drafts: list[list[Draft]]) -> float:
    began = time.perf_counter()
    waves = sum(plan(cluster).waves for cluster in drafts)
    took = time.perf_counter() - began
    assert waves >= len(drafts)
    return took


async def following(drafts: list[list[Draft]]) -> float:
    plans = [plan(cluster) for cluster in drafts]
    began = time.perf_counter()
    for item in plans:
        progress = PlanProgress(item)
        going = list(progress.ready)
        for name in going:  # it grows while it is read
            going += progress.done(name)
        assert progress.finished
    return time.perf_counter() - began


if __name__ == "__main__":
    asyncio.run(main())
