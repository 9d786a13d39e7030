"""What ClusterSummaries tell about the deletion of their cluster: before it, during it, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support import profiles
from tests.plane.support.cluster_teardowns import DeployedScene, TeardownScene, all_controllers, manager
from tests.plane.support.controllers import HOLD
from tests.plane.support.waits import until_struct
from unwind.api.capi import CLUSTERS
from unwind.api.meta import find
from unwind.api.names import FORCE_RELEASE_ANNOTATION
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, ClusterSummary
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.meta import ObjectRef
    from unwind.local.plane import Plane

REMOVAL = ("Removing", "Removed", "Left", "GivenUp")


def told(summary: ClusterSummary) -> dict[str, str]:
    """The reasons of its conditions, by type."""
    return {item.type: item.reason for item in summary.status.conditions if item.status == "True"}


def removal(summary: ClusterSummary) -> dict[str, str]:
    return {type_: reason for type_, reason in told(summary).items() if type_ in REMOVAL}


async def summary_until(
    it: TeardownScene, ref: ObjectRef, state: Callable[[ClusterSummary], bool], called: str
) -> ClusterSummary:
    client, namespace = it.client, ref.namespace
    return await until_struct(client, CLUSTER_SUMMARIES, ref.name, ClusterSummary, state, called, namespace=namespace)


async def test_a_summary_tells_what_blocks_it_and_who_must_act_in_step_with_the_teardown(it: TeardownScene) -> None:
    base = await it.add_on("base")
    top = await it.add_on("top", depends_on=("base",), objects=1, finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        teardown = await it.teardown(
            lambda one: bool(one.status.blockers and one.status.blockers[0].actor), "blocked, with who must act"
        )
        [blocker] = teardown.status.blockers
        wanted = f"{blocker.message} (must act: {blocker.actor})"

        def blocked(one: ClusterSummary) -> bool:
            found = find(one.status.conditions, "Blocked")
            return found is not None and (found.reason, found.message) == (blocker.reason, wanted)

        summary = await summary_until(it, top, blocked, "telling the blocker of the Teardown")
        assert (removal(summary), profiles.feature(summary)) == ({"Removing": "Removing"}, "Removing")
        below = await summary_until(it, base, lambda one: "Blocked" in told(one), "waiting")
        waits = find(below.status.conditions, "Blocked")
        assert waits
        assert (waits.reason, waits.message) == ("Waiting", f"waiting for ClusterProfile/{it.profile('top')}")
        assert (removal(below), profiles.feature(below)) == ({}, "Provisioned")
        await it.unblock()
        assert (await it.ended()).phase is Phase.COMPLETE
        for ref in (top, base):
            summary = await summary_until(it, ref, lambda one: "Removed" in told(one), "removed")
            assert (told(summary), profiles.feature(summary)) == ({"Removed": "Removed"}, "Removed")
            assert summary.status.dependencies is None
    await it.let_go()


async def test_a_summary_whose_removal_timed_out_is_not_removing_any_more_and_says_why(it: TeardownScene) -> None:
    ref = await it.add_on("web", behaviour="RemovePolicies", objects=1, finalizers=(HOLD,))
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        await summary_until(it, ref, lambda one: "Blocked" in told(one), "blocked")
        clock.advance(61)
        assert (await it.ended()).phase is Phase.COMPLETE
        summary = await summary_until(it, ref, lambda one: "GivenUp" in told(one), "given up")
        assert (told(summary), profiles.feature(summary)) == ({"GivenUp": "GaveUp"}, "FailedNonRetriable")
        found = find(summary.status.conditions, "GivenUp")
        assert found
        assert "RemovePolicies: timed out" in found.message
        assert "web-0" in found.message
        assert "decided by clusterDeletionBehavior" in found.message
    await it.unblock()
    await it.let_go()


async def test_a_summary_whose_objects_stay_by_policy_says_so_and_is_never_removing(it: TeardownScene) -> None:
    ref = await it.add_on("web", behaviour="LeavePolicies")
    async with manager(it.client):
        await it.delete()
        assert (await it.ended()).phase is Phase.COMPLETE
        summary = await summary_until(it, ref, lambda one: "Left" in told(one), "left")
        assert (told(summary), profiles.feature(summary)) == ({"Left": "KeptByPolicy"}, "Provisioned")
    await it.let_go()


async def test_a_summary_of_a_released_cluster_names_the_release(it: TeardownScene) -> None:
    ref = await it.add_on("web", objects=1, finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        await summary_until(it, ref, lambda one: "Blocked" in told(one), "blocked")
        await it.annotate({FORCE_RELEASE_ANNOTATION: "the data center is gone"})
        assert (await it.ended()).phase is Phase.RELEASED
        summary = await summary_until(it, ref, lambda one: "GivenUp" in told(one), "given up")
        assert told(summary) == {"GivenUp": "Forced"}
        found = find(summary.status.conditions, "GivenUp")
        assert found
        assert "the data center is gone" in found.message
    await it.unblock()
    await it.let_go()


async def test_a_new_manager_tells_how_a_finished_removal_ended(it: TeardownScene) -> None:
    ref = await it.add_on("web")
    async with manager(it.client):
        await it.delete()
        await it.ended()
        await summary_until(it, ref, lambda one: "Removed" in told(one), "removed")
    # As if the first manager had been killed before it could tell.
    features = [{"featureID": "Resources", "status": "Removing"}]
    status = {"status": {"conditions": None, "featureSummaries": features}}
    await it.client.patch(CLUSTER_SUMMARIES, ref.name, status, namespace=ref.namespace, subresource="status")
    async with manager(it.client):
        summary = await summary_until(it, ref, lambda one: "Removed" in told(one), "removed")
        assert profiles.feature(summary) == "Removed"
    await it.let_go()


async def test_a_summary_that_is_withdrawn_tells_the_blocker_of_its_teardown_and_who_must_act(
    plane: Plane, namespace: str
) -> None:
    it = DeployedScene(plane, namespace)
    await it.begin()
    await it.add_on("web", objects=1)
    name = it.cluster.name

    def blocked(summary: ClusterSummary) -> bool:
        found = find(summary.status.conditions, "Blocked")
        return found is not None and "web-0" in found.message and "(must act: " in found.message

    async with all_controllers(it.client, HOME, clock=SYSTEM):
        await it.deployed("web")
        await it.block("web-0")
        await it.delete_profile("web")
        summary = await it.until_summary("web", blocked, "telling the blocker", cluster=name, type_="capi")
        assert removal(summary) == {"Removing": "Removing"}
        record = await it.client.get(TEARDOWNS, summary.metadata.uid, type=Teardown)
        [blocker] = record.status.blockers
        found = find(summary.status.conditions, "Blocked")
        assert found
        assert (found.reason, found.message) == (blocker.reason, f"{blocker.message} (must act: {blocker.actor})")
        await it.unblock("web-0")
        await it.until_summaries_gone("web")
        await it.cluster.delete()
        await it.cluster.ended()
        await it.cluster.go()


async def test_a_profile_and_its_summary_warn_before_the_deletion_that_it_would_not_wait(
    plane: Plane, namespace: str
) -> None:
    it = DeployedScene(plane, namespace)
    await it.begin(topology=False)
    await it.add_on("strict")
    await it.add_on("loose", behaviour="RemovePolicies")
    name = it.cluster.name

    def warns(summary: ClusterSummary) -> bool:
        return told(summary).get("GateNotAvailable") == "NoClusterClass"

    async with all_controllers(it.client, HOME):
        summary = await it.until_summary("strict", warns, "warning", cluster=name, type_="capi")
        found = find(summary.status.conditions, "GateNotAvailable")
        assert found
        assert f"{namespace}/{name} does not wait for the removal" in found.message
        profile = await it.until_profile("strict", lambda one: bool(profiles.condition(one, "GateNotAvailable")))
        assert profiles.condition(profile, "GateNotAvailable")["reason"] == "NoClusterClass"
        await it.deployed("strict", "loose")
        assert "GateNotAvailable" not in told(await it.summary_of("loose"))
        assert not profiles.condition(await it.client.get(CLUSTER_PROFILES, it.called("loose")), "GateNotAvailable")
        # The summary keeps the warning through its deployment.
        assert warns(await it.summary_of("strict"))
        found_cluster = await it.client.get(CLUSTERS, name, namespace=namespace)
        assert "deletionTimestamp" not in found_cluster["metadata"]
        await it.cluster.delete()
        await it.cluster.ended()
        await it.cluster.go()
