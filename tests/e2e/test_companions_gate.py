"""`kubectl delete cluster` beside Flux, CAAPH and plain Helm at once: the real programs, and no profile of ours."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.companion_fixtures import flux_on
from tests.e2e.flux_gates import CHART, HOLD, flux_gate
from tests.e2e.gated_clusters import ON_MEMBERS, PlainScene, grounds, new_namespace, path_with_helm, until_asked
from tests.plane.support.cluster_teardowns import waves
from tests.plane.support.flux_sources import kustomization
from tests.plane.support.helm_release_proxies import Proxies
from tests.plane.support.helm_steps import serving
from tests.plane.support.helm_users import HelmUser
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.resources import SECRETS
from unwind.api.unwind import Phase
from unwind.kube import object_watch
from unwind.local import build, companions, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Object


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane with Cluster API and all companions: no feature of Unwind deploys anything."""
    async with (
        grounds(features="caaph,capi,flux,helm") as ground,
        flux_on(ground.management, ground.member),
        companions.running(tools.CAAPH, ground.management),
    ):
        yield ground


# The start of a plane, of Cluster API and of four controllers is part of it.
@pytest.mark.timeout(300)
async def test_handles_of_all_deployers_go_in_order_before_their_cluster_and_unwind_creates_nothing_on_the_member(
    ground: Ground,
) -> None:
    scene = PlainScene(ground, new_namespace())
    await scene.begin()
    where, client, member = scene.namespace, scene.client, scene.member.client
    helm = (await build.ensure([tools.HELM]))[tools.HELM.name].path
    path = await path_with_helm()
    async with serving() as charts, flux_gate(scene) as gate:
        user = HelmUser(scene.member, where, helm, charts)
        proxies = Proxies(client, charts, namespace=where, on_member=where)
        async with ground.registered_manager(PATH=path) as manager:
            cluster = await gate.begin(
                {"kind": "Flux", "effort": "Enforce"},
                {"kind": "HelmReleaseProxy", "effort": "Enforce"},
                {"kind": "Helm", "effort": "Enforce", "selector": {"namespaces": [where], "names": ["legacy"]}},
                # Between deployers, only a policy knows an order.
                order=[["legacy"], ["cache*"]],
            )
            await gate.kustomization("base")
            await gate.sources.helm_release("db", CHART, secret=gate.secret)
            async with asyncio.TaskGroup() as deploying:
                deployed_cache = deploying.create_task(proxies.deploy("cache"))
                deploying.create_task(user.install("legacy", "settings"))
                # Each when its dependencies are ready: otherwise Flux looks again at intervals.
                await gate.sources.until_ready("base")
                await gate.kustomization("apps", gate.config_map("apps-0", finalizers=[HOLD]), depends_on=["base"])
                await gate.there.source("shop", [gate.config_map("shop-0")])
                await gate.kustomization("tenant", kustomization("shop", where), depends_on=["base"])
                await gate.sources.until_ready("apps")
                await gate.kustomization("web", depends_on=["apps"])
                await gate.sources.until_ready("web", "tenant")
            cache = deployed_cache.result()
            await gate.there.until_ready("shop")
            await gate.sources.until_ready("db", resource=HELM_RELEASES)
            await gate.until_held("base", "apps", "web", "tenant")
            deployed = {name: item["metadata"]["uid"] for name, item in (await scene.on_member()).items()}
            assert set(deployed) >= {f"{name}-0" for name in ("base", "apps", "web", "shop", "db", "cache")}
            assert "legacy-settings" in deployed
            await cluster.delete()

            # Flux lets go of `apps` within seconds; the object that it deployed is still there.
            await cluster.until_held(f"ConfigMap {where}/apps-0")
            held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
            assert held.spec.plan
            others = {"legacy": 1, cache.name: 2}
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
        await proxies.clear()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    removed, total = map(int, ended.status.removed.split("/"))
    assert removed == total >= len(deployed)
    assert await scene.on_member() == {}
    assert [item["metadata"]["name"] for item in await member.list(SECRETS, namespace=where)] == []
    for resource in (KUSTOMIZATIONS, HELM_RELEASES, HELM_RELEASE_PROXIES):
        assert await client.list(resource, namespace=where) == []
    went = scene.deletion_times()
    order = [("web-0", "apps-0"), ("apps-0", "base-0"), ("shop-0", "base-0"), ("legacy-settings", "cache-0")]
    for earlier, later in order:
        assert went[earlier][1] <= went[later][0], (earlier, later)
    assert min(cluster.taken_apart()) > max(answered for _, answered in went.values())

    # All deployers use the same kubeconfig, so that Unwind is known by its user agent.
    since = [
        item for item in ground.member.audit.entries() if item.request_received_timestamp > cluster.deletion_requested()
    ]
    ours = [(item.verb, item.object_ref.resource) for item in since if item.user_agent == ON_MEMBERS]
    assert ("delete", "kustomizations") in ours
    assert "create" not in {verb for verb, _ in ours}
    # Helm, which Unwind runs, is not known by it: but nobody at all has created anything there.
    assert [
        f"{item.object_ref.resource}/{item.object_ref.name} by {item.user_agent}"
        for item in since
        if item.verb == "create" and item.object_ref.namespace == where
    ] == []


async def _lose_secret(scene: GateScene, name: str) -> Object:
    """Delete the kubeconfig of the cluster although it is held; returns what a person needs to write it again."""
    found = await scene.client.get(SECRETS, name, namespace=scene.namespace)
    meta = found["metadata"]
    await scene.client.delete(SECRETS, name, uid=meta["uid"], namespace=scene.namespace)
    await scene.client.patch(SECRETS, name, {"metadata": {"finalizers": None}}, namespace=scene.namespace)
    await object_watch.until_absent(scene.client, SECRETS, name, namespace=scene.namespace)
    kept = {"name": name, "namespace": scene.namespace, "labels": meta.get("labels") or {}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": kept, "type": found["type"], "data": found["data"]}
