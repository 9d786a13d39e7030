"""What Cluster API's hooks need in a cluster, as values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.install.test_manifests import of_kind
from unwind.api import selectors
from unwind.api.capi import EXTENSION_CONFIGS_V1ALPHA1
from unwind.api.rights import Setting
from unwind.capi.manifests import with_prefix
from unwind.cli.install import pairs
from unwind.errors import UnwindError
from unwind.install.manifests import manifests
from unwind.server.manager_names import recorded_extension


def extension(**setting: Any) -> dict[str, Any]:
    [found] = of_kind("ExtensionConfig", Setting(**setting))
    return found


def policy_called(name: str, **setting: Any) -> dict[str, Any]:
    [found] = [
        item for item in of_kind("ValidatingAdmissionPolicy", Setting(**setting)) if item["metadata"]["name"] == name
    ]
    return found


def test_it_is_for_all_namespaces_unless_told_otherwise_and_says_so() -> None:
    assert extension()["spec"]["namespaceSelector"] == {}
    some = extension(namespace_selector=selectors.parse("team=a"))
    assert some["spec"]["namespaceSelector"] == {"matchLabels": {"team": "a"}}


def test_the_sample_of_the_proposal_with_expressions_can_be_installed() -> None:
    """The namespaceSelector of the ExtensionConfig in the Sveltos proposal."""
    sample = extension(namespace_selector=selectors.parse("kubernetes.io/metadata.name in (default)"))
    expression = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]}
    assert sample["spec"]["namespaceSelector"] == {"matchExpressions": [expression]}


def test_it_is_called_by_its_service_or_where_it_is() -> None:
    inside = extension(namespace="elsewhere")["spec"]["clientConfig"]
    assert inside == {
        "service": {"namespace": "elsewhere", "name": "unwind", "path": "/generated-segment", "port": 443}
    }
    outside = extension(url="https://10.0.0.1:9443/")["spec"]["clientConfig"]
    assert outside == {"url": "https://10.0.0.1:9443/generated-segment"}


def test_cluster_api_reads_the_authority_only_where_it_is_told_to() -> None:
    assert "annotations" not in extension()["metadata"]
    annotations = extension(namespace="elsewhere", inject_ca=True)["metadata"]["annotations"]
    assert annotations == {"runtime.cluster.x-k8s.io/inject-ca-from-secret": "elsewhere/unwind-serving-cert"}


def test_what_is_remembered_is_what_is_installed_in_the_version_that_is_served() -> None:
    setting = Setting(
        namespace="elsewhere", url="https://10.0.0.1:9443", namespace_selector=selectors.parse("team in (a,b)")
    )
    [kept] = of_kind("ConfigMap", setting)
    [installed] = of_kind("ExtensionConfig", setting)
    # The segment of the path is secret, and not among what is remembered.
    found = recorded_extension(kept, installed["apiVersion"])
    assert found
    assert found["spec"]["clientConfig"] == {"url": "https://10.0.0.1:9443"}
    assert with_prefix(found, "/generated-segment") == installed
    older = EXTENSION_CONFIGS_V1ALPHA1.api_version
    assert recorded_extension(kept, older) == found | {"apiVersion": older}


@pytest.mark.parametrize("data", [None, {}, {"extensionconfig.json": "{"}, {"extensionconfig.json": "[]"}])
def test_what_cannot_be_read_is_nothing_to_register(data: object) -> None:
    assert recorded_extension({"data": data}, "v1") is None


def test_it_is_applied_after_its_guard_and_so_is_taken_back_while_it_is_guarded() -> None:
    kinds = [manifest["kind"] for manifest in manifests(Setting())]
    policy = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    # Only the policy on Teardowns comes later: install returns when that one is in effect.
    assert kinds[-5:] == [*policy, "ExtensionConfig", *policy]
    assert manifests(Setting())[-2]["metadata"]["name"] == "unwind-requests.unwind-system"


def test_its_guard_is_for_it_alone_and_for_whole_collections_too() -> None:
    policy = policy_called("unwind-gate.elsewhere", namespace="elsewhere")
    assert "oldObject.metadata.name == 'elsewhere'" in [
        item["expression"] for item in policy["spec"]["matchConditions"]
    ]
    # A rule with names is not asked when a collection is deleted.
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert "resourceNames" not in rule


def test_who_moves_or_restores_clusters_may_bring_their_marks() -> None:
    policy = policy_called("unwind-marks.unwind-system")
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["clusters"], ["UPDATE"])


def test_the_manager_may_change_its_own_registration_and_no_other() -> None:
    rules = [rule for role in of_kind("ClusterRole") for rule in role.get("rules", [])]
    ours = [rule for rule in rules if "extensionconfigs" in rule.get("resources", ())]
    [named], [others] = [[rule for rule in ours if bool(rule.get("resourceNames")) is it] for it in (True, False)]
    assert named["resourceNames"] == [extension()["metadata"]["name"]]
    assert named["verbs"] == ["patch"]
    assert others["verbs"] == ["get", "list", "watch", "create"]
    [hooks] = [rule for rule in rules if "mutatingwebhookconfigurations" in rule.get("resources", ())]
    assert hooks["resourceNames"] == ["unwind-clusters.unwind-system"]


def test_what_is_said_as_key_and_value_is_read_and_anything_else_refused() -> None:
    assert pairs("--x", []) == {}
    assert pairs("--x", ["a=b", " c.d/e=", "f=g=h"]) == {"a": "b", "c.d/e": "", "f": "g=h"}
    for text in ("a", "=b", ""):
        with pytest.raises(UnwindError, match=r"invalid value .* for --x"):
            pairs("--x", [text])


def test_settings_of_hooks_are_written_only_where_there_are_some() -> None:
    assert "settings" not in extension()["spec"], "those that were set by hand stay"
    assert extension(hook_settings={"frozen": "true"})["spec"]["settings"] == {"frozen": "true"}
