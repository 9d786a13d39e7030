"""The health of an object on a member, from its status (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.karmada import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object


def health_of(obj: Object) -> Health:
    """Healthy, Unhealthy, or Unknown for kinds whose status has no known meaning."""
    group = obj["apiVersion"].rpartition("/")[0]
    rule = _RULES.get((group, obj["kind"]))
    if rule is None:
        return Health.UNKNOWN
    return Health.HEALTHY if rule(obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]) else Health.UNHEALTHY


def _replicated(spec: Object, status: Object, metadata: Object) -> bool:
    # The API server defaults it to 1.
    wanted = spec.get("replicas", 1)
    return _current(status, metadata) and status.get("readyReplicas", 0) >= wanted


def _rolled_out(spec: Object, status: Object, metadata: Object) -> bool:
    wanted = spec.get("replicas", 1)
    return _replicated(spec, status, metadata) and status.get("updatedReplicas", 0) >= wanted


def _on_all_nodes(spec: Object, status: Object, metadata: Object) -> bool:
    wanted = status.get("desiredNumberScheduled", 0)
    ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
    return _current(status, metadata) and ready >= wanted


def _running(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Succeeded" or (status.get("phase") == "Running" and _says(status, "Ready"))


def _not_failed(spec: Object, status: Object, metadata: Object) -> bool:
    return not _says(status, "Failed")


def _bound(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Bound"


def _reached(spec: Object, status: Object, metadata: Object) -> bool:
    """Whether a Service of type LoadBalancer has an address."""
    return spec.get("type") != "LoadBalancer" or bool((status.get("loadBalancer") or {}).get("ingress"))


def _addressed(spec: Object, status: Object, metadata: Object) -> bool:
    return bool((status.get("loadBalancer") or {}).get("ingress"))


def _established(spec: Object, status: Object, metadata: Object) -> bool:
    return _says(status, "Established")


def _active(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Active"


def _current(status: Object, metadata: Object) -> bool:
    """Whether the status is about the current generation."""
    said: int = status.get("observedGeneration", 0)
    return bool(said >= metadata.get("generation", 0))


def _says(status: Object, condition: str) -> bool:
    found: list[Any] = status.get("conditions") or []
    return any(item.get("type") == condition and item.get("status") == "True" for item in found)


_RULES: dict[tuple[str, str], Callable[[Object, Object, Object], bool]] = {
    ("apps", "Deployment"): _rolled_out,
    ("apps", "StatefulSet"): _rolled_out,
    ("apps", "ReplicaSet"): _replicated,
    ("apps", "DaemonSet"): _on_all_nodes,
    ("batch", "Job"): _not_failed,
    ("", "Pod"): _running,
    ("", "PersistentVolumeClaim"): _bound,
    ("", "Service"): _reached,
    ("", "Namespace"): _active,
    ("networking.k8s.io", "Ingress"): _addressed,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _established,
}
