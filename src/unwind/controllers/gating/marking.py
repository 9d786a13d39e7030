"""Removes ok-to-delete from Clusters that are not being deleted.

With that annotation Cluster API calls no hook when the Cluster is deleted one day. The API server refuses it on an
update; a Cluster that is moved, restored or created with it brings it along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.capi import CLUSTERS
from unwind.api.names import OK_TO_DELETE_ANNOTATION, ConditionType
from unwind.clock import SYSTEM
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.fencing import Fences
from unwind.kube.queue import Queue
from unwind.kube.views import Key

if TYPE_CHECKING:
    from unwind.api.capi import Cluster
    from unwind.clock import Clock
    from unwind.controllers.cluster_caches import ClusterCaches
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.fencing import Owner
    from unwind.kube.metrics import Metrics

log = logs.get(__name__)

_NOTE = (
    f"the Cluster carried the annotation {OK_TO_DELETE_ANNOTATION} although it is not being deleted: Cluster API would"
    " have deleted it without calling any hook; the annotation was removed"
)


class Marks:
    """Keeps the gate of each Cluster closed that is not being deleted."""

    name = "marks"

    def __init__(
        self,
        client: Client,
        caches: ClusterCaches,
        *,
        owner: Owner,
        recorder: Recorder,
        metrics: Metrics,
        clock: Clock = SYSTEM,
    ) -> None:
        self._client = client
        self._caches = caches
        self._owner = owner
        self._recorder = recorder
        self._queue: Queue[Key] = Queue(
            metrics.timed(self.name, Fences(owner).around(self._reconcile, str)), clock=clock, failed=_tell_failed
        )
        metrics.queue(self.name, self._queue)
        caches.clusters.subscribe(lambda change: self._look(change.new))
        owner.subscribe(self._look_at_all)

    @property
    def ready(self) -> bool:
        return self._caches.ready

    async def run(self) -> None:
        await self._queue.run()

    def _look(self, cluster: Cluster | None) -> None:
        if cluster and _marked(cluster):
            self._queue.add(Key(cluster.metadata.namespace, cluster.metadata.name))

    def _look_at_all(self) -> None:
        for cluster in self._caches.clusters.all():
            self._look(cluster)

    async def _reconcile(self, key: Key) -> float | None:
        cluster = self._caches.clusters.get(key)
        if cluster is None or not _marked(cluster) or not self._owner.owns(str(key)):
            return None
        meta, resource = cluster.metadata, self._caches.clusters.resource
        # With the version: one that is deleted meanwhile may carry the mark by right.
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


def _tell_failed(key: Key, error: Exception) -> None:
    log.warning("ok-to-delete not removed, will retry", cluster=str(key), why=str(error))
