"""Removal of Works whose member stays: their objects are verified absent, or recorded in the ledger, before they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.annotation_values import volume_policy
from unwind.api.karmada import CLUSTERS, WORKS, Cluster
from unwind.api.meta import ref_of
from unwind.api.names import DEPENDS_ON_ANNOTATION, Finalizer, Reason
from unwind.api.unwind import Blocker, Effort
from unwind.concurrency import SingleFlight
from unwind.inventory.inventories import items
from unwind.karmada.caches import executes_for
from unwind.karmada.remove_strategy import step_name
from unwind.karmada.work_apply import takes_along
from unwind.karmada.work_status import key_of
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.members.targets import of_karmada
from unwind.planning.dependency_graph import dependents
from unwind.teardown.step_sources import StepTerms
from unwind.teardown.withdrawal import Manner
from unwind.teardown.withdrawal_progress import RecordedRemoval, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.karmada import Work
    from unwind.api.meta import ObjectRef
    from unwind.inventory.inventories import Inventories
    from unwind.karmada.caches import KarmadaCaches
    from unwind.karmada.work_status import WorkWriter
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.force_release import LetGo
    from unwind.teardown.signatures import RecordKeys
    from unwind.teardown.withdrawal import Withdrawal, Withdrawals
    from unwind.teardown.withdrawal_records import WithdrawalRecords

# Seconds. The end of another replica's teardown causes no event here.
_LOOK_AGAIN = 5.0


class Withdrawing:
    """Removes deleted Works, and reports what they wait for."""

    def __init__(
        self,
        client: Client,
        caches: KarmadaCaches,
        inventories: Inventories,
        words: WorkWriter,
        withdrawals: Withdrawals,
        keys: RecordKeys,
        *,
        records: WithdrawalRecords,
        enqueue: Callable[[Key], None],
    ) -> None:
        """`records`: writes Teardowns of the removals. `enqueue`: enqueues a Work to be reconciled."""
        self._client = client
        self._caches = caches
        self._inventories = inventories
        self._writer = words
        self._withdrawals = withdrawals
        self._reading: SingleFlight[Cluster | None] = SingleFlight()
        self._keys = keys
        self._records = records
        self._enqueue = enqueue

    async def withdraw(self, work: Work) -> float | None:
        """Advance the removal of a deleted Work; returns the seconds until the next look, or None."""
        if Finalizer.WORK not in work.metadata.finalizers:
            return None  # the owner of that shard handles it
        cluster = self._caches.cluster_of(work)
        unjoined = cluster is not None and cluster.metadata.terminating
        if cluster is None or not (unjoined or self._withdrawals.get(work.metadata.uid)):
            # Read fresh, not from a cache (docs/architecture.md, Fresh reads open gates): the deletion of a Work may
            # arrive before
            # the deletion of the member that is unjoined.
            cluster = await self._read_cluster(work)
        if cluster is None:
            return await self._let_go(work)
        if cluster.metadata.terminating:
            self.give_up(work.metadata.uid)  # the teardown of its member removes it
        elif let_go := await self._records.let_go(self._recorded(work, of_karmada(cluster).ref), paused=False):
            await self._take_back(work, cluster, Manner.ABANDON, let_go)
        elif work.spec.preserve_resources_on_deletion:
            await self._take_back(work, cluster, Manner.RELEASE)
        elif before := self._dependents(work):
            self._records.hold(self._recorded(work, of_karmada(cluster).ref), *map(_waits_for, before))
            named = ", ".join(sorted(item.metadata.name for item in before))
            await self._writer.wait_for(work, f"waiting for removal of dependent Works: {named}")
        else:
            await self._take_back(work, cluster, Manner.REMOVE)
        return None

    def give_up(self, uid: str) -> None:
        """Stop the removal of a Work, unless it is done."""
        it = self._withdrawals.get(uid)
        if it and not it.ended:
            self._withdrawals.give_up(uid)
        self._records.drop(uid)

    def _recorded(self, work: Work, member: ObjectRef, effort: Effort = Effort.ENFORCE) -> RecordedRemoval:
        """The removal of a Work, for its Teardown."""
        key = key_of(work)
        return RecordedRemoval(
            owner=ref_of(WORKS, work.metadata),
            annotations=work.metadata.annotations,
            deleted_at=work.metadata.deletion_timestamp,
            member=member,
            step=step_name(work),
            effort=effort,
            wake=lambda: self._enqueue(key),
        )

    async def _read_cluster(self, work: Work) -> Cluster | None:
        """The member, read fresh; one request serves concurrent callers."""
        name = executes_for(work.metadata.namespace)
        if not name:
            return None  # not in an execution namespace: it was never applied

        async def read() -> Cluster | None:
            try:
                return await self._client.get(CLUSTERS, name, type=Cluster)
            except NotFoundError:
                return None

        return await self._reading.ask(name, read)

    def _dependents(self, work: Work) -> list[Work]:
        """Its dependents that still exist."""
        return [
            dependent
            for dependent in dependents(work, self._caches.needing, self._caches.needed)
            if not ((it := self._withdrawals.get(dependent.metadata.uid)) and it.passed)
        ]

    def _begin(self, work: Work, target: ClusterTarget | None, manner: Manner, why: tuple[str, str, str]) -> Withdrawal:
        """The withdrawal of a Work. `why`: for the ledger, if objects stay: the reason, a message, and who decided."""
        reason, left, by = why

        def terms() -> StepTerms:
            now = self._caches.works.cache.get(Key(work.metadata.namespace, work.metadata.name))
            return StepTerms(
                take_along=takes_along(work),
                volumes=volume_policy((now or work).metadata.annotations),
                left_reason=reason,
                left=left,
                decided_by=by,
            )

        return self._withdrawals.begin(
            ref_of(WORKS, work.metadata),
            step_name(work),
            work.metadata.namespace,
            target,
            manner,
            terms=terms,
            awaited=lambda: any(other.metadata.terminating for other in self._caches.needed(work)),
        )

    async def _take_back(self, work: Work, cluster: Cluster, manner: Manner, let_go: LetGo | None = None) -> None:
        """`let_go`: why the Work is released before its objects are removed."""
        uid, target = work.metadata.uid, of_karmada(cluster)
        why = Reason.KEPT_BY_POLICY, "spec.preserveResourcesOnDeletion", "unwind"
        it = self._begin(work, target, manner, let_go or why)
        recorded = self._recorded(work, target.ref, manner.effort)
        if it.done:
            # Dropped when the Work is seen to be gone: until then it must not start again.
            if not it.ended:
                total, removed, left = it.counts
                released = let_go if it.manner is Manner.ABANDON else None  # else it was removed before
                await self._records.end(recorded, total=total, removed=removed, left=left, let_go=released)
                await self._writer.set_finalizer(work, wanted=False)
                it.ended = True
        elif it.error:
            self._withdrawals.give_up(uid)
            self._records.hold(recorded, failure(recorded.owner, it.error))
            await self._writer.wait(work, [it.error])
            raise it.error
        else:
            self._records.follow(recorded, lambda: (it.runner,))
            if it.waits:
                await self._writer.wait(work, list(it.runner.waits.values()))

    async def _let_go(self, work: Work) -> float | None:
        """The member is not managed any more, and its credentials are gone: record what may be left in the ledger."""
        uid = work.metadata.uid
        chunks = await self._inventories.of(uid)
        if not all(item.done for item in items(chunks)):
            for member in {chunk.spec.member.object.uid for chunk in chunks}:
                if await self._torn_down(member):
                    await self._writer.wait_for(
                        work, f"waiting for the unjoin of the member (Teardown {member}); see `unwind status`"
                    )
                    return _LOOK_AGAIN
            gone = Reason.TARGET_GONE, "the member was unjoined before the removal was verified", "unwind"
            it = self._begin(work, None, Manner.FORGET, gone)
            if it.error:
                self._withdrawals.give_up(uid)
                raise it.error
            if not it.done:
                return None
            total, removed, left = it.counts
            recorded = self._recorded(work, chunks[0].spec.member.object, Effort.LEAVE)
            await self._records.end(recorded, total=total, removed=removed, left=left)
        await self._writer.set_finalizer(work, wanted=False)
        return None

    async def _torn_down(self, member: str) -> bool:
        """Whether a teardown of the member is in progress, which then decides."""
        teardown = await self._keys.read(member)
        return teardown is not None and not teardown.finished


def _waits_for(dependent: Work) -> Blocker:
    """A Work that must be removed first, because it depends on another one (pure)."""
    name = step_name(dependent)
    return Blocker(
        object=ref_of(WORKS, dependent.metadata),
        reason=Reason.WAITING,
        message=f"waiting for removal of {name}, which depends on it",
        actor="unwind"
        if dependent.metadata.terminating
        else f"the owner of {name}: delete it, or remove its annotation {DEPENDS_ON_ANNOTATION}",
    )
