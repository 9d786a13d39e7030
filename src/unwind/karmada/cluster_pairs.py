"""Finds Clusters of Cluster API that are also Karmada members, and records each pair on the Karmada Cluster.

Two objects represent the same cluster if the uid of the kube-system namespace is the same over the credentials of
both. An API server can claim any uid, so a pair only holds the deletion of the Cluster; nothing is deleted by it. If
several Clusters claim the uid of one member, it is unknown which of them it is, so each of them is held.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind import logs
from unwind.api.capi import KUBECONFIG_SUFFIX
from unwind.api.capi import Cluster as CapiCluster
from unwind.api.karmada import CLUSTERS, Cluster, ClusterSyncMode
from unwind.api.meta import is_true, ref_of
from unwind.api.names import CAPI_CLUSTER_ANNOTATION, ConditionType, EventReason
from unwind.concurrency import run_all
from unwind.errors import UnwindError
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.updates import revise
from unwind.kube.workqueue import Backoff, Queue
from unwind.members import targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer
    from unwind.members.cluster_caches import CapiClusters
    from unwind.members.members import Members

log = logs.get(__name__)

# Connections at a time, however many Clusters there are.
_AT_ONCE = 8
# Seconds until a Cluster that did not answer is asked again.
_BACKOFF = Backoff(first=15.0, limit=900.0)
# Seconds until a pair that was not confirmed is confirmed again.
_AGAIN = 60.0


class Pair(NamedTuple):
    """The Cluster of Cluster API that a member is."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return "/".join(self)


def pairs_of(cluster: Cluster) -> tuple[Pair, ...]:
    """The recorded pairs of a Karmada Cluster, normally one (pure)."""
    return read_pairs(cluster.metadata.annotations)


def read_pairs(annotations: Mapping[str, str]) -> tuple[Pair, ...]:
    """The recorded pairs in the annotations of a Karmada Cluster (pure)."""
    texts = (text.split("/") for text in annotations.get(CAPI_CLUSTER_ANNOTATION, "").split(","))
    return tuple(Pair(*parts) for parts in texts if len(parts) == len(Pair._fields) and all(parts))


def can_be_paired(cluster: Cluster) -> bool:
    """Whether the identity of a member is known and was confirmed over its own credentials (pure)."""
    ready = is_true(cluster.status.conditions, ConditionType.READY)
    push = cluster.spec.sync_mode == ClusterSyncMode.PUSH
    return bool(cluster.spec.id) and ready and push and not cluster.metadata.terminating


