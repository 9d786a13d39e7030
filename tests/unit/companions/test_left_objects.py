"""A release that its deployer leaves is uninstalled only while no other deployer drives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.companions import helm_release_drivers, helm_release_reader
from unwind.companions.flux import FluxCompanion
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.helm_release_reader import LoadedRelease
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.left_objects import left_release
from unwind.deleters.outcomes import Again
from unwind.members.targets import ClusterTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.kube.client import Object

CILIUM = ReleaseName("kube-system", "cilium")
TARGET = ClusterTarget(ref=ObjectRef(kind="Cluster", namespace="shop", name="prod", uid="c"), secret="prod")  # noqa: S106 - a name
HELM: Any = SimpleNamespace(replica="r")


def proxy(uid: str, cluster: str = "prod", **spec: str) -> Object:
    wanted = {"releaseName": "cilium", "namespace": "kube-system", "reconcileStrategy": "InstallOnce", **spec}
    metadata = {"namespace": "shop", "name": f"cilium-{uid}", "uid": uid, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"clusterRef": {"namespace": "shop", "name": cluster}, **wanted}}


def helm_release(name: str = "cilium") -> Object:
    history = [{"name": "cilium", "namespace": "kube-system", "version": 1}]
    return {
        "kind": "HelmRelease",
        "metadata": {"namespace": "shop", "name": name, "uid": "h", "resourceVersion": "1"},
        "spec": {"suspend": True, "kubeConfig": {"secretRef": {"name": "prod-kubeconfig"}}},
        "status": {"storageNamespace": "kube-system", "history": history},
    }


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The marks of a deployer on the release, one for each time that it is read."""
    marks: list[str] = []
    versions = iter(range(100))

    async def load(member: Any, name: ReleaseName, *, storage: str) -> LoadedRelease:
        last: Any = SimpleNamespace(version=next(versions), is_same=lambda other: True)
        return LoadedRelease(
            name=name, last=last, manifests=(), hooks=(), crds=(), driver=marks.pop(0) if marks else "", cluster_role=""
        )

    monkeypatch.setattr(helm_release_reader, "load", load)
    return marks


def member(charts: Sequence[Object] = ()) -> Any:
    """A member of K3s with these HelmCharts."""
    kind = cast("Any", SimpleNamespace(resource=helm_release_drivers._HELM_CHARTS))
    return SimpleNamespace(
        discovery=SimpleNamespace(kinds=AsyncMock(return_value=[kind])),
        client=SimpleNamespace(list=AsyncMock(return_value=list(charts))),
    )


def once(monkeypatch: pytest.MonkeyPatch, *proxies: Object) -> HelmReleaseProxies:
    """CAAPH, with these proxies on the management cluster."""
    monkeypatch.setattr(helm_release_drivers, "is_installed", AsyncMock(return_value=True))
    return HelmReleaseProxies(cast("Any", SimpleNamespace(list=AsyncMock(return_value=list(proxies)))), HELM)


async def removed(companion: Any, handle: Object, on: Any) -> Any:
    return await companion.own_removal(handle, TARGET, on, [])


async def test_a_release_that_was_installed_once_is_uninstalled_while_nobody_else_drives_it(
    driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    companion = once(monkeypatch, proxy("a"), proxy("b", cluster="other"), proxy("c", releaseName="db"))
    assert (await removed(companion, proxy("a"), member())).releases


@pytest.mark.parametrize(
    ("mark", "charts", "proxies", "named"),
    [
        ("Flux HelmRelease flux-system/cilium", [], [], "Flux HelmRelease flux-system/cilium"),
        ("", [{"metadata": {"namespace": "kube-system", "name": "cilium"}}], [], "HelmChart kube-system/cilium"),
        ("", [], [proxy("b", reconcileStrategy="Continuous")], "HelmReleaseProxy shop/cilium-b"),
    ],
    ids=["Flux", "K3s", "another proxy"],
)
async def test_a_release_that_was_installed_once_and_that_another_deployer_drives_since_is_held_by_name(
    driver: list[str],
    monkeypatch: pytest.MonkeyPatch,
    mark: str,
    charts: list[Object],
    proxies: list[Object],
    named: str,
) -> None:
    driver.append(mark)
    with pytest.raises(Again, match=f"{named} drives it now; remove it there") as held:
        await removed(once(monkeypatch, proxy("a"), *proxies), proxy("a"), member(charts))
    assert held.value.code == Reason.HELD


async def test_a_suspended_release_of_flux_is_uninstalled_only_while_no_other_deployer_drives_it(
    driver: list[str],
) -> None:
    flux = FluxCompanion(cast("Any", None), removes=AsyncMock(return_value=True), helm=HELM)
    driver += ["Flux HelmRelease shop/cilium", "", "Flux HelmRelease platform/cilium"]
    assert (await removed(flux, helm_release(), member())).releases
    assert (await removed(flux, helm_release(), member())).releases
    with pytest.raises(Again, match="Flux HelmRelease platform/cilium drives it now"):
        await removed(flux, helm_release(), member())


async def test_a_release_that_is_taken_over_during_its_removal_is_not_uninstalled(driver: list[str]) -> None:
    async def other(loaded: LoadedRelease) -> str:
        return loaded.driver

    driver += ["", "Sveltos"]
    left = await left_release(member(), CILIUM, HELM, other=other, hooks_disabled=False)
    assert left.releases
    release = cast("Any", left.releases)._release
    uninstallation = cast("Any", left.releases)._uninstallation(member(), release, "", [], AsyncMock())
    with pytest.raises(Again, match="Sveltos drives it now"):
        await uninstallation.owns(SimpleNamespace())
    assert await uninstallation.owns(SimpleNamespace()), "it was given back"
