"""Handles as steps: which of them a policy mentions, and what that does to their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind
from unwind.api.unwind import Effort
from unwind.companions.companion import Handle
from unwind.companions.step_source import HandleDecision, mentioned, without_driven

if TYPE_CHECKING:
    from collections.abc import Collection


def handle(name: str, *needs: str) -> Handle:
    ref = ObjectRef(kind="Kustomization", namespace="shop", name=name, uid=name)
    return Handle(ref=ref, source=SourceKind.FLUX, depends_on=tuple(f"Kustomization/shop/{need}" for need in needs))


def test_order_passes_through_handles_that_no_policy_mentions() -> None:
    handles = [handle("web", "apps", "lost"), handle("apps", "mid"), handle("mid", "base", "apps"), handle("base")]
    found = mentioned(handles, lambda it: it.ref.name in ("web", "base"))
    assert {it.ref.name: it.depends_on for it in found} == {
        "web": ("Kustomization/shop/base", "Kustomization/shop/lost"),
        "base": (),
    }


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
