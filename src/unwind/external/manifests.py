"""The rights that the manager needs for objects that stand for something outside the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from unwind.api.rights import READ, Contribution, Right
from unwind.server.manager_names import MANAGER, granted

if TYPE_CHECKING:
    from unwind.api.rights import Setting


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
