"""`kubectl delete cluster` beside Flux, CAAPH and plain Helm at once: the real programs, and no profile of ours."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.all_deployers import all_deployers, deployers
from tests.e2e.flux_gates import HOLD
from tests.e2e.gated_clusters import PlainScene, new_namespace, path_with_helm, until_asked
from tests.e2e.killed_gates import killed_managers
from tests.eventually import eventually
from tests.plane.support.cluster_teardowns import waves
from unwind.api.capi import CLUSTERS
from unwind.api.resources import SECRETS
from unwind.api.unwind import Phase
from unwind.kube import object_watch
from unwind.local import build, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Object


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    async with deployers() as ground:
        yield ground


# The start of a plane, of Cluster API and of four controllers is part of it.
@pytest.mark.timeout(300)
async def test_handles_of_all_deployers_go_in_order_before_their_cluster_and_unwind_creates_nothing_on_the_member(
    ground: Ground,
) -> None:
    scene = PlainScene(ground, new_namespace())
    await scene.begin()
    where, client = scene.namespace, scene.client
    path = await path_with_helm()
    async with all_deployers(scene) as them:
        gate = them.gate
        async with ground.registered_manager(PATH=path) as manager:
            await them.deploy(held=(HOLD,))
            cluster = them.cluster
            await cluster.delete()

            # Flux lets go of `apps` within seconds; the object that it deployed is still there.
            await cluster.until_held(f"ConfigMap {where}/apps-0")
            held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
            assert held.spec.plan
            others = {"legacy": 1, them.cache: 2}
            assert waves(held) == {"db": 1, "shop": 1, "web": 1, "apps": 2, "tenant": 2, "base": 3} | others
            assert held.spec.plan.warnings == ()
            manager.process.send_signal(signal.SIGKILL)
        await ground.forget_replicas()
        async with ground.manager(PATH=path) as manager:
            # Without the Secret, Flux cannot remove `base`, and nothing can be verified.
            secret = await _lose_secret(scene, gate.secret)
            await gate.free("apps-0")
            await until_asked(manager, times=2)
            await cluster.until_held()
            assert cluster.taken_apart() == []
            assert "base-0" in await scene.on_member()
            assert (await cluster.teardown(lambda it: bool(it.status.blockers))).phase is Phase.HELD

            await client.create(SECRETS, secret)
            await cluster.until_gone()
            ended = await cluster.teardown()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    removed, total = map(int, ended.status.removed.split("/"))
    assert removed == total >= len(them.deployed)
    await them.check()


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_manager_that_is_killed_at_every_write_changes_nothing_of_that(ground: Ground, tmp_path: Path) -> None:
    scene = PlainScene(ground, new_namespace())
    await scene.begin()
    helm = (await build.ensure([tools.HELM]))[tools.HELM.name].path
    async with killed_managers(scene, tmp_path, programs=helm.parent) as killed, all_deployers(scene) as them:
        await ground.until_discovered()
        await them.deploy()
        await killed.arm(them.cluster)
        await them.cluster.delete()

        async def over() -> bool:
            clusters = await scene.client.list(CLUSTERS, namespace=scene.namespace)
            return not clusters and (await them.cluster.teardown()).phase is Phase.COMPLETE

        await eventually(over, "the end of the deletion", within=600)
        killed.check("all deployers: ")
        ended = await them.cluster.teardown()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    await them.check()


async def _lose_secret(scene: GateScene, name: str) -> Object:
    """Delete the kubeconfig of the cluster although it is held; returns what a person needs to write it again."""
    found = await scene.client.get(SECRETS, name, namespace=scene.namespace)
    meta = found["metadata"]
    await scene.client.delete(SECRETS, name, uid=meta["uid"], namespace=scene.namespace)
    await scene.client.patch(SECRETS, name, {"metadata": {"finalizers": None}}, namespace=scene.namespace)
    await object_watch.until_absent(scene.client, SECRETS, name, namespace=scene.namespace)
    kept = {"name": name, "namespace": scene.namespace, "labels": meta.get("labels") or {}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": kept, "type": found["type"], "data": found["data"]}
