"""Holds the handles and the kubeconfig Secret of each Cluster that a TeardownPolicy selects, with a finalizer.

One commit may remove a Cluster and its handles, and a deployer lets go of a handle before its objects are gone. So the
handles carry our finalizer from the day a policy selects their Cluster. The remover of a step removes it; here it is
removed where no teardown does, and at each end of a teardown.

Most handles name their Cluster. Those that use a copy of its kubeconfig, in a namespace that a policy names, are joined
with it as the steps of a teardown are: see `kubeconfig_clusters`.
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
from unwind.companions.handle_finalizer import release_by_uid
from unwind.companions.kubeconfig_clusters import HandleTargets
from unwind.companions.policy_reader import labels_of
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import set_finalizer
from unwind.members import targets
from unwind.teardown.records import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.policies import SourceKind
    from unwind.api.unwind import Teardown
    from unwind.companions.handle_caches import CachedHandle, PolicyDeps
    from unwind.companions.kubeconfig_clusters import KubeconfigClusters
    from unwind.companions.kubeconfig_copies import KubeconfigCopies
    from unwind.companions.policy_reader import ClusterPolicies, PolicyCaches
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.members.targets import AddonTarget

    _Selected = tuple[AddonTarget, ClusterPolicies]

log = logs.get(__name__)

GRACE = 10.0
"""Seconds after the deletion of a handle in which its Cluster may be deleted, too: one commit removes both."""
# Seconds after which the Secret with a copied kubeconfig is read again: it is not watched.
_RECHECK = 300.0
# The same while it is not known which Cluster it leads to.
_RETRY = 30.0


class HandleController(Controller[Key]):
    """Adds and removes our finalizer, for each Cluster."""

    name = "handles"
    _caches: PolicyCaches

    def __init__(
        self, shared: ControllerDeps, deps: PolicyDeps, kubeconfigs: KubeconfigClusters, *, copies: KubeconfigCopies
    ) -> None:
        """`kubeconfigs`: finds the Clusters of handles with a copied kubeconfig. `copies`: holds these copies."""
        super().__init__(shared, deps.policy_caches)
        self._handles = deps.handles
        self._clusters = deps.clusters
        self._policies = deps.policies
        self._kubeconfigs = kubeconfigs
        self._copies = copies
        self._copied: dict[Key, set[str]] = {}
        """The names of the copies that were held for handles, by the Clusters of these as they are queued."""
        self._selected: dict[tuple[SourceKind, str], list[_Selected]] | None = None
        """The Clusters whose policies name a namespace for a deployer; None if that must be determined again."""
        self._secrets_free: set[str] = set()
        """The uids of Clusters whose Secret was seen without our finalizer, or gone, while they were not held."""
        deps.handles.subscribe(self._enqueue_all)
        deps.handles.follow(self._queue.add)
        deps.clusters.subscribe(self._enqueue_all)
        deps.clusters.clusters.subscribe(self._cluster_changed)
        deps.clusters.teardowns.subscribe(self._teardown_changed)
        deps.policies.follow(self._enqueue_all)
        deps.policy_caches.namespaces.subscribe(self._namespace_changed)

    @property
    def ready(self) -> bool:
        return self._caches.ready and self._handles.ready

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        # When the caches are filled, everything is queued anyway.
        if not self._caches.settled or labels_of(change.old) == labels_of(change.new):
            return
        here = [item.metadata for item in self._clusters.clusters.all() if item.metadata.namespace == change.key.name]
        for meta in here:
            self._queue.add(Key(meta.namespace, meta.name))
        if here:
            self._selection_changed()

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        self._queue.add(change.key)
        if _relevant(change.old) != _relevant(change.new):
            self._selection_changed()

    def _selection_changed(self) -> None:
        """Look again at the handles whose Cluster is not known by name: it may be any."""
        self._selected = None
        # When the caches are filled, everything is queued anyway.
        if self._clusters.clusters.settled:
            for key in self._handles.with_kubeconfig():
                if self._clusters.clusters.get(key) is None:
                    self._queue.add(key)

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
        self._selected = None
        clusters = {Key(item.metadata.namespace, item.metadata.name) for item in self._clusters.clusters.all()}
        # Of Clusters that are gone: their handles, and their Secrets by their records.
        records = {target_of(item) for item in self._clusters.teardowns.cache if _is_of_cluster(item)}
        for key in clusters | records | self._handles.clusters(Finalizer.HANDLE) | self._handles.with_kubeconfig():
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
            return await self._let_go_all(key, cluster)
        target = targets.of_capi(cluster)
        found = self._policies.known(target)
        again = [await self._look(key, handle, target, found) for handle in self._handles.of(key)]
        await self._hold_secret(target, wanted=bool(found.policies))
        await self._let_go_copies(key)
        return _soonest(again)

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
        if not _is_done(handle):
            return None  # its deployer is at work
        # It was deleted in normal operation, or the deletion of its Cluster comes next.
        if wanted:
            if (left := self._grace(meta)) > 0:
                return left
            if await self._is_terminating(target):
                return None  # the cache gets an event
        await self._set(handle, wanted=False)
        log.info("handle released", object=str(handle.ref), cluster=str(key))
        return None

    def _grace(self, meta: ObjectMeta) -> float:
        """The seconds in which the Cluster of a handle that is being deleted may be deleted, too."""
        deleted = meta.deletion_timestamp
        return (deleted + timedelta(seconds=GRACE) - self._clock.now()).total_seconds() if deleted else 0.0

    # Handles with a copied kubeconfig

    async def _look_by_kubeconfig(self, handle: CachedHandle) -> float | None:
        """Hold a handle whose Cluster is known by its kubeconfig only, or let go of it. Unknown changes nothing."""
        meta, has = handle.metadata, Finalizer.HANDLE in handle.metadata.finalizers
        if has and is_step(meta.uid, self._clusters.teardowns.cache):
            return None  # its teardown needs the finalizer, and removes it
        selected = self._selecting(handle)
        if not selected and not has:
            return None
        found = await self._targets(handle, selected)
        possible = (*found.known, *found.unknown)
        if not meta.terminating:
            await self._hold(handle, found)
            return (_RETRY if found.unknown else _RECHECK) if selected else None
        if not _is_done(handle):
            return None  # its deployer is at work, or it is not held
        if any(target.terminating for target in possible):
            # Its teardown makes it a step. While it is there, nothing creates it again, so it waits for the end of its
            # Cluster, too.
            return None
        if possible:
            if (left := self._grace(meta)) > 0:
                return left
            for target in possible:
                if await self._is_terminating(target):
                    return None  # the cache gets an event
        await self._let_go(handle)
        log.info("handle released", object=str(handle.ref))
        return None

    async def _hold(self, handle: CachedHandle, found: HandleTargets) -> None:
        """Hold a handle that is not being deleted, or let go of it."""
        has = Finalizer.HANDLE in handle.metadata.finalizers
        if has and not any(self._may_need(target) for target in (*found.known, *found.unknown)):
            await self._let_go(handle)
        elif has or any(not target.terminating for target in found.known):
            await self._hold_copy(handle)  # before the handle, and again if it was replaced
            if not has:
                await self._set(handle, wanted=True)

    async def _hold_copy(self, handle: CachedHandle) -> None:
        meta = handle.metadata
        if handle.secret:
            self._copies.stays(meta.uid)
            key = handle.cluster or Key(meta.namespace, "")
            self._copied.setdefault(key, set()).add(handle.secret.name)
            await self._copies.hold(meta.namespace, handle.secret.name)

    async def _let_go_copies(self, key: Key) -> None:
        """Let go of the copies whose handles are gone: a user may have removed our finalizer from one."""
        used = {
            handle.secret.name
            for handle in self._handles.of(key)
            if handle.secret and Finalizer.HANDLE in handle.metadata.finalizers
        }
        for name in self._copied.get(key, set()) - used:
            await self._copies.let_go(key.namespace, name)
            self._copied[key].discard(name)

    async def _let_go(self, handle: CachedHandle) -> None:
        # Clusters were asked meanwhile, which may take a while.
        if is_step(handle.metadata.uid, self._clusters.teardowns.cache):
            return
        if handle.secret:
            await self._copies.let_go(handle.metadata.namespace, handle.secret.name, handle.metadata.uid)
        await self._set(handle, wanted=False)

    def _may_need(self, target: AddonTarget) -> bool:
        """Whether the deletion of a Cluster is still to come, or runs."""
        key = Key(target.ref.namespace, target.ref.name)
        return not target.terminating or self._is_running(key, self._clusters.clusters.get(key))

    async def _targets(self, handle: CachedHandle, selected: Sequence[_Selected]) -> HandleTargets:
        """The Clusters that a handle may deploy on, and whose policies make it a step."""
        if handle.secret is None:
            return HandleTargets()
        wanting = [
            target
            for target, found in selected
            if (decision := found.about(handle.ref, handle.kind.source, on_member=False))
            and decision.effort is not Effort.LEAVE
        ]
        return await self._kubeconfigs.of(handle.metadata.namespace, handle.secret, wanting)

    def _selecting(self, handle: CachedHandle) -> Sequence[_Selected]:
        """The Clusters whose policies name the namespace of a handle. A handle is first held for one that is ready."""
        if self._selected is None:
            self._selected = {}
            for target in map(targets.of_capi, self._clusters.clusters.all()):
                found = self._policies.known(target)
                for source in found.sources:
                    for namespace in found.namespaces(source):
                        self._selected.setdefault((source, namespace), []).append((target, found))
        selecting = self._selected.get((handle.kind.source, handle.metadata.namespace), [])
        # The status of a restored Cluster may be empty: a handle that is held stays held.
        held = Finalizer.HANDLE in handle.metadata.finalizers
        return selecting if held else [item for item in selecting if item[0].ready]

    async def _is_terminating(self, target: AddonTarget) -> bool:
        ref, resource = target.ref, self._clusters.clusters.resource
        try:
            found = await self._client.get(resource, ref.name, namespace=ref.namespace, type=Cluster)
        except NotFoundError:
            return True
        return found.metadata.terminating or found.metadata.uid != ref.uid

    async def _let_go_all(self, key: Key, cluster: Cluster | None) -> float | None:
        """Let go of the handles of a Cluster that is gone, or whose teardown has ended. If no Cluster has this name,
        they may use a copy of the kubeconfig of another one."""
        again: list[float | None] = []
        for handle in self._handles.of(key):
            if cluster is None and handle.secret:
                again.append(await self._look_by_kubeconfig(handle))
                continue
            # A handle that is being deleted when the teardown ends waits for the end of its Cluster: while it is there,
            # nothing creates it again.
            held = Finalizer.HANDLE in handle.metadata.finalizers and not (cluster and handle.metadata.terminating)
            if held and not is_step(handle.metadata.uid, self._clusters.teardowns.cache):
                await self._set(handle, wanted=False)
        await self._let_go_copies(key)
        if key.name:
            target = targets.of_capi(cluster) if cluster else targets.of_gone(targets.capi_ref(*key, ""))
            await self._hold_secret(target, wanted=False)
        return _soonest(again)

    async def _set(self, handle: CachedHandle, *, wanted: bool) -> None:
        """Add our finalizer, or let go of a handle, as it was before its deletion if it stays."""
        kind, meta = handle.kind, handle.metadata
        if wanted:
            await set_finalizer(self._client, kind.resource, meta, Finalizer.HANDLE, wanted=True)
        else:
            await release_by_uid(self._client, kind.resource, meta, kind.before_stay)

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


def _is_done(handle: CachedHandle) -> bool:
    """Whether only our finalizer is left on a handle."""
    return set(handle.metadata.finalizers) == {Finalizer.HANDLE.value}


def _soonest(times: Iterable[float | None]) -> float | None:
    return min((seconds for seconds in times if seconds is not None), default=None)


def _relevant(cluster: Cluster | None) -> object:
    """What decides whether a handle with a copied kubeconfig is held for a Cluster."""
    meta = cluster.metadata if cluster else None
    return cluster and meta and (meta.uid, meta.labels, meta.terminating, cluster.reachable_once)


def is_step(uid: str, teardowns: Iterable[Teardown]) -> bool:
    """Whether the handle with this uid is a step of a teardown that has not ended (pure). Its Cluster may be in another
    namespace than the handle, so the Teardown is found by its plan."""
    plans = (item.spec.plan for item in teardowns if not item.finished)
    return any(step.object.uid == uid for plan in plans if plan for step in plan.steps)


def _is_of_cluster(teardown: Teardown) -> bool:
    spec = teardown.spec
    return spec.target.group == CLUSTERS.group and spec.cause in (Cause.CLUSTER_DELETED, Cause.MOVED)
