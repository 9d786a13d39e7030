"""Contributions: the RBAC rules and objects that each feature of Unwind needs in a cluster.

Each feature declares its Contribution and is registered here; install and uninstall use this list only. Rules are as
narrow as what the code does: add a verb together with the code that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.addons.manifests import ADDONS, SUMMARIES
from unwind.api import names
from unwind.api.resources import CLUSTER_ROLES, SECRETS, SERVICES
from unwind.api.rights import READ, Contribution, Right, Setting
from unwind.capi.manifests import GATING
from unwind.external.manifests import EXTERNAL
from unwind.install.own_objects import GUARDING
from unwind.install.tenant_policies import TENANTS
from unwind.karmada.manifests import MEMBERS
from unwind.protection.manifests import PROTECTING
from unwind.server.manager_names import CERTIFICATE, HTTPS_PORT, MANAGER, METRICS_PORT, PORT, SERVICE, SERVICE_PORT
from unwind.teardown.manifests import RECORDS, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Sequence


def metrics_reader(namespace: str) -> str:
    """The ClusterRole to bind for reading the metrics of a manager that runs with --secure-metrics."""
    return f"{MANAGER}:{namespace}:metrics-reader"


def _objects(setting: Setting) -> list[dict[str, Any]]:
    reader = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": CLUSTER_ROLES.kind,
        "metadata": {"name": metrics_reader(setting.namespace)},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }
    return [reader, *_service(setting)]


def _service(setting: Setting) -> list[dict[str, Any]]:
    if setting.url:
        return []
    ports = [{"name": "https", "port": PORT, "targetPort": HTTPS_PORT, "protocol": "TCP"}]
    if setting.workload:
        ports.append({"name": "metrics", "port": METRICS_PORT, "targetPort": METRICS_PORT, "protocol": "TCP"})
    return [
        {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": {
                "name": SERVICE,
                "namespace": setting.namespace,
                "labels": {names.NAME_LABEL: MANAGER},
            },
            "spec": {"selector": {names.NAME_LABEL: MANAGER}, "ports": ports},
        }
    ]


def _secrets(setting: Setting) -> list[dict[str, Any]]:
    """The Secrets that the manager creates, besides that of its paths."""
    return [
        {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "metadata": {"name": name, "namespace": setting.namespace},
        }
        for name in (CERTIFICATE, names.RECORD_KEY_SECRET)
    ]


MACHINERY = Contribution(
    name="machinery",
    everywhere=(
        # Informers wait for the CRDs of their kinds, which may come and go.
        Right("apiextensions.k8s.io", ("customresourcedefinitions",), READ),
        # The manager does not start while a conflicting controller is running.
        Right("apps", ("deployments", "statefulsets"), ("list",)),
        Right("coordination.k8s.io", ("leases",), ("list",)),
        # The uid of kube-system identifies the cluster.
        Right("", ("namespaces",), ("get",), ("kube-system",)),
        Right("events.k8s.io", ("events",), ("create", "patch")),
        # Who may read the metrics (--secure-metrics).
        Right("authentication.k8s.io", ("tokenreviews",), ("create",)),
        Right("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
    ),
    at_home=(
        Right("coordination.k8s.io", ("leases",), (*READ, "create", "patch", "delete")),
        # The Pod of a replica proves that it has ended, before its Leases expire.
        Right("", ("pods",), ("list", "watch")),
        # The replicas share the CA of their serving certificates in a Secret.
        Right("", ("secrets",), (*READ, "create", "patch")),
        # Whether a replica answers through the Service, before anything is registered.
        Right("", ("services/proxy",), ("get",), (SERVICE_PORT,)),
    ),
    kinds=(SERVICES, SECRETS),
    manifests=_objects,
    later=_secrets,
)

REGISTER: Sequence[Contribution] = (
    MACHINERY,
    RECORDS,
    EXTERNAL,
    ADDONS,
    SUMMARIES,
    TENANTS,
    MEMBERS,
    PROTECTING,
    REQUESTS,
    GUARDING,
    GATING,
)
