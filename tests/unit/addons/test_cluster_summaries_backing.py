"""Which summaries a profile backs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unwind.addons import cluster_summaries
from unwind.addons.caches import SeenProfile
from unwind.addons.matching import ProfileKey
from unwind.api.meta import LabelSelector, ObjectMeta, ObjectRef, OwnerReference, SelectorRequirement
from unwind.api.names import Finalizer
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    PROFILES,
    ClusterSummary,
    ClusterSummarySpec,
    ClusterType,
    PolicyRef,
    ProfileSpec,
    ProfileStatus,
)
from unwind.members.targets import AddonTarget

SELECTOR = LabelSelector(match_labels={"env": "prod"})
TARGET = AddonTarget(
    type=ClusterType.CAPI,
    ref=ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="fleet", name="one", uid="cluster"),
    labels={"env": "prod"},
    secret="one-kubeconfig",  # noqa: S106 - the name of one
)
SPEC = ProfileSpec(cluster_selector=SELECTOR, policy_refs=(PolicyRef(kind="ConfigMap", namespace="fleet", name="web"),))
KEY = ProfileKey("ClusterProfile", "", "web")


def profile(uid: str = "profile", **spec: Any) -> SeenProfile:
    return SeenProfile(
        metadata=ObjectMeta(name="web", uid=uid), spec=msgspec.structs.replace(SPEC, **spec), status=ProfileStatus()
    )


def summary(*owners: OwnerReference, namespace: str = "fleet", spec: ProfileSpec = SPEC) -> ClusterSummary:
    return ClusterSummary(
        metadata=ObjectMeta(
            name="web-capi-one",
            namespace=namespace,
            uid="summary",
            owner_references=owners,
            finalizers=(Finalizer.SUMMARY.value,),
        ),
        spec=ClusterSummarySpec(
            cluster_namespace="fleet", cluster_name="one", cluster_type="Capi", cluster_profile_spec=spec
        ),
    )


def owner(uid: str = "profile", *, kind: str = "ClusterProfile", group: str = "") -> OwnerReference:
    version = f"{group}/v1" if group else CLUSTER_PROFILES.api_version
    return OwnerReference(api_version=version, kind=kind, name="web", uid=uid)


def test_a_profile_backs_the_summary_that_it_owns_on_a_cluster_that_it_selects() -> None:
    assert cluster_summaries.unbacked(summary(owner()), profile(), TARGET) == ""


@pytest.mark.parametrize(
    ("it", "found", "target", "why"),
    [
        (summary(owner(), namespace="tenant"), profile(), TARGET, "is in namespace tenant"),
        (summary(), profile(), TARGET, "is not owned by a profile"),
        (summary(owner(group="example.dev")), profile(), TARGET, "is not owned by a profile"),
        (summary(owner()), None, TARGET, "ClusterProfile web does not exist"),
        (summary(owner("forged")), profile(), TARGET, "it was created again, with another uid"),
        (summary(owner()), profile(), None, "Capi cluster fleet/one does not exist"),
        (summary(owner()), profile(cluster_selector=LabelSelector()), TARGET, "does not select Capi cluster fleet/one"),
    ],
)
def test_anything_less_does_not(
    it: ClusterSummary, found: SeenProfile | None, target: AddonTarget | None, why: str
) -> None:
    assert why in cluster_summaries.unbacked(it, found, target)


def test_the_uid_is_that_of_the_owner_which_is_a_profile() -> None:
    it = summary(owner("forged", group="example.dev"), owner())
    assert (cluster_summaries.profile_of(it), cluster_summaries.owner_uid(it)) == (KEY, "profile")


def test_a_namespaced_profile_backs_nothing_of_another_namespace() -> None:
    elsewhere = msgspec.structs.replace(TARGET, ref=msgspec.structs.replace(TARGET.ref, namespace="other"))
    it = summary(owner(kind=PROFILES.kind))
    assert "does not select" in cluster_summaries.unbacked(it, profile(), elsewhere)


def test_a_summary_whose_profile_may_select_its_cluster_holds_the_cluster_and_tells_what_is_not_understood() -> None:
    typo = LabelSelector(match_expressions=(SelectorRequirement(key="env", operator="in", values=("prod",)),))
    unclear = profile(cluster_selector=typo)
    assert cluster_summaries.unbacked(summary(owner()), unclear, TARGET) == ""
    told = "clusterSelector: unknown operator 'in' for key env (valid: In, NotIn, Exists, DoesNotExist)"
    assert cluster_summaries.not_understood(summary(owner()), unclear, TARGET) == [told]
    assert cluster_summaries.not_understood(summary(owner()), profile(), TARGET) == []
    assert "does not select" in cluster_summaries.unbacked(
        summary(owner()), profile(cluster_selector=LabelSelector()), TARGET
    )


def test_a_summary_has_no_invalid_selector_because_the_api_server_refuses_it() -> None:
    typo = LabelSelector(match_expressions=(SelectorRequirement(key="env", operator="in", values=("prod",)),))
    unclear = profile(cluster_selector=typo)
    body = cluster_summaries.new(KEY, "profile", unclear.spec, TARGET)
    assert not body["spec"]["clusterProfileSpec"].get("clusterSelector")
    copied = msgspec.convert(body["spec"]["clusterProfileSpec"], ProfileSpec)
    assert cluster_summaries.in_step(summary(owner(), spec=copied), KEY, unclear)


def test_what_a_profile_says_about_removal_reaches_its_summaries_also_if_it_deploys_nothing_new() -> None:
    held = profile(
        policy_refs=(), cluster_deletion_behavior="EnforceRemovePolicies", stop_matching_behavior="LeavePolicies"
    )
    kept = cluster_summaries.settings_in_step(held.spec, summary(owner()))
    assert kept == msgspec.structs.replace(
        SPEC, cluster_deletion_behavior="EnforceRemovePolicies", stop_matching_behavior="LeavePolicies"
    )


def test_a_summary_is_in_step_while_it_says_what_its_profile_says() -> None:
    assert cluster_summaries.in_step(summary(owner()), KEY, profile())
    assert not cluster_summaries.in_step(summary(owner()), KEY, profile(policy_refs=()))
    assert not cluster_summaries.in_step(summary(owner()), KEY, profile(tier=1))


def test_a_behaviour_that_the_server_does_not_serve_in_summaries_holds_no_deployment_up() -> None:
    assert cluster_summaries.in_step(summary(owner()), KEY, profile(cluster_deletion_behavior="EnforceRemovePolicies"))
    said = summary(owner(), spec=msgspec.structs.replace(SPEC, cluster_deletion_behavior="LeavePolicies"))
    assert not cluster_summaries.in_step(said, KEY, profile(cluster_deletion_behavior="EnforceRemovePolicies"))


def test_a_summary_holds_by_an_inventory_or_by_a_profile() -> None:
    it = summary(owner())
    assert cluster_summaries.that_hold([it], {"summary"}, lambda _: False) == [it]
    assert cluster_summaries.that_hold([it], (), lambda _: True) == [it]
    assert cluster_summaries.that_hold([it], {"other"}, lambda _: False) == []
