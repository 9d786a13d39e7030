"""Which profiles are for a cluster, and what of them is on it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from unwind.addons import cluster_summaries
from unwind.addons.caches import SeenProfile
from unwind.addons.cluster_profiles import ProfileState, Seen, matching_profiles
from unwind.addons.matching import ProfileKey
from unwind.api.capi import Cluster
from unwind.api.meta import LabelSelector, ObjectMeta
from unwind.api.names import CLUSTER_UID_ANNOTATION
from unwind.api.sveltos import (
    ClusterSummary,
    ClusterSummaryStatus,
    FeatureSummary,
    PolicyRef,
    ProfileSpec,
    ProfileStatus,
)
from unwind.members import targets

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TARGET = targets.of_capi(Cluster(metadata=ObjectMeta(name="prod", namespace="apps", uid="c-1", labels={"env": "prod"})))
SHOP = ProfileKey("ClusterProfile", "", "shop")


def profile(key: ProfileKey = SHOP, *, going: bool = False, env: str = "prod", **spec: Any) -> Seen:
    metadata = ObjectMeta(
        name=key.name, namespace=key.namespace, uid=f"p-{key.name}", deletion_timestamp=NOW if going else None
    )
    wanted = ProfileSpec(cluster_selector=LabelSelector(match_labels={"env": env}), **spec)
    return key, SeenProfile(metadata=metadata, spec=wanted, status=ProfileStatus())


def summary(seen: Seen, *, uid: str = "c-1", going: bool = False, **spec: Any) -> ClusterSummary:
    key, it = seen
    wanted = msgspec.structs.replace(it.spec, **spec)
    made = msgspec.convert(cluster_summaries.new(key, it.metadata.uid, wanted, TARGET), ClusterSummary)
    metadata = msgspec.structs.replace(
        made.metadata,
        annotations={CLUSTER_UID_ANNOTATION: uid} if uid else {},
        deletion_timestamp=NOW if going else None,
    )
    status = ClusterSummaryStatus(feature_summaries=(FeatureSummary(feature_id="Resources", status="Provisioned"),))
    return msgspec.structs.replace(made, metadata=metadata, status=status)


def found(*profiles: Seen, summaries: tuple[ClusterSummary, ...] = ()) -> list[ProfileState]:
    return matching_profiles(TARGET, profiles, named={item.metadata.name: item for item in summaries}.get)


def test_only_profiles_that_match_and_stay_count() -> None:
    other = ProfileKey("Profile", "apps", "own")
    seen = found(
        profile(),
        profile(ProfileKey("ClusterProfile", "", "elsewhere"), env="test"),
        profile(ProfileKey("ClusterProfile", "", "going"), going=True),
        profile(ProfileKey("Profile", "stage", "foreign")),
        profile(other),
    )
    assert [item.key for item in seen] == [SHOP, other]


def test_the_summary_is_the_one_of_this_very_cluster() -> None:
    shop = profile()
    assert found(shop, summaries=(summary(shop),))[0].add_on.features
    assert found(shop, summaries=(summary(shop, uid="c-0"),))[0].add_on.features is None


def test_one_of_sveltos_that_names_no_cluster_counts() -> None:
    shop = profile()
    assert found(shop, summaries=(summary(shop, uid=""),))[0].add_on.features


def test_a_summary_on_its_way_out_does_not_count() -> None:
    shop = profile()
    assert found(shop, summaries=(summary(shop, going=True),))[0].add_on.features is None


def test_a_summary_that_says_something_else_than_its_profile_is_not_in_step() -> None:
    shop = profile(policy_refs=(PolicyRef(kind="ConfigMap", name="new"),))
    assert found(shop, summaries=(summary(shop),))[0].add_on.in_step
    assert not found(shop, summaries=(summary(shop, policy_refs=()),))[0].add_on.in_step


def test_what_is_deployed_once_stays_in_step_whatever_the_profile_says_now() -> None:
    shop = profile(sync_mode="OneTime", policy_refs=(PolicyRef(kind="ConfigMap", name="new"),))
    before = (PolicyRef(kind="ConfigMap", name="old"),)
    assert found(shop, summaries=(summary(shop, policy_refs=before),))[0].add_on.in_step


def test_what_cannot_be_carried_out_is_refused_and_says_why() -> None:
    assert "setRefs" in found(profile(set_refs=("some",)))[0].refused


def test_a_profile_that_may_select_the_cluster_counts_if_its_add_ons_are_there() -> None:
    shop = profile()
    key, there = shop
    unclear = (key, msgspec.structs.replace(there, spec=ProfileSpec(), unread=("clusterSelector.matchLabel",)))
    assert found(unclear) == []
    [one] = found(unclear, summaries=(summary(shop),))
    assert one.add_on.features
    assert not one.carried_out
    assert one.refused == "clusterSelector.matchLabel is not known (valid: matchLabels, matchExpressions)"


def test_a_profile_in_a_circle_is_refused() -> None:
    other = ProfileKey("ClusterProfile", "", "base")
    seen = found(profile(depends_on=("base",)), profile(other, depends_on=("shop",)))
    assert ["dependency cycle" in item.refused for item in seen] == [True, True]


def test_a_profile_whose_summary_cannot_have_its_name_is_refused() -> None:
    shop = profile()
    foreign = summary(shop)
    [owner] = foreign.metadata.owner_references
    metadata = msgspec.structs.replace(
        foreign.metadata, owner_references=(msgspec.structs.replace(owner, name="another"),)
    )
    [one] = found(shop, summaries=(msgspec.structs.replace(foreign, metadata=metadata),))
    assert one.refused == (
        "the name of its ClusterSummary is in use by ClusterProfile another; rename one of the profiles"
    )
    assert one.add_on.features is None


def test_a_dry_run_and_what_is_refused_are_not_carried_out() -> None:
    assert found(profile())[0].carried_out
    assert not found(profile(sync_mode="DryRun"))[0].carried_out
    assert not found(profile(set_refs=("some",)))[0].carried_out
