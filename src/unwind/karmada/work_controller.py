"""The controller of Works: applies a Work to its member, corrects drift, and removes it.

A watch on the member (`work_watch`) reports drift, which is corrected at once (`work_drift`). Works of a member that is
being unjoined are left to its Teardown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.karmada import WORKS, Cluster, ClusterSyncMode, Work
from unwind.api.meta import find, is_true, ref_of
from unwind.api.names import ConditionType, Finalizer
from unwind.api.unwind import Cause
from unwind.concurrency import unless
from unwind.errors import UnwindError, will_retry
from unwind.karmada import work_status
from unwind.karmada.caches import executes_for
from unwind.karmada.remove_strategy import step_name
from unwind.karmada.work_apply import Pruning, WorkApplier, WorkPruner, matters
from unwind.karmada.work_drift import WorkState
from unwind.karmada.work_status import WorkWriter, key_of
from unwind.karmada.work_watch import WorkObjectWatches
from unwind.karmada.work_withdrawal import Withdrawing
from unwind.kube.controller import Controller
from unwind.kube.errors import UnreachableError
from unwind.kube.updates import WORTH_TELLING
from unwind.members.member import RECENT
from unwind.members.targets import of_karmada
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal import Withdrawals
from unwind.teardown.withdrawal_progress import RecordedRemoval, failure

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.api.resources import Resource
    from unwind.karmada.caches import KarmadaCaches
    from unwind.karmada.work_drift import Noticed
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Key, Metadata
    from unwind.kube.informers import Informer
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.withdrawal_records import WithdrawalRecords

log = logs.get(__name__)

# Concurrent Works per member. Removals and prunings are not limited, because they may wait for a long time.
_SIDE_BY_SIDE = 16


class WorkController(Controller["Key"]):
    """Reconciles all Works."""

    name = "works"
    _caches: KarmadaCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: KarmadaCaches,
        secrets: Informer[Metadata],
        deps: RemovalDeps,
        *,
        records: WithdrawalRecords,
        keys: RecordKeys | None = None,
    ) -> None:
        """`records`: writes Teardowns of withdrawals."""
        super().__init__(shared, caches, per_group=_SIDE_BY_SIDE)
        self._secrets = secrets
        self._deps = deps
        self._records = records
        self._record_keys = keys or RecordKeys(shared.client, namespace=deps.inventories.namespace)
        self._writer = WorkWriter(shared.client, caches.works, clock=shared.clock)
        self._standings: dict[str, WorkState] = {}
        """By the uid of the Work, as all below."""
        self._keys: dict[str, Key] = {}
        self._uids: dict[Key, str] = {}
        self._stops: dict[Key, asyncio.Event] = {}
        """Applies in progress, and the event that stops each."""
        caches.works.subscribe(self._work_changed)
        caches.clusters.subscribe(self._cluster_changed)
        secrets.subscribe(self._secret_changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._putting = WorkApplier(self._client, self._secrets, self._deps)
            self._prunings = WorkPruner(self._putting, tasks, changed=self._waits_changed)
            self._following = WorkObjectWatches(
                self._deps.members, tasks, noticed=self._noticed, listed=self._listed, clock=self._clock
            )
            self._withdrawals = Withdrawals(self._deps, changed=self._withdrawal_changed)
            self._withdrawals.tasks = tasks
            self._withdrawing = Withdrawing(
                self._client,
                self._caches,
                self._deps.inventories,
                self._writer,
                self._withdrawals,
                self._record_keys,
                records=self._records,
                enqueue=self._queue.add,
            )
            tasks.create_task(self._queue.run())

    # Events

    def _work_changed(self, change: Change[Work]) -> None:
        old, new = change.old, change.new
        if old and new and _relevant_fields(old) == _relevant_fields(new):
            return  # our own status write
        put = new is not None and not new.metadata.terminating and not new.spec.suspend_dispatching
        self._stop(change.key, unless=put)
        self._queue.add(change.key)
        it = new or old
        if it and (new is None or new.metadata.terminating):
            self._enqueue_dependencies(it)
        if new is None:
            # Another Work may be able to create now what belonged to this one.
            for other in self._caches.works.cache.by("namespace", change.key.namespace):
                standing = self._standings.get(other.metadata.uid)
                if standing and standing.trouble:
                    standing.hurry()
                    self._queue.add(key_of(other))

    def _enqueue_dependencies(self, it: Work) -> None:
        """Enqueue the Works it depends on, which wait for its removal."""
        for other in self._caches.needed(it):
            self._queue.add(key_of(other))

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        old, new = change.old, change.new
        if old and new and _reached_by(old) == _reached_by(new):
            return
        it = new or old
        assert it  # noqa: S101 - a change is of something
        for work in self._caches.works_of(it):
            key = key_of(work)
            if new is None or new.metadata.terminating:
                # At once: from now on the Teardown decides.
                self._stop(key, unless=False)
                self._leave_alone(work)
            elif old and of_karmada(old) != of_karmada(new):
                self._withdrawing.give_up(work.metadata.uid)  # the Teardown handles it
            self._queue.add(key)

    def _secret_changed(self, change: Change[Metadata]) -> None:
        old, new = change.old, change.new
        if old and new and old.finalizers == new.finalizers:
            # The connection details of a member may have changed: an operation over the old connection might never
            # return.
            for cluster in self._caches.clusters.cache.by("secret", change.key):
                for work in self._caches.works_of(cluster):
                    self._prunings.give_up(work.metadata.uid)
                    if (it := self._withdrawals.get(work.metadata.uid)) and not it.absent:
                        self._withdrawals.give_up(work.metadata.uid)
                    # Not at once: for a moment the connection pool uses the previous details.
                    self._queue.add_after(key_of(work), RECENT + 0.1)

    def _noticed(self, uid: str, key: str, noticed: Noticed) -> None:
        standing = self._standings.get(uid)
        if standing and standing.notice(key, noticed) and (work := self._keys.get(uid)):
            self._queue.add(work)

    def _listed(self, works: Collection[str], resource: Resource, there: frozenset[str]) -> None:
        for uid in works:
            standing = self._standings.get(uid)
            if standing and standing.missing(resource, there):
                self._queue.add(self._keys[uid])

    def _waits_changed(self, uid: str) -> None:
        if key := self._keys.get(uid):
            it = self._prunings.get(uid)
            # A wait that is over in a moment is not worth a write.
            self._queue.add_after(key, WORTH_TELLING if it and not it.error else 0)

    def _withdrawal_changed(self, uid: str) -> None:
        key, it = self._keys.get(uid), self._withdrawals.get(uid)
        work = self._caches.works.cache.get(key) if key else None
        if not (key and it and work and work.metadata.uid == uid):
            return
        self._queue.add_after(key, 0 if it.passed or it.error else WORTH_TELLING)
        if it.passed and not it.done:
            self._enqueue_dependencies(work)  # its dependencies need not wait for the status write

    def _enqueue_all(self) -> None:
        if self._caches.settled:
            for key in list(self._caches.works.cache.keys()):
                self._queue.add(key)

    def _shard(self, key: Key) -> str:
        """The shard of a Work: that of its member."""
        return executes_for(key.namespace)

    def _group(self, key: Key) -> str:
        return key.namespace

    def _describe(self, key: Key) -> dict[str, str]:
        return {"object": f"Work {key}"}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        work = self._caches.works.cache.get(key)
        if work is None or not self._owner.owns(self._shard(key)):
            self._forget(key)
            return None
        if not self._caches.settled:
            return None  # it is queued again when they are
        if self._uids.get(key) != work.metadata.uid:
            self._forget(key)  # the state belongs to an earlier Work of that name
            self._keys[work.metadata.uid], self._uids[key] = key, work.metadata.uid
        if work.metadata.terminating:
            self._settle_down(work.metadata.uid)
            return await self._withdrawing.withdraw(work)
        cluster = self._caches.cluster_of(work)
        if cluster is None or cluster.metadata.terminating or cluster.spec.sync_mode != ClusterSyncMode.PUSH:
            # It is being unjoined, or its agent applies Works (pull mode).
            self._leave_alone(work)
        elif Finalizer.WORK not in work.metadata.finalizers:
            # Nothing is applied for a Work without a finalizer. Adding it causes an event.
            await self._writer.set_finalizer(work, wanted=True)
        elif work.spec.suspend_dispatching:
            self._prunings.give_up(work.metadata.uid)
            await self._writer.write(work, lambda it: work_status.suspended(it, now=self._clock.now()))
        else:
            return await self._keep(work, cluster)
        return None

    async def _keep(self, work: Work, cluster: Cluster) -> float | None:
        """Apply the Work to its member, and prune."""
        uid, state = work.metadata.uid, matters(work, cluster)
        standing = self._standings.setdefault(uid, WorkState())
        now = self._clock.monotonic()
        if standing.done != state or standing.doubts or (standing.trouble and not standing.rest(now)):
            if standing.done == state and (pause := standing.pause(now)):
                return pause
            self._prunings.give_up(uid)  # its objects may be wanted again
            stop = self._stops[key_of(work)] = asyncio.Event()
            try:
                if not await unless(stop, self._put(work, cluster, standing, state)):
                    return None
            finally:
                del self._stops[key_of(work)]
        # Prune nothing while the desired set is unknown.
        if standing.wanted is not None and standing.pruned != state:
            await self._prune(work, cluster, standing, state)
        elif standing.pruned == state:
            await self._records.settle(_pruned(work, cluster))
            if find(work.status.conditions, ConditionType.BLOCKED):
                await self._writer.wait(work, [])
        elif find(work.status.conditions, ConditionType.BLOCKED):
            await self._writer.wait(work, [])
        return standing.rest(self._clock.monotonic()) or None

    async def _put(self, work: Work, cluster: Cluster, standing: WorkState, state: object) -> None:
        generation = work.metadata.generation
        first = not standing.looked and not work.status.conditions
        try:
            await self._putting.put(work, cluster, standing)
        except UnwindError as error:
            told, reached = will_retry(error), not isinstance(error, UnreachableError)
            await self._writer.write(
                work,
                lambda it: work_status.failed(it, told, reached=reached, generation=generation, now=self._clock.now()),
            )
            raise
        if resources := standing.resources:
            self._following.follow(work.metadata.uid, of_karmada(cluster), cluster.spec.id, resources)
        else:
            self._following.leave(work.metadata.uid)
        if first:
            standing.pruned = state  # a first apply has nothing to prune
        await self._writer.write(
            work,
            lambda it: work_status.applied_status(
                it, standing.trouble, standing.statuses.values(), generation=generation, now=self._clock.now()
            ),
        )
        standing.done = state  # only now: a failed status write must be repeated
        if standing.trouble:
            log.warning("apply incomplete, will retry", object=f"Work {key_of(work)}", why=standing.trouble)

    async def _prune(self, work: Work, cluster: Cluster, standing: WorkState, state: object) -> None:
        it, wanted = self._prunings.get(work.metadata.uid), standing.wanted
        assert wanted is not None  # noqa: S101 - else nothing may go

        def done() -> None:
            standing.pruned = state

        if it is None:
            self._prunings.begin(work, cluster, wanted, done=done)
        elif it.error:
            self._prunings.give_up(work.metadata.uid)
            recorded = _pruned(work, cluster)
            self._records.hold(recorded, failure(recorded.owner, it.error))
            await self._writer.wait(work, [it.error])
            raise it.error
        else:
            self._records.follow(_pruned(work, cluster, it), lambda: it.runners)
            if it.waits:
                await self._writer.wait(work, it.waits)

    # Helpers

    def _stop(self, key: Key, *, unless: bool) -> None:
        if not unless and (stop := self._stops.get(key)):
            stop.set()

    def _leave_alone(self, work: Work) -> None:
        """Stop all work for it: its member is being unjoined or is gone."""
        self._settle_down(work.metadata.uid)
        self._withdrawing.give_up(work.metadata.uid)

    def _settle_down(self, uid: str) -> None:
        self._prunings.give_up(uid)
        self._records.drop(uid, Cause.PRUNED)
        self._following.leave(uid)
        self._standings.pop(uid, None)

    def _forget(self, key: Key) -> None:
        self._stop(key, unless=False)
        if uid := self._uids.pop(key, None):
            del self._keys[uid]
            self._settle_down(uid)
            self._withdrawals.give_up(uid)
            self._records.drop(uid)


def _pruned(work: Work, cluster: Cluster, prune: Pruning | None = None) -> RecordedRemoval:
    """The prune of a Work, for its Teardown. `prune`: if it is in progress."""
    return RecordedRemoval(
        owner=ref_of(WORKS, work.metadata),
        annotations=work.metadata.annotations,
        generation=work.metadata.generation,
        member=of_karmada(cluster).ref,
        step=step_name(work),
        release=prune.release if prune else lambda _: None,
    )


def _relevant_fields(work: Work) -> object:
    """The fields of a Work that decide what is done; not its status."""
    meta = work.metadata
    return meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, meta.annotations


def _reached_by(cluster: Cluster) -> object:
    """The fields of a member that decide whether it can be applied to, and what is recorded for it. A member that
    responds again is retried at once."""
    meta = cluster.metadata
    ready = is_true(cluster.status.conditions, ConditionType.READY)
    target = of_karmada(cluster)
    way = target.home, target.secret, target.endpoint
    return meta.uid, meta.terminating, cluster.spec.id, way, ready, cluster.removal
