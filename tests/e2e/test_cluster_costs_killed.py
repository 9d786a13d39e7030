"""The manager killed at every write of a deletion, with each gate, on the real Cluster API: only the time changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.cluster_costs import FEATURES, GATES, CostScene
from tests.e2e.gated_clusters import grounds, new_namespace
from tests.e2e.killed_gates import killed_managers
from tests.eventually import eventually
from unwind.api.capi import CLUSTERS
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Gate, Phase
from unwind.kube.errors import NotFoundError
from unwind.local import companions, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.gated_clusters import GatedCluster, Ground

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

_LONG = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane with Cluster API, the controller of KubeadmControlPlanes, and a cloud; and no manager."""
    async with (
        grounds(features=FEATURES, cloud=True) as ground,
        companions.running(tools.KUBEADM_CONTROL_PLANE, ground.management),
    ):
        yield ground


async def _is_over(scene: CostScene, cluster: GatedCluster) -> bool:
    """Whether there is nothing left to write."""
    clusters = await scene.client.list(CLUSTERS, namespace=scene.namespace)
    if clusters or await scene.client.list(CLUSTER_SUMMARIES, namespace=scene.namespace):
        return False
    policy = await scene.client.get(TEARDOWN_POLICIES, scene.namespace)
    try:
        teardown = await scene.client.get(TEARDOWNS, cluster.uid)
    except NotFoundError:
        return False
    ended = (teardown.get("status") or {}).get("phase") == Phase.COMPLETE
    return ended and not (policy.get("status") or {}).get("clusters")


@pytest.mark.parametrize("gate", GATES)
async def test_a_manager_that_is_killed_at_every_write_deletes_keeps_and_waits_for_the_same(
    ground: Ground, gate: Gate, tmp_path: Path
) -> None:
    scene = CostScene(ground, new_namespace(), gate)
    async with killed_managers(scene, tmp_path) as killed, scene.running():
        await ground.until_discovered()
        await scene.profiles()
        cluster = await scene.costly_cluster()
        await scene.make_costs(tmp_path)
        deployed = {one["metadata"]["uid"] for one in (await scene.on_member()).values()}
        await killed.arm(cluster)
        if gate is Gate.MACHINES:
            await scene.grow()
        await scene.delete()
        await eventually(lambda: _is_over(scene, cluster), "the end of the deletion", within=_LONG)
        killed.killer.armed = False
        await scene.check(await cluster.teardown())
        hit = killed.check(f"{gate.value}: ")
        # Nothing but what kubectl made and profiles deployed was deleted on the cluster, and each once.
        sent = [it for it in ground.member.audit.deletions() if it.username == killed.user]
        crds = [it for it in sent if it.object_ref.resource == "customresourcedefinitions"]
        assert sorted(it.uid for it in sent if it not in crds) == sorted({*scene.uids, *deployed})
        assert [it.object_ref.name for it in crds] == [f"{scene.kind.plural}.{scene.kind.group}"]
        assert {("POST", "teardowns", "", "", ""), ("POST", "inventories", HOME, "", "")} <= hit
