"""ClusterRoles for people. No binding is created: an administrator binds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import unwind
from unwind.api.resources import CLUSTER_ROLES
from unwind.api.rights import READ, Contribution, Right

if TYPE_CHECKING:
    from unwind.api.rights import Setting

VIEW = "unwind-view"
"""Aggregated to the ClusterRole `view`."""
OPERATOR = "unwind-operator"
"""Bound by name. Not aggregated to `admin` or `edit`, which are the roles of tenants."""
_AGGREGATE_TO_VIEW = "rbac.authorization.k8s.io/aggregate-to-view"

ROLES: dict[str, tuple[Right, ...]] = {
    VIEW: (
        Right(
            unwind.GROUP, ("teardowns",), READ, why="Follows deletions: `unwind status`. No Inventories, no Secrets."
        ),
    ),
    OPERATOR: (
        Right(
            unwind.GROUP,
            ("teardowns",),
            (*READ, "create", "patch", "delete"),
            why="Requests and cancels deletions: `unwind delete`, `unwind cancel`. Admission also requires the right to"
            " delete the target. `patch` is for the reason of a cancellation: admission refuses other changes.",
        ),
        Right(unwind.GROUP, ("inventories",), READ, why="Reads what was deployed and left behind: `unwind ledger`."),
    ),
}


def _manifests(_: Setting) -> list[dict[str, Any]]:
    labels = {VIEW: {_AGGREGATE_TO_VIEW: "true"}}
    return [
        {
            "apiVersion": CLUSTER_ROLES.api_version,
            "kind": CLUSTER_ROLES.kind,
            "metadata": {"name": name, "labels": labels.get(name, {})},
            "rules": [right.rule() for right in rights],
        }
        for name, rights in ROLES.items()
    ]


USERS = Contribution(name="users", manifests=_manifests)
