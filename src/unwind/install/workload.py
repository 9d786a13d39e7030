"""The objects that run the manager in the cluster: Deployment, PodDisruptionBudget and NetworkPolicy.

`unwind install --image` applies them, and the templates of the chart are generated from them (`unwind.install.chart`).
So every value is written as it is in `Workload`, without conditions: a template has an expression in the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import NAME_LABEL
from unwind.api.resources import DEPLOYMENTS, NETWORK_POLICIES, POD_DISRUPTION_BUDGETS
from unwind.server.manager_names import HTTPS_PORT, MANAGER, METRICS_PORT

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.api.workload import ManagerWorkload

Object = dict[str, Any]

KINDS = (DEPLOYMENTS, POD_DISRUPTION_BUDGETS, NETWORK_POLICIES)
SELECTOR = {NAME_LABEL: MANAGER}
"""The labels of the manager's Pods."""
USER = 65532
# --shutdown-grace is 20 s, a Helm process gets 5 s to end, and the Service stops routing to the Pod before that.
_PRE_STOP = 5
_GRACE = 45
_CA_DIRECTORY = "/etc/unwind/ca"
_CA_DIRECTORIES = f"/etc/ssl/certs:{_CA_DIRECTORY}"


def workload_objects(namespace: str, workload: ManagerWorkload) -> list[Object]:
    """The Deployment and what belongs to it; the Service and the rights are those of every installation."""
    return [network_policy(namespace), disruption_budget(namespace), deployment(namespace, workload)]


def deployment(namespace: str, workload: ManagerWorkload) -> Object:
    container = {
        "name": "manager",
        "image": workload.image,
        "imagePullPolicy": workload.pull_policy,
        "args": ["run", *workload.args],
        "env": environment(workload),
        "ports": [
            {"name": "https", "containerPort": HTTPS_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe("/healthz", period=2, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=3),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        # The Pod answers until no Service routes to it any more: a hook or webhook must not meet a closed port.
        "lifecycle": {"preStop": {"sleep": {"seconds": _PRE_STOP}}},
        "resources": workload.resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*VOLUME_MOUNTS, *workload.volume_mounts],
    }
    spec = {
        "serviceAccountName": MANAGER,
        "imagePullSecrets": workload.pull_secrets,
        "priorityClassName": workload.priority_class,
        "nodeSelector": workload.node_selector,
        "tolerations": workload.tolerations,
        # Preferred, not required: a cluster with one node runs both replicas.
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": SELECTOR},
                        },
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": SELECTOR},
            }
        ],
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": _GRACE,
        "containers": [container],
        "volumes": [*volumes(workload), *workload.volumes],
    }
    template = {
        "metadata": {"labels": {**workload.pod_labels, **SELECTOR}, "annotations": workload.pod_annotations},
        "spec": spec,
    }
    return _object(DEPLOYMENTS, MANAGER, namespace) | {
        "spec": {
            "replicas": workload.replicas,
            "selector": {"matchLabels": SELECTOR},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        }
    }


def environment(workload: ManagerWorkload) -> list[Object]:
    """The variables of a container of our image: the Pod's identity, the namespace, proxies and CA certificates."""
    fields = {
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
        "UNWIND_NAMESPACE": "metadata.namespace",
    }
    fixed: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in fields.items()
    ]
    values = {
        "UNWIND_CHECK_SERVICE": "true",
        "UNWIND_SECURE_METRICS": "true",
        "HTTP_PROXY": workload.http_proxy,
        "HTTPS_PROXY": workload.https_proxy,
        "NO_PROXY": workload.no_proxy,
        "SSL_CERT_DIR": _CA_DIRECTORIES,
    }
    fixed += [{"name": name, "value": value} for name, value in values.items()]
    return [*fixed, *workload.env]


def volumes(workload: ManagerWorkload) -> list[Object]:
    return [
        # In memory: credentials of members are never on a disk.
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
        {"name": "extra-ca", "configMap": {"name": workload.extra_ca, "optional": True, "defaultMode": 0o444}},
    ]


VOLUME_MOUNTS: list[Object] = [
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the Pod
    {"name": "extra-ca", "mountPath": _CA_DIRECTORY, "readOnly": True},
]
POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def disruption_budget(namespace: str) -> Object:
    """Nodes are drained one replica at a time. It never blocks a drain, also not with one replica."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": SELECTOR}}
    return _object(POD_DISRUPTION_BUDGETS, MANAGER, namespace) | {"spec": spec}


def network_policy(namespace: str) -> Object:
    """Only the two listeners can be reached. Outgoing traffic is not restricted: members can be anywhere."""
    ports = [{"protocol": "TCP", "port": port} for port in (HTTPS_PORT, METRICS_PORT)]
    spec = {"podSelector": {"matchLabels": SELECTOR}, "policyTypes": ["Ingress"], "ingress": [{"ports": ports}]}
    return _object(NETWORK_POLICIES, MANAGER, namespace) | {"spec": spec}


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "metrics", "scheme": "HTTPS"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _object(resource: Resource, name: str, namespace: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
