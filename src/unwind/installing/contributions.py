"""Who needs what: the register of what the parts of Unwind want to have in a cluster.

A part that needs rights or objects says so in a Contribution of its own and is entered here; install and uninstall
know no other list. Rights are as narrow as what the code really does: add a verb with the code that uses it.
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
"""Where the API server asks about profiles."""
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
        # Kinds come and go: informers wait for the CRDs of theirs.
        Right("apiextensions.k8s.io", ("customresourcedefinitions",), READ),
        # The manager does not start where another system's controller is alive.
        Right("apps", ("deployments", "statefulsets"), ("list",)),
        Right("coordination.k8s.io", ("leases",), ("list",)),
        # Which cluster this is: the uid of kube-system.
        Right("", ("namespaces",), ("get",), ("kube-system",)),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    ),
    at_home=(
        Right("coordination.k8s.io", ("leases",), (*READ, "create", "patch", "delete")),
        # The authority that signs our serving certificates is shared by the replicas in a Secret.
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
    """A role that has the rights of all roles with our label, and gives them to the manager.

    Which kinds stand for something outside is known by plugins only, and RBAC has no patterns such as `*.azure.com`:
    the alternative would be a right to everything.
    """
    # Its rules are written by the API server's own controller.
    selectors = [{"matchLabels": {names.AGGREGATE_LABEL: "true"}}]
    return granted(setting, f"{MANAGER}-external", aggregationRule={"clusterRoleSelectors": selectors})


EXTERNAL = Contribution(
    name="external",
    # A namespace may have a policy for what is in it.
    everywhere=(Right("", ("namespaces",), READ),),
    # The ledger of what was kept is among the records.
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    manifests=_aggregated,
)


# In CEL, where a field that is not there is an error, and an error is as if nobody had asked.
_DEPENDS_ON_OTHERS = "has(object.spec) && has(object.spec.dependsOn) && size(object.spec.dependsOn) > 0"
_ANEW = (
    "oldObject == null || !has(oldObject.spec) || !has(oldObject.spec.dependsOn)"
    # Which names are new is found out by whoever is asked: CEL may run out of its budget over a thousand of them.
    " || object.spec.dependsOn != oldObject.spec.dependsOn"
)


def profile_rules(namespace: str) -> str:
    """What the configuration is called that has the API server ask about profiles: one for each manager."""
    return f"{MANAGER}-profiles.{namespace}"


def _admission(setting: Setting) -> list[dict[str, Any]]:
    """The API server asks before it writes a profile with another dependsOn than before."""
    name = profile_rules(setting.namespace)
    kind = VALIDATING_WEBHOOK_CONFIGURATIONS
    # Whoever may write any of these has the say over every write in the cluster: the right is for this one alone.
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
        # Our own finalizers and annotations, and whatever else is written, need not wait for an answer.
        "matchConditions": [
            {"name": "depends-on-others", "expression": _DEPENDS_ON_OTHERS},
            {"name": "not-as-before", "expression": _ANEW},
        ],
        # A manager that is not there holds nobody's profiles up; a cycle that gets in is dealt with by the planner.
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
        # What is deployed stands in these, and the way to each cluster does.
        Right("", ("configmaps", "secrets"), READ),
        # A kubeconfig has to outlast what is on its cluster: our finalizer.
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
        # Works go when their member is unjoined: our finalizer on them, and they themselves.
        Right(karmada.WORKS.group, ("works",), ("patch", "delete")),
        Right(karmada.WORKS.group, ("works/status",), ("patch",)),
        # Works of a member are in a namespace of its own, which is made again if it is missing, and goes after them.
        Right("", ("namespaces",), (*READ, "create", "delete")),
        # The way to each member: our finalizer, and a new token.
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