class Identities:
    """The kube-system uids of Clusters of Cluster API, by their own uids, and which Clusters have a uid."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._with: dict[str, dict[str, Key]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def put(self, uid: str, key: Key, system_uid: str) -> None:
        self.forget(uid)
        self._of[uid] = system_uid
        self._with.setdefault(system_uid, {})[uid] = key

    def forget(self, uid: str) -> str:
        """Forget a Cluster; return its kube-system uid, or nothing if it was unknown."""
        system_uid = self._of.pop(uid, "")
        there = self._with.get(system_uid, {})
        there.pop(uid, None)
        if not there:
            self._with.pop(system_uid, None)
        return system_uid

    def clusters(self, system_uid: str) -> list[Key]:
        """The Clusters with this kube-system uid."""
        return list(self._with.get(system_uid, {}).values())


class PairController(Controller[str]):
    """Records which Cluster of Cluster API a member is, before either is deleted.

    To find the pair of a member, the identity of each Cluster must be known. It is read once over the credentials of
    the Cluster, by a queue of its own, and only while this replica has a member that can be paired.
    """

    name = "pairs"
    _caches: KarmadaCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: KarmadaCaches,
        clusters: CapiClusters,
        secrets: Informer[Metadata],
        members: Members,
    ) -> None:
        """`clusters`: the Clusters of Cluster API. `secrets`: their kubeconfigs."""
        super().__init__(shared, caches)
        self._clusters = clusters
        self._members = members
        self._identities = Identities()
        # All keys are in one group, so that they share its workers.
        self._unidentified: Queue[Key] = Queue(
            self._identify, per_group=_AT_ONCE, backoff=_BACKOFF, clock=shared.clock, failed=self._silent
        )
        shared.metrics.queue("identities", self._unidentified)
        self._secret_changes: Counter[str] = Counter()
        """How often their kubeconfigs changed."""
        caches.clusters.subscribe(self._member_changed)
        clusters.subscribe(self._cluster_changed)
        secrets.subscribe(self._secret_changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await run_all(self._queue, self._unidentified)

    # Events

    def _member_changed(self, change: Change[Cluster]) -> None:
        old, new = change.old, change.new
        if new and (old is None or _relevant_fields(old) != _relevant_fields(new)):
            self._queue.add(change.key.name)
            if can_be_paired(new) and not (old and can_be_paired(old)):
                self._identify_all()

    def _cluster_changed(self, change: Change[CapiCluster]) -> None:
        old, new = change.old, change.new
        if old and (new is None or new.metadata.uid != old.metadata.uid):
            self._enqueue_members(self._identities.forget(old.metadata.uid))
            self._secret_changes.pop(old.metadata.uid, None)
        if new and self._needs_identity(new):
            before = targets.of_capi(old) if old and old.metadata.uid == new.metadata.uid else None
            if before is None or not before.ready:
                self._unidentified.add(change.key)

    def _secret_changed(self, change: Change[Metadata]) -> None:
        """Another kubeconfig may lead to another cluster."""
        old, new = change.old, change.new
        name = change.key.name.removesuffix(KUBECONFIG_SUFFIX)
        if name == change.key.name or (old and new and old.finalizers != new.finalizers):
            return  # no kubeconfig, or our own finalizer
        if cluster := self._clusters.get(Key(change.key.namespace, name)):
            uid = cluster.metadata.uid
            self._members.reread(uid)
            self._identities.forget(uid)
            self._secret_changes[uid] += 1
            self._unidentified.add(Key(change.key.namespace, name))

    def _enqueue_all(self) -> None:
        for key in list(self._caches.clusters.cache.keys()):
            self._queue.add(key.name)
        self._identify_all()

    def _enqueue_members(self, system_uid: str) -> None:
        for member in self._caches.clusters.cache.by("id", system_uid):
            self._queue.add(member.metadata.name)

    def _identify_all(self) -> None:
        for cluster in self._clusters.all():
            key = Key(cluster.metadata.namespace, cluster.metadata.name)
            # One that did not answer keeps its place in the back-off.
            if self._needs_identity(cluster) and not self._unidentified.failures(key):
                self._unidentified.add(key)

    def _needs_identity(self, cluster: CapiCluster) -> bool:
        target = targets.of_capi(cluster)
        return target.ref.uid not in self._identities and target.ready and not target.terminating

    def _describe(self, key: str | Key) -> dict[str, str]:
        return {"cluster": str(key)}

    # Reconcile

    async def _reconcile(self, name: str) -> float | None:
        if not (self._caches.clusters.synced and self._clusters.synced and self._owner.owns(name)):
            return None
        member = self._caches.cluster(name)
        if member is None or not can_be_paired(member):
            return None
        same = filter(None, map(self._clusters.get, self._identities.clusters(member.spec.id)))
        found = [cluster for cluster in same if not cluster.metadata.terminating]
        known = {pair for pair in pairs_of(member) if self._exists(pair)}
        new = {pair_with(cluster): cluster for cluster in found if pair_with(cluster) not in known}
        confirmed = {pair for pair, cluster in new.items() if await self._confirmed(member, pair, cluster)}
        wanted = tuple(sorted(known | confirmed))
        if wanted != pairs_of(member):
            await self._record(member, wanted)
        if len(wanted) > 1:
            self._report_ambiguous(member, wanted)
        return _AGAIN if len(confirmed) < len(new) else None

    def _exists(self, pair: Pair) -> bool:
        there = self._clusters.get(Key(pair.namespace, pair.name))
        return there is not None and there.metadata.uid == pair.uid

    async def _identify(self, key: Key) -> None:
        """Read the identity of a Cluster, and enqueue the members that have it."""
        cluster = self._clusters.get(key)
        if cluster is None or not self._needs_identity(cluster) or not self._has_members():
            return
        target = targets.of_capi(cluster)
        uid, changes = target.ref.uid, self._secret_changes[target.ref.uid]
        async with self._members.member(target) as member:
            if self._secret_changes[uid] != changes:
                return  # it may be another cluster by now, and is queued again
            self._identities.put(uid, key, member.system_uid)
        self._enqueue_members(member.system_uid)

    def _has_members(self) -> bool:
        """Whether this replica has a member that can be paired."""
        return any(can_be_paired(item) and self._owner.owns(item.metadata.name) for item in self._caches.clusters.cache)

    def _silent(self, key: Key, error: Exception) -> None:
        if isinstance(error, UnwindError):
            # A Cluster that does not answer is not paired, and the next attempt comes later each time.
            log.debug("identity of a cluster not read, will retry", cluster=str(key), why=str(error))
        else:
            self._failed(key, error)

    async def _confirmed(self, member: Cluster, pair: Pair, cluster: CapiCluster) -> bool:
        """Confirm the identity over both credentials. A pair counts only if it was known before the deletion began."""
        system_uid = member.spec.id
        try:
            async with (
                self._members.member(targets.of_karmada(member), system_uid=system_uid),
                self._members.member(targets.of_capi(cluster), system_uid=system_uid),
            ):
                pass
        except UnwindError as error:
            # A cluster that does not answer must not keep others from being paired.
            log.debug("pair not confirmed, will retry", cluster=member.metadata.name, capi=str(pair), why=str(error))
            return False
        return not await self._is_terminating(pair)

    async def _record(self, member: Cluster, pairs: tuple[Pair, ...]) -> None:
        text = ",".join(map(str, pairs))

        def paired(read: Object) -> Object | None:
            now = msgspec.convert(read, Cluster)
            if now.spec.id != member.spec.id or now.metadata.terminating or pairs_of(now) == pairs:
                return None
            return {"metadata": {"annotations": {CAPI_CLUSTER_ANNOTATION: text or None}}}

        try:
            read = await self._client.get(CLUSTERS, member.metadata.name)
        except NotFoundError:
            return
        if read["metadata"]["uid"] == member.metadata.uid and await revise(self._client, CLUSTERS, read, paired):
            log.info("cluster paired", cluster=member.metadata.name, capi=text)

    async def _is_terminating(self, pair: Pair) -> bool:
        resource = self._clusters.resource
        try:
            found = await self._client.get(resource, pair.name, namespace=pair.namespace, type=CapiCluster)
        except NotFoundError:
            return True
        return found.metadata.terminating or found.metadata.uid != pair.uid

    # Reports

    def _report_ambiguous(self, member: Cluster, pairs: Iterable[Pair]) -> None:
        names = ", ".join(f"{pair.namespace}/{pair.name}" for pair in pairs)
        message = (
            f"Clusters {names} of Cluster API lead to this member, by the uid of its kube-system namespace: the"
            " deletion of"
            " each waits for the Works of the member; correct the kubeconfig of the wrong ones"
        )
        ref = ref_of(CLUSTERS, member.metadata)
        log.warning("several clusters have the identity of a member", cluster=ref.name, why=message)
        regarding = Regarding(CLUSTERS.api_version, CLUSTERS.kind, ref.name, ref.uid)
        self._recorder.report(regarding, EventReason.AMBIGUOUS_PAIR, message, action="Pair", type="Warning")


def pair_with(cluster: CapiCluster) -> Pair:
    """The pair with this Cluster."""
    return Pair(cluster.metadata.namespace, cluster.metadata.name, cluster.metadata.uid)


def _relevant_fields(cluster: Cluster) -> object:
    return cluster.metadata.uid, can_be_paired(cluster), cluster.spec.id, pairs_of(cluster)
