"""`kubectl delete cluster` and `unwind delete` on the real Cluster API, whatever the cluster is made of: what costs
money outside of it goes first, or is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.cluster_costs import CLAIMS, GATES, CostScene
from tests.e2e.gated_clusters import new_namespace
from unwind.api.capi import MACHINES
from unwind.api.unwind import Gate, Phase
from unwind.kube import object_watch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.gated_clusters import Ground

CONTROL_PLANE_LABEL = "cluster.x-k8s.io/control-plane"


@pytest.mark.parametrize("gate", GATES)
async def test_a_deleted_cluster_waits_for_what_costs_money_keeps_volumes_and_only_then_do_its_machines_go(
    costs_ground: Ground, gate: Gate, tmp_path: Path
) -> None:
    scene = CostScene(costs_ground, new_namespace(), gate)
    async with scene.running():
        await scene.profiles()
        cluster = await scene.costly_cluster()
        await scene.make_costs(tmp_path)
        claims = {f"PersistentVolumeClaim {name}" for name in CLAIMS}
        assert set(await scene.planned_costs()) == {"Service shop", "Ingress shop", "Database orders", *claims}
        scene.operator.working.clear()
        await scene.delete()
        held = await cluster.teardown(lambda it: it.phase is Phase.HELD and "orders" in it.status.blocked_by)
        assert held.spec.gate == gate.value
        assert scene.gone_at() == []
        scene.operator.working.set()
        await cluster.until_gone()
        await scene.check(await cluster.teardown())
        if gate is Gate.MACHINES:
            found = costs_ground.management.audit.deletions(namespace=scene.namespace)
            when = {item.object_ref.resource: item.request_received_timestamp for item in reversed(found)}
            # The workers first, then the control plane, then its Machine.
            order = [when["stubmachines"], when["kubeadmcontrolplanes"], when["stubclusters"]]
            assert order == sorted(order)
            owned = [it for it in found if it.object_ref.resource == MACHINES.plural]
            assert max(it.request_received_timestamp for it in owned) > when["kubeadmcontrolplanes"]


async def test_a_kubeadm_control_plane_that_loses_a_machine_during_the_teardown_replaces_it(
    costs_ground: Ground,
) -> None:
    scene = CostScene(costs_ground, new_namespace(), Gate.MACHINES)
    async with scene.running():
        await scene.profiles()
        cluster = await scene.costly_cluster()
        await scene.block("web-0")
        await cluster.delete()
        await cluster.teardown(lambda it: it.phase is Phase.HELD)
        [lost] = [it["metadata"] for it in await scene.machines() if CONTROL_PLANE_LABEL in it["metadata"]["labels"]]
        await scene.client.delete(MACHINES, lost["name"], uid=lost["uid"], namespace=scene.namespace)
        await object_watch.until_absent(scene.client, MACHINES, lost["name"], namespace=scene.namespace, within=90.0)
        # Its own pre-terminate hook and ours have both let it go, and the next one holds the cluster, too.
        await scene.until_machines()
        found = costs_ground.management.audit.deletions(resource="stubmachines", namespace=scene.namespace)
        assert len(found) == 1
        assert cluster.taken_apart() == []
        await scene.unblock("web-0")
        await cluster.until_gone()
        assert (await cluster.teardown()).phase is Phase.COMPLETE
