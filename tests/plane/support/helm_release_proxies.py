"""Releases that the real CAAPH deploys on a member, for a cluster of a test."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support.fixed_policies import FixedPolicies
from unwind.api.caaph import HELM_CHART_PROXIES, HELM_CHART_PROXY_LABEL, HELM_RELEASE_PROXIES
from unwind.api.meta import ObjectMeta, ref_of
from unwind.api.names import DEPENDS_ON_ANNOTATION
from unwind.api.policies import SourceKind
from unwind.api.unwind import Effort
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.step_source import CompanionSteps, HandleDecision
from unwind.helm.program import Helm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.companions.companion import Handle
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.testing.charts import ChartRepository


class EveryProxy(FixedPolicies):
    """Stands in for policies: this effort for every HelmReleaseProxy in the namespace of the Cluster."""

    sources = frozenset({SourceKind.HELM_RELEASE_PROXY})

    def __init__(self, namespace: str, effort: Effort = Effort.ENFORCE) -> None:
        super().__init__(namespaces=(namespace,))
        self._effort = effort
        self.enforced = effort is Effort.ENFORCE

    def decide(self, handle: Handle) -> HandleDecision | None:
        return HandleDecision(effort=self._effort, policies=("every-proxy",))


def proxy_steps(policies: EveryProxy, *, helm: Helm | None) -> Callable[[RemovalDeps], CompanionSteps]:
    """The step source of CAAPH, for a manager."""

    def make(deps: RemovalDeps) -> CompanionSteps:
        client = deps.members._client  # the manager's own client
        companion = HelmReleaseProxies(client, helm)
        return CompanionSteps(companion, policies, deps.members, deps.inventories)

    return make


def config_maps(*names: str, metadata: str = "") -> str:
    """The template of a chart with these ConfigMaps. `metadata`: more of it, in YAML's flow style."""
    more = f", {metadata}" if metadata else ""
    return "\n---\n".join(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}{more}}}\ndata: {{}}" for name in names
    )


class Proxies:
    """HelmChartProxies for the only Cluster of a namespace, and the HelmReleaseProxies that CAAPH makes of them."""

    def __init__(self, client: Client, charts: ChartRepository, *, namespace: str, on_member: str) -> None:
        """`on_member`: the namespace of the releases."""
        self.client = client
        self.namespace = namespace
        self.on_member = on_member
        self._charts = charts
        self._suffix = uuid.uuid4().hex[:6]

    async def deploy(
        self, name: str, *, depends_on: str | None = None, templates: Mapping[str, str] | None = None, **spec: Any
    ) -> ObjectRef:
        """A release of two ConfigMaps, or of these templates; its HelmReleaseProxy, once it is deployed."""
        chart = f"{name}-{self._suffix}"
        self._charts.add(chart, templates or {"templates/all.yaml": config_maps(f"{name}-0", f"{name}-1")})
        manifest: Object = {
            "apiVersion": HELM_CHART_PROXIES.api_version,
            "kind": HELM_CHART_PROXIES.kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {} if depends_on is None else {DEPENDS_ON_ANNOTATION: depends_on},
            },
            "spec": {
                "clusterSelector": {},
                "repoURL": self._charts.url,
                "chartName": chart,
                "releaseName": name,
                "namespace": self.on_member,
                **spec,
            },
        }
        await self.client.create(HELM_CHART_PROXIES, manifest)
        found = await eventually(lambda: self._deployed(name), f"release {name} is deployed")
        return ref_of(HELM_RELEASE_PROXIES, msgspec.convert(found["metadata"], ObjectMeta))

    async def _deployed(self, name: str) -> Object:
        label = f"{HELM_CHART_PROXY_LABEL}={name}"
        found = await self.client.list(HELM_RELEASE_PROXIES, namespace=self.namespace, labels=label)
        return next((item for item in found if (item.get("status") or {}).get("status") == "deployed"), {})

    async def read(self, proxy: ObjectRef) -> Object:
        return await self.client.get(HELM_RELEASE_PROXIES, proxy.name, namespace=proxy.namespace)

    async def patch(self, proxy: ObjectRef, patch: Object) -> None:
        await self.client.patch(HELM_RELEASE_PROXIES, proxy.name, patch, namespace=proxy.namespace)

    async def clear(self) -> None:
        """Delete the HelmChartProxies, so that CAAPH does not look after them for the rest of the session."""
        for item in await self.client.list(HELM_CHART_PROXIES, namespace=self.namespace):
            meta = item["metadata"]
            await self.client.delete(HELM_CHART_PROXIES, meta["name"], uid=meta["uid"], namespace=self.namespace)
