"""What each feature installs: its kinds, rights, webhooks and policies, and nothing of the others."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api import features
from unwind.api.features import Feature
from unwind.api.rights import Setting
from unwind.install.contributions import REGISTER
from unwind.install.manifests import everything, manifests

ALONE = [frozenset(), *(frozenset({feature}) for feature in Feature if feature not in features.GATED)]
GATED = [frozenset({feature, Feature.CAPI}) for feature in sorted(features.GATED)]
SOME = [*ALONE, *GATED, features.DEFAULT, features.ALL]


def rendered(chosen: features.Features) -> list[dict[str, Any]]:
    return manifests(Setting(features=chosen))


def rules(chosen: features.Features) -> list[dict[str, Any]]:
    found = [rule for item in rendered(chosen) if item["kind"] == "ClusterRole" for rule in item.get("rules", ())]
    return [rule for rule in found if "resources" in rule]


def verbs(chosen: features.Features, resource: str) -> set[str]:
    return {
        verb
        for rule in rules(chosen)
        if resource in rule["resources"] and not rule.get("resourceNames")
        for verb in rule["verbs"]
    }


def groups(chosen: features.Features) -> set[str]:
    return {item["spec"]["group"] for item in rendered(chosen) if item["kind"] == "CustomResourceDefinition"}


def test_by_default_only_the_kinds_of_unwind_are_installed() -> None:
    assert groups(features.DEFAULT) == {"unwind.dev"}
    assert groups(frozenset({Feature.KARMADA})) == {"unwind.dev", "cluster.karmada.io", "work.karmada.io"}
    with_addons = frozenset({Feature.ADDONS, Feature.CAPI})
    assert groups(with_addons) == {"unwind.dev", "config.projectsveltos.io", "lib.projectsveltos.io"}


def test_the_kind_of_teardown_policies_comes_with_any_feature_that_needs_it() -> None:
    for chosen in SOME:
        names = {item["metadata"]["name"] for item in rendered(chosen) if item["kind"] == "CustomResourceDefinition"}
        assert ("teardownpolicies.unwind.dev" in names) is bool(chosen & features.POLICIES)


def test_no_role_of_users_has_teardown_policies() -> None:
    """To write a policy is to be an administrator of every cluster that it selects."""
    for item in rendered(features.ALL):
        if item["kind"] == "ClusterRole" and not item["metadata"]["name"].endswith(":unwind-system"):
            assert not any("teardownpolicies" in rule.get("resources", ()) for rule in item["rules"])
            assert not any({"*", "unwind.dev/*"} & set(rule.get("resources", ())) for rule in item["rules"])


def test_a_policy_never_needs_a_kind_that_is_not_installed() -> None:
    """Otherwise it refuses every request that it matches."""
    for chosen in SOME:
        for item in rendered(chosen):
            if param := item.get("spec", {}).get("paramKind"):
                assert param["apiVersion"].partition("/")[0] in groups(chosen)


def test_the_registration_names_the_features() -> None:
    for chosen in SOME:
        [found] = [item for item in rendered(chosen) if item["kind"] == "ConfigMap"]
        assert features.parse(found["data"]["features"]) == chosen


def test_only_protection_reads_everything() -> None:
    for chosen in SOME:
        assert bool(verbs(chosen, "*")) is (Feature.PROTECTION in chosen)


def test_only_karmada_deletes_namespaces() -> None:
    for chosen in SOME:
        assert ("delete" in verbs(chosen, "namespaces")) is (Feature.KARMADA in chosen)


def test_secrets_of_all_namespaces_are_read_only_for_credentials_and_to_count() -> None:
    for chosen in SOME:
        assert ("patch" in verbs(chosen, "secrets")) is bool(
            chosen & {Feature.ADDONS, Feature.KARMADA, *features.COMPANIONS}
        )
        assert bool(verbs(chosen, "secrets")) is bool(chosen - {Feature.CAPI, Feature.GATES})
        assert bool(verbs(chosen, "configmaps")) is bool(chosen & {Feature.ADDONS, Feature.PROTECTION})


@pytest.mark.parametrize("feature", Feature)
def test_what_a_feature_installs_is_gone_without_it(feature: Feature) -> None:
    without = features.ALL - {feature} - (features.GATED if feature is Feature.CAPI else set())
    names = {item["metadata"]["name"] for item in everything(Setting(features=without))}
    whole = {item["metadata"]["name"] for item in everything(Setting())}
    assert f"unwind-{feature}:unwind-system" in whole - names


def test_every_rule_has_its_reason() -> None:
    for contribution in REGISTER:
        for right in (
            *contribution.everywhere,
            *contribution.everywhere_by_name(Setting()),
            *contribution.at_home,
        ):
            assert right.why.endswith("."), right


def test_features_do_not_change_the_order_of_what_is_applied() -> None:
    whole = [(item["kind"], item["metadata"]["name"]) for item in rendered(features.ALL)]
    for chosen in SOME:
        found = [(item["kind"], item["metadata"]["name"]) for item in rendered(chosen)]
        assert found == [item for item in whole if item in found]
