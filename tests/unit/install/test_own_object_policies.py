"""The policies that guard Unwind's own objects, and the rights to restore them."""

from __future__ import annotations

from unwind.api.meta import LabelSelector
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import Setting
from unwind.install.manifests import manifests, policies
from unwind.install.own_object_policies import kinds_name, records_name

SETTING = Setting(namespace="home")


def test_every_policy_that_is_installed_may_be_restored_by_the_manager_and_no_other() -> None:
    made, bindings = policies(SETTING)
    [role] = [
        manifest
        for manifest in manifests(SETTING)
        if manifest["metadata"]["name"] == "unwind:home" and "rules" in manifest
    ]
    for kind, objects in ((VALIDATING_ADMISSION_POLICIES, made), (VALIDATING_ADMISSION_POLICY_BINDINGS, bindings)):
        [rule] = [item for item in role["rules"] if kind.plural in item["resources"] and "patch" in item["verbs"]]
        assert rule["resourceNames"] == [item["metadata"]["name"] for item in objects]
        assert rule["verbs"] == ["get", "create", "patch"]


def test_each_policy_has_a_binding_that_denies_and_is_of_one_manager() -> None:
    made, bindings = policies(SETTING)
    names = [item["metadata"]["name"] for item in made]
    assert {records_name("home"), kinds_name("home")} <= set(names)
    assert names == [binding["spec"]["policyName"] for binding in bindings]
    assert all(name.endswith(".home") for name in names)
    assert {tuple(binding["spec"]["validationActions"]) for binding in bindings} == {("Deny",)}
    assert {item["spec"]["failurePolicy"] for item in made} == {"Fail"}


def test_other_namespaces_are_left_alone_before_anything_is_evaluated() -> None:
    made, _ = policies(SETTING)
    [records] = [item for item in made if item["metadata"]["name"] == records_name("home")]
    selector = records["spec"]["matchConstraints"]["namespaceSelector"]
    assert selector == {"matchLabels": {"kubernetes.io/metadata.name": "home"}}


def test_the_policies_follow_from_the_namespace_alone_so_that_the_manager_can_restore_them() -> None:
    called = Setting(
        namespace="home",
        url="https://unwind.example:9443",
        namespace_selector=LabelSelector(match_labels={"team": "a"}),
        hook_settings={"a": "b"},
        inject_ca=True,
        authorized_groups=(),
    )
    assert policies(called) == policies(SETTING)
