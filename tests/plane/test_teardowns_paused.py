"""Paused Clusters that are deleted: nothing is removed until they are unpaused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.plane.support import profiles
from tests.plane.support.cluster_teardowns import (
    DeployedScene,
    TeardownScene,
    all_controllers,
    manager,
    scene,
    stopped_midway,
)
from tests.plane.support.controllers import HOLD
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.names import DEADLINE_ANNOTATION, FORCE_RELEASE_ANNOTATION, ON_DEADLINE_ANNOTATION, PAUSED_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, ClusterSummary
from unwind.api.unwind import Phase, Teardown
from unwind.kube.object_watch import until, until_absent
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

BY_FIELD = {"spec": {"paused": True}}
BY_ANNOTATION = {"metadata": {"annotations": {PAUSED_ANNOTATION: "true"}}}
UNPAUSED = {"spec": {"paused": None}, "metadata": {"annotations": {PAUSED_ANNOTATION: None}}}


async def patch(it: TeardownScene, change: dict[str, Any]) -> None:
    await it.client.patch(CLUSTERS, it.name, change, namespace=it.namespace)


def is_paused(teardown: Teardown) -> bool:
    found = meta.find(teardown.status.conditions, "Blocked")
    return teardown.phase is Phase.HELD and found is not None and found.reason == "Paused"


async def another_cluster_is_torn_down(plane: Plane, namespace: str) -> None:
    """The manager has worked through its queue: whatever it would do at once for other Clusters, it has done."""
    other = await scene(plane, namespace)
    await other.add_on("other")
    await other.delete()
    assert (await other.ended()).phase is Phase.COMPLETE
    await other.let_go()


@pytest.mark.parametrize("pause", [BY_FIELD, BY_ANNOTATION], ids=["spec.paused", "annotation"])
async def test_nothing_of_a_paused_cluster_is_removed_until_it_is_unpaused(
    plane: Plane, namespace: str, pause: dict[str, Any]
) -> None:
    # Annotations are written until they stay.
    it = await scene(plane, namespace, annotations=pause.get("metadata", {}).get("annotations"))
    await it.add_on("web")
    await patch(it, pause)
    async with manager(it.client):
        await it.delete()
        teardown = await it.teardown(is_paused, "held because it is paused")
        assert "is paused" in teardown.status.blocked_by
        await another_cluster_is_torn_down(plane, namespace)
        assert it.deleted() == []
        await patch(it, UNPAUSED)
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert teardown.status.removed == "3/3"
    assert not teardown.status.blockers
    await it.let_go()


async def test_a_cluster_paused_midway_gets_no_further_delete(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    async with stopped_midway(it):
        await patch(it, BY_FIELD)
        await it.teardown(is_paused, "held because it is paused")
        await it.unblock()
        await another_cluster_is_torn_down(plane, namespace)
        assert {name.partition("-")[0] for name in it.deleted()} == {"top"}
        await patch(it, UNPAUSED)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_a_deadline_does_not_release_a_paused_cluster(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace, annotations={DEADLINE_ANNOTATION: "1m", ON_DEADLINE_ANNOTATION: "Release"})
    await it.add_on("web", finalizers=(HOLD,))
    await patch(it, BY_FIELD)
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        await it.teardown(is_paused, "held because it is paused")
        clock.advance(400 * 24 * 3600.0)  # it began in the past
        await another_cluster_is_torn_down(plane, namespace)
        await it.teardown(is_paused, "still held")
        # The time starts again: otherwise it would be released before anything was tried.
        await patch(it, UNPAUSED)
        teardown = await it.teardown(lambda one: len(one.status.blockers) == 3, "being removed")
        assert not teardown.finished
        clock.advance(61)
        assert (await it.ended()).phase is Phase.RELEASED
    await it.unblock()
    await it.let_go()


async def test_a_paused_cluster_can_be_released_by_a_person(it: TeardownScene) -> None:
    await it.add_on("web")
    await patch(it, BY_FIELD)
    async with manager(it.client):
        await it.delete()
        await it.teardown(is_paused, "held because it is paused")
        await it.annotate({FORCE_RELEASE_ANNOTATION: "it was paused for good"})
        teardown = await it.ended()
    assert (teardown.phase, teardown.status.left, it.deleted()) == (Phase.RELEASED, 3, [])
    assert not teardown.status.blockers
    await it.let_go()


async def test_a_withdrawal_sends_no_further_delete_while_its_cluster_is_paused(plane: Plane, namespace: str) -> None:
    it = DeployedScene(plane, namespace)
    await it.begin()
    # A Namespace goes after what it contains, so that a second DELETE is still to come.
    room = f"{namespace}-room"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": room}}
    await it.source("web", profiles.config_map(namespace, "web-0"), made)
    await it.profile("web", "web")

    def says_paused(summary: ClusterSummary) -> bool:
        return any(condition.reason == "ClusterPaused" for condition in summary.status.conditions)

    async def patch_cluster(change: dict[str, Any]) -> None:
        await it.client.patch(CLUSTERS, it.cluster.name, change, namespace=namespace)

    async with all_controllers(it.client, HOME):
        await it.deployed("web")
        await it.block("web-0")
        found = await it.client.get(CLUSTER_PROFILES, it.called("web"))
        await it.client.delete(CLUSTER_PROFILES, it.called("web"), uid=found["metadata"]["uid"])
        await until(it.member.client, CONFIG_MAPS, "web-0", _is_terminating, "leaving", namespace=namespace)
        await patch_cluster(BY_FIELD)
        await it.until_summary("web", says_paused, "paused", cluster=it.cluster.name, type_="capi")
        await it.unblock("web-0")
        await until_absent(it.member.client, CONFIG_MAPS, "web-0", namespace=namespace)
        # The controllers have worked through their queues: they have deployed to another cluster meanwhile.
        other = DeployedScene(plane, namespace)
        await other.begin()
        await other.add_on("late")
        await other.deployed("late")
        assert not _is_terminating(await it.member.client.get(NAMESPACES, room))
        await patch_cluster(UNPAUSED)
        await it.until_summaries_gone("web")
        await until_absent(it.member.client, NAMESPACES, room)
        for one in (it, other):
            await one.cluster.delete()
            await one.cluster.ended()
            await one.cluster.go()


def _is_terminating(it: Object | None) -> bool:
    return it is not None and "deletionTimestamp" in it["metadata"]


async def test_a_new_manager_keeps_a_paused_cluster_held(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    async with stopped_midway(it):
        pass
    await patch(it, BY_ANNOTATION)
    await it.unblock()
    async with manager(it.client):
        await it.teardown(is_paused, "held because it is paused")
        await another_cluster_is_torn_down(plane, namespace)
        assert {name.partition("-")[0] for name in it.deleted()} == {"top"}
        await patch(it, UNPAUSED)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()
