"""The rights that the manager needs for objects that stand for something outside the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names
from unwind.api.features import Feature
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, DEPLOYMENTS, NAMESPACES, SECRETS
from unwind.api.rights import READ, Contribution, Right
from unwind.server.manager_names import MANAGER, granted_role

if TYPE_CHECKING:
    from unwind.api.rights import Setting


def _aggregated(setting: Setting) -> list[dict[str, Any]]:
    """An aggregated ClusterRole with the rules of all roles that carry our label, bound to the manager.

    Only users know which kinds `unwind delete` may delete, only plugins know which kinds stand for external resources,
    and RBAC has no patterns such as `*.azure.com`: the alternative would be a wildcard rule.
    """
    # The rules are filled in by Kubernetes' aggregation controller.
    selectors = [{"matchLabels": {names.AGGREGATE_LABEL: "true"}}]
    return granted_role(
        setting, f"{MANAGER}-granted:{setting.namespace}", aggregationRule={"clusterRoleSelectors": selectors}
    )


EXTERNAL = Contribution(
    name="external",
    features=frozenset({Feature.EXTERNAL}),
    everywhere=(
        Right.on(NAMESPACES, READ, why="A namespace may set the delete policy of its objects."),
        Right.on(DEPLOYMENTS, ("list",), why="Finds out whether the operator of an external system runs."),
        Right.on(
            SECRETS,
            ("get",),
            why="An object may name the Secret with the credentials of its external system, in its own namespace.",
        ),
    ),
)

GRANTED = Contribution(
    name="granted",
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    manifests=_aggregated,
)
"""Always installed: requested deletions need such rights, too."""
