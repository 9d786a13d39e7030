"""Whether everything is there that a new cluster's add-ons are made of."""

from __future__ import annotations

from unwind.addons import creation_rules
from unwind.addons.creation_rules import Lack, ProfileSource
from unwind.api.sveltos import HelmChart, PolicyRef, ProfileSpec, ValuesFrom


def ref(name: str, *, kind: str = "ConfigMap", namespace: str = "", optional: bool = False) -> PolicyRef:
    return PolicyRef(kind=kind, namespace=namespace, name=name, optional=optional)


def chart(*values: ValuesFrom, action: str = "Install") -> HelmChart:
    return HelmChart(release_name="web", release_namespace="web", helm_chart_action=action, values_from=values)


def test_what_policies_refer_to_is_needed_in_its_namespace_or_in_that_of_the_cluster() -> None:
    spec = ProfileSpec(policy_refs=(ref("a"), ref("b", kind="Secret", namespace="there")))
    assert creation_rules.needed_sources(spec, namespace="here") == [
        ProfileSource("ConfigMap", "here", "a"),
        ProfileSource("Secret", "there", "b"),
    ]


def test_what_is_optional_is_not_needed() -> None:
    values = ValuesFrom(kind="Secret", name="v", optional=True)
    spec = ProfileSpec(policy_refs=(ref("a", optional=True),), helm_charts=(chart(values),))
    assert creation_rules.needed_sources(spec, namespace="here") == []


def test_values_of_charts_are_needed_unless_the_chart_is_uninstalled() -> None:
    values = ValuesFrom(kind="Secret", name="v")
    assert creation_rules.needed_sources(ProfileSpec(helm_charts=(chart(values),)), namespace="here") == [
        ProfileSource("Secret", "here", "v")
    ]
    assert (
        creation_rules.needed_sources(ProfileSpec(helm_charts=(chart(values, action="Uninstall"),)), namespace="here")
        == []
    )


def test_what_is_named_twice_is_needed_once() -> None:
    assert len(creation_rules.needed_sources(ProfileSpec(policy_refs=(ref("a"), ref("a"))), namespace="here")) == 1


def test_nothing_lacking_lets_the_cluster_be_made() -> None:
    assert creation_rules.before_create([]) is None


def test_what_is_lacking_is_named_with_the_profile_and_who_must_act() -> None:
    wait = creation_rules.before_create([Lack("ClusterProfile shop", "ConfigMap default/shop", "not found")])
    assert wait
    assert wait.why == (
        "waiting for sources of add-ons: ClusterProfile shop needs ConfigMap default/shop: not found; "
        "create them or correct the profiles"
    )
    assert 0 < wait.seconds <= 10


def test_the_order_in_which_it_was_found_out_makes_no_difference() -> None:
    lacks = [Lack("ClusterProfile shop", f"ConfigMap default/{name}", "not found") for name in "abcdefgh"]
    assert creation_rules.before_create(lacks) == creation_rules.before_create(reversed(lacks))
