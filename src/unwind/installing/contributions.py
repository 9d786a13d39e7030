"""Contributions: the RBAC rules and objects that each feature of Unwind needs in a cluster.

Each feature declares its Contribution and is registered here; install and uninstall use this list only. Rules are as
narrow as what the code does: add a verb together with the code that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, karmada, names, sveltos, unwind
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import READ, Contribution, Right, Setting
from unwind.installing.addressing import MANAGER, PORT, SERVICE, granted, webhook
from unwind.installing.guarding import GUARDING
from unwind.installing.policies import MANAGE
from unwind.installing.protection import PROTECTING
from unwind.installing.registration import GATING
from unwind.installing.requesting import REQUESTS
from unwind.installing.summary_policy import SUMMARIES
from unwind.installing.tenant_policies import TENANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

PROFILES_PATH = "/admit/profiles"
"""The path of the admission webhook for profiles."""
_LISTENS_ON = 9443


def _service(setting: Setting) -> list[dict[str, Any]]:
    if setting.url:
        return []
    return [
        {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": {"name": SERVICE, "namespace": setting.namespace},
            "spec": {
                "selector": {names.NAME_LABEL: "unwind"},
                "ports": [{"name": "https", "port": PORT, "targetPort": _LISTENS_ON, "protocol": "TCP"}],
            },
        }
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
    ),
    at_home=(
        Right("coordination.k8s.io", ("leases",), (*READ, "create", "patch", "delete")),
        # The replicas share the CA of their serving certificates in a Secret.
        Right("", ("secrets",), (*READ, "create", "patch")),
    ),
    kinds=(SERVICES,),
    manifests=_service,
)
RECORDS = Contribution(
    name="records",
    everywhere=(
        Right(unwind.GROUP, ("teardowns",), (*READ, "create", "patch", "delete")),
        Right(unwind.GROUP, ("teardowns/status",), ("patch",)),
        MANAGE,
    ),
    at_home=(Right(unwind.GROUP, ("inventories",), (*READ, "create", "patch", "delete")),),
)


def _aggregated(setting: Setting) -> list[dict[str, Any]]:
    """An aggregated ClusterRole with the rules of all roles that carry our label, bound to the manager.

    Only plugins know which kinds stand for external resources, and RBAC has no patterns such as `*.azure.com`: the
    alternative would be a wildcard rule.
    """
    # The rules are filled in by Kubernetes' aggregation controller.
    selectors = [{"matchLabels": {names.AGGREGATE_LABEL: "true"}}]
    return granted(setting, f"{MANAGER}-external", aggregationRule={"clusterRoleSelectors": selectors})


EXTERNAL = Contribution(
    name="external",
    # Namespaces may carry the default policy for their objects.
    everywhere=(Right("", ("namespaces",), READ),),
    # The ledger of kept resources is part of the records.
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    manifests=_aggregated,
)


# CEL: reading a missing field is an error, and on an error the webhook is not called.
_DEPENDS_ON_OTHERS = "has(object.spec) && has(object.spec.dependsOn) && size(object.spec.dependsOn) > 0"
_ANEW = (
    "oldObject == null || !has(oldObject.spec) || !has(oldObject.spec.dependsOn)"
    # The webhook finds out which names are new: CEL may exceed its cost limit over a thousand names.
    " || object.spec.dependsOn != oldObject.spec.dependsOn"
)


def profile_rules(namespace: str) -> str:
    """The name of the webhook configuration for profiles; one per manager."""
    return f"{MANAGER}-profiles.{namespace}"


def _admission(setting: Setting) -> list[dict[str, Any]]:
    """The webhook configuration that checks a profile when its dependsOn changes."""
    name = profile_rules(setting.namespace)
    kind = VALIDATING_WEBHOOK_CONFIGURATIONS
    # The right to write any webhook configuration controls every write in the cluster, so it is for this name only.
    right = Right(kind.group, (kind.plural,), (*READ, "patch"), (name,))
    asking = {
        "name": "profiles.addons.unwind.dev",
        "clientConfig": webhook(setting, PROFILES_PATH),
        "rules": [
            {
                "apiGroups": [sveltos.CONFIG_GROUP],
                "apiVersions": [sveltos.CLUSTER_PROFILES.version],
                "resources": [sveltos.CLUSTER_PROFILES.plural, sveltos.PROFILES.plural],
                "operations": ["CREATE", "UPDATE"],
                "scope": "*",
            }
        ],
        "matchPolicy": "Equivalent",
        # Other writes, such as our own finalizers and annotations, do not call the webhook.
        "matchConditions": [
            {"name": "depends-on-others", "expression": _DEPENDS_ON_OTHERS},
            {"name": "not-as-before", "expression": _ANEW},
        ],
        # A missing manager must not block writes of profiles; the planner handles a cycle that gets in.
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    return [
        *granted(setting, f"{MANAGER}-profiles", rules=[right.rule()]),
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "webhooks": [asking]},
    ]


ADDONS = Contribution(
    name="addons",
    everywhere=(
        Right(sveltos.CONFIG_GROUP, ("clusterprofiles", "profiles"), (*READ, "patch")),
        Right(sveltos.CONFIG_GROUP, ("clusterprofiles/status", "profiles/status"), ("patch",)),
        Right(sveltos.CONFIG_GROUP, ("clustersummaries",), (*READ, "create", "patch", "delete")),
        Right(sveltos.CONFIG_GROUP, ("clusterconfigurations",), ("get", "create", "delete")),
        Right(sveltos.CONFIG_GROUP, ("clustersummaries/status", "clusterconfigurations/status"), ("patch",)),
        Right(sveltos.LIB_GROUP, ("sveltosclusters",), READ),
        Right(capi.CLUSTERS.group, ("clusters",), READ),
        # These hold the manifests to deploy and the kubeconfigs of clusters.
        Right("", ("configmaps", "secrets"), READ),
        # Our finalizer keeps a kubeconfig until everything on its cluster is removed.
        Right("", ("secrets",), ("patch",)),
    ),
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, VALIDATING_WEBHOOK_CONFIGURATIONS),
    manifests=_admission,
)

MEMBERS = Contribution(
    name="members",
    everywhere=(
        Right(karmada.CLUSTERS.group, ("clusters",), (*READ, "patch")),
        Right(karmada.CLUSTERS.group, ("clusters/status",), ("patch",)),
        Right(karmada.WORKS.group, ("works",), READ),
        # Unjoin puts our finalizer on Works and deletes them.
        Right(karmada.WORKS.group, ("works",), ("patch", "delete")),
        Right(karmada.WORKS.group, ("works/status",), ("patch",)),
        # Each member has a namespace for its Works; it is recreated if missing, and deleted after them.
        Right("", ("namespaces",), (*READ, "create", "delete")),
        # Credentials of members: our finalizer, and token renewal.
        Right("", ("secrets",), (*READ, "patch")),
    ),
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
