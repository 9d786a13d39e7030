"""Whether the add-ons of a cluster are there again after an upgrade."""

from __future__ import annotations

from typing import Any

from unwind.addons import upgrade_rules
from unwind.addons.upgrade_rules import AddOn
from unwind.api.sveltos import FeatureSummary

BOTH = ("Resources", "Helm")


def add_on(resources: str = "Provisioned", helm: str = "Provisioned", **more: Any) -> AddOn:
    features = (
        FeatureSummary(feature_id="Resources", status=resources, failure_message=more.pop("message", None)),
        FeatureSummary(feature_id="Helm", status=helm),
    )
    return AddOn(profile="ClusterProfile shop", **({"features": features, "wanted": BOTH} | more))


def why(*add_ons: AddOn) -> str:
    wait = upgrade_rules.after(add_ons)
    return wait.why if wait else ""


def test_add_ons_that_are_all_provisioned_are_waited_for_no_longer() -> None:
    assert upgrade_rules.after([add_on(), add_on()]) is None
    assert upgrade_rules.after([]) is None


def test_one_feature_that_is_not_is_waited_for() -> None:
    wait = upgrade_rules.after([add_on(helm="Provisioning")])
    assert wait
    assert wait.why == "waiting for add-ons to be Provisioned: ClusterProfile shop: deployment in progress"
    assert 0 < wait.seconds <= 10


def test_a_feature_without_any_status_is_waited_for() -> None:
    assert why(add_on(features=(), wanted=("Helm",)))


def test_a_feature_that_the_profile_no_longer_has_is_not() -> None:
    assert not why(add_on(helm="Removed", wanted=("Resources",)))


def test_what_the_summary_itself_waits_for_is_told() -> None:
    told = why(
        add_on(resources="Provisioning", waits="waiting for dependencies: ClusterProfile base is not Provisioned")
    )
    assert told.endswith("ClusterProfile shop: waiting for dependencies: ClusterProfile base is not Provisioned")


def test_one_that_fails_is_told_with_who_must_act() -> None:
    told = why(add_on(resources="Failed", message="quota"))
    assert "ClusterProfile shop fails (Resources: quota); fix the profile" in told


def test_a_status_that_is_not_known_holds() -> None:
    assert "'Perhaps' is not known" in why(add_on(resources="Perhaps"))


def test_a_profile_that_matches_and_is_not_there_yet_is_waited_for() -> None:
    assert "not deployed yet" in why(add_on(features=None))


def test_what_is_refused_by_us_is_not_waited_for_because_that_would_never_end() -> None:
    assert not why(add_on(features=None, refused="not supported: setRefs"))


def test_what_is_on_the_cluster_of_a_profile_that_is_refused_now_still_counts() -> None:
    assert why(add_on(helm="Provisioning", refused="not supported: setRefs"))
    assert not why(add_on(refused="not supported: setRefs", in_step=False))


def test_a_profile_that_has_changed_is_waited_for_although_the_last_state_was_provisioned() -> None:
    assert "has changed" in why(add_on(in_step=False))


def test_a_dry_run_is_not_waited_for() -> None:
    assert not why(add_on(features=None, dry_run=True))
    assert not why(add_on(helm="Provisioning", dry_run=True))
