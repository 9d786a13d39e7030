"""The rights that the manager needs for Karmada's member Clusters and Works."""

from __future__ import annotations

from unwind.api import karmada
from unwind.api.rights import READ, Contribution, Right

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
