"""`kubectl delete cluster` beside Flux: the real Cluster API and Flux, `unwind run`, and a TeardownPolicy."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.companion_fixtures import flux_on
from tests.e2e.flux_gates import CHART, HOLD, flux_gate
from tests.e2e.gated_clusters import WAITING
from tests.plane.support.cluster_teardowns import waves
from tests.plane.support.flux_sources import config_map, kustomization
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.names import ConditionType, Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.unwind import Phase
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.flux_gates import FluxGate
    from tests.e2e.gated_clusters import GateScene, Ground
    from tests.plane.support.manager_process import Manager
    from unwind.kube.client import Object


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def manager(ground: Ground) -> AsyncIterator[Manager]:
    """Flux on the management cluster and on the member, and a manager."""
    async with flux_on(ground.management, ground.member), ground.manager() as manager:
        await ground.until_discovered()
        yield manager
    check_requests(ground.management)


@pytest_asyncio.fixture(loop_scope="session")
async def gate(scene: GateScene) -> AsyncIterator[FluxGate]:
    async with flux_gate(scene) as gate:
        yield gate


async def test_six_handles_go_in_reverse_order_before_their_cluster_and_unwind_creates_nothing_on_the_member(
    ground: Ground, gate: FluxGate
) -> None:
    scene = gate.scene
    cluster = await gate.begin()
    await gate.kustomization("base")
    await gate.kustomization("apps", gate.config_map("apps-0", finalizers=[HOLD]), depends_on=["base"])
    await gate.kustomization("web", depends_on=["apps"])
    await gate.there.source("shop", [gate.config_map("shop-0")])
    await gate.kustomization("tenant", kustomization("shop", scene.namespace), depends_on=["base"])
    await gate.sources.helm_release("db", CHART, secret=gate.secret)
    await gate.sources.until_ready("base", "apps", "web", "tenant")
    await gate.there.until_ready("shop")
    await gate.sources.until_ready("db", resource=HELM_RELEASES)
    await gate.until_held("base", "apps", "web", "tenant")
    await cluster.delete()

    # Flux lets go of `apps` within seconds; the object that it deployed is still there.
    said = await cluster.until_held(f"ConfigMap {scene.namespace}/apps-0")
    assert WAITING in said
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.plan
    assert waves(held) == {"db": 1, "shop": 1, "web": 1, "apps": 2, "tenant": 2, "base": 3}
    assert {step.effort_from for step in held.spec.plan.steps} == {f"TeardownPolicy/{scene.namespace}"}
    assert cluster.taken_apart() == []
    await gate.free("apps-0")
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert ended.phase is Phase.COMPLETE
    assert await scene.on_member() == {}
    deleted = [item.object_ref.name for item in ground.member.audit.deletions(namespace=scene.namespace)]
    assert deleted.index("web-0") < deleted.index("apps-0") < deleted.index("base-0")
    assert deleted.index("shop") < deleted.index("base-0")
    assert [
        f"{entry.verb} {entry.object_ref.resource}/{entry.object_ref.name}"
        for entry in ground.member.audit.entries(verbs=("create",), namespace=scene.namespace)
        if entry.user_agent.startswith("unwind")
    ] == []
    for resource in (KUSTOMIZATIONS, HELM_RELEASES):
        assert await scene.client.list(resource, namespace=scene.namespace) == []


async def test_one_prune_of_the_cluster_and_its_handles_is_held_and_a_killed_manager_continues(
    ground: Ground, gate: FluxGate, manager: Manager
) -> None:
    scene = gate.scene
    cluster = await gate.begin()
    found = await cluster.get()
    written: Object = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": cluster.name, "namespace": scene.namespace, "labels": scene.label},
        "spec": {"topology": found["spec"]["topology"]},
    }
    await gate.sources.source("apps", [gate.config_map("apps-0", finalizers=[HOLD])])
    apps = kustomization("apps", scene.namespace, secret=gate.secret)
    await gate.sources.kustomization("fleet", [written, apps])
    await gate.sources.until_ready("fleet", "apps")
    await gate.until_held("apps")
    await gate.sources.source("fleet", [config_map("empty", scene.namespace)])

    await cluster.until_held(f"ConfigMap {scene.namespace}/apps-0")
    teardown = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    terminating = meta.is_true(teardown.status.conditions, ConditionType.ORDER_LOST)
    assert terminating or teardown.spec.plan  # which of the two Flux deletes first is its own affair
    secret = await scene.client.get(SECRETS, gate.secret, namespace=scene.namespace)
    assert Finalizer.HANDLE.value in secret["metadata"]["finalizers"]

    manager.process.send_signal(signal.SIGKILL)
    async with ground.manager():
        await gate.free("apps-0")
        await cluster.until_gone()
        assert (await cluster.teardown()).phase is Phase.COMPLETE
    left = await scene.member.client.list(CONFIG_MAPS, namespace=scene.namespace)
    assert {item["metadata"]["name"] for item in left} <= {"kube-root-ca.crt"}
