"""Releases that a deployer drives without a mark on them are told apart by the object that names them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import pytest

from unwind.api.caaph import HELM_CHART_PROXIES, HELM_RELEASE_PROXIES
from unwind.api.meta import ObjectRef
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.companions import helm_release_drivers, helm_release_proxies, helm_release_reader
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.helm_release_reader import LoadedRelease
from unwind.companions.helm_release_rules import ReleaseName, StoredRevision
from unwind.members.targets import ClusterTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unwind.api.resources import Resource
    from unwind.kube.client import Object

PROD = ClusterTarget(ref=ObjectRef(kind="Cluster", namespace="shop", name="prod", uid="c"), secret="prod")  # noqa: S106 - a name
NEEDED = "it is in namespace kube-system"


class Server:
    """An API server that serves these kinds, with their objects."""

    def __init__(self, objects: Mapping[Resource, Sequence[Object]]) -> None:
        self._objects = objects

    async def list(self, resource: Resource, *, namespace: str = "") -> list[Object]:
        return [it for it in self._objects[resource] if namespace in ("", it["metadata"]["namespace"])]


def proxy(release: str, *, cluster: str = "prod", **spec: str) -> Object:
    meta = {"namespace": "shop", "name": f"{release}-{cluster}", "uid": f"{release}-{cluster}", "resourceVersion": "1"}
    return {
        "metadata": meta,
        "spec": {"clusterRef": {"namespace": "shop", "name": cluster}, "releaseName": release, **spec},
    }


def chart(name: str, namespace: str, **spec: str) -> Object:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_installed(client: Any, resource: Resource) -> bool:
        return resource in client._objects

    for module in (helm_release_drivers, helm_release_proxies):
        monkeypatch.setattr(module, "is_installed", is_installed)


def stored(monkeypatch: pytest.MonkeyPatch, *names: str, needed: str = "") -> None:
    """These releases are on the member, and nothing on them names a deployer. `needed`: one that the cluster needs."""
    revisions = [
        StoredRevision(ReleaseName(*name.split("/")), 1, "deployed", f"sh.helm.release.v1.{name}.v1") for name in names
    ]

    async def load(member: Any, name: ReleaseName, *_: Any) -> LoadedRelease:
        release = SimpleNamespace(version=1, chart=SimpleNamespace(metadata=SimpleNamespace(annotations={})))
        return LoadedRelease(
            name=name,
            last=cast("Any", SimpleNamespace(release=release)),
            manifests=(),
            hooks=(),
            crds=(),
            driver="",
            cluster_role=NEEDED if str(name) == needed else "",
        )

    monkeypatch.setattr(helm_release_reader, "stored_revisions", AsyncMock(return_value=revisions))
    monkeypatch.setattr(helm_release_reader, "load_revisions", load)
    monkeypatch.setattr(helm_release_reader, "load", load)
    monkeypatch.setattr(helm_release_reader, "entries_of", AsyncMock(return_value=()))


async def undriven(hub: Mapping[Resource, Sequence[Object]], on_member: Sequence[Object] | None = None) -> list[str]:
    """The releases that no other deployer drives. `on_member`: the HelmCharts of K3s; None without K3s."""
    kinds = [] if on_member is None else [SimpleNamespace(resource=helm_release_drivers._HELM_CHARTS)]
    member: Any = SimpleNamespace(
        client=Server({helm_release_drivers._HELM_CHARTS: on_member or []}),
        discovery=SimpleNamespace(kinds=AsyncMock(return_value=kinds)),
    )
    companion = HelmCompanion(cast("Any", Server(hub)), None, named=AsyncMock(return_value=False))
    return [f"{it.ref.namespace}/{it.ref.name}" for it in await companion.handles(PROD, member, ()) if not it.driven]


async def test_a_release_that_a_helm_release_proxy_of_the_cluster_names_is_driven_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored(monkeypatch, "apps/web", "default/db", "apps/db", "apps/mine")
    hub = [proxy("web", namespace="apps"), proxy("db"), proxy("mine", cluster="other", namespace="apps")]
    assert await undriven({HELM_RELEASE_PROXIES: hub}) == ["apps/db", "apps/mine"]
    assert len(await undriven({})) == 4, "CAAPH is not installed"


async def test_a_release_that_a_cluster_summary_of_sveltos_names_is_driven_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored(monkeypatch, "apps/web", "apps/mine")

    def summary(cluster: str, release: str) -> Object:
        status = {"helmReleaseSummaries": [{"releaseNamespace": "apps", "releaseName": release}]}
        meta = {"namespace": "shop", "name": f"s-{cluster}"}
        return {"metadata": meta, "spec": {"clusterName": cluster}, "status": status}

    assert await undriven({CLUSTER_SUMMARIES: [summary("prod", "web"), summary("other", "mine")]}) == ["apps/mine"]


async def test_a_release_that_a_helm_chart_of_k3s_names_is_driven_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(monkeypatch, "kube-system/traefik", "apps/web", "kube-system/web")
    charts = [chart("traefik", "kube-system"), chart("web", "kube-system", targetNamespace="apps")]
    assert await undriven({}, charts) == ["kube-system/web"]
    assert len(await undriven({})) == 3, "K3s is not there"


async def test_a_proxy_whose_release_the_cluster_needs_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """CAAPH installs the network (CNI), storage drivers (CSI) and cloud controller managers (CCM) of many clusters."""
    stored(monkeypatch, needed="kube-system/cilium")
    hub = [proxy("cilium", namespace="kube-system"), proxy("web", namespace="apps")]
    companion = HelmReleaseProxies(cast("Any", Server({HELM_RELEASE_PROXIES: hub, HELM_CHART_PROXIES: []})), None)
    found = await companion.handles(PROD, cast("Any", None), ["shop"])
    assert {it.ref.name: it.last for it in found} == {"cilium-prod": True, "web-prod": False}
