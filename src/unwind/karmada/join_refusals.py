"""Whether a cluster may join under this name, and whether an object that exists belongs to the join (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.karmada import Cluster, ClusterSyncMode
from unwind.api.resources import NAMESPACES, Resource
from unwind.errors import UnwindError
from unwind.karmada.join_objects import is_marked, name_of
from unwind.kube.resource_versions import is_newer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.karmada.join_objects import JoinOptions

Object = dict[str, Any]


def existing_member(options: JoinOptions, clusters: Iterable[Cluster], *, identity: str, server: str) -> Cluster | None:
    """The existing Cluster object of this member; None if there is none. Raises UnwindError if it cannot be joined.

    `identity`: the uid of the member's kube-system namespace. `server`: its address.
    """
    found = None
    for item in clusters:
        name, spec = item.metadata.name, item.spec
        if name == options.name:
            found = item
        elif spec.id == identity or (not spec.id and spec.api_endpoint == server):
            raise UnwindError(
                f"cannot join {options.name}: this cluster is already joined as {name}",
                remedy=f"unjoin {name} first, or use that name",
            )
    if found is None:
        return None
    if found.spec.id != identity:
        which = f"cluster {found.spec.id}" if found.spec.id else "a cluster without an id"
        raise UnwindError(f"cannot join {options.name}: the name is taken by {which}", remedy="use another name")
    if found.metadata.terminating:
        raise UnwindError(
            f"cannot join {options.name}: it is being unjoined", remedy="wait until it is gone, then join again"
        )
    if found.spec.sync_mode != ClusterSyncMode.PUSH:
        raise UnwindError(
            f"cannot join {options.name}: it is already joined in {found.spec.sync_mode} mode",
            remedy="unjoin it first (`unwind unjoin`)",
        )
    return found


def may_be_older(other: Cluster, ours: Cluster) -> bool:
    """Whether a Cluster may be older than ours, which was just created.

    If both were created in the same second, resourceVersions decide, unless the other one was updated since.
    """
    then, now = other.metadata, ours.metadata
    if then.creation_timestamp != now.creation_timestamp:
        return str(then.creation_timestamp) < str(now.creation_timestamp)
    touched = then.generation > 1 or bool(then.finalizers) or bool(other.status.conditions)
    return touched or is_newer(now.resource_version, than=then.resource_version)


def refuse_foreign(where: str, resource: Resource, found: Object, *, home: str) -> None:
    """Raise UnwindError for an object that is being deleted or belongs to another owner. A namespace may belong to
    anyone."""
    called = f"{resource.kind} {name_of(found)} in the {where}"
    if found["metadata"].get("deletionTimestamp"):
        raise UnwindError(f"{called} is being deleted", remedy="wait until it is gone, then join again")
    if resource is not NAMESPACES and not is_marked(found, home):
        raise UnwindError(f"{called} was not created by this join", remedy="use another name or --cluster-namespace")
