"""A cluster on which Flux, CAAPH and plain Helm have deployed, and no profile of ours: the real programs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.companion_fixtures import flux_on
from tests.e2e.flux_gates import CHART, flux_gate
from tests.e2e.gated_clusters import ON_MEMBERS, grounds
from tests.plane.support.flux_sources import kustomization
from tests.plane.support.helm_release_proxies import Proxies
from tests.plane.support.helm_steps import serving
from tests.plane.support.helm_users import HelmUser
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.resources import SECRETS
from unwind.local import build, companions, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.flux_gates import FluxGate
    from tests.e2e.gated_clusters import GatedCluster, GateScene, Ground

BETWEEN = [("web-0", "apps-0"), ("apps-0", "base-0"), ("shop-0", "base-0"), ("legacy-settings", "cache-0")]
"""Of each two objects, the first goes before the second."""


@asynccontextmanager
async def deployers() -> AsyncIterator[Ground]:
    """A plane with Cluster API and all companions: no feature of Unwind deploys anything."""
    async with (
        grounds(features="caaph,capi,flux,helm") as ground,
        flux_on(ground.management, ground.member),
        companions.running(tools.CAAPH, ground.management),
    ):
        yield ground


class AllDeployers:
    """What they deploy on one cluster."""

    def __init__(self, gate: FluxGate, proxies: Proxies, user: HelmUser) -> None:
        self.gate = gate
        self.scene = gate.scene
        self.cluster: GatedCluster
        self.cache = ""
        """The name of the HelmReleaseProxy."""
        self.deployed: dict[str, str] = {}
        """The uids of the objects on the member, by name."""
        self._proxies = proxies
        self._user = user

    async def deploy(self, *, held: tuple[str, ...] = ()) -> None:
        """Six handles of Flux, one of them nested, a HelmReleaseProxy and a Helm release. `held`: finalizers of an
        object of the Kustomization `apps`."""
        gate, where = self.gate, self.scene.namespace
        self.cluster = await gate.begin(
            {"kind": "Flux", "effort": "Enforce"},
            {"kind": "HelmReleaseProxy", "effort": "Enforce"},
            {"kind": "Helm", "effort": "Enforce", "selector": {"namespaces": [where], "names": ["legacy"]}},
            # Between deployers, only a policy knows an order.
            order=[["legacy"], ["cache*"]],
        )
        await gate.kustomization("base")
        await gate.sources.helm_release("db", CHART, secret=gate.secret)
        async with asyncio.TaskGroup() as deploying:
            cache = deploying.create_task(self._proxies.deploy("cache"))
            deploying.create_task(self._user.install("legacy", "settings"))
            # Each when its dependencies are ready: otherwise Flux looks again at intervals.
            await gate.sources.until_ready("base")
            apps = gate.config_map("apps-0", finalizers=list(held)) if held else gate.config_map("apps-0")
            await gate.kustomization("apps", apps, depends_on=["base"])
            await gate.there.source("shop", [gate.config_map("shop-0")])
            await gate.kustomization("tenant", kustomization("shop", where), depends_on=["base"])
            await gate.sources.until_ready("apps")
            await gate.kustomization("web", depends_on=["apps"])
            await gate.sources.until_ready("web", "tenant")
        self.cache = cache.result().name
        await gate.there.until_ready("shop")
        await gate.sources.until_ready("db", resource=HELM_RELEASES)
        await gate.until_held("base", "apps", "web", "tenant")
        self.deployed = {name: item["metadata"]["uid"] for name, item in (await self.scene.on_member()).items()}
        assert set(self.deployed) >= {f"{name}-0" for name in ("base", "apps", "web", "shop", "db", "cache")}
        assert "legacy-settings" in self.deployed

    async def check(self) -> None:
        """Nothing is left, it went in order and before the cluster, and Unwind created nothing on the member."""
        scene, client, where = self.scene, self.scene.client, self.scene.namespace
        assert await scene.on_member() == {}
        assert [it["metadata"]["name"] for it in await scene.member.client.list(SECRETS, namespace=where)] == []
        for resource in (KUSTOMIZATIONS, HELM_RELEASES, HELM_RELEASE_PROXIES):
            assert await client.list(resource, namespace=where) == []
        went = scene.deletion_times()
        for earlier, later in BETWEEN:
            assert went[earlier][1] <= went[later][0], (earlier, later)
        assert min(self.cluster.taken_apart()) > max(answered for _, answered in went.values())
        # All deployers use the same kubeconfig, so that Unwind is known by its user agent.
        asked = self.cluster.deletion_requested()
        since = [it for it in scene.ground.member.audit.entries() if it.request_received_timestamp > asked]
        ours = [(item.verb, item.object_ref.resource) for item in since if item.user_agent == ON_MEMBERS]
        assert ("delete", "kustomizations") in ours
        assert "create" not in {verb for verb, _ in ours}
        # Helm, which Unwind runs, is not known by it: but nobody at all has created anything there.
        assert [
            f"{item.object_ref.resource}/{item.object_ref.name} by {item.user_agent}"
            for item in since
            if item.verb == "create" and item.object_ref.namespace == where
        ] == []


@asynccontextmanager
async def all_deployers(scene: GateScene) -> AsyncIterator[AllDeployers]:
    """All deployers of a scene. Its policy and the HelmReleaseProxies go with it."""
    helm = (await build.ensure([tools.HELM]))[tools.HELM.name].path
    async with serving() as charts, flux_gate(scene) as gate:
        user = HelmUser(scene.member, scene.namespace, helm, charts)
        proxies = Proxies(scene.client, charts, namespace=scene.namespace, on_member=scene.namespace)
        yield AllDeployers(gate, proxies, user)
        await proxies.clear()
