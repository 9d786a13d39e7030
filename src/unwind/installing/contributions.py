"""Who needs what: the register of what the parts of Unwind want to have in a cluster.

A part that needs rights or objects says so in a Contribution of its own and is entered here; install and uninstall
know no other list. Rights are as narrow as what the code really does: add a verb with the code that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, names, sveltos, unwind
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS, SERVICES
from unwind.api.rights import READ, Contribution, Right, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE = "unwind"
"""The Service of a manager that runs in the cluster: unwind.NAMESPACE.svc."""
MANAGER = "unwind"
"""What the manager's ServiceAccount, roles and bindings are called."""
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
                "ports": [{"name": "https", "port": 443, "targetPort": _LISTENS_ON, "protocol": "TCP"}],
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
    ),
    at_home=(Right(unwind.GROUP, ("inventories",), (*READ, "create", "patch", "delete")),),
)


def _aggregated(setting: Setting) -> list[dict[str, Any]]:
    """A role that has the rights of all roles with our label, and gives them to the manager.

    Which kinds stand for something outside is known by plugins only, and RBAC has no patterns such as `*.azure.com`:
    the alternative would be a right to everything.
    """
    name = f"{MANAGER}-external:{setting.namespace}"
    role = {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": name}
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": MANAGER, "namespace": setting.namespace}
    return [
        {
            "apiVersion": CLUSTER_ROLES.api_version,
            "kind": CLUSTER_ROLES.kind,
            "metadata": {"name": name},
            # Its rules are written by the API server's own controller.
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {names.AGGREGATE_LABEL: "true"}}]},
        },
        {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": CLUSTER_ROLE_BINDINGS.kind,
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


EXTERNAL = Contribution(
    name="external",
    # A namespace may have a policy for what is in it.
    everywhere=(Right("", ("namespaces",), READ),),
    # The ledger of what was kept is among the records.
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    manifests=_aggregated,
)

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
)

REGISTER: Sequence[Contribution] = (MACHINERY, RECORDS, EXTERNAL, ADDONS)
