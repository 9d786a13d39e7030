"""The controller of members that are unjoined: creates a Teardown for each, and deletes the Cluster at its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.api.karmada import CLUSTERS, Cluster, RemoveStrategy, Work
from unwind.api.meta import ObjectMeta, is_true
from unwind.api.names import (
    KARMADA_EXECUTION_NAMESPACE,
    REMOVE_STRATEGY_ANNOTATION,
    REMOVE_STRATEGY_BY_ANNOTATION,
    ConditionType,
    Finalizer,
    Reason,
)
from unwind.api.unwind import Cause, Teardown
from unwind.karmada import remove_strategy, unjoin_status
from unwind.karmada.caches import executes_for
from unwind.karmada.step_source import WorkSteps
from unwind.karmada.unjoin_cleanup import UnjoinCleanup, UnjoinDeps
from unwind.karmada.unjoin_runner import UnjoinRunner
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import not_seen, revise, who_set, who_wrote
from unwind.members import targets
from unwind.members.targets import ClusterTarget
from unwind.teardown import force_release, plan
from unwind.teardown.drafts import misunderstood
from unwind.teardown.force_release import LetGo
from unwind.teardown.records import KEEP, TeardownRecords, target_of
from unwind.teardown.runner import ended_without_target
from unwind.teardown.running_teardowns import RunningTeardowns
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.step_sources import Sources

if TYPE_CHECKING:
    from datetime import timedelta

    from unwind.api.unwind import Inventory
    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer
    from unwind.teardown.drafts import Drafted
    from unwind.teardown.step_removers import RemovalDeps

# A blocked plan waits for a person. Changes to the Cluster or a Work are events; changes to an Inventory are not.
_LOOK_AGAIN = 30.0


class UnjoinController(Controller[Key]):
    """Unjoins members when their Clusters are deleted."""

    name = "unjoining"
    _caches: KarmadaCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: KarmadaCaches,
        teardowns: Informer[Teardown],
        secrets: Informer[Metadata],
        deps: RemovalDeps,
        *,
        keep: timedelta = KEEP,
        keys: RecordKeys | None = None,
    ) -> None:
        """`secrets`: the credentials of members. `keep`: how long the record is kept."""
        super().__init__(shared, caches)
        self._secrets = secrets
        self._teardowns = teardowns
        self._deps = deps
        self._keys = keys or RecordKeys(shared.client, namespace=deps.inventories.namespace)
        self._records = TeardownRecords(
            shared,
            teardowns,
            self._deps.inventories,
            keys=self._keys,
            group=CLUSTERS.group,
            cause=Cause.UNJOINED,
            keep=keep,
            archive=deps.archive,
        )
        self._runners: RunningTeardowns[UnjoinRunner] = RunningTeardowns(teardowns, again=self._queue.add_after)
        source = WorkSteps(shared.client, caches, clock=shared.clock)
        self._sources = Sources((source,))
        self._unjoin_deps = UnjoinDeps(client=shared.client, removal=deps, source=source)
        caches.clusters.subscribe(self._cluster_changed)
        caches.works.subscribe(self._work_changed)
        teardowns.subscribe(self._teardown_changed)
        secrets.subscribe(self._secret_changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._runners.belong_to(group)
            group.create_task(self._sources.run())
            await self._keys.until_known()
            await self._teardowns.until_synced()
            self._enqueue_all()
            await self._queue.run()

    # Events

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        leaving, old, new = self._runners.get(change.key), change.old, change.new
        if leaving and old and new and new.metadata.uid == leaving.target.ref.uid:
            ready = [is_true(item.status.conditions, ConditionType.READY) for item in (old, new)]
            # Retry at once instead of after the backoff.
            if _credentials_of(old) != _credentials_of(new) or ready == [False, True]:
                leaving.go_another_way(targets.of_karmada(new))
        self._queue.add(change.key)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it and self._records.concerns(it):
            self._queue.add(target_of(it))

    def _work_changed(self, change: Change[Work]) -> None:
        """A blocked plan may be possible once a Work is corrected; a Work whose Cluster is gone is released."""
        key = _key_of(change.key.namespace)
        if key and key not in self._runners:
            cluster = self._caches.clusters.cache.get(key)
            if cluster is None or cluster.metadata.terminating:
                self._queue.add(key)

    def _secret_changed(self, change: Change[Metadata]) -> None:
        for cluster in self._caches.clusters.cache.by("secret", change.key):
            if leaving := self._runners.get(Key("", cluster.metadata.name)):
                leaving.go_another_way(leaving.target)

    def _enqueue_all(self) -> None:
        clusters = {Key("", cluster.metadata.name) for cluster in self._caches.clusters.cache}
        # A Cluster may have been deleted while no manager ran: then only its Works refer to it.
        told = {key for work in self._caches.works.cache if (key := _key_of(work.metadata.namespace))}
        for key in {*clusters, *self._records.keys(), *told, *self._runners}:
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"cluster": str(key)}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        if not self._owner.owns(str(key)):
            self._runners.stop(key)
            return None
        # A plan made from a partial list of Works would leave the others behind.
        if not self._caches.settled or not self._teardowns.synced:
            return None  # it is queued again when they are
        if key in self._caches.clusters.broken:
            return None  # the cache is stale
        cluster = self._caches.clusters.cache.get(key)
        for uid in await self._gone(key, cluster):
            await self._handle_target_gone(key, uid)
        if cluster is None or not cluster.metadata.terminating:
            return await self._records.retain(key)
        leaving = self._runners.get(key)
        if leaving is None:
            return await self._begin(key, cluster)
        if leaving.target.ref.uid != cluster.metadata.uid:
            return None  # of an earlier Cluster of this name; its end queues this key again
        if let_go := await self._let_go(cluster, leaving.teardown):
            leaving.release(let_go)
        # As in the watch: the runner may not have the response to its last write yet.
        return await self._write_status(cluster, self._records.get(leaving.target.ref.uid) or leaving.teardown, leaving)

    async def _begin(self, key: Key, cluster: Cluster) -> float | None:
        target = targets.of_karmada(cluster)
        before = self._records.get(target.ref.uid)
        if before and before.finished and Finalizer.MEMBER not in cluster.metadata.finalizers:
            return await self._records.retain(key)  # other finalizers remain
        await self._write_status(cluster, before)
        read: list[Inventory] = []
        teardown = await self._records.written(target, partial(self._drafted, target, read=read))
        let_go = await self._let_go(cluster, teardown)
        if not teardown.finished and force_release.overdue(teardown, now=self._clock.now()):
            let_go = let_go or force_release.expired(teardown.spec)
        if teardown.spec.plan is None and let_go:
            teardown = await self._records.written(target, partial(self._drafted, target, decided=True))
        if teardown.spec.plan is None:
            left = force_release.remaining_seconds(teardown, now=self._clock.now())  # the plan is blocked
            return min(_LOOK_AGAIN, left) if left else _LOOK_AGAIN
        leaving = UnjoinRunner(
            teardown,
            target,
            self._unjoin_deps,
            namespace=cluster.execution_namespace,
            said=misunderstood(target),
            written=self._teardowns.take,
            changed=lambda: self._queue.add(key),
            owns=lambda: self._owner.owns(str(key)),
            read=read,
        )
        if let_go:  # before the first step, so that none starts
            leaving.release(let_go)
        self._runners.begin(key, leaving)
        return None

    async def _drafted(
        self, target: ClusterTarget, *, decided: bool = False, gone: bool = False, read: list[Inventory] | None = None
    ) -> Drafted:
        """`read`: gets the Inventories that were read for the plan."""
        drafted = await plan.draft(self._sources, self._deps, target, decided=decided, gone=gone)
        if read is not None:
            read[:] = drafted.read
        return drafted

    async def _let_go(self, cluster: Cluster, teardown: Teardown) -> LetGo | None:
        """The release of the member by a person before everything is removed, if there is one."""
        if forced := await force_release.forced(self._client, CLUSTERS, targets.of_karmada(cluster)):
            return forced
        if not remove_strategy.lowered(cluster, teardown.spec.plan):
            return None
        # A release is never taken from a cache.
        read = await self._client.get(CLUSTERS, cluster.metadata.name)
        now = msgspec.convert(read, Cluster)
        if now.metadata.uid != cluster.metadata.uid or not remove_strategy.lowered(now, teardown.spec.plan):
            return None
        by = who_changed(read, RemoveStrategy.NEEDLESS)
        message = f"removeStrategy was changed from {RemoveStrategy.REQUIRED} to {RemoveStrategy.NEEDLESS}"
        return LetGo(Reason.STRATEGY_CHANGED, message, by)

    async def _gone(self, key: Key, cluster: Cluster | None) -> set[str]:
        """The uids of deleted Clusters of this name that records or Works still refer to."""
        told = {item.spec.target.uid for item in self._records.of(key)}
        if cluster is None:
            works = self._caches.works.cache.by("namespace", f"{KARMADA_EXECUTION_NAMESPACE}{key.name}")
            held = [work.metadata.uid for work in works if Finalizer.WORK in work.metadata.finalizers]
            chunks = await self._deps.inventories.owned(held)
            told |= {chunk.spec.member.object.uid for chunk in chunks}
        return told - {"", cluster.metadata.uid if cluster else ""} - self._records.cleaned

    async def _handle_target_gone(self, key: Key, uid: str) -> None:
        """End the teardown of a Cluster that is gone. If it has none, because the Cluster went while no manager ran,
        create one for the ledger."""
        ref = targets.karmada_ref(key.name, uid)
        if not (await self._client.sighting(CLUSTERS, ref.name, uid=ref.uid)).absent:
            return
        leaving = self._runners.get(key)
        if leaving and leaving.target.ref.uid == uid:
            leaving.target_gone()
            return
        held = self._credentials_of(uid)
        target = ClusterTarget(
            ref=ref, secret=held.name if held else "", secret_namespace=held.namespace if held else ""
        )
        past = Cluster(metadata=ObjectMeta(name=key.name, uid=uid))
        teardown = await self._records.written(target, partial(self._drafted, target, decided=True, gone=True))
        if not teardown.finished:
            teardown = await ended_without_target(teardown, target, self._deps, self._client, sources=self._sources)
            self._teardowns.take(teardown)
        await UnjoinCleanup(teardown, target, self._unjoin_deps, namespace=past.execution_namespace).run()
        self._records.cleaned.add(uid)

    def _credentials_of(self, uid: str) -> Key | None:
        """The Secret of a member whose Cluster is gone: it was owned by the Cluster and still has our finalizer."""
        for secret in self._secrets.cache:
            owners = {reference.uid for reference in secret.owner_references}
            if Finalizer.CREDENTIALS in secret.finalizers and uid in owners:
                return Key(secret.namespace, secret.name)
        return None

    # Status

    async def _write_status(
        self, cluster: Cluster, teardown: Teardown | None, leaving: UnjoinRunner | None = None
    ) -> float | None:
        """Write the progress of the unjoin on the Cluster; returns the seconds until it changes by time alone."""
        now = self._clock.now()
        after = leaving.blockers if leaving else ()
        late = unjoin_status.failing(after, now=now)
        works = self._caches.works_of(cluster)

        def change(read: Object) -> Object | None:
            it = msgspec.convert(read, Cluster)
            wanted = unjoin_status.unjoin_conditions(it, teardown, late, works, now=now)
            if wanted is it.status.conditions:
                return None
            return {"status": {"conditions": msgspec.to_builtins(wanted)}}

        if unjoin_status.unjoin_conditions(cluster, teardown, late, works, now=now) is not cluster.status.conditions:
            with suppress(NotFoundError):  # deleted meanwhile
                read = await self._client.get(CLUSTERS, cluster.metadata.name)
                if read["metadata"]["uid"] == cluster.metadata.uid:
                    # The same list holds the health conditions of another writer.
                    await revise(self._client, CLUSTERS, read, change, subresource="status")
        waits = (*after, *(teardown.status.blockers if teardown and not teardown.finished else ()))
        return unjoin_status.looked_at_again(waits, now=now)


def who_changed(cluster: Object, to: RemoveStrategy) -> str:
    """The user that changed a member's strategy to this value, or the field manager if no user was recorded."""
    noted = (cluster["metadata"].get("annotations") or {}).get(REMOVE_STRATEGY_BY_ANNOTATION, "")
    told, _, user = str(noted).partition(" by ")
    if told == to and user:
        return user
    if cluster["spec"].get("removeStrategy") is not None:
        return not_seen(who_wrote(cluster, "spec", "removeStrategy"))
    return not_seen(who_set(cluster, REMOVE_STRATEGY_ANNOTATION))


def _credentials_of(cluster: Cluster) -> object:
    target = targets.of_karmada(cluster)
    return target.home, target.secret, target.endpoint


def _key_of(namespace: str) -> Key | None:
    """The member of an execution namespace."""
    name = executes_for(namespace)
    return Key("", name) if name else None
