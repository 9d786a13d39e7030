"""Works as steps: those whose step is over are deleted, unless their Cluster is not there any more."""

from __future__ import annotations

import asyncio

import pytest

from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.meta import ObjectMeta, manifest, ref_of
from unwind.api.unwind import Step, StepState
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.step_source import WorkSteps
from unwind.members.targets import ClusterTarget
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects

WORK = Work(metadata=ObjectMeta(name="web", namespace="karmada-es-m1", uid="u-web", finalizers=("unwind.dev/work",)))


@pytest.mark.parametrize(
    ("there", "deleted"),
    [("u-m1", True), ("u-another", False), (None, False)],
    ids=["the Cluster is there", "another Cluster has its name", "the Cluster is gone"],
)
async def test_a_work_whose_step_is_over_is_deleted_only_for_its_own_cluster(there: str | None, deleted: bool) -> None:
    api, clock = Objects(manifest(WORKS, WORK), resources=(WORKS, CLUSTERS)), StillClock()
    members = KarmadaCaches(api.client, clock=clock)
    members.works.cache.put(WORK)
    if there:
        members.clusters.cache.put(Cluster(metadata=ObjectMeta(name="m1", uid=there)))
    source = WorkSteps(api.client, members, clock=clock)
    target = ClusterTarget(ref=ref_of(CLUSTERS, ObjectMeta(name="m1", uid="u-m1")), secret="")
    running = asyncio.ensure_future(source.run())
    try:
        source.step_changed(Step(name="Work/web", object=ref_of(WORKS, WORK.metadata)), StepState.REMOVED, target)
        await asyncio.sleep(0)
        assert api.requests == []
        clock.advance(30)
        for _ in range(100):  # nothing else is to happen: everything here is in memory
            await asyncio.sleep(0)
    finally:
        running.cancel()
    assert any(request.startswith("DELETE") for request in api.requests) is deleted
