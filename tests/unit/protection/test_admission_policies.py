"""The rules as admission policies and webhooks, as values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.rights import Setting
from unwind.components import PROTECTION_GATE
from unwind.install.manifests import everything, manifests, resource_of
from unwind.install.workload import KINDS as RUNNING
from unwind.manager import feature_gates
from unwind.protection import admission_policies
from unwind.protection import manifests as protection_manifests
from unwind.protection.protected_kinds import DEFINITION, EXEMPT, KINDS, NAMESPACE, Controlled, of_any
from unwind.protection.webhook_configuration import LABELS_PATH, PROTECTION_PATH, webhook_manifest
from unwind.server.manager_names import is_ours, recorded_extension, webhook

if TYPE_CHECKING:
    from unwind.protection.admission_policies import Policy

ALL = admission_policies.protection_policies()
DELETIONS = [policy for policy in ALL if policy.kinds and policy.action == "Deny"]
[ANY_KIND] = [policy for policy in ALL if policy.name == admission_policies.ANY_KIND]


def resources(rules: list[dict[str, list[str]]]) -> set[tuple[str, str]]:
    return {(rule["apiGroups"][0], resource) for rule in rules for resource in rule["resources"]}


def matched(policy: Policy) -> set[tuple[str, str]]:
    return resources(policy.spec["matchConstraints"]["resourceRules"])


def test_every_kind_has_one_policy_about_its_deletion() -> None:
    counted = Counter(item for policy in DELETIONS for item in matched(policy))
    assert counted == {(kind.group, kind.plural): 1 for kind in KINDS}
    for kind in KINDS:
        assert kind in admission_policies.of(kind).kinds


def test_kinds_that_share_a_policy_are_decided_about_in_the_same_way() -> None:
    for policy in DELETIONS:
        assert len({(kind.count, kind.cascading, bool(kind.rest)) for kind in policy.kinds}) == 1, policy.name
        narrow = {kind.kind for kind in policy.kinds if not kind.cascading}
        assert len(narrow) <= 1, "its text names the kind"


def test_only_labelled_objects_that_stand_are_looked_at_and_no_subresource() -> None:
    for policy in ALL:
        constraints = policy.spec["matchConstraints"]
        assert {"key": DELETE_PROTECTION_LABEL, "operator": "Exists"} in constraints["objectSelector"][
            "matchExpressions"
        ]
        assert all("/" not in one for _, one in matched(policy))
    for policy in DELETIONS:
        [audited] = policy.spec["auditAnnotations"]
        assert f"!({admission_policies.STANDING['expression']})" in audited["valueExpression"].partition(" ? '' : ")[0]
        [operations] = {tuple(rule["operations"]) for rule in policy.spec["matchConstraints"]["resourceRules"]}
        assert operations == ("DELETE",)


def test_a_denial_is_forbidden_and_an_error_denies_a_deletion_but_no_other_write() -> None:
    for policy in ALL:
        assert {item["reason"] for item in policy.spec["validations"]} == {"Forbidden"}
    deletions = [*DELETIONS, ANY_KIND]
    assert {policy.spec["failurePolicy"] for policy in deletions} == {"Fail"}
    assert {policy.spec["failurePolicy"] for policy in ALL if policy not in deletions} == {"Ignore"}


def test_all_other_kinds_share_one_policy_and_no_kind_has_two() -> None:
    constraints = ANY_KIND.spec["matchConstraints"]
    assert resources(constraints["resourceRules"]) == {("*", "*")}
    excluded = resources(constraints["excludeResourceRules"])
    assert excluded == {(kind.group, kind.plural) for kind in (*KINDS, *EXEMPT)}
    not_cascading = {"key": DELETE_PROTECTION_LABEL, "operator": "NotIn", "values": ["Cascading"]}
    assert not_cascading in constraints["objectSelector"]["matchExpressions"]
    assert admission_policies.of(of_any("example.dev", "Widget", plural="widgets", version="v1")) == ANY_KIND


def test_only_kinds_that_controllers_make_from_templates_are_free_for_controllers() -> None:
    free = {kind.resource for kind in KINDS if kind.controlled is Controlled.FREE_FOR_CONTROLLERS}
    assert free == {"replicasets.apps", "jobs.batch"}
    assert {kind.controlled for kind in KINDS if kind.resource not in free} == {Controlled.PROTECTED}


def test_what_only_the_rest_of_the_cluster_knows_no_policy_denies() -> None:
    contents = admission_policies.of(NAMESPACE)
    assert admission_policies.of(DEFINITION) == contents
    [validation] = contents.spec["validations"]
    assert f"['{DELETE_PROTECTION_LABEL}'] == 'Cascading' && (true)" in validation["expression"]
    [warning] = [policy for policy in ALL if policy.action == "Warn"]
    assert matched(warning) == matched(contents)


@pytest.mark.parametrize("everything_asked", [True, False])
def test_a_dead_manager_holds_only_what_is_labelled(everything_asked: bool) -> None:
    asking = webhook_manifest(lambda path: {"url": path}, everything=everything_asked)
    holding = {item["name"].partition(".")[0]: item for item in asking if item["failurePolicy"] == "Fail"}
    assert holding.keys() == ({"labelled", "any-kind"} if everything_asked else {"labelled"})
    kinds = KINDS if everything_asked else (NAMESPACE, DEFINITION)
    assert resources(holding["labelled"]["rules"]) == {(kind.group, kind.plural) for kind in kinds}
    for item in asking:
        selected, *more = item["objectSelector"]["matchExpressions"]
        assert bool(more) is item["name"].startswith("any-kind")
        assert selected["operator"] == ("DoesNotExist" if item["name"].startswith("unlabelled") else "Exists")


def test_labels_are_asked_about_only_where_no_policy_looks_at_them() -> None:
    for everything_asked, paths in ((True, {PROTECTION_PATH, LABELS_PATH}), (False, {PROTECTION_PATH})):
        asking = webhook_manifest(lambda path: {"url": path}, everything=everything_asked)
        assert {item["clientConfig"]["url"] for item in asking} == paths


@pytest.mark.parametrize("setting", [Setting(), Setting(namespace="elsewhere", url="https://10.0.0.1:9443")])
def test_the_manager_is_called_as_install_has_it_called_otherwise(setting: Setting) -> None:
    setting = msgspec.structs.replace(setting, path_key=b"key")
    [kept] = [manifest for manifest in manifests(setting) if manifest["kind"] == "ConfigMap"]
    calling = protection_manifests.called_at(recorded_extension(kept, "") or {}, b"key")
    assert calling
    assert calling(PROTECTION_PATH) == webhook(setting, PROTECTION_PATH)
    assert protection_manifests.called_at({"spec": {}}) is None


def test_what_a_manager_makes_is_not_installed_and_is_taken_back() -> None:
    installed, whole = manifests(Setting()), everything(Setting())
    later = [item for item in whole if item not in installed and resource_of(item) not in RUNNING]
    assert {item["metadata"]["name"] for item in later} == {
        protection_manifests.protection_rules("unwind-system"),
        *(protection_manifests.policy_name(policy.name, "unwind-system") for policy in ALL),
        *protection_manifests.retired_policies("unwind-system"),
        "unwind-paths",
        "unwind-record-key",
        "unwind-serving-cert",
    }
    assert all(is_ours(item) for item in later)


def test_the_manager_may_write_its_own_policies_and_no_others_nor_anything_that_it_protects() -> None:
    for groups in (None, ("example.dev",)):
        [role] = [
            manifest
            for manifest in manifests(Setting(authorized_groups=groups))
            if manifest["kind"] == "ClusterRole" and manifest["metadata"]["name"].startswith("unwind-protection")
        ]
        for rule in role["rules"]:
            if set(rule["verbs"]) - {"get", "list", "watch"}:
                assert rule["apiGroups"] == ["admissionregistration.k8s.io"]
                assert all(name.endswith(".unwind-system") for name in rule["resourceNames"])


def test_with_authorized_groups_only_these_and_the_protected_kinds_are_read() -> None:
    def read(groups: tuple[str, ...] | None) -> set[str]:
        return {
            right.group
            for right in protection_manifests._reading(Setting(authorized_groups=groups))
            if right.resources == ("*",)
        }

    assert read(None) == {"*"}
    assert read(()) == set()
    assert read(("example.dev", "other.dev")) == {"example.dev", "other.dev"}


def test_it_is_switched_off_unless_somebody_says_otherwise() -> None:
    assert feature_gates.parse("")[PROTECTION_GATE] is False
    assert feature_gates.parse(f"{PROTECTION_GATE}=true")[PROTECTION_GATE] is True
