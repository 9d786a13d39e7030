"""What becomes of the add-ons of a ClusterSummary that is deleted, by its cluster and its stopMatchingBehavior."""

from __future__ import annotations

import pytest

from unwind.addons.stop_matching_behavior import manner_of
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.sveltos import ClusterSummary, ClusterSummarySpec, ClusterType, ProfileSpec
from unwind.members.targets import AddonTarget
from unwind.teardown.withdrawal import Manner

CAPI, SVELTOS = ClusterType.CAPI, ClusterType.SVELTOS
SAYS = ("WithdrawPolicies", "RemovePolicies", "LeavePolicies", "Withdraw")


def summary(type_: ClusterType, says: str | None) -> ClusterSummary:
    profile = ProfileSpec() if says is None else ProfileSpec(stop_matching_behavior=says)
    return ClusterSummary(
        metadata=ObjectMeta(name="web", namespace="fleet", uid="summary"),
        spec=ClusterSummarySpec(
            cluster_namespace="fleet", cluster_name="one", cluster_type=type_.value, cluster_profile_spec=profile
        ),
    )


def cluster(type_: ClusterType, *, terminating: bool = False) -> AddonTarget:
    ref = ObjectRef(kind="Cluster", namespace="fleet", name="one", uid="cluster")
    return AddonTarget(type=type_, ref=ref, labels={}, secret="one", terminating=terminating)  # noqa: S106 - a name


@pytest.mark.parametrize("type_", [CAPI, SVELTOS])
@pytest.mark.parametrize(
    ("says", "manner"),
    [
        (None, Manner.REMOVE),
        ("WithdrawPolicies", Manner.REMOVE),
        ("RemovePolicies", Manner.REMOVE),
        ("LeavePolicies", Manner.RELEASE),
    ],
)
def test_the_profile_says_what_becomes_of_them_on_a_cluster_that_stays(
    type_: ClusterType, says: str | None, manner: Manner
) -> None:
    assert manner_of(summary(type_, says), cluster(type_)) is manner


@pytest.mark.parametrize("type_", [CAPI, SVELTOS])
def test_an_unknown_value_removes_nothing(type_: ClusterType) -> None:
    assert isinstance(manner_of(summary(type_, "Withdraw"), cluster(type_)), Unknown)


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("gone", [True, False])
def test_those_of_a_cluster_api_cluster_that_is_deleted_are_left_to_its_teardown(says: str, gone: bool) -> None:
    assert manner_of(summary(CAPI, says), None if gone else cluster(CAPI, terminating=True)) is None


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("gone", [True, False])
def test_those_of_a_sveltos_cluster_that_is_deleted_stay_because_it_is_merely_unmanaged(says: str, gone: bool) -> None:
    target = None if gone else cluster(SVELTOS, terminating=True)
    assert manner_of(summary(SVELTOS, says), target) is Manner.FORGET
