"""Whether a cluster may be upgraded, as far as its add-ons are concerned."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.addons import upgrade_rules
from unwind.addons.upgrade_rules import AddOn
from unwind.api.sveltos import FeatureSummary
from unwind.hooks import LONGEST

TO = ["v1.31.0"]


def add_on(name: str = "shop", *features: FeatureSummary, **more: Any) -> AddOn:
    return AddOn(profile=f"ClusterProfile {name}", features=features, **more)


def feature(status: str, message: str | None = None, *, failures: int = 0) -> FeatureSummary:
    return FeatureSummary(feature_id="Resources", status=status, failure_message=message, consecutive_failures=failures)


def why(*add_ons: AddOn, to: list[str] = TO) -> str:
    wait = upgrade_rules.before_upgrade(add_ons, to)
    return wait.why if wait else ""


def test_a_cluster_without_add_ons_goes_on() -> None:
    assert upgrade_rules.before_upgrade([], TO) is None


@pytest.mark.parametrize("status", ["Provisioned", "Provisioning", "Removing", "Removed", ""])
def test_an_add_on_that_does_not_fail_holds_nothing_up(status: str) -> None:
    assert not why(add_on("shop", feature(status)))


def test_a_profile_that_is_not_on_the_cluster_yet_does_not_fail() -> None:
    assert not why(AddOn(profile="ClusterProfile shop", features=None))


@pytest.mark.parametrize("status", ["Failed", "FailedNonRetriable"])
def test_one_that_fails_is_named_with_what_went_wrong_and_who_must_act(status: str) -> None:
    wait = upgrade_rules.before_upgrade([add_on("shop", feature(status, "no such\nnamespace"))], TO)
    assert wait
    assert wait.why == (
        "waiting for add-ons that block the upgrade: ClusterProfile shop fails (Resources: no such namespace); "
        "fix the profile"
    )
    assert 0 < wait.seconds <= LONGEST


def test_one_that_failed_and_is_just_being_tried_again_still_fails() -> None:
    assert "ClusterProfile shop fails" in why(add_on("shop", feature("Provisioning", failures=3)))
    assert not why(add_on("shop", feature("Provisioned", failures=0)))


def test_a_status_that_is_not_known_holds() -> None:
    assert "'Perhaps' is not known" in why(add_on("shop", feature("Perhaps")))


def test_the_number_of_failures_is_not_told_because_it_moves() -> None:
    once, often = (why(add_on("shop", feature("Failed", "no", failures=count))) for count in (1, 99))
    assert once == often


def test_a_long_message_is_cut_and_a_port_that_differs_each_time_left_out() -> None:
    told = why(add_on("shop", feature("Failed", "read tcp 10.0.0.3:48122->10.0.0.9:443: reset " + "x" * 4000)))
    assert "10.0.0.9:443: reset" in told
    assert "48122" not in told
    assert len(told) < 600


def test_the_order_of_add_ons_makes_no_difference() -> None:
    one, other = add_on("a", feature("Failed", "x")), add_on("b", feature("Failed", "y"))
    assert why(one, other) == why(other, one)


def test_many_that_fail_are_not_all_named() -> None:
    told = why(*(add_on(f"a{number:02}", feature("Failed", "x")) for number in range(50)))
    assert "ClusterProfile a04" in told
    assert "ClusterProfile a05" not in told
    assert told.endswith("and more")


def test_a_version_that_an_add_on_is_not_for_holds_the_cluster() -> None:
    told = why(add_on(versions=">=1.29 <1.31"))
    assert "ClusterProfile shop supports Kubernetes >=1.29 <1.31, not v1.31.0" in told
    assert "unwind.dev/kubernetes-versions" in told
    assert not why(add_on(versions=">=1.29 <1.32"))


def test_every_version_on_the_way_has_to_be_supported() -> None:
    told = why(add_on(versions="!=1.30"), to=["v1.30.4", "v1.31.0"])
    assert "not v1.30.4" in told
    assert "not v1.31.0" not in told


def test_a_range_that_cannot_be_read_holds_and_says_so() -> None:
    told = why(add_on(versions="from 1.29 on"))
    assert "invalid value 'from 1.29 on'" in told
    assert ">=1.29 <1.34" in told


def test_a_version_that_cannot_be_read_holds_where_an_add_on_names_some() -> None:
    assert "''" in why(add_on(versions=">=1.29"), to=[""])
    assert not why(add_on(), to=[""])


def test_a_profile_that_is_not_carried_out_still_says_what_it_supports() -> None:
    assert why(AddOn(profile="ClusterProfile shop", versions="<1.30", refused="dependency cycle"))
