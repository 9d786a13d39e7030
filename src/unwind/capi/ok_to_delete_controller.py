"""The controller that removes the annotation ok-to-delete from Clusters that are not being deleted.

With it, Cluster API would call no hook when the Cluster is deleted. A policy denies the annotation on update; a Cluster
that is moved, restored or created may bring it along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.capi import CLUSTERS
from unwind.api.names import OK_TO_DELETE_ANNOTATION, ConditionType
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from unwind.api.capi import Cluster
    from unwind.kube.controller import ControllerDeps
    from unwind.members.cluster_caches import ClusterCaches

log = logs.get(__name__)

_NOTE = (
    f"the Cluster carried the annotation {OK_TO_DELETE_ANNOTATION} although it is not being deleted: Cluster API would"
    " have deleted it without calling any hook; the annotation was removed"
)


class OkToDeleteController(Controller[Key]):
    """Removes ok-to-delete from Clusters that are not being deleted."""

    name = "marks"
    _caches: ClusterCaches

    def __init__(self, shared: ControllerDeps, caches: ClusterCaches) -> None:
        super().__init__(shared, caches)
        caches.clusters.subscribe(lambda change: self._look(change.new))

    def _look(self, cluster: Cluster | None) -> None:
        if cluster and _marked(cluster):
            self._queue.add(Key(cluster.metadata.namespace, cluster.metadata.name))

    def _enqueue_all(self) -> None:
        for cluster in self._caches.clusters.all():
            self._look(cluster)

    def _group(self, key: Key) -> None:
        """All in one: they are rare, and none is urgent."""

    def _failed(self, key: Key, error: Exception) -> None:
        log.warning("ok-to-delete not removed, will retry", cluster=str(key), why=str(error))

    async def _reconcile(self, key: Key) -> float | None:
        cluster = self._caches.clusters.get(key)
        if cluster is None or not _marked(cluster) or not self._owner.owns(str(key)):
            return None
        meta, resource = cluster.metadata, self._caches.clusters.resource
        # With the resourceVersion: a Cluster that is deleted meanwhile may carry the annotation legitimately.
        patch = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {OK_TO_DELETE_ANNOTATION: None},
            }
        }
        try:
            await self._client.patch(resource, meta.name, patch, namespace=meta.namespace)
        except (NotFoundError, ConflictError):
            return None  # the change comes as an event
        log.warning("ok-to-delete removed", cluster=str(key), uid=meta.uid)
        regarding = Regarding(CLUSTERS.api_version, CLUSTERS.kind, meta.name, meta.uid, meta.namespace)
        self._recorder.report(regarding, ConditionType.GATE_NOT_ARMED, _NOTE, action="Hold", type="Warning")
        return None


def _marked(cluster: Cluster) -> bool:
    return OK_TO_DELETE_ANNOTATION in cluster.metadata.annotations and not cluster.metadata.terminating
