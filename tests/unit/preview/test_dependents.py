"""What objects name that they need."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.preview import dependents


def obj(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it", "namespace": "room"}, **fields}


def named(found: Any) -> set[tuple[str, str, str]]:
    return {(kind, namespace, name) for _, kind, namespace, name in found}


def test_a_pod_needs_its_volumes_its_environment_and_its_account() -> None:
    spec = {
        "serviceAccountName": "robot",
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {"configMap": {"name": "a"}},
            {"secret": {"secretName": "b"}},
            {"persistentVolumeClaim": {"claimName": "data"}},
            {"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "d"}}]}},
        ],
        "containers": [
            {"env": [{"valueFrom": {"configMapKeyRef": {"name": "e"}}}], "envFrom": [{"secretRef": {"name": "f"}}]},
            {"env": [{"name": "plain", "value": "x"}]},
        ],
    }
    assert named(dependents.by_pod(obj(spec=spec))) == {
        ("ServiceAccount", "room", "robot"),
        ("Secret", "room", "pull"),
        ("ConfigMap", "room", "a"),
        ("Secret", "room", "b"),
        ("PersistentVolumeClaim", "room", "data"),
        ("ConfigMap", "room", "c"),
        ("Secret", "room", "d"),
        ("ConfigMap", "room", "e"),
        ("Secret", "room", "f"),
    }


def test_an_ingress_needs_its_backends_and_certificates() -> None:
    backend = {"service": {"name": "web"}}
    spec = {
        "defaultBackend": {"service": {"name": "fallback"}},
        "rules": [{"http": {"paths": [{"backend": backend}]}}],
        "tls": [{"secretName": "cert"}],
    }
    assert named(dependents.by_ingress(obj(spec=spec))) == {
        ("Service", "room", "web"),
        ("Service", "room", "fallback"),
        ("Secret", "room", "cert"),
    }


def test_an_autoscaler_needs_what_it_scales() -> None:
    spec = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}
    assert list(dependents.by_autoscaler(obj(spec=spec))) == [("apps", "Deployment", "room", "web")]


def test_whoever_has_the_api_server_call_a_service_needs_it() -> None:
    service = {"namespace": "room", "name": "hook"}
    expected = {("Service", "room", "hook")}
    assert named(dependents.by_webhooks({"webhooks": [{"clientConfig": {"service": service}}]})) == expected
    assert named(dependents.by_api_service({"spec": {"service": service}})) == expected
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": {"service": service}}}
    assert named(dependents.by_conversion({"spec": {"conversion": conversion}})) == expected


def test_a_binding_needs_its_role_and_its_accounts() -> None:
    binding = obj(
        roleRef={"kind": "ClusterRole", "name": "reader"},
        subjects=[{"kind": "ServiceAccount", "name": "robot", "namespace": "elsewhere"}, {"kind": "User", "name": "u"}],
    )
    assert named(dependents.by_binding(binding)) == {
        ("ClusterRole", "", "reader"),
        ("ServiceAccount", "elsewhere", "robot"),
    }


def test_a_profile_needs_the_sources_of_its_add_ons() -> None:
    spec = {
        "policyRefs": [{"kind": "ConfigMap", "namespace": "default", "name": "base"}, {"kind": "Secret", "name": "s"}],
        "helmCharts": [{"valuesFrom": [{"kind": "ConfigMap", "namespace": "default", "name": "values"}]}],
    }
    cluster_wide = {"metadata": {"name": "p"}, "spec": spec}
    assert named(dependents.by_profile(cluster_wide)) == {
        ("ConfigMap", "default", "base"),
        ("ConfigMap", "default", "values"),
    }
    assert ("Secret", "room", "s") in named(dependents.by_profile(obj(spec=spec)))


@pytest.mark.parametrize(
    "read",
    [
        dependents.by_pod,
        dependents.by_ingress,
        dependents.by_webhooks,
        dependents.by_api_service,
        dependents.by_conversion,
        dependents.by_profile,
    ],
)
def test_what_says_nothing_needs_nothing(read: Any) -> None:
    assert list(read(obj())) == []
    assert list(read(obj(spec=None))) == []
