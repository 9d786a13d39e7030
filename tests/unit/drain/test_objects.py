"""What a drain tells about an object: who made it, its names, and what shows its cleanup."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.resources import INGRESSES, SERVICES
from unwind.drain.objects import drained, made_by

MANAGED = [
    {"manager": "cloud-controller-manager", "time": "2026-01-02T00:00:00Z", "subresource": "status"},
    {"manager": "kubectl-client-side-apply", "time": "2026-01-01T00:00:00Z"},
    {"manager": "kubectl-edit", "time": "2026-01-03T00:00:00Z"},
]
OWNER = {"apiVersion": "v1", "kind": "Gateway", "name": "edge", "uid": "g"}


@pytest.mark.parametrize(
    ("metadata", "who"),
    [
        ({"managedFields": MANAGED}, "kubectl-client-side-apply"),
        ({"managedFields": MANAGED, "ownerReferences": [OWNER | {"controller": True}]}, "Gateway edge"),
        ({"managedFields": MANAGED, "ownerReferences": [OWNER]}, "kubectl-client-side-apply"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "shop"}}, "Flux Kustomization shop"),
        ({"annotations": {"meta.helm.sh/release-name": "shop"}}, "Helm release shop"),
        ({}, "unknown"),
    ],
)
def test_who_made_an_object_is_its_controller_its_deployer_or_the_first_field_manager(
    metadata: dict[str, Any], who: str
) -> None:
    assert made_by({"metadata": metadata}) == who


def test_a_load_balancer_has_addresses_and_dns_names() -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "u"}
    hostnames = {"external-dns.alpha.kubernetes.io/hostname": "a.example.com, b.example.com"}
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"hostname": "lb.example.com"}]}}
    service = drained(SERVICES, {"metadata": metadata | {"annotations": hostnames}, "status": status})
    assert service.addresses == ("203.0.113.1", "lb.example.com")
    assert service.hostnames == ("a.example.com", "b.example.com")
    rules = {"rules": [{"host": "web.example.com"}, {"host": "web.example.com"}, {}]}
    ingress = drained(INGRESSES, {"metadata": metadata, "spec": rules})
    assert ingress.hostnames == ("web.example.com",)
    assert "made by unknown" in ingress.about
