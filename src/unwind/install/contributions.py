"""Contributions: the RBAC rules and objects that each feature of Unwind needs in a cluster.

Each feature declares its Contribution and is registered here; install and uninstall use this list only. Rules are as
narrow as what the code does: add a verb together with the code that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.addons.manifests import ADDONS, SUMMARIES
from unwind.api import names
from unwind.api.resources import (
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
)
from unwind.api.rights import READ, Contribution, Right, Setting
from unwind.capi.manifests import ATTRIBUTION, GATING, HELD, MACHINE_GATES, REGISTERING
from unwind.companions.manifests import CAAPH, FLUX, HELM, POLICIES
from unwind.drain.manifests import DRAIN
from unwind.external.manifests import EXTERNAL, GRANTED
from unwind.install.conflicting_controllers import CONFLICTING
from unwind.install.own_object_policies import GUARDING
from unwind.install.tenant_policies import TENANTS
from unwind.install.user_roles import USERS
from unwind.karmada.manifests import MEMBERS
from unwind.protection.manifests import PROTECTING
from unwind.server import path_keys
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
        Right.on(
            CUSTOM_RESOURCE_DEFINITIONS,
            READ,
            why="Waits for the CRDs of the kinds that it watches, which may come and go.",
        ),
        Right.on(NAMESPACES, ("get",), names=("kube-system",), why="Its uid identifies the cluster."),
        Right("events.k8s.io", ("events",), ("create", "patch"), why="Reports Events on the objects concerned."),
        Right.on(TOKEN_REVIEWS, ("create",), why="Finds out who reads the metrics (`--secure-metrics`)."),
        Right.on(
            SUBJECT_ACCESS_REVIEWS,
            ("create",),
            why="Finds out whether the user who force-releases a cluster may update the TeardownPolicies that hold it,"
            " and who may read the metrics (`--secure-metrics`).",
        ),
    ),
    at_home=(
        Right.on(LEASES, (*READ, "create", "patch", "delete"), why="Divides the work between the replicas."),
        Right.on(
            PODS, ("list", "watch"), why="The Pod of a replica proves that it has ended, before its Leases expire."
        ),
        Right.on(
            SECRETS,
            (*READ, "create"),
            why="Its certificate and keys, and what an administrator put there: credentials of external systems, and"
            " signing keys of notifications.",
        ),
        Right.on(SECRETS, ("patch",), names=(CERTIFICATE, path_keys.NAME), why="Renews its certificate and keys."),
        Right.on(
            SERVICES,
            ("get",),
            sub="proxy",
            names=(SERVICE_PORT,),
            why="Registers its webhooks only when a replica answers through the Service (`--check-service`).",
        ),
    ),
    kinds=(SERVICES, SECRETS),
    manifests=_objects,
    later=_secrets,
)

RIVALS = Contribution(
    name="rivals",
    features=CONFLICTING,
    everywhere=(
        Right(
            "apps",
            ("deployments", "statefulsets"),
            ("list",),
            why="With `addons` or `karmada`: does not start while a conflicting controller is running.",
        ),
        Right.on(
            LEASES,
            ("list",),
            why="With `addons` or `karmada`: does not start while a conflicting controller holds a Lease.",
        ),
    ),
)

REGISTER: Sequence[Contribution] = (
    MACHINERY,
    RIVALS,
    RECORDS,
    EXTERNAL,
    ADDONS,
    SUMMARIES,
    TENANTS,
    MEMBERS,
    POLICIES,
    CAAPH,
    DRAIN,
    FLUX,
    HELM,
    PROTECTING,
    GUARDING,
    GRANTED,
    USERS,
    REGISTERING,
    ATTRIBUTION,
    HELD,
    MACHINE_GATES,
    GATING,
    # The last policy: install waits until it is in effect, and so are those before it.
    REQUESTS,
)
