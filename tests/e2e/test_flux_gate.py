"""`kubectl delete cluster` beside Flux: the real Cluster API and Flux, `unwind run`, and a TeardownPolicy."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.companion_fixtures import flux_on
from tests.e2e.flux_gates import CHART, HOLD, flux_gate
from tests.e2e.gated_clusters import WAITING
from tests.plane.support.cluster_teardowns import waves
from tests.plane.support.flux_sources import helm_release, kustomization
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.names import ConditionType, Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.unwind import Phase
from unwind.kube import object_watch
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


async def test_handles_go_in_reverse_order_before_their_cluster_and_unwind_creates_nothing_on_the_member(
    ground: Ground, gate: FluxGate
) -> None:
    scene = gate.scene
    cluster = await gate.begin()
    await gate.there.source("ingress", [gate.config_map("ingress-0")])
    await gate.kustomization("base", gate.config_map("base-0"), kustomization("ingress", scene.namespace))
    await gate.kustomization("apps", gate.config_map("apps-0", finalizers=[HOLD]), depends_on=["base"])
    await gate.kustomization("web", depends_on=["apps"])
    await gate.there.source("shop", [gate.config_map("shop-0")])
    await gate.kustomization("tenant", kustomization("shop", scene.namespace), depends_on=["base"])
    await gate.nested_release("db", "infra")
    await gate.nested_release("store", "stores", depends_on=["infra"])
    await gate.sources.until_ready("base", "apps", "web", "tenant")
    await gate.there.until_ready("shop", "ingress")
    await gate.sources.until_ready("db", "store", resource=HELM_RELEASES)
    await gate.until_held("base", "apps", "web", "tenant")
    await cluster.delete()

    # Flux lets go of `apps` within seconds; the object that it deployed is still there.
    said = await cluster.until_held(f"ConfigMap {scene.namespace}/apps-0")
    assert WAITING in said
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.plan
    # `db` and `store` by what contains them on the management cluster, which is no step.
    first = {"shop": 1, "web": 1, "store": 1}
    assert waves(held) == {**first, "apps": 2, "tenant": 2, "db": 2, "ingress": 3, "base": 4}
    assert {step.effort_from for step in held.spec.plan.steps} == {f"TeardownPolicy/{scene.namespace}"}
    assert cluster.taken_apart() == []
    await gate.free("apps-0")
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert ended.phase is Phase.COMPLETE
    assert await scene.on_member() == {}
    deleted = [item.object_ref.name for item in ground.member.audit.deletions(namespace=scene.namespace)]
    assert deleted.index("web-0") < deleted.index("apps-0") < deleted.index("base-0")
    assert deleted.index("shop") < deleted.index("ingress") < deleted.index("ingress-0") < deleted.index("base-0")
    assert deleted.index("store-0") < deleted.index("db-0")
    assert [
        f"{entry.verb} {entry.object_ref.resource}/{entry.object_ref.name}"
        for entry in ground.member.audit.entries(verbs=("create",), namespace=scene.namespace)
        if entry.user_agent.startswith("unwind")
    ] == []
    left = await scene.client.list(KUSTOMIZATIONS, namespace=scene.namespace)
    assert {item["metadata"]["name"] for item in left} == {"infra", "stores"}
    # Their parents would create them again, so they stay until the cluster is gone.
    for name in ("db", "store"):
        await object_watch.until_absent(scene.client, HELM_RELEASES, name, namespace=scene.namespace)


async def test_one_prune_of_the_cluster_and_its_helm_release_is_held_until_the_release_is_gone(gate: FluxGate) -> None:
    scene = gate.scene
    cluster = await gate.begin()
    held = CHART["templates/db.yaml"] + f"  finalizers: [{HOLD}]\n"
    await gate.sources.chart("db", {"templates/db.yaml": held})
    release = helm_release("db", scene.namespace, secret=gate.secret, uninstall={"disableWait": True})
    await gate.sources.kustomization("fleet", [await gate.written(cluster), release])
    await gate.sources.until_ready("fleet")
    await gate.sources.until_ready("db", resource=HELM_RELEASES)
    await gate.until_held("db", resource=HELM_RELEASES)
    await gate.prune("fleet")

    await cluster.until_held(f"ConfigMap {scene.namespace}/db-0")
    # helm-controller has forgotten the release by now.
    await gate.free("db-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    assert await scene.on_member() == {}
    await object_watch.until_absent(scene.client, HELM_RELEASES, "db", namespace=scene.namespace)


async def test_one_prune_of_the_cluster_a_release_and_the_copy_of_its_kubeconfig_is_held(gate: FluxGate) -> None:
    """Without the Secret, helm-controller would forget the release and let go of the HelmRelease at once."""
    scene, where = gate.scene, gate.scene.namespace
    cluster = await gate.begin()
    data = (await scene.client.get(SECRETS, gate.secret, namespace=where))["data"]
    copy: Object = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": "copied", "namespace": where},
        "data": data,
    }
    await gate.sources.chart("db", CHART)
    release = helm_release("db", where, secret="copied")  # noqa: S106 - a name
    await gate.sources.kustomization("fleet", [await gate.written(cluster), copy, release])
    await gate.sources.until_ready("fleet")
    await gate.sources.until_ready("db", resource=HELM_RELEASES)
    await gate.until_held("db", resource=HELM_RELEASES)
    await gate.until_held("copied", resource=SECRETS, finalizer=Finalizer.COPIED_KUBECONFIG)
    hold = {"metadata": {"finalizers": [HOLD]}}
    await scene.member.client.patch(CONFIG_MAPS, "db-0", hold, namespace=where)
    await gate.prune("fleet")

    # helm-controller itself waits for what it uninstalls.
    await cluster.until_held(f"HelmRelease/{where}/db")
    teardown = await cluster.teardown(lambda it: it.spec.plan is not None)
    assert teardown.spec.plan
    assert [step.object.name for step in teardown.spec.plan.steps] == ["db"]
    assert await scene.member.client.get(CONFIG_MAPS, "db-0", namespace=where)
    await gate.free("db-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    await object_watch.until_absent(scene.client, SECRETS, "copied", namespace=where)


async def test_one_prune_of_the_cluster_and_its_handles_loses_their_order_and_a_killed_manager_continues(
    ground: Ground, gate: FluxGate, manager: Manager
) -> None:
    scene = gate.scene
    cluster = await gate.begin()
    await gate.sources.source("apps", [gate.config_map("apps-0", finalizers=[HOLD])])
    apps = kustomization("apps", scene.namespace, secret=gate.secret)
    await gate.sources.kustomization("fleet", [await gate.written(cluster), apps])
    await gate.sources.until_ready("fleet", "apps")
    await gate.until_held("apps")
    # A manager would plan after one deletion or after both, as it comes. Without one, there are both.
    manager.process.send_signal(signal.SIGKILL)
    await manager.process.wait()
    await ground.forget_replicas()
    await gate.prune("fleet")
    for resource, name in ((CLUSTERS, cluster.name), (KUSTOMIZATIONS, "apps")):
        await object_watch.until(
            scene.client,
            resource,
            name,
            lambda it: it is not None and "deletionTimestamp" in it["metadata"],
            "being deleted",
            namespace=scene.namespace,
        )
    async with ground.manager() as second:
        await cluster.until_held(f"ConfigMap {scene.namespace}/apps-0")
        teardown = await cluster.teardown(lambda it: it.phase is Phase.HELD)
        assert meta.is_true(teardown.status.conditions, ConditionType.ORDER_LOST)
        secret = await scene.client.get(SECRETS, gate.secret, namespace=scene.namespace)
        assert Finalizer.HANDLE.value in secret["metadata"]["finalizers"]
        second.process.send_signal(signal.SIGKILL)
        await second.process.wait()
        await ground.forget_replicas()
        async with ground.manager():
            await gate.free("apps-0")
            await cluster.until_gone()
            assert (await cluster.teardown()).phase is Phase.COMPLETE
    left = await scene.member.client.list(CONFIG_MAPS, namespace=scene.namespace)
    assert {item["metadata"]["name"] for item in left} <= {"kube-root-ca.crt"}
