"""The rights that the manager needs for Karmada's member Clusters and Works."""

from __future__ import annotations

from unwind.api import karmada
from unwind.api.features import Feature
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.rights import READ, Contribution, Right

MEMBERS = Contribution(
    name="members",
    features=frozenset({Feature.KARMADA}),
    everywhere=(
        Right.on(
            karmada.CLUSTERS,
            (*READ, "patch"),
            why="Watches member Clusters, and sets its finalizer, taints and the user who requested the deletion.",
        ),
        Right.on(karmada.CLUSTERS, ("patch",), sub="status", why="Reports the health of members."),
        Right.on(
            karmada.WORKS,
            (*READ, "patch", "delete"),
            why="Deploys Works; unjoin sets its finalizer on them and deletes them.",
        ),
        Right.on(karmada.WORKS, ("patch",), sub="status", why="Reports what was deployed."),
        Right.on(
            NAMESPACES,
            (*READ, "create", "delete"),
            why="Each member has a namespace for its Works: it is recreated if missing, and deleted after them. Its"
            " name depends on the member, so that RBAC cannot restrict it.",
        ),
        Right.on(
            SECRETS,
            (*READ, "patch"),
            why="A member Cluster names the Secret with its credentials, in any namespace. The finalizer of Unwind"
            " keeps the Secret until the member is unjoined, and tokens are renewed in it.",
        ),
    ),
)
