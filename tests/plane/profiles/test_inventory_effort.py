"""Inventories record how persistently their objects are removed, for the case that their owner is gone."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.plane.support.profiles import condition, config_map, feature, running
from unwind.api.meta import find
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.kube import object_watch

if TYPE_CHECKING:
    from tests.plane.support.profiles import ProfileScene
    from unwind.kube.client import Object

BEHAVIOURS = {"LeavePolicies": "Leave", "RemovePolicies": "Try", "EnforceRemovePolicies": "Enforce"}


async def deploy(scene: ProfileScene, behaviour: str, mode: str = "Continuous") -> None:
    await scene.source("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web", clusterDeletionBehavior=behaviour, syncMode=mode)


async def inventory(scene: ProfileScene) -> Inventory:
    [chunk] = await scene.inventories((await scene.summary("web")).metadata.uid)
    return chunk


async def until_effort(scene: ProfileScene, effort: str) -> None:
    async def recorded() -> bool:
        return (await inventory(scene)).spec.effort == effort

    await eventually(recorded, f"effort {effort}")


@pytest.mark.parametrize(("behaviour", "effort"), BEHAVIOURS.items())
async def test_an_inventory_has_its_effort_before_an_object_is_created(
    scene: ProfileScene, behaviour: str, effort: str
) -> None:
    first: dict[str, Object] = {}

    async def follow() -> None:
        async for event in scene.client.watch(INVENTORIES, namespace=scene.namespace):
            first.setdefault(event.object["metadata"]["name"], event.object)

    await deploy(scene, behaviour)
    following = asyncio.ensure_future(follow())
    try:
        async with running(scene.client, scene.namespace):
            await scene.until_provisioned("web")
        found = await inventory(scene)
        # The request that created it had it: the objects are only created after the answer.
        await eventually(lambda: found.metadata.name in first, "the Inventory is in the watch")
    finally:
        following.cancel()
    assert found.spec.effort == effort
    created = first[found.metadata.name]["spec"]
    assert created["effort"] == effort
    assert {entry["state"] for entry in created["entries"].values()} == {"Intended"}


@pytest.mark.parametrize("mode", ["Continuous", "OneTime"])
async def test_a_changed_behaviour_is_recorded_although_nothing_is_deployed(scene: ProfileScene, mode: str) -> None:
    await deploy(scene, "RemovePolicies", mode=mode)
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        there = {name: item["metadata"]["resourceVersion"] for name, item in (await scene.on_member()).items()}
        await scene.edit_profile("web", {"clusterDeletionBehavior": "EnforceRemovePolicies"})
        await until_effort(scene, "Enforce")
        # Nothing holds the deletion of a SveltosCluster, whatever the behaviour is: both say so.
        told = "deleting a SveltosCluster only ends its management and removes nothing"
        said = await scene.until_profile("web", lambda it: bool(condition(it, "GateNotAvailable")))
        warned = await scene.until_summary("web", lambda it: find(it.status.conditions, "GateNotAvailable") is not None)
        warning = find(warned.status.conditions, "GateNotAvailable")
        assert warning
        assert condition(said, "GateNotAvailable")["reason"] == warning.reason == "NoDeletionHook"
        assert told in warning.message
        assert told in condition(said, "GateNotAvailable")["message"]
        await scene.edit_profile("web", {"clusterDeletionBehavior": "LeavePolicies"})
        await until_effort(scene, "Leave")
        assert feature(await scene.summary("web")) == "Provisioned"
    assert there == {name: item["metadata"]["resourceVersion"] for name, item in (await scene.on_member()).items()}


async def test_an_inventory_of_an_earlier_release_gets_its_effort_after_the_upgrade(scene: ProfileScene) -> None:
    await deploy(scene, "EnforceRemovePolicies")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    # As an earlier release left it: no effort, and a hash of the content alone.
    summary, found = await scene.summary("web"), await inventory(scene)
    await scene.client.patch(INVENTORIES, found.metadata.name, {"spec": {"effort": None}}, namespace=scene.namespace)
    [done] = summary.status.feature_summaries
    old = base64.b64encode(base64.b64decode(done.hash)[:32]).decode()
    features = [{"featureID": done.feature_id, "status": done.status, "hash": old}]
    await scene.client.patch(
        CLUSTER_SUMMARIES,
        summary.metadata.name,
        {"status": {"featureSummaries": features}},
        namespace=scene.namespace,
        subresource="status",
    )
    async with running(scene.client, scene.namespace):
        await object_watch.until(
            scene.client,
            INVENTORIES,
            found.metadata.name,
            lambda it: it is not None and it["spec"].get("effort") == "Enforce",
            "recorded",
            namespace=scene.namespace,
            within=30,
        )
        await scene.until_summary("web", lambda it: it.status.feature_summaries[0].hash == done.hash, "current")
    assert scene.created() == ["a", "b"]
