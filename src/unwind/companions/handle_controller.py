"""Holds the handles and the kubeconfig Secret of each Cluster that a TeardownPolicy selects, with a finalizer.

One commit may remove a Cluster and its handles, and a deployer lets go of a handle before its objects are gone. So the
handles carry our finalizer from the day a policy selects their Cluster. The remover of a step removes it; here it is
removed where no teardown does, and at each end of a teardown.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.meta import ObjectMeta
from unwind.api.names import SET_ASIDE_LABEL, Finalizer
from unwind.api.resources import SECRETS
from unwind.api.unwind import Cause, Effort
from unwind.companions.policy_reader import labels_of
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import set_finalizer
from unwind.members import targets
from unwind.teardown.records import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Teardown
    from unwind.clock import Clock
    from unwind.companions.handle_caches import CachedHandle, HandleCaches
    from unwind.companions.policy_reader import ClusterPolicies, Policies, PolicyCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.metrics import Metrics
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.members.targets import AddonTarget

log = logs.get(__name__)

GRACE = 10.0
"""Seconds after the deletion of a handle in which its Cluster may be deleted, too: one commit removes both."""


class HandleController(Controller[Key]):
    """Adds and removes our finalizer, for each Cluster."""

    name = "handles"
    _caches: PolicyCaches

    def __init__(
        self,
        client: Client,
        caches: PolicyCaches,
        handles: HandleCaches,
        clusters: ClusterCaches,
        policies: Policies,
        *,
        owner: ShardOwner,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        super().__init__(caches, owner=owner, metrics=metrics, clock=clock)
        self._client = client
        self._handles = handles
        self._clusters = clusters
        self._policies = policies
        self._secrets_free: set[str] = set()
        """The uids of Clusters whose Secret was seen without our finalizer, or gone, while they were not held."""
        handles.subscribe(self._enqueue_all)
        handles.follow(self._queue.add)
        clusters.subscribe(self._enqueue_all)
        clusters.clusters.subscribe(lambda change: self._queue.add(change.key))
        clusters.teardowns.subscribe(self._teardown_changed)
        policies.follow(self._enqueue_all)
        caches.namespaces.subscribe(self._namespace_changed)

    @property
    def ready(self) -> bool:
        return self._caches.ready and self._handles.ready

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        # When the caches are filled, everything is queued anyway.
        if self._caches.settled and labels_of(change.old) != labels_of(change.new):
            for cluster in self._clusters.clusters.all():
                if cluster.metadata.namespace == change.key.name:
                    self._queue.add(Key(cluster.metadata.namespace, cluster.metadata.name))

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        teardown = change.new or change.old
        if not teardown or not (change.new is None or teardown.finished):
            return
        if _is_of_cluster(teardown):
            self._queue.add(target_of(teardown))
        if _is_of_cluster(teardown) or teardown.spec.cause == Cause.REQUESTED:
            # Its steps may be handles in other namespaces, whose Cluster is not known by name.
            for key in self._handles.clusters(Finalizer.HANDLE):
                self._queue.add(key)

    def _enqueue_all(self) -> None:
        clusters = {Key(item.metadata.namespace, item.metadata.name) for item in self._clusters.clusters.all()}
        # Of Clusters that are gone: their handles, and their Secrets by their records.
        records = {target_of(item) for item in self._clusters.teardowns.cache if _is_of_cluster(item)}
        for key in clusters | records | self._handles.clusters(Finalizer.HANDLE):
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"cluster": str(key)}

    async def _reconcile(self, key: Key) -> float | None:
        known = self._caches.settled and self._clusters.clusters.settled and self._clusters.teardowns.synced
        if not known or not self._owner.owns(str(key)):
            return None
        cluster = self._clusters.clusters.get(key)
        if self._is_running(key, cluster):
            return None  # its steps need the finalizers, and remove them
        if cluster is None or cluster.metadata.terminating:
            if cluster is None and key.name and not await self._is_gone(key):
                return None  # the cache gets an event
            await self._let_go_all(key, cluster)
            return None
        target = targets.of_capi(cluster)
        found = self._policies.known(target)
        again = [await self._look(key, handle, target, found) for handle in self._handles.of(key)]
        await self._hold_secret(target, wanted=bool(found.policies))
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _is_running(self, key: Key, cluster: Cluster | None) -> bool:
        """Whether a teardown of this Cluster has not ended, or not begun."""
        records = [
            item
            for item in self._clusters.teardowns.cache.by("target", key)
            if _is_of_cluster(item) and SET_ASIDE_LABEL not in item.metadata.labels
        ]
        if cluster is not None and cluster.metadata.terminating:
            uid = cluster.metadata.uid
            return not any(item.finished for item in records if item.spec.target.uid == uid)
        return any(not item.finished for item in records)

    async def _is_gone(self, key: Key) -> bool:
        resource = self._clusters.clusters.resource
        try:
            await self._client.get(resource, key.name, namespace=key.namespace)
        except NotFoundError:
            return True
        return False

    async def _look(self, key: Key, handle: CachedHandle, target: AddonTarget, found: ClusterPolicies) -> float | None:
        """Hold a handle of a Cluster that is not being deleted, or let go of it."""
        meta, has = handle.metadata, Finalizer.HANDLE in handle.metadata.finalizers
        decision = found.about(handle.ref, handle.kind.source, on_member=False)
        wanted = decision is not None and decision.effort is not Effort.LEAVE
        if has and is_step(meta.uid, self._clusters.teardowns.cache):
            return None  # a requested deletion needs the finalizer, and removes it
        if not meta.terminating:
            if has is not wanted:
                await self._set(handle, wanted=wanted)
            return None
        if not has or set(meta.finalizers) != {Finalizer.HANDLE.value}:
            return None  # its deployer is at work
        # It was deleted in normal operation, or the deletion of its Cluster comes next.
        if wanted and meta.deletion_timestamp:
            left = (meta.deletion_timestamp + timedelta(seconds=GRACE) - self._clock.now()).total_seconds()
            if left > 0:
                return left
            if await self._is_terminating(target):
                return None  # the cache gets an event
        await self._set(handle, wanted=False)
        log.info("handle released", object=str(handle.ref), cluster=str(key))
        return None

    async def _is_terminating(self, target: AddonTarget) -> bool:
        ref, resource = target.ref, self._clusters.clusters.resource
        try:
            found = await self._client.get(resource, ref.name, namespace=ref.namespace, type=Cluster)
        except NotFoundError:
            return True
        return found.metadata.terminating or found.metadata.uid != ref.uid

    async def _let_go_all(self, key: Key, cluster: Cluster | None) -> None:
        for handle in self._handles.of(key):
            # A handle that is being deleted when the teardown ends waits for the end of its Cluster: while it is there,
            # nothing creates it again.
            held = Finalizer.HANDLE in handle.metadata.finalizers and not (cluster and handle.metadata.terminating)
            if held and not is_step(handle.metadata.uid, self._clusters.teardowns.cache):
                await self._set(handle, wanted=False)
        if not key.name:
            return
        target = targets.of_capi(cluster) if cluster else targets.of_gone(targets.capi_ref(*key, ""))
        await self._hold_secret(target, wanted=False)

    async def _set(self, handle: CachedHandle, *, wanted: bool) -> None:
        await set_finalizer(self._client, handle.kind.resource, handle.metadata, Finalizer.HANDLE, wanted=wanted)

    async def _hold_secret(self, target: AddonTarget, *, wanted: bool) -> None:
        """Hold the Secret with the kubeconfig: without it, deployers let go of handles, and nothing can be verified."""
        uid = target.ref.uid
        if not wanted and uid and uid in self._secrets_free:
            return
        try:
            found = await self._client.get(SECRETS, target.secret, namespace=target.home)
        except NotFoundError:
            return
        meta = msgspec.convert(found["metadata"], ObjectMeta)
        if wanted:
            self._secrets_free.discard(uid)
        if (Finalizer.HANDLE in meta.finalizers) is not wanted and not (wanted and meta.terminating):
            await set_finalizer(self._client, SECRETS, meta, Finalizer.HANDLE, wanted=wanted)
        if not wanted and uid:
            self._secrets_free.add(uid)


def is_step(uid: str, teardowns: Iterable[Teardown]) -> bool:
    """Whether the handle with this uid is a step of a teardown that has not ended (pure). Its Cluster may be in another
    namespace than the handle, so the Teardown is found by its plan."""
    plans = (item.spec.plan for item in teardowns if not item.finished)
    return any(step.object.uid == uid for plan in plans if plan for step in plan.steps)


def _is_of_cluster(teardown: Teardown) -> bool:
    spec = teardown.spec
    return spec.target.group == CLUSTERS.group and spec.cause in (Cause.CLUSTER_DELETED, Cause.MOVED)
