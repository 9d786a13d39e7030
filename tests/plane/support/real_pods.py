"""Pods of our image that run for real, by `unwind.local.pods`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import NAME_LABEL
from unwind.local.pods.agent import NODE_SELECTOR, TOLERATIONS
from unwind.server.manager_names import MANAGER

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

LABELS = {NAME_LABEL: "unwind"}
"""The labels of managers, which the Service of `unwind install` selects."""


def new_object(resource: Resource, name: str, namespace: str, spec: Object) -> Object:
    """An object with the labels of managers."""
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def pod_template(container: Object, policy: str) -> Object:
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    spec = {
        "restartPolicy": policy,
        "nodeSelector": NODE_SELECTOR,
        "tolerations": TOLERATIONS,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "containers": [{"image": "unwind", "securityContext": security, "volumeMounts": mounts, **container}],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
    }
    return {"metadata": {"labels": LABELS}, "spec": spec}


def manager_deployment(image: str) -> Object:
    """The spec of a Deployment with two replicas of the manager."""

    def probe(path: str) -> Object:
        return {"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": 1, "timeoutSeconds": 5}

    fields = {"POD_IP": "status.podIP", "UNWIND_NAMESPACE": "metadata.namespace"}
    env: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    # All Pods have the network of the machine: each listens on its own address.
    env += [
        {"name": "UNWIND_LISTEN", "value": "$(POD_IP):9443"},
        {"name": "UNWIND_METRICS_LISTEN", "value": "$(POD_IP):8080"},
    ]
    container = {
        "name": "manager",
        "image": image,
        "env": env,
        "ports": [{"name": "https", "containerPort": 9443}, {"name": "metrics", "containerPort": 8080}],
        "startupProbe": probe("/healthz") | {"failureThreshold": 60},
        "readinessProbe": probe("/readyz"),
        "livenessProbe": probe("/healthz"),
    }
    template = pod_template(container, "Always")
    template["spec"]["serviceAccountName"] = MANAGER
    return {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template}
