"""How an object is, by what its status says."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.karmada import Health
from unwind.karmada.work_status import health_of

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
ADDRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
ROLLED_OUT = {"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 2}


@pytest.mark.parametrize(
    ("api", "kind", "spec", "status", "says"),
    [
        ("apps/v1", "Deployment", {"replicas": 2}, ROLLED_OUT, Health.HEALTHY),
        ("apps/v1", "Deployment", {"replicas": 2}, ROLLED_OUT | {"updatedReplicas": 1}, Health.UNHEALTHY),
        ("apps/v1", "Deployment", {"replicas": 2}, ROLLED_OUT | {"observedGeneration": 1}, Health.UNHEALTHY),
        ("apps/v1", "Deployment", {}, {"observedGeneration": 2}, Health.UNHEALTHY),
        ("apps/v1", "Deployment", {"replicas": 0}, {"observedGeneration": 2}, Health.HEALTHY),
        ("apps/v1", "StatefulSet", {"replicas": 3}, ROLLED_OUT, Health.UNHEALTHY),
        ("apps/v1", "ReplicaSet", {"replicas": 2}, {"observedGeneration": 2, "readyReplicas": 2}, Health.HEALTHY),
        (
            "apps/v1",
            "DaemonSet",
            {},
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "numberReady": 2,
                "updatedNumberScheduled": 1,
            },
            Health.UNHEALTHY,
        ),
        ("batch/v1", "Job", {}, {}, Health.HEALTHY),
        ("batch/v1", "Job", {}, {"conditions": [{"type": "Failed", "status": "True"}]}, Health.UNHEALTHY),
        ("v1", "Pod", {}, {"phase": "Running"} | READY, Health.HEALTHY),
        ("v1", "Pod", {}, {"phase": "Running"}, Health.UNHEALTHY),
        ("v1", "Pod", {}, {"phase": "Succeeded"}, Health.HEALTHY),
        ("v1", "PersistentVolumeClaim", {}, {"phase": "Pending"}, Health.UNHEALTHY),
        ("v1", "Service", {}, {}, Health.HEALTHY),
        ("v1", "Service", {"type": "LoadBalancer"}, {"loadBalancer": {}}, Health.UNHEALTHY),
        ("v1", "Service", {"type": "LoadBalancer"}, ADDRESS, Health.HEALTHY),
        ("networking.k8s.io/v1", "Ingress", {}, ADDRESS, Health.HEALTHY),
        ("v1", "ConfigMap", {}, {}, Health.UNKNOWN),
        ("example.dev/v1", "Deployment", {}, {}, Health.UNKNOWN),
    ],
)
def test_health_is_what_the_status_of_a_known_kind_says(
    api: str, kind: str, spec: dict[str, Any], status: dict[str, Any], says: Health
) -> None:
    metadata = {"name": "a", "generation": 2}
    assert health_of({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec, "status": status}) is says
