"""Clusters that `clusterctl move` deletes here: they exist in another management cluster, so nothing is removed.

`addons/moved_cluster_adoption.py` is the other side: add-ons of Clusters that arrive are adopted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.meta import is_true
from unwind.api.names import DELETE_FOR_MOVE_ANNOTATION, ConditionType, Reason
from unwind.api.unwind import Cause, Phase
from unwind.capi.cluster_cleanup import secret_of
from unwind.inventory.inventories import items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.capi import Cluster
    from unwind.api.unwind import Teardown
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client
    from unwind.kube.decoding import Key
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_sources import FollowedSource


class ClusterMoves:
    """Tells Clusters that were moved to another management cluster from Clusters that were deleted."""

    def __init__(
        self,
        client: Client,
        inventories: Inventories,
        *,
        sources: Iterable[FollowedSource],
        with_credentials: bool,
    ) -> None:
        """`with_credentials`: the credentials of clusters may have our finalizer."""
        self._client = client
        self._inventories = inventories
        self._sources = tuple(sources)
        self._with_credentials = with_credentials
        self._seen: set[str] = set()
        """The uids of Clusters that had the annotation of clusterctl."""

    def note(self, old: Cluster | None, new: Cluster | None) -> None:
        """Remember Clusters that are being moved, and forget those that are not moved any more.

        clusterctl removes the finalizers right after the deletion: a Cluster may be gone before it is reconciled.
        """
        self._seen.update(item.metadata.uid for item in (old, new) if item and item.moved)
        if new and not new.moved:
            self._seen.discard(new.metadata.uid)

    def forget(self, uid: str) -> None:
        self._seen.discard(uid)

    async def was_moved(
        self,
        key: Key,
        target: ClusterTarget,
        record: Teardown | None,
        successor: Cluster | None,
        *,
        running: Callable[[], bool],
    ) -> bool:
        """Whether a Cluster that is gone here is in another management cluster.

        `clusterctl move` pauses the Cluster, deletes its credentials and then the Cluster, and removes all finalizers.
        No manager may have run meanwhile, so each trace of that counts. Nothing is deleted either way. `successor`: a
        new Cluster with its name. `running`: whether its teardown still runs.
        """
        uid = target.ref.uid
        if record and record.finished:
            return record.phase is Phase.MOVED
        if uid in self._seen or (record and record.spec.cause == Cause.MOVED):
            return True
        # Cluster API does not delete a paused Cluster.
        if record and is_true(record.status.conditions, ConditionType.PAUSED):
            return True
        if any(source.was_paused(key, uid) for source in self._sources):
            return True
        deployed = items(await self._inventories.on(uid))
        if any(item.entry.ledger and item.entry.ledger.reason == Reason.MOVED for item in deployed):
            return True  # recorded before the process ended
        if self._with_credentials and (secret := await secret_of(self._client, target, successor)):
            return DELETE_FOR_MOVE_ANNOTATION in (secret["metadata"].get("annotations") or {})
        # While anything is deployed, the Secret has our finalizer: it was removed by force. That tells nothing if the
        # teardown ran until now, because then the manager has seen that the Cluster was not paused.
        return not running() and any(not item.done for item in deployed)
