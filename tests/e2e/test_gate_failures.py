"""Bad days while a cluster is held: replicas that die, managers that start again, nobody there who answers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.e2e.gated_clusters import REMOVE, until_asked
from tests.eventually import eventually
from tests.plane.support.profiles import condition
from unwind.api.resources import LEASES
from unwind.api.rights import HOME
from unwind.api.unwind import Phase
from unwind.kube.shards import SHARDS, shard_of

if TYPE_CHECKING:
    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Object

# Long: `make soak` runs it.
pytestmark = pytest.mark.soak

_REPLICA, _SHARD = "unwind-replica-", "unwind-shard-"


async def replicas(ground: Ground) -> set[str]:
    """What the replicas are called that have made themselves known."""
    found = await ground.client.list(LEASES, namespace=HOME)
    names = [item["metadata"]["name"] for item in found]
    return {name.removeprefix(_REPLICA) for name in names if name.startswith(_REPLICA)}


async def owner(ground: Ground, namespace: str, name: str) -> str:
    """The replica that looks after a cluster."""
    shard = shard_of(f"{namespace}/{name}", shards=SHARDS)
    found = await ground.client.get(LEASES, f"{_SHARD}{shard:02}", namespace=HOME)
    return str(found["spec"].get("holderIdentity") or "")


async def test_a_cluster_is_held_by_the_replica_that_is_left_and_goes_when_it_may(
    ground: Ground, scene: GateScene
) -> None:
    await scene.add_on("web")
    async with AsyncExitStack() as stack:
        managers = {}
        for _ in range(2):
            before = await replicas(ground)
            manager = await stack.enter_async_context(ground.manager())

            async def joined(before: set[str] = before) -> set[str]:
                return await replicas(ground) - before

            [called] = await eventually(joined, "another replica")
            managers[called] = manager
        await ground.until_discovered()
        cluster = await scene.cluster("web")
        await scene.block("web-0")
        await cluster.delete()
        await cluster.until_held("web-0")
        # The one that takes it apart dies, and the other one goes on; both of them answer for it.

        async def owning() -> str:
            found = await owner(ground, scene.namespace, "prod")
            return found if found in managers else ""

        dead = await eventually(owning, "a replica that owns the Cluster")
        killed = managers.pop(dead).process
        killed.kill()
        await killed.wait()
        [left] = managers.values()
        await until_asked(left, times=2)
        await cluster.until_held("web-0")
        assert cluster.taken_apart() == []
        await scene.unblock("web-0")
        await cluster.until_gone()
        ended = await cluster.teardown()
        assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "2/2")
    # As the others do with it after ten minutes: until then, every new one waits for the dead one for 15 s.
    lease = await ground.client.get(LEASES, f"{_REPLICA}{dead}", namespace=HOME)
    await ground.client.delete(LEASES, f"{_REPLICA}{dead}", uid=lease["metadata"]["uid"], namespace=HOME)


async def test_a_cluster_is_held_over_a_new_start_of_unwind_and_of_cluster_api(
    ground: Ground, scene: GateScene
) -> None:
    async with scene.managed_cluster() as (first, cluster):
        await scene.block("web-0")
        await cluster.delete()
        await cluster.until_held("web-0")
        assert await first.stop() == 0
    async with ground.manager() as second:
        assert ground.plane.cluster_api
        assert ground.plane.cluster_api.daemon
        await ground.plane.cluster_api.daemon.stop()
        await ground.plane.cluster_api.daemon.start()
        await until_asked(second, times=2)
        await cluster.until_held("web-0")
        assert cluster.taken_apart() == []
        await scene.unblock("web-0")
        await cluster.until_gone()
        assert (await cluster.teardown()).phase is Phase.COMPLETE


async def test_a_cluster_stays_while_nobody_answers_and_goes_when_somebody_does(
    ground: Ground, scene: GateScene
) -> None:
    async with scene.managed_cluster() as (manager, cluster):
        ground.balancer.shut()
        await cluster.delete()

        def failing(it: Object | None) -> bool:
            said = condition(it or {}, "TopologyReconciled")
            return "before-cluster-delete" in said.get("message", "")

        await cluster.until(failing)
        # All is gone, but nobody is there to say so: what is not known does not open it.
        assert (await cluster.teardown()).phase is Phase.COMPLETE
        assert cluster.taken_apart() == []
        ground.balancer.reopen()
        await cluster.until_gone()
        assert await manager.stop() == 0
    assert await scene.on_member() == {}


async def test_an_add_on_holds_only_as_long_as_the_one_is_tried_that_needs_it(ground: Ground, scene: GateScene) -> None:
    await scene.add_on("base")
    await scene.add_on("top", behaviour=REMOVE, depends_on=("base",))
    async with ground.registered_manager("--best-effort-timeout", "4s") as manager:
        cluster = await scene.cluster("base", "top")
        await scene.block("top-0")
        await cluster.delete()
        await cluster.until_held(f"ClusterProfile/{scene.called('base')}")
        await cluster.until_gone()
        ended = await cluster.teardown()
        assert await manager.stop() == 0
    assert ended.phase is Phase.COMPLETE
    assert set(await scene.on_member()) == {"top-0"}
    assert {name: reason for name, (reason, _) in (await scene.ledger(ended)).items()} == {"top-0": "GaveUp"}
