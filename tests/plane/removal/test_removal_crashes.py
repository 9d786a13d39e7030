"""Removals that are killed, cut off or disturbed, on a real member."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.removals import (
    CLUSTER,
    RemovalLog,
    RemovalScene,
    everything_by,
    serve_finalizers,
    stateful_set,
    until_claimed,
)
from tests.plane.support.transports import Life, mortal
from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    STATEFUL_SETS,
    Resource,
)
from unwind.clock import SYSTEM
from unwind.inventory.inventories import Inventories
from unwind.kube import kubeconfig, object_watch
from unwind.kube.client import Client
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.removal.removal import Removal

# Among the longest: they run with the soak tests.
pytestmark = pytest.mark.soak

FINALIZER = "gadgets.example.dev/cleanup"


async def everything(scene: RemovalScene, room: str) -> None:
    """One of each that matters, and what must survive."""
    await scene.namespace(room, key="namespace")
    gadgets = await scene.definition(f"{room}.dev")
    for name in ("one", "two"):
        await scene.put(gadgets, {"metadata": {"name": name, "namespace": room, "finalizers": [FINALIZER]}})
    await scene.deployment(room, "operator")
    await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=1))
    await until_claimed(scene.client, room, "data-db-0")
    for number in range(3):
        await scene.config_map(room, f"c-{number}", order=number)
    for name, owner in (("intended", scene.owner.uid), ("theirs", "somebody-else")):
        metadata = {"name": name, "namespace": room, "labels": {OWNER_LABEL: owner}}
        await scene.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        scene.enter(CONFIG_MAPS, {"metadata": {"name": name, "namespace": room}}, state="Intended", key=name)
    await scene.write()


async def nothing_lost(scene: RemovalScene, room: str) -> None:
    """All that is ours is gone, each by one DELETE of its uid; all that is not is there."""
    account = await scene.account()
    assert {entry.state for key, entry in account.items() if key != "namespace"} == {"Removed"}
    assert account["namespace"].ledger
    assert f"ConfigMap {room}/theirs" in account["namespace"].ledger.message
    found = await scene.client.list(CONFIG_MAPS, namespace=room)
    assert {item["metadata"]["name"] for item in found} == {"theirs", "kube-root-ca.crt"}
    await object_watch.until_absent(scene.client, CUSTOM_RESOURCE_DEFINITIONS, f"gadgets.{room}.dev")
    uids = {entry.object.uid for key, entry in account.items() if key not in ("namespace", "theirs")}
    sent = Counter(deletion.uid for deletion in scene.cluster.audit.deletions() if deletion.uid in uids)
    assert sent == dict.fromkeys(uids, 1)


async def test_killed_after_each_write_nothing_is_lost_and_nothing_is_done_twice(
    scene: RemovalScene, room: str
) -> None:
    await everything(scene, room)
    resource = Resource(f"{room}.dev", "v1", "gadgets", "Gadget")
    lives = 0
    async with asyncio.TaskGroup() as tasks:
        operator = tasks.create_task(serve_finalizers(scene.client, resource, FINALIZER))
        finished = False
        while not finished and lives < 100:
            lives += 1
            life = Life()
            async with AsyncExitStack() as stack:
                management = await stack.enter_async_context(
                    mortal(scene.management, life, namespace=scene.inventories.namespace)
                )
                client = await stack.enter_async_context(mortal(scene.cluster, life))
                its = scene.another()
                its.owner = scene.owner
                its.inventories = Inventories(management, namespace=scene.inventories.namespace)
                removal = await stack.enter_async_context(its.removal(client=client, volumes=VolumePolicy.DELETE))
                async with asyncio.TaskGroup() as process:
                    running = process.create_task(removal.run())
                    death = process.create_task(life.died.wait())
                    await asyncio.wait([running, death], return_when=asyncio.FIRST_COMPLETED)
                    finished = running.done()
                    running.cancel()
                    death.cancel()
        operator.cancel()
    assert finished
    # At least one for each object, and one for what the inventory is told in the end.
    assert lives > 10
    await nothing_lost(scene, room)


@pytest.mark.parametrize("seed", [1, 2])
async def test_cancelled_at_random_moments_it_comes_to_the_same_end(scene: RemovalScene, room: str, seed: int) -> None:
    await everything(scene, room)
    resource = Resource(f"{room}.dev", "v1", "gadgets", "Gadget")
    chance = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        operator = tasks.create_task(serve_finalizers(scene.client, resource, FINALIZER))
        for _ in range(15):
            async with scene.removal(volumes=VolumePolicy.DELETE) as removal, asyncio.TaskGroup() as process:
                running = process.create_task(removal.run())
                await asyncio.wait([running], timeout=chance.uniform(0.0, 0.6))
                running.cancel()
        await scene.remove(volumes=VolumePolicy.DELETE)
        operator.cancel()
    await nothing_lost(scene, room)


@asynccontextmanager
async def removal_by_proxy(scene: RemovalScene) -> AsyncIterator[tuple[Proxy, RemovalLog, Removal]]:
    """A removal that reaches the member only through a proxy."""
    connection, told = kubeconfig.load(scene.cluster.kubeconfig), RemovalLog()
    async with (
        Proxy(connection.server) as proxy,
        Client(msgspec.structs.replace(connection, server=proxy.url), deadline=5) as client,
        scene.removal(client=client, told=told, clock=SYSTEM) as removal,
    ):
        yield proxy, told, removal


async def test_cut_off_in_the_middle_it_says_so_and_goes_on_when_the_member_is_back(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    await everything_by([scene.config_map(room, f"c-{number}", order=1) for number in range(50)])
    held = await scene.config_map(room, "held", order=1, metadata={"finalizers": ["example.dev/hold"]})
    await scene.config_map(room, "later", order=0)
    await scene.write()
    async with removal_by_proxy(scene) as (proxy, told, removal), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await told.until("waits for finalizers example.dev/hold")
        proxy.close()
        await told.until(f"{CLUSTER} does not answer: ", proxy.url)
        # What was waited for happens while nobody can hear it.
        await scene.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=room)
        await object_watch.until_absent(scene.client, CONFIG_MAPS, "held", namespace=room)
        assert not running.done()
        proxy.reopen()
        await running
    assert removal.progress.removed == 52
    assert held.uid in removal.removed
    assert removal.waits == {}


async def test_a_member_that_is_away_from_the_start_is_told_of(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.config_map(room, "one")
    await scene.write()
    async with removal_by_proxy(scene) as (proxy, told, removal), asyncio.TaskGroup() as tasks:
        proxy.close()
        running = tasks.create_task(removal.run())
        await told.until(proxy.url)
        assert removal.progress.removed == 0
        proxy.reopen()
        await running
    assert removal.progress.removed == 1


async def test_a_definition_that_somebody_deletes_in_the_middle_takes_its_resources_along(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    gadgets = await scene.definition(f"{room}.dev", owned=False)
    for name in ("one", "two"):
        await scene.put(gadgets, {"metadata": {"name": name, "namespace": room, "finalizers": [FINALIZER]}})
    await scene.write()
    async with scene.waiting("waits for", FINALIZER, clock=SYSTEM) as (removal, running), asyncio.TaskGroup() as tasks:
        name = f"gadgets.{room}.dev"
        found = await scene.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        await scene.client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=found["metadata"]["uid"])
        operator = tasks.create_task(serve_finalizers(scene.client, gadgets, FINALIZER))
        await running
        operator.cancel()
    assert removal.progress.removed == 2


async def test_a_claim_made_while_its_set_goes_is_found(scene: RemovalScene, room: str) -> None:
    """A StatefulSet is scaled up after the survey and before it goes."""
    await scene.cluster.create_namespace(room)
    await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=1))
    await until_claimed(scene.client, room, "data-db-0")
    gadgets = await scene.definition(f"{room}.dev")
    # It goes first, and holds the set up.
    await scene.put(gadgets, {"metadata": {"name": "one", "namespace": room, "finalizers": [FINALIZER]}})
    await scene.write()
    async with scene.waiting("waits for", FINALIZER, volumes=VolumePolicy.DELETE) as (removal, running):
        await scene.client.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}}, namespace=room)
        await until_claimed(scene.client, room, "data-db-1")
        await scene.client.patch(gadgets, "one", {"metadata": {"finalizers": None}}, namespace=room)
        await running
    assert removal.progress.removed == 5
    assert await scene.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=room) == []
    assert await scene.client.get(NAMESPACES, room)
