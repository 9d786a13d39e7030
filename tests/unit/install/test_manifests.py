"""What is installed, as values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from unwind.api import names
from unwind.api.rights import READ, Contribution, Right, Setting
from unwind.errors import UnwindError
from unwind.install.manifests import manifests, resource_of
from unwind.protection.manifests import protection_rules
from unwind.server import path_segments
from unwind.server.manager_names import is_ours


def of_kind(kind: str, setting: Setting = Setting(), **more: Any) -> list[dict[str, Any]]:  # noqa: B008 - frozen
    return [manifest for manifest in manifests(setting, **more) if manifest["kind"] == kind]


def test_everything_carries_our_mark_and_can_be_applied() -> None:
    for manifest in manifests(Setting()):
        assert is_ours(manifest)
        resource = resource_of(manifest)
        assert bool(manifest["metadata"].get("namespace")) is (resource.namespaced)


def test_the_namespace_comes_first_and_everything_of_ours_is_in_it() -> None:
    whole = manifests(Setting(namespace="elsewhere"))
    assert whole[0]["kind"] == "Namespace"
    assert whole[0]["metadata"]["name"] == "elsewhere"
    assert {item["metadata"]["namespace"] for item in whole if "namespace" in item["metadata"]} == {"elsewhere"}
    for binding in of_kind("ClusterRoleBinding", Setting(namespace="elsewhere")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "unwind", "namespace": "elsewhere"}]


def test_two_installations_do_not_share_their_cluster_wide_rights() -> None:
    one, other = (of_kind("ClusterRole", Setting(namespace=name))[0]["metadata"]["name"] for name in ("a", "b"))
    assert one != other


def test_the_manager_has_no_right_to_everything_and_makes_and_deletes_no_secrets_but_at_home() -> None:
    everywhere = [rule for role in of_kind("ClusterRole") for rule in role.get("rules", [])]
    [at_home] = of_kind("Role")
    for rule in everywhere + at_home["rules"]:
        assert "*" not in rule["verbs"]
        if "*" in [*rule.get("resources", ()), *rule.get("apiGroups", ())]:
            # To count what there is of a CRD. Whoever may `get` everything gets into every container.
            assert rule["verbs"] == ["list", "watch"]
    # Kubeconfigs and manifests stand in Secrets of any namespace; a kubeconfig gets our finalizer.
    verbs = {verb for rule in everywhere if "secrets" in rule.get("resources", ()) for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "patch"}
    assert [rule for rule in at_home["rules"] if "secrets" in rule.get("resources", ())]


def test_a_part_that_registers_gets_its_rights_and_its_objects() -> None:
    def objects(setting: Setting) -> list[dict[str, Any]]:
        metadata = {"name": "extra", "namespace": setting.namespace, "labels": {"own": "label"}}
        return [{"apiVersion": "v1", "kind": "Service", "metadata": metadata}]

    part = Contribution(
        name="part",
        everywhere=(Right("example.io", ("things",), ("get",), ("one",)),),
        at_home=(Right("", ("configmaps",), ("list",)),),
        manifests=objects,
    )
    [role], [home], [service] = (of_kind(kind, register=[part]) for kind in ("ClusterRole", "Role", "Service"))
    assert role["rules"] == [
        {"apiGroups": ["example.io"], "resources": ["things"], "verbs": ["get"], "resourceNames": ["one"]}
    ]
    assert home["rules"] == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    assert service["metadata"]["labels"] == {
        "own": "label",
        names.MANAGED_BY_LABEL: "unwind",
        names.PART_OF_LABEL: "unwind",
    }


def test_a_manager_outside_the_cluster_needs_no_service() -> None:
    assert len(of_kind("Service")) == 1
    assert of_kind("Service", Setting(url="https://10.0.0.1:9443")) == []


def test_the_api_server_asks_about_profiles_where_the_manager_is() -> None:
    [inside] = of_kind("ValidatingWebhookConfiguration", Setting(namespace="elsewhere"))
    [outside] = of_kind("ValidatingWebhookConfiguration", Setting(namespace="elsewhere", url="https://10.0.0.1:9443/"))
    assert inside["webhooks"][0]["clientConfig"] == {
        "service": {
            "namespace": "elsewhere",
            "name": "unwind",
            "path": "/generated-segment/admit/profiles",
            "port": 443,
        }
    }
    assert outside["webhooks"][0]["clientConfig"] == {"url": "https://10.0.0.1:9443/generated-segment/admit/profiles"}


def test_each_registration_has_a_segment_of_its_own_which_is_remembered_nowhere() -> None:
    setting = Setting(url="https://10.0.0.1:9443", path_key=b"key")
    text = str([manifest for manifest in manifests(setting) if manifest["kind"] != "ConfigMap"])
    found = re.findall(r"https://10.0.0.1:9443/([0-9a-f]{64})(/admit/[a-z]+)?", text)
    assert {path: one for one, path in found} == {
        path: path_segments.segment(b"key", path) for path in ("", "/admit/profiles", "/admit/clusters")
    }
    assert len({one for one, _ in found}) == 3
    assert not re.search(r"[0-9a-f]{64}", str(of_kind("ConfigMap", setting)))


def test_the_manager_may_change_its_own_webhook_configuration_and_no_other() -> None:
    [configuration] = of_kind("ValidatingWebhookConfiguration")
    rules = [rule for role in of_kind("ClusterRole") for rule in role.get("rules", [])]
    ours = [rule for rule in rules if "validatingwebhookconfigurations" in rule.get("resources", ())]
    writing = {name: rule["verbs"] for rule in ours if set(rule["verbs"]) - set(READ) for name in rule["resourceNames"]}
    assert writing == {
        configuration["metadata"]["name"]: ["list", "watch", "create", "patch"],
        protection_rules("unwind-system"): ["create", "patch", "delete"],
    }


@pytest.mark.parametrize(
    "url",
    ["http://host:1", "host:9443", "https://", "https://host:0", "https://host:x", "https://[::1", "https://h/?a=b"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UnwindError, match="invalid --url"):
        manifests(Setting(url=url))
