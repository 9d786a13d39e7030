"""What is in the way of a removal, found out on a real member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.plane.support.removals import CLUSTER, RemovalLog, RemovalScene
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from unwind.inventory.inventories import items
from unwind.kube import object_watch
from unwind.members.member import RECENT, Member
from unwind.testing.clock import START, StillClock
from unwind.why.blocker_reader import what_blocks

if TYPE_CHECKING:
    import pytest

    from unwind.api.unwind import Blocker
    from unwind.kube.client import Object
    from unwind.removal.removal import Removal


async def blockers(scene: RemovalScene, removal: Removal) -> tuple[Blocker, ...]:
    async with Member(CLUSTER, scene.client, system_uid=scene.system_uid) as member:
        todo = items(await scene.read())
        return await what_blocks(member, removal.progress.waits, todo, step="base", now=START)


async def test_an_operator_that_does_not_run_is_named_for_the_finalizer_that_it_should_serve(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    group = f"{room}.dev"
    gadgets = await scene.definition(group)
    await scene.deployment(room, "operator")
    ref = await scene.put(
        gadgets, {"metadata": {"name": "one", "namespace": room, "finalizers": [f"gadgets.{group}/x"]}}
    )
    await scene.write()
    async with scene.waiting("waits for", f"gadgets.{group}/x") as (removal, running):
        [blocker] = await blockers(scene, removal)
        assert (blocker.object, blocker.step, blocker.reason) == (ref, "base", "Finalizer")
        assert blocker.actor == f"Deployment {room}/operator"
        assert blocker.since
        assert blocker.since > START

        def stopped(it: Object | None) -> bool:
            return bool(it and not it.get("status", {}).get("readyReplicas"))

        await scene.client.patch(DEPLOYMENTS, "operator", {"spec": {"replicas": 0}}, namespace=room)
        await object_watch.until(scene.client, DEPLOYMENTS, "operator", stopped, "stopped", namespace=room)
        [blocker] = await blockers(scene, removal)
        assert blocker.reason == "FinalizerNotServed"
        assert blocker.actor == f"the owner of Deployment {room}/operator"
        await scene.client.patch(gadgets, "one", {"metadata": {"finalizers": None}}, namespace=room)
        await running


async def test_an_operator_that_somebody_else_has_put_there_is_found_by_its_name(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    labels = {"app": room}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "one", "image": "one"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"{room}-operator", "namespace": room}}
    await scene.client.create(DEPLOYMENTS, body | {"spec": spec})
    held = {"name": "held", "namespace": room, "finalizers": [f"{room}.example.dev/hold"]}
    ref = await scene.put(CONFIG_MAPS, {"metadata": held})
    await scene.write()
    async with scene.waiting("waits for", f"{room}.example.dev/hold") as (removal, running):
        [blocker] = await blockers(scene, removal)
        assert blocker.object == ref
        assert f"Deployment {room}/{room}-operator" in blocker.actor
        await scene.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=room)
        await running


async def test_what_holds_a_namespace_is_named_as_the_server_tells_it(scene: RemovalScene, room: str) -> None:
    ref = await scene.namespace(room)
    metadata = {"name": "theirs", "namespace": room, "finalizers": ["example.dev/hold"]}
    await scene.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await scene.write()
    async with scene.waiting(f"Namespace {room} is being deleted", take_along=True) as (removal, running):
        await object_watch.until_true(scene.client, NAMESPACES, room, "NamespaceFinalizersRemaining")
        [blocker] = await blockers(scene, removal)
        assert (blocker.object, blocker.reason) == (ref, "Finalizer")
        assert f"an object in Namespace {room}: blocked by finalizer example.dev/hold" in blocker.message
        assert blocker.actor == "the controller of example.dev"
        await scene.client.patch(CONFIG_MAPS, "theirs", {"metadata": {"finalizers": None}}, namespace=room)
        await running


async def test_of_what_cannot_be_looked_at_the_removals_own_words_are_told(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.config_map(room, "one")
    await scene.write()
    async with scene.waiting("another cluster answers", system_uid="another-cluster") as (removal, running):
        [blocker] = await blockers(scene, removal)
        running.cancel()
    assert (blocker.object, blocker.reason, blocker.since) == (CLUSTER, "Unreachable", START)
    assert blocker.actor == "the administrator of the member cluster"


async def test_nothing_counts_as_removed_if_another_cluster_answers_in_the_end(
    scene: RemovalScene, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.cluster.create_namespace(room)
    held = {"name": "held", "namespace": room, "finalizers": ["example.dev/hold"]}
    ref = await scene.put(CONFIG_MAPS, {"metadata": held})
    await scene.write()
    told, clock = RemovalLog(), StillClock()
    async with scene.removal(told=told, clock=clock) as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await told.until("example.dev/hold")
        clock.advance(2 * RECENT)  # what the member said of itself is too old by now
        monkeypatch.setattr(scene.client, "cluster_uid", _another)
        await scene.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=room)
        await told.until("another cluster answers")
        assert not removal.progress.over
        assert not await scene.there(CONFIG_MAPS, ref)
        running.cancel()


async def _another() -> str:
    return "another-cluster"
