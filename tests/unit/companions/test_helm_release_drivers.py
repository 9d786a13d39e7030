"""Who drives a release on a member, by the marks on it and the objects that name it, and what follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from unwind.api.flux import HelmRelease as FluxRelease
from unwind.api.meta import ObjectRef
from unwind.api.names import OWNER_LABEL
from unwind.api.policies import SourceKind
from unwind.api.unwind import Effort
from unwind.companions import helm_release_drivers
from unwind.companions.companion import Handle
from unwind.companions.helm_release_drivers import without_driven
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.step_source import HandleDecision
from unwind.helm.release_secrets import ChartMetadata, HelmRelease, ReleasedChart

if TYPE_CHECKING:
    from collections.abc import Collection


def _chart(annotations: dict[str, str]) -> HelmRelease:
    return HelmRelease(name="db", chart=ReleasedChart(ChartMetadata(name="web", annotations=annotations)))


@pytest.mark.parametrize(
    ("labels", "annotations", "document", "driver"),
    [
        ({}, {}, {"kind": "ConfigMap", "metadata": {"labels": {"app": "db"}}}, ""),
        ({}, {}, {"kind": "ConfigMap"}, ""),
        ({OWNER_LABEL: "u"}, {}, {}, "a profile of Unwind (owner u)"),
        ({}, {"fleet.cattle.io/bundle-id": "apps"}, {}, "Fleet bundle apps"),
        ({}, {}, {"metadata": {"labels": {"helm.toolkit.fluxcd.io/name": "x"}}}, "Flux HelmRelease x"),
        (
            {},
            {},
            {"metadata": {"labels": {"helm.toolkit.fluxcd.io/name": "x", "helm.toolkit.fluxcd.io/namespace": "a"}}},
            "Flux HelmRelease a/x",
        ),
        ({}, {}, {"metadata": {"labels": {"projectsveltos.io/reason": "Helm"}}}, "Sveltos"),
        ({}, {}, {"metadata": {"annotations": {"projectsveltos.io/owner-name": "p"}}}, "Sveltos"),
    ],
)
def test_who_drives_a_release(
    labels: dict[str, str], annotations: dict[str, str], document: dict[str, Any], driver: str
) -> None:
    assert helm_release_drivers.driver(_chart(annotations), labels, [document]) == driver


def test_the_labels_of_flux_on_its_objects_name_the_helm_release_of_a_release() -> None:
    labels = {"helm.toolkit.fluxcd.io/name": "db", "helm.toolkit.fluxcd.io/namespace": "shop"}
    documents: list[dict[str, Any]] = [{"kind": "ConfigMap"}, {"metadata": {"labels": labels}}]
    assert helm_release_drivers.flux_release(documents) == ReleaseName("shop", "db")
    assert helm_release_drivers.driver(_chart({}), {}, documents) == "Flux HelmRelease shop/db"
    assert helm_release_drivers.flux_release([{"metadata": {"labels": {"app": "db"}}}]) is None


@pytest.mark.parametrize(("history", "drives"), [([], True), ([{"name": "db"}], True), ([{"name": "other"}], False)])
async def test_a_helm_release_of_flux_on_the_member_drives_only_releases_that_it_has_deployed(
    monkeypatch: pytest.MonkeyPatch, history: list[dict[str, str]], drives: bool
) -> None:
    body = {"metadata": {"namespace": "shop", "name": "db", "uid": "u"}, "status": {"history": history}}
    found = msgspec.convert(body, FluxRelease)
    monkeypatch.setattr(helm_release_drivers, "is_installed", AsyncMock(return_value=True))
    member: Any = SimpleNamespace(client=SimpleNamespace(get=AsyncMock(return_value=found)))
    labelled, none = ReleaseName("shop", "db"), cast("Any", None)
    handles = await helm_release_drivers.flux_drivers(None, none, member, labelled, release="db")
    assert [(handle.step, handle.on_member) for handle in handles] == ([("HelmRelease/shop/db", True)] * drives)


class Words:
    """What policies say, by the source of a handle."""

    def __init__(self, **efforts: Effort) -> None:
        self._efforts = efforts

    def namespaces(self, source: SourceKind) -> Collection[str]:
        return ("shop",)

    def decide(self, handle: Handle) -> HandleDecision | None:
        effort = self._efforts.get(handle.source.value)
        return HandleDecision(effort=effort, policies=("prod",)) if effort else None


@pytest.mark.parametrize("deployer", [Effort.ENFORCE, Effort.TRY, Effort.LEAVE, None])
@pytest.mark.parametrize("exists", [True, False])
def test_a_release_that_another_deployer_drives_is_a_step_only_if_no_step_of_that_deployer_is_for_it(
    deployer: Effort | None, exists: bool
) -> None:
    driver = Handle(ref=ObjectRef(kind="HelmRelease", namespace="shop", name="db"), source=SourceKind.FLUX)
    ref = ObjectRef(kind="Release", namespace="shop", name="db", uid="db")
    release = Handle(ref=ref, source=SourceKind.HELM, driven="is driven by Flux", drivers=(driver,) if exists else ())
    plain = msgspec.structs.replace(release, driven="", drivers=())
    efforts = {"Flux": deployer} if deployer else {}
    left_to_it = exists and deployer is not None
    assert without_driven([release, plain], Words(Helm=Effort.ENFORCE, **efforts)) == (
        [plain] if left_to_it else [release, plain]
    )
    assert without_driven([release, plain], Words(**efforts)) == [plain], "no policy mentions it"
