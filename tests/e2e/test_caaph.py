"""`kubectl delete cluster` beside the real CAAPH: the gate waits until the releases of the cluster are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.e2e.gated_clusters import ON_MEMBERS, PlainScene, grounds, new_namespace, path_with_helm, with_policy
from tests.plane.support.helm_release_proxies import Proxies
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.unwind import Phase
from unwind.local import companions, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.testing.charts import ChartRepository

_WRITES = ("create", "update", "patch", "delete", "deletecollection")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane with Cluster API, CAAPH, and Unwind beside them: no feature of Unwind deploys anything."""
    async with (
        grounds(features="caaph,capi") as ground,
        companions.running(tools.CAAPH, ground.management),
        ground.manager(PATH=await path_with_helm()),
    ):
        await ground.until_discovered()
        yield ground


@pytest_asyncio.fixture(loop_scope="session")
async def scene(ground: Ground) -> AsyncIterator[GateScene]:
    proxies = {"kind": "HelmReleaseProxy", "effort": "Enforce"}
    async with with_policy(PlainScene(ground, new_namespace()), proxies) as scene:
        yield scene


@pytest_asyncio.fixture(loop_scope="session")
async def proxies(scene: GateScene, charts: ChartRepository) -> AsyncIterator[Proxies]:
    made = Proxies(scene.client, charts, namespace=scene.namespace, on_member=scene.namespace)
    yield made
    await made.clear()


async def test_a_deleted_cluster_waits_until_caaph_has_uninstalled_its_releases_in_order(
    ground: Ground, scene: GateScene, proxies: Proxies
) -> None:
    cluster = await scene.cluster()
    graph = {"base": "", "middle": "base", "top": "middle"}
    for name, needs in graph.items():
        await proxies.deploy(name, depends_on=needs or None)
    await proxies.deploy("once", reconcileStrategy="InstallOnce")
    await scene.block("base-0")
    await cluster.delete()

    # CAAPH lets go of the last proxy although an object of its release is still there.
    await cluster.until_held(f"HelmReleaseProxy/{scene.namespace}/base-", "base-0", "example.dev/backup")
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.plan
    assert {(step.effort, step.effort_from) for step in held.spec.plan.steps} == {
        ("Enforce", f"TeardownPolicy/{scene.namespace}")
    }
    [left] = await scene.client.list(HELM_RELEASE_PROXIES, namespace=scene.namespace)
    assert left["metadata"]["finalizers"] == ["unwind.dev/handle"]
    assert cluster.taken_apart() == []

    await scene.unblock("base-0")
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "12/12")
    assert await scene.on_member() == {}
    assert await scene.client.list(HELM_RELEASE_PROXIES, namespace=scene.namespace) == []
    went = scene.deletion_times()
    for name, needs in graph.items():
        gone = max(went[f"{name}-{number}"][1] for number in range(2))
        assert not needs or all(gone <= went[f"{needs}-{number}"][0] for number in range(2))
    assert min(cluster.taken_apart()) > max(answered for _, answered in went.values())
    own = [
        f"{item.verb} {item.object_ref.resource}/{item.object_ref.name}"
        for item in ground.member.audit.entries(verbs=_WRITES)
        if item.user_agent == ON_MEMBERS and item.request_received_timestamp > cluster.deletion_requested()
    ]
    own.remove("patch configmaps/base-0")  # by this test, which lets it go
    # CAAPH leaves this one: Unwind uninstalls it. It deletes nothing else, and creates nothing.
    release = "secrets/sh.helm.release.v1.once.v1"
    assert sorted(own) == [
        "delete configmaps/once-0",
        "delete configmaps/once-1",
        f"delete {release}",
        f"patch {release}",
    ]


async def test_without_a_policy_a_cluster_does_not_wait_for_its_releases(scene: GateScene, proxies: Proxies) -> None:
    scene.label = {"test": f"{scene.namespace}-other"}
    cluster = await scene.cluster()
    await proxies.deploy("web")
    await cluster.delete()
    await cluster.until_gone()
    assert set(await scene.on_member()) >= {"web-0", "web-1"}
