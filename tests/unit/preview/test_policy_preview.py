"""What `unwind plan --policy` shows of the handles of one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind, TeardownPolicy
from unwind.companions.companion import Handle
from unwind.companions.policy_reader import ClusterPolicies
from unwind.members.targets import AddonTarget
from unwind.preview import policy_preview
from unwind.preview.handle_preview import FoundHandles

if TYPE_CHECKING:
    from unwind.preview.policy_preview import PreviewedCluster

CLUSTER = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="shops", name="prod", uid="prod")


def previewed(effort: str, **handle: Any) -> PreviewedCluster:
    """What a policy with this effort would do on a cluster with one Kustomization."""
    spec = {"clusterSelector": {}, "sources": [{"kind": "Flux", "effort": effort}]}
    policy = msgspec.convert({"metadata": {"name": "production", "uid": "p"}, "spec": spec}, TeardownPolicy)
    ref = ObjectRef(group="kustomize.toolkit.fluxcd.io", kind="Kustomization", namespace="shops", name="web", uid="w")
    return policy_preview._cluster(
        policy,
        ClusterPolicies(target=CLUSTER, policies=(policy,)),
        AddonTarget(ref=CLUSTER, secret="", type="capi"),  # type: ignore[arg-type]
        FoundHandles(handles=(Handle(ref=ref, source=SourceKind.FLUX, **handle),)),
    )


def test_a_handle_whose_cluster_is_not_known_is_no_step_and_is_named_with_what_it_means() -> None:
    for effort, holds, told in (
        ("Enforce", True, "Kustomization/shops/web has no cluster; nothing is removed from this cluster until"),
        ("Enforce", False, "not a step, and not waited for: Kustomization/shops/web has no cluster"),
        ("Try", True, "not a step, and not waited for: Kustomization/shops/web has no cluster"),
    ):
        seen = previewed(effort, unplaced="has no cluster", remedy="use secretRef" if holds else "")
        assert seen.steps == ()
        [line] = seen.not_counted
        assert line.startswith(told)


def test_a_handle_that_stays_is_left_whatever_the_policy_says() -> None:
    [step] = previewed("Enforce", stays="it deploys Flux itself").steps
    assert (step.effort, step.effort_from, step.left) == ("Leave", ("it deploys Flux itself",), "")
    [step] = previewed("Enforce").steps
    assert (step.effort, step.effort_from) == ("Enforce", ("production",))
