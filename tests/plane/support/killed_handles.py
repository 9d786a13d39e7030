"""Handles of each deployer, for tests that kill the manager at each of its writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tests.plane.support.flux_sources import kustomization
from tests.plane.support.helm_release_proxies import Proxies, config_maps
from tests.plane.support.helm_steps import KEPT, SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser, chart_file
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.names import DEPENDS_ON_ANNOTATION
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plane.support.cluster_teardowns import TeardownScene
    from tests.plane.support.flux_handles import FluxScene
    from tests.plane.support.flux_sources import FluxSources
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.testing.charts import ChartRepository

PRUNE_DISABLED = {"annotations": {"kustomize.toolkit.fluxcd.io/prune": "disabled"}}
TEMPLATES = {
    "templates/a.yaml": config_maps("apps-0"),
    "templates/b.yaml": config_maps("apps-1", metadata="annotations: {helm.sh/resource-policy: keep}"),
}


class Handles(ABC):
    """What a deployer has deployed: `apps` (or what it is called) goes before `base`, and one object of it stays."""

    source: ClassVar[str]
    """In a policy."""
    suspended: ClassVar[str] = "Hold"
    """The same."""
    resource: ClassVar[Resource | None]
    """None: they have no objects."""
    objects: ClassVar[tuple[str, ...]] = ("apps-0", "base-0")
    """The objects on the member, in the order in which they go."""
    kept: ClassVar[frozenset[str]] = frozenset({"apps-1"})
    intercepted: ClassVar[bool] = False
    """Whether the manager writes on the member."""
    place: LocalCluster
    """The cluster that the handles are on."""
    namespace: str

    @abstractmethod
    async def deploy(self) -> None:
        """Deploy them, and wait until that is done."""


class Kustomizations(Handles):
    """Two Kustomizations on the management cluster."""

    source = "Flux"
    resource: ClassVar[Resource | None] = KUSTOMIZATIONS

    def __init__(self, it: FluxScene) -> None:
        self.it = it
        self.place, self.namespace = it.cluster.management, it.cluster.namespace
        self.sources: FluxSources = it.sources
        self.secret = it.secret

    async def deploy(self) -> None:
        it = self.it
        await self.sources.kustomization("base", [it.config_map("base-0")], secret=self.secret)
        apps = [it.config_map("apps-0"), it.config_map("apps-1", **PRUNE_DISABLED)]
        await self.sources.kustomization("apps", apps, secret=self.secret, depends_on=["base"])
        await self.sources.until_ready("base", "apps")


class MemberKustomizations(Kustomizations):
    """The same on the member."""

    intercepted = True

    def __init__(self, it: FluxScene) -> None:
        super().__init__(it)
        self.place, self.namespace = it.cluster.member, it.cluster.on_member
        self.sources = it.on_member()
        self.secret = ""


class SuspendedKustomizations(MemberKustomizations):
    """The same, suspended: Flux leaves what they deployed."""

    suspended = "Remove"

    async def deploy(self) -> None:
        await super().deploy()
        for name in ("base", "apps"):
            await self.place.client.patch(KUSTOMIZATIONS, name, {"spec": {"suspend": True}}, namespace=self.namespace)


class NestedKustomizations(Kustomizations):
    """`fleet`, which deploys `apps` on the management cluster."""

    objects = ("apps-0",)

    async def deploy(self) -> None:
        it = self.it
        await self.sources.source("apps", [it.config_map("apps-0"), it.config_map("apps-1", **PRUNE_DISABLED)])
        await self.sources.kustomization("fleet", [kustomization("apps", self.namespace, secret=self.secret)])
        await self.sources.until_ready("fleet", "apps")


class FluxReleases(Kustomizations):
    """A HelmRelease on the management cluster."""

    resource = HELM_RELEASES
    objects = ("apps-0",)

    async def deploy(self) -> None:
        await self.sources.helm_release("apps", TEMPLATES, secret=self.secret, target=self.it.cluster.on_member)
        await self.sources.until_ready("apps", resource=HELM_RELEASES)


class OrderedFluxReleases(Kustomizations):
    """Two HelmReleases on the management cluster."""

    resource = HELM_RELEASES

    async def deploy(self) -> None:
        more = {"secret": self.secret, "target": self.it.cluster.on_member}
        await self.sources.helm_release("base", {"templates/a.yaml": config_maps("base-0")}, **more)
        await self.sources.until_ready("base", resource=HELM_RELEASES)
        await self.sources.helm_release("apps", TEMPLATES, depends_on=["base"], **more)
        await self.sources.until_ready("apps", resource=HELM_RELEASES)


class ReleaseProxies(Handles):
    """Two HelmReleaseProxies."""

    source = "HelmReleaseProxy"
    resource = HELM_RELEASE_PROXIES

    def __init__(self, cluster: TeardownScene, charts: ChartRepository) -> None:
        self.cluster = cluster
        self.charts = charts
        self.place, self.namespace = cluster.management, cluster.namespace
        self.proxies = Proxies(cluster.client, charts, namespace=cluster.namespace, on_member=cluster.on_member)

    async def deploy(self) -> None:
        await self.proxies.deploy("base", templates={"templates/a.yaml": config_maps("base-0")})
        await self.proxies.deploy("apps", depends_on="base", templates=TEMPLATES)


class SingleReleaseProxy(ReleaseProxies):
    """A HelmReleaseProxy that no HelmChartProxy creates again."""

    objects = ("apps-0",)

    async def deploy(self) -> None:
        cluster, chart = self.cluster, f"apps-{self.cluster.name}"
        self.charts.add(chart, TEMPLATES)
        spec = {
            "clusterRef": {
                "apiVersion": CLUSTERS.api_version,
                "kind": CLUSTERS.kind,
                "name": cluster.name,
                "namespace": cluster.namespace,
            },
            "repoURL": self.charts.url,
            "chartName": chart,
            "releaseName": "apps",
            "namespace": cluster.on_member,
        }
        meta = {"name": "apps", "namespace": cluster.namespace}
        body = {"apiVersion": HELM_RELEASE_PROXIES.api_version, "kind": HELM_RELEASE_PROXIES.kind}
        await cluster.client.create(HELM_RELEASE_PROXIES, {**body, "metadata": meta, "spec": spec})

        def deployed(found: Object | None) -> bool:
            return bool(found and (found.get("status") or {}).get("status") == "deployed")

        await until(cluster.client, HELM_RELEASE_PROXIES, "apps", deployed, "deployed", namespace=cluster.namespace)


class Releases(Handles):
    """Two releases that a user has installed with Helm."""

    source, resource, intercepted = "Helm", None, True
    objects = ("apps-settings", "base-settings")
    kept = frozenset({"apps-kept"})

    def __init__(self, cluster: TeardownScene, charts: ChartRepository, helm: Path) -> None:
        self.charts = charts
        self.place, self.namespace = cluster.member, cluster.on_member
        self.user = HelmUser(cluster.member, cluster.on_member, helm, charts)

    async def deploy(self) -> None:
        files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS}
        needs = chart_file("killed-apps", {DEPENDS_ON_ANNOTATION: "base"})
        self.charts.add("killed-base", files)
        self.charts.add("killed-apps", {**files, "templates/b.yaml": KEPT, "Chart.yaml": needs})
        await self.user.install("base", "killed-base")
        await self.user.install("apps", "killed-apps")
