"""The removal of what a ClusterSummary deployed, from a cluster that stays or is deleted.

A summary is removed once nothing on its cluster depends on it. Summaries of a terminating cluster are left to its
Teardown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.addons import cluster_summaries, summary_status
from unwind.addons.step_source import pause_of, step_name
from unwind.addons.stop_matching_behavior import manner_of
from unwind.addons.summary_status import SummaryWriter, key_of
from unwind.api import names
from unwind.api.annotation_values import volume_policy
from unwind.api.fields import Unknown
from unwind.api.meta import ref_of
from unwind.api.names import Finalizer, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, FeatureStatus
from unwind.api.unwind import Blocker, Effort, StepState
from unwind.inventory.inventories import items
from unwind.members import credentials
from unwind.planning.dependency_graph import dependents
from unwind.teardown.status import step_reports
from unwind.teardown.step_sources import StepTerms
from unwind.teardown.withdrawal import UNMANAGED, Manner, Withdrawal, Withdrawals
from unwind.teardown.withdrawal_progress import RecordedRemoval, failure

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from unwind.addons.caches import AddonCaches
    from unwind.kube.client import Client
    from unwind.kube.decoding import Key
    from unwind.members.targets import AddonTarget
    from unwind.removal.helm_release_removal import Releases
    from unwind.teardown.force_release import LetGo
    from unwind.teardown.signatures import RecordKeys
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.withdrawal_records import WithdrawalRecords

# Why objects are left, for the ledger.
_LEFT = {Manner.FORGET: UNMANAGED, Manner.RELEASE: (Reason.KEPT_BY_POLICY, "stopMatchingBehavior is LeavePolicies")}


class SummaryWithdrawal:
    """Removes terminating summaries, and reports what they wait for."""

    def __init__(
        self,
        client: Client,
        caches: AddonCaches,
        deps: RemovalDeps,
        writer: SummaryWriter,
        *,
        keys: RecordKeys,
        records: WithdrawalRecords,
        releases: Releases,
        enqueue: Callable[[Key], None],
    ) -> None:
        """`records`: writes Teardowns of the removals. `enqueue`: enqueues a summary to be reconciled."""
        self._client = client
        self._caches = caches
        self._inventories = deps.inventories
        self._writer = writer
        self._record_keys = keys
        self._records = records
        self._enqueue = enqueue
        self._withdrawals = Withdrawals(deps, changed=self._changed, releases=releases)
        self._keys: dict[str, Key] = {}
        """Summaries that are being removed, by uid."""

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Start removals in this task group."""
        self._withdrawals.tasks = tasks

    async def withdraw(self, summary: ClusterSummary) -> None:
        """Advance the removal of a terminating summary."""
        if Finalizer.SUMMARY not in summary.metadata.finalizers:
            return  # the owner of that shard handles it
        if cluster_summaries.misplaced(summary) and await self.dismiss(summary):
            return
        cluster, target = cluster_summaries.cluster_of(summary), self._caches.target_of_summary(summary)
        if target is None or target.terminating:
            if not self._caches.knows(cluster):
                return
            # Read fresh, not from a cache (docs/architecture.md, Fresh reads open gates).
            target = cluster_summaries.same_cluster(summary, await self._caches.read_target(cluster))
        manner = manner_of(summary, target)
        if manner is None:
            await self._leave_to_teardown(summary, target)
        elif manner is Manner.FORGET:
            await self._take_back(summary, target, manner)
        elif let_go := await self._records.let_go(
            self._recorded(summary, target), paused=bool(target and target.paused)
        ):
            await self._take_back(summary, target, Manner.ABANDON, let_go)
        elif target and target.paused:
            # A removal in progress sends no further DELETE. It restarts when the cluster is unpaused.
            self.interrupt(summary)
            self._writer.wait(
                summary, Reason.CLUSTER_PAUSED, f"{target} is paused: nothing is removed until it is unpaused"
            )
            self._records.hold(self._recorded(summary, target), paused=True)
        elif pause := pause_of(summary, self._caches.profile_of_summary(summary)):
            self.interrupt(summary)
            self._writer.wait(
                summary,
                Reason.PAUSED,
                f"{cluster_summaries.profile_of(summary)} is paused: nothing is removed until it is unpaused",
            )
            self._records.hold(self._recorded(summary, target), pause.blocker)
        elif isinstance(manner, Unknown):
            message = f"stopMatchingBehavior {manner}; nothing is removed until the profile is corrected"
            self._writer.wait(summary, Reason.UNKNOWN_VALUE, message)
            held = self._recorded(summary, target)
            author = "the author of the profile"
            self._records.hold(
                held, Blocker(object=held.owner, reason=Reason.UNKNOWN_VALUE, message=message, actor=author)
            )
        elif manner is Manner.REMOVE and (before := self._dependents(summary)):
            self._records.hold(self._recorded(summary, target), *map(_waits_for, before))
            if all((it := self._withdrawals.get(item.metadata.uid)) and it.free.is_set() for item in before):
                # It comes next: prepare it now.
                self._begin(summary, target, manner, free=False)
            named = ", ".join(sorted(str(cluster_summaries.profile_of(item)) for item in before))
            why = f"waiting for the removal of the profiles that depend on it: {named}"
            self._writer.wait(summary, Reason.WAITING, why, for_order=True)
        else:
            await self._take_back(summary, target, manner)

    async def dismiss(self, summary: ClusterSummary) -> bool:
        """Remove our finalizer from a summary that the manager never deployed anything for; whether it did."""
        if await self._inventories.of(summary.metadata.uid):
            return False
        await self._writer.set_finalizer(summary, wanted=False)
        return True

    def interrupt(self, summary: ClusterSummary) -> None:
        """Stop a removal in progress. The next reconcile starts it again."""
        it = self._withdrawals.get(summary.metadata.uid)
        if it and not it.absent:
            self._withdrawals.give_up(summary.metadata.uid)

    def forget(self, key: Key) -> None:
        """Stop the removals of a summary."""
        for uid in [uid for uid, other in self._keys.items() if other == key]:
            del self._keys[uid]
            self._withdrawals.give_up(uid)
            self._records.drop(uid)

    def enqueue_dependencies(self, it: ClusterSummary) -> None:
        """Enqueue the summaries it depends on, which wait for its removal."""
        for other in self._caches.needed(it):
            if other.metadata.terminating:
                self._enqueue(key_of(other))

    def _changed(self, uid: str) -> None:
        key = self._keys.get(uid)
        summary = self._caches.summaries.cache.get(key) if key else None
        if key and summary and summary.metadata.uid == uid:
            self._enqueue(key)
            it = self._withdrawals.get(uid)
            if it and it.passed and not it.done:
                # Its dependencies need not wait until the status is written.
                self.enqueue_dependencies(summary)

    def _dependents(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """Its dependents that still exist. One without our finalizer has nothing on the cluster."""
        return [
            dependent
            for dependent in dependents(summary, self._caches.needing, self._caches.needed)
            if Finalizer.SUMMARY in dependent.metadata.finalizers
            and not ((it := self._withdrawals.get(dependent.metadata.uid)) and it.passed)
        ]

    def _recorded(
        self, summary: ClusterSummary, target: AddonTarget | None, effort: Effort = Effort.ENFORCE
    ) -> RecordedRemoval:
        """The removal of a summary, for its Teardown."""
        self._keys[summary.metadata.uid] = key = key_of(summary)
        return RecordedRemoval(
            owner=ref_of(CLUSTER_SUMMARIES, summary.metadata),
            annotations=summary.metadata.annotations,
            deleted_at=summary.metadata.deletion_timestamp,
            member=(target or cluster_summaries.cluster_gone(summary)).ref,
            step=step_name(summary),
            effort=effort,
            wake=lambda: self._enqueue(key),
        )

    def _begin(
        self,
        summary: ClusterSummary,
        target: AddonTarget | None,
        manner: Manner,
        *,
        free: bool,
        let_go: LetGo | None = None,
    ) -> Withdrawal:
        self._keys[summary.metadata.uid] = key_of(summary)

        def terms() -> StepTerms:
            profile = self._caches.profile_of_summary(summary)
            annotations = profile.metadata.annotations if profile else {}
            reason, left, by = let_go or (*_LEFT.get(manner, ("", "")), "unwind")
            return StepTerms(
                take_along=annotations.get(names.TAKE_ALONG_ANNOTATION) == "true",
                volumes=volume_policy(annotations),
                left_reason=reason,
                left=left,
                decided_by=by,
                paused=pause_of(summary, profile),
            )

        return self._withdrawals.begin(
            ref_of(CLUSTER_SUMMARIES, summary.metadata),
            step_name(summary),
            cluster_summaries.cluster_of(summary),
            target,
            manner,
            terms=terms,
            free=free,
            awaited=lambda: any(other.metadata.terminating for other in self._caches.needed(summary)),
        )

    async def _take_back(
        self, summary: ClusterSummary, target: AddonTarget | None, manner: Manner, let_go: LetGo | None = None
    ) -> None:
        """`let_go`: why the summary is released before its objects are removed."""
        uid = summary.metadata.uid
        it = self._begin(summary, target, manner, free=True, let_go=let_go)
        recorded = self._recorded(summary, target, manner.effort)
        if it.runner.state is StepState.WAITING:
            self.enqueue_dependencies(summary)  # they come next
        if it.done:
            # Dropped when the summary is seen to be gone: until then it must not start again.
            if not it.ended:
                total, removed, left = it.counts
                released = let_go if it.manner is Manner.ABANDON else None  # else it was removed before
                await self._records.end(recorded, total=total, removed=removed, left=left, let_go=released)
                await self._end(summary, target)
                it.ended = True
        elif it.error:
            self._withdrawals.give_up(uid)
            self._records.hold(recorded, failure(recorded.owner, it.error))
            await self._writer.say(summary, summary_status.all_of(summary, FeatureStatus.REMOVING, str(it.error)))
            raise it.error
        else:
            self._records.follow(recorded, lambda: (it.runner,))
            removing = summary_status.all_of(summary, FeatureStatus.REMOVING, it.waits)
            self._writer.mention(summary, removing, self._records.report(recorded) if it.waits else None)

    async def _leave_to_teardown(self, summary: ClusterSummary, target: AddonTarget | None) -> None:
        """Remove our finalizer only when the Teardown accounts for everything the summary deployed."""
        # Two removals of the same objects do no harm, but only one reports the right state.
        self.forget(key_of(summary))
        uid = summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION, "")
        await self._record_keys.load()
        teardown = self._record_keys.chosen(self._caches.teardowns.cache.by("uid", uid), uid)
        if target is not None or teardown is None or not teardown.finished:
            chunks = await self._inventories.of(summary.metadata.uid)
            if not all(item.done for item in items(chunks)):
                told = teardown is not None and step_name(summary) in step_reports(teardown)
                # If it was paused, the status keeps that: it may have been moved (`SummarySteps.was_paused`). If the
                # Teardown tells about the step, the step source copies it.
                if not told and not (target is None and cluster_summaries.cluster_paused(summary)):
                    self._writer.wait(
                        summary, Reason.WAITING, f"waiting for Teardown {uid} of the cluster; see `unwind status`"
                    )
                return
        await self._writer.set_finalizer(summary, wanted=False)

    async def _end(self, summary: ClusterSummary, target: AddonTarget | None) -> None:
        """Remove our finalizer from the summary, and unmark the cluster's credentials with the last one."""
        if not self._needs_credentials(summary):
            cluster = target or cluster_summaries.cluster_gone(summary)
            if target or not self._caches.reached_by(cluster):
                await credentials.let_go(self._client, cluster)
            if target and self._needs_credentials(summary):
                # A new summary appeared meanwhile and found the Secret still marked.
                await credentials.hold_secret(self._client, cluster)
        await self._writer.set_finalizer(summary, wanted=False)

    def _needs_credentials(self, last: ClusterSummary) -> bool:
        """Whether another summary of the same cluster has, or may create, objects there. One that ends at the same
        moment has none: otherwise each of two would leave the Secret to the other."""
        cluster = cluster_summaries.cluster_of(last)
        for summary in self._caches.summaries.cache.by("cluster", cluster):
            if summary.metadata.uid == last.metadata.uid:
                continue
            it = self._withdrawals.get(summary.metadata.uid)
            released = summary.metadata.terminating and Finalizer.SUMMARY not in summary.metadata.finalizers
            if not released and not (it and it.done):
                return True
        return False


def _waits_for(dependent: ClusterSummary) -> Blocker:
    """A summary that must be removed first, because it depends on another one (pure)."""
    name = cluster_summaries.profile_of(dependent) or dependent.metadata.name
    going = dependent.metadata.terminating
    return Blocker(
        object=ref_of(CLUSTER_SUMMARIES, dependent.metadata),
        reason=Reason.WAITING,
        message=f"waiting for removal of {name}, which depends on it",
        actor="unwind" if going else f"the owner of {name}: delete it, or remove its dependsOn",
    )
