"""The controller of terminating Clusters: creates a Teardown for each, and runs it to its end."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from unwind import logs
from unwind.api import capi
from unwind.api.capi import KUBECONFIG_SUFFIX
from unwind.api.resources import SECRETS
from unwind.api.unwind import Cause, Teardown
from unwind.capi.cluster_cleanup import clean
from unwind.capi.cluster_moves import ClusterMoves
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.events import Regarding
from unwind.members import targets
from unwind.teardown import force_release, plan
from unwind.teardown.drafts import handles_not_removed, misunderstood, order_lost, orphaned
from unwind.teardown.records import KEEP, TeardownCaches, TeardownRecords, target_of
from unwind.teardown.runner import TeardownRunner, ended_without_target
from unwind.teardown.running_teardowns import RunningTeardowns
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.step_sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from unwind.api.capi import Cluster
    from unwind.api.unwind import Teardown
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer
    from unwind.members.cluster_caches import CapiClusters
    from unwind.members.targets import AddonTarget
    from unwind.teardown.drafts import Drafted, TeardownNotice
    from unwind.teardown.force_release import LetGo, MayRelease
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import FollowedSource


log = logs.get(__name__)


# A blocked plan waits for a person. Changes to a summary or the cluster are events; changes to an Inventory are not.
_LOOK_AGAIN = 30.0


class ClusterTeardownCaches(TeardownCaches, Protocol):
    """The caches that this controller uses."""

    clusters: CapiClusters
    sources: dict[str, Informer[Metadata]]
    """By kind, including Secrets."""

    @property
    def settled(self) -> bool:
        """Whether all caches that the step sources use are synced."""


class ClusterTeardownController(Controller[Key]):
    """Runs the teardown of Clusters that are being deleted."""

    name = "teardowns"
    _caches: ClusterTeardownCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: ClusterTeardownCaches,
        deps: RemovalDeps,
        *,
        sources: Iterable[FollowedSource],
        keep: timedelta = KEEP,
        keys: RecordKeys | None = None,
        with_credentials: bool = True,
        may_release: MayRelease | None = None,
    ) -> None:
        """`sources`: the step sources of a cluster. `keep`: how long the record is kept. `with_credentials`: a feature
        deploys to clusters, so that their credentials may have our finalizer. `may_release`: whether a user may
        force-release a cluster; default: each user who may set the annotation."""
        super().__init__(shared, caches)
        self._with_credentials = with_credentials
        self._may_release = may_release
        self._deps = deps
        self._teardowns = caches.teardowns
        self._keys = keys or RecordKeys(shared.client, namespace=deps.inventories.namespace)
        self._keys.follow(caches.sources[SECRETS.kind])
        self._records = TeardownRecords(
            shared,
            caches.teardowns,
            self._deps.inventories,
            keys=self._keys,
            group=capi.CLUSTERS.group,
            cause=Cause.CLUSTER_DELETED,
            keep=keep,
            archive=deps.archive,
        )
        self._runners: RunningTeardowns[TeardownRunner] = RunningTeardowns(
            caches.teardowns, again=self._queue.add_after
        )
        self._followed = tuple(sources)
        self._sources = Sources(self._followed)
        self._moves = ClusterMoves(
            shared.client, deps.inventories, sources=self._followed, with_credentials=with_credentials
        )
        caches.clusters.subscribe(self._cluster_changed)
        for source in self._followed:
            source.follow(self._steps_changed)
            source.follow_terms(self._terms_changed)
        caches.sources[SECRETS.kind].subscribe(self._secret_changed)
        self._teardowns.subscribe(self._teardown_changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._runners.belong_to(group)
            group.create_task(self._sources.run())
            group.create_task(self._keys.run())
            await self._keys.until_known()
            await self._teardowns.until_synced()
            await self._queue.run()

    # Events

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        self._moves.note(change.old, change.new)
        self._queue.add(change.key)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it and self._records.concerns(it):
            self._queue.add(target_of(it))

    def _steps_changed(self, key: Key) -> None:
        # Only a teardown that waits for its plan needs this.
        if key not in self._runners:
            self._queue.add(key)

    def _terms_changed(self, key: Key) -> None:
        if runner := self._runners.get(key):
            runner.recheck()

    def _secret_changed(self, change: Change[Metadata]) -> None:
        """The credentials of a member changed during its teardown: its open connection may not work any more, or a plan
        that waits for them can be made."""
        cluster = Key(change.key.namespace, change.key.name.removesuffix(KUBECONFIG_SUFFIX))
        execution = self._runners.get(cluster)
        if execution is None:
            if (found := self._caches.clusters.get(cluster)) and found.metadata.terminating:
                self._queue.add(cluster)
            return
        old, new = change.old, change.new
        if old is None or new is None or old.finalizers != new.finalizers:
            return  # our own finalizer
        if execution.target.secret == change.key.name:
            execution.go_another_way(execution.target)

    def _enqueue_all(self) -> None:
        clusters = {Key(item.metadata.namespace, item.metadata.name) for item in self._caches.clusters.all()}
        # A cluster may have been deleted while no manager ran: then only the owners of its steps refer to it.
        told = {key for source in self._followed for key in source.targets()}
        for key in {*clusters, *self._records.keys(), *told, *self._runners}:
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"cluster": str(key)}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        if not self._owner.owns(str(key)):
            self._runners.stop(key)
            return None
        # A plan made from a partial list of steps would leave the others behind.
        if not self._caches.settled or not self._caches.clusters.synced:
            return None  # it is queued again when they are
        cluster = self._caches.clusters.get(key)
        for uid in self._gone(key, cluster):
            await self._handle_target_gone(key, uid)
        execution = self._runners.get(key)
        if cluster is None or not cluster.metadata.terminating:
            return await self._records.retain(key)
        target = targets.of_capi(cluster)
        if execution and execution.target.ref.uid == target.ref.uid and execution.paused != target.paused:
            await self._runners.stopped(key)
            execution = None
        if execution and execution.target.ref.uid == target.ref.uid:
            if let_go := await self._let_go(target, execution.teardown):
                execution.release(*let_go)
            return None
        if execution:
            return None  # of an earlier cluster of this name; its end queues this key again
        if cluster.moved:
            # Recorded now, because only the annotation tells that it is not deleted. The record ends with the Cluster.
            # A record without a plan gets none: it may be needed if the Cluster is no longer moved.
            if self._records.get(target.ref.uid) is None:
                await self._teardown(target, decided=True, cause=Cause.MOVED)
            return None
        teardown = await self._teardown(target)
        if teardown.finished:
            self._sources.report(teardown, target)  # in case the process ended before they were told
            await clean(self._client, self._deps.inventories, teardown, target, with_credentials=self._with_credentials)
            return await self._records.retain(key)
        let_go = await self._let_go(target, teardown)
        if not target.paused and force_release.overdue(teardown, now=self._clock.now()):
            let_go = let_go or force_release.expired(teardown.spec)
        if teardown.spec.plan is None and let_go:
            teardown = await self._teardown(target, decided=True)
        if teardown.spec.plan is None:
            left = force_release.remaining_seconds(teardown, now=self._clock.now())  # the plan is blocked
            return min(_LOOK_AGAIN, left) if left else _LOOK_AGAIN
        self._begin(key, teardown, target, let_go)
        return None

    async def _teardown(self, target: AddonTarget, *, decided: bool = False, cause: Cause | None = None) -> Teardown:
        draft = partial(self._drafted, target, decided=decided, moved=cause == Cause.MOVED)
        return await self._records.written(target, draft, cause=cause)

    async def _drafted(self, target: AddonTarget, *, decided: bool, moved: bool) -> Drafted:
        # A Cluster that is moved may still be deleted: its record has what policies say.
        return await plan.draft(self._sources, self._deps, target, decided=decided, with_terms=moved)

    def _begin(self, key: Key, teardown: Teardown, target: AddonTarget, let_go: LetGo | None) -> None:
        orphans = orphaned(teardown.spec.plan)
        for notice in orphans:
            self._report(target, notice)
        execution = TeardownRunner(
            teardown,
            target,
            self._deps,
            self._client,
            sources=self._sources,
            said=(
                *self._sources.said(teardown, target),
                *misunderstood(target),
                *orphans,
                *order_lost(teardown.spec.plan),
                *handles_not_removed(teardown.spec.plan),
            ),
            paused=target.paused,
            owns=lambda: self._owner.owns(str(key)),
        )
        if let_go:  # before the first step, so that none starts
            execution.release(*let_go)
        self._runners.begin(key, execution)

    def _report(self, target: AddonTarget, notice: TeardownNotice) -> None:
        ref = target.ref
        log.warning("objects of a deleted owner are left, see `unwind ledger`", cluster=str(target), why=notice.message)
        regarding = Regarding(capi.CLUSTERS.api_version, ref.kind, ref.name, ref.uid, ref.namespace)
        self._recorder.report(regarding, notice.reason, notice.message, action="Delete", type="Warning")

    def _gone(self, key: Key, cluster: Cluster | None) -> set[str]:
        """The uids of deleted clusters of this name that records or step sources still refer to."""
        told = {uid for source in self._followed for uid in source.target_uids(key)}
        told |= {item.spec.target.uid for item in self._records.of(key)}
        return told - {"", cluster.metadata.uid if cluster else ""} - self._records.cleaned

    async def _handle_target_gone(self, key: Key, uid: str) -> None:
        """End the teardown of a cluster that is gone. If it has none, because the cluster went while no manager ran,
        create one for the ledger."""
        ref = targets.capi_ref(key.namespace, key.name, uid)
        sighting = await self._client.sighting(
            self._caches.clusters.resource, ref.name, uid=ref.uid, namespace=ref.namespace
        )
        if not sighting.absent or any(item.metadata.uid == uid for item in self._caches.clusters.all()):
            return  # also if the cluster of this uid has another name: then the uid on the summary is forged
        target = targets.of_gone(ref)
        moved = await self._moves.was_moved(
            key,
            target,
            self._records.get(uid),
            self._caches.clusters.get(key),
            running=lambda: self._runner_of(key, uid) is not None,
        )
        if execution := self._runner_of(key, uid):
            if moved:
                execution.moved()
            else:
                execution.target_gone()
            return
        teardown = await self._teardown(target, decided=True, cause=Cause.MOVED if moved else None)
        if not teardown.finished:
            teardown = await ended_without_target(
                teardown, target, self._deps, self._client, sources=self._sources, moved=moved
            )
        self._moves.forget(uid)
        await clean(
            self._client,
            self._deps.inventories,
            teardown,
            target,
            self._caches.clusters.get(key),
            with_credentials=self._with_credentials,
        )
        self._records.cleaned.add(uid)

    def _runner_of(self, key: Key, uid: str) -> TeardownRunner | None:
        execution = self._runners.get(key)
        return execution if execution and execution.target.ref.uid == uid else None

    async def _let_go(self, target: AddonTarget, teardown: Teardown) -> LetGo | None:
        allowed = partial(self._may_release, teardown) if self._may_release else None
        return await force_release.forced(self._client, self._caches.clusters.resource, target, allowed=allowed)
