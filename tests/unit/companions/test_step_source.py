"""Handles as steps: which of them a policy mentions, and what that does to their order."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind
from unwind.companions.companion import Handle
from unwind.companions.step_source import mentioned


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
