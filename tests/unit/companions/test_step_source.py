"""Handles as steps: which of them a policy mentions, and what that does to their order."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind
from unwind.api.unwind import INVENTORIES, Effort
from unwind.companions.companion import Handle
from unwind.companions.step_source import CompanionSteps, HandleDecision, mentioned
from unwind.inventory.inventories import Inventories
from unwind.members.member import Member
from unwind.members.targets import ClusterTarget
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.teardown.step_sources import SourceSteps

PROD = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="shop", name="prod", uid="prod")


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


class EnforceEverything:
    sources = (SourceKind.FLUX,)
    enforced = True
    said = ()
    terms = None

    def namespaces(self, source: SourceKind) -> tuple[str, ...]:
        return ("shop",)

    def decide(self, handle: Handle) -> HandleDecision:
        return HandleDecision(effort=Effort.ENFORCE, policies=("p",))


async def steps_of(*handles: Handle) -> SourceSteps:
    """The steps of a cluster whose policy enforces these handles, none of which deployed anything."""
    objects = Objects(resources=(INVENTORIES,))
    member = Member(PROD, objects.client, system_uid="standin")

    @asynccontextmanager
    async def connected(_: ClusterTarget) -> AsyncIterator[Member]:
        yield member

    async def found(*_: object) -> list[Handle]:
        return list(handles)

    async def decided(_: ClusterTarget) -> EnforceEverything:
        return EnforceEverything()

    source = CompanionSteps(
        cast("Any", SimpleNamespace(remover=None, source=SourceKind.FLUX, handles=found)),
        cast("Any", SimpleNamespace(of=decided)),
        cast("Any", SimpleNamespace(member=connected)),
        Inventories(objects.client, namespace="home"),
    )
    return await source.steps(ClusterTarget(ref=PROD, secret="", ready=True))


async def test_a_handle_that_is_no_step_does_not_change_the_order_of_the_step_with_its_name() -> None:
    """Flux on the management cluster and Flux on the member may both have a Kustomization flux-system/apps."""
    elsewhere = msgspec.structs.replace(handle("apps"), unplaced="names its cluster by a ConfigMap")
    found = await steps_of(handle("apps", "infra"), handle("infra"), elsewhere)
    assert {step.draft.name: step.draft.depends_on for step in found.steps} == {
        "Kustomization/shop/apps": ("Kustomization/shop/infra",),
        "Kustomization/shop/infra": (),
    }
    [warning] = found.warnings
    assert "Kustomization/shop/apps names its cluster by a ConfigMap" in warning


async def test_a_handle_that_holds_the_cluster_is_not_said_to_be_waited_for_by_nothing() -> None:
    holding = msgspec.structs.replace(
        handle("apps"), unplaced="names its cluster by a ConfigMap", remedy="use secretRef"
    )
    found = await steps_of(holding)
    assert [notice.message.partition(";")[0] for notice in found.said] == [
        "Kustomization/shop/apps names its cluster by a ConfigMap"
    ]
    assert found.warnings == ()
