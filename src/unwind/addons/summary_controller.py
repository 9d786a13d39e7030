"""The controller of ClusterSummaries: deploys a profile's add-ons to one cluster, and removes them.

A summary is deployed once its dependencies are, and removed once nothing on that cluster depends on it. Summaries of a
terminating cluster are left to its Teardown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.addons import cluster_summaries, matching, summary_status, validation
from unwind.addons.cluster_deletion_behavior import effort
from unwind.addons.matching import ProfileKey, is_paused
from unwind.addons.step_source import step_name
from unwind.addons.summary_deployment import Preparations, SummaryDeployment, matters
from unwind.addons.summary_status import SummaryWriter, key_of
from unwind.addons.summary_withdrawal import SummaryWithdrawal
from unwind.api.meta import ref_of
from unwind.api.names import Finalizer, Reason
from unwind.api.resources import SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, ClusterType, FeatureStatus, SyncMode
from unwind.api.unwind import Cause
from unwind.concurrency import gather_limited, unless
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.errors import UnwindError
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.members import credentials
from unwind.members.targets import ClusterKey
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal_progress import RecordedRemoval

if TYPE_CHECKING:
    from unwind.addons.caches import AddonCaches, SeenProfile
    from unwind.addons.summary_deployment import DeploymentResult
    from unwind.api.unwind import Teardown
    from unwind.deploy.prune import Prunes
    from unwind.helm.program import Helm
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.withdrawal_records import WithdrawalRecords

# Concurrent deployments per member. Removals are not limited, because they may wait for a long time.
_SIDE_BY_SIDE = 8


class NotDeployedError(UnwindError):
    """A summary is not fully deployed; its status reports why. The reconcile is retried."""


class SummaryController(Controller[Key]):
    """Reconciles all summaries."""

    name = "summaries"
    _caches: AddonCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: AddonCaches,
        deps: RemovalDeps,
        *,
        records: WithdrawalRecords,
        helm: Helm | None = None,
        keys: RecordKeys | None = None,
    ) -> None:
        """`records`: writes Teardowns of withdrawals."""
        super().__init__(shared, caches, per_group=_SIDE_BY_SIDE)
        self._records = records
        self._writer = SummaryWriter(shared.client, caches, clock=shared.clock)
        self._deploying = SummaryDeployment(shared.client, deps, helm=helm)
        self._withdrawal = SummaryWithdrawal(
            shared.client,
            caches,
            deps,
            self._writer,
            keys=keys or RecordKeys(shared.client, namespace=deps.inventories.namespace),
            records=records,
            releases=HelmReleases(helm),  # without the helm binary a release is blocked
            enqueue=self._queue.add,
        )
        self._stops: dict[Key, asyncio.Event] = {}
        """Deployments in progress, and the event that stops each."""
        self._prunes: dict[str, tuple[AddonTarget, Prunes]] = {}
        """Prunes in progress, by the uid of the summary."""
        self._prepared = Preparations()
        self._landed: set[str] = set()
        """The uids of summaries that are deployed but whose status is not written yet."""
        self._lacking: dict[ClusterKey, set[Key]] = {}
        """Summaries in conflict with another one on their cluster."""
        self._idle: set[Key] = set()
        """Summaries that deploy nothing because no profile backs them, or because they differ from their profile."""
        caches.summaries.subscribe(self._summary_changed)
        caches.follow_targets(self._target_changed)
        caches.teardowns.subscribe(self._teardown_changed)
        for profiles in (caches.cluster_profiles, caches.profiles):
            kind = profiles.view.resource.kind
            profiles.subscribe(lambda change, kind=kind: self._profile_changed(kind, change))  # type: ignore[misc]
        for kind, informer in caches.sources.items():
            informer.subscribe(lambda change, kind=kind: self._source_changed(kind, change))  # type: ignore[misc]

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._withdrawal.run_in(tasks)
            tasks.create_task(self._writer.run())
            tasks.create_task(self._queue.run())

    # Events

    def _summary_changed(self, change: Change[ClusterSummary]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or matters(old) != matters(new):
            # Ignore our own status writes.
            self._stop(change.key, unless=new is not None and not new.metadata.terminating)
            self._queue.add(change.key)
        if old and new and old.metadata.annotations != new.metadata.annotations:
            self._follow_prune(new)
        it = new or old
        if it is None or (old and new and _shared_state(old) == _shared_state(new)):
            return
        self._enqueue_dependents(it)
        if new is None or new.metadata.terminating:
            self._withdrawal.enqueue_dependencies(it)
        if new is None:
            self._note_lacking(it, lacking=False)
            self._enqueue_conflicting(cluster_summaries.cluster_of(it))

    def _enqueue_dependents(self, it: ClusterSummary) -> None:
        """Enqueue the summaries that depend on it."""
        for other in self._caches.needing(it):
            waits = not cluster_summaries.provisioned(other) and key_of(other) not in self._stops
            if waits or other.metadata.terminating:
                self._queue.add(key_of(other))

    def _enqueue_conflicting(self, cluster: ClusterKey) -> None:
        """Enqueue summaries in conflict: an object was removed from their cluster."""
        for key in self._lacking.get(cluster, ()):
            self._queue.add(key)

    def _note_lacking(self, summary: ClusterSummary, *, lacking: bool) -> None:
        cluster = cluster_summaries.cluster_of(summary)
        there = self._lacking.pop(cluster, set()) - {key_of(summary)}
        if there := there | ({key_of(summary)} if lacking else set()):
            self._lacking[cluster] = there

    def _profile_changed(self, kind: str, change: Change[SeenProfile]) -> None:
        """Enqueue idle summaries that the profile may back now. The profile controller updates or deletes the
        others."""
        key = ProfileKey(kind, *change.key)
        before, after = (_stops_deployment(key, profile) for profile in (change.old, change.new))
        if before != after:
            for summary in self._caches.summaries.cache.by("profile", key):
                self._stop(key_of(summary), unless=not any(after))
                self._queue.add(key_of(summary))
        if self._idle:
            for summary in self._caches.summaries.cache.by("profile", key):
                if key_of(summary) in self._idle:
                    self._queue.add(key_of(summary))

    def _target_changed(self, cluster: ClusterKey, old: AddonTarget | None, new: AddonTarget | None) -> None:
        if old and new and old.labels != new.labels:
            for summary in self._caches.summaries.cache.by("cluster", cluster):
                if key_of(summary) in self._idle or self._caches.not_understood(summary):
                    self._queue.add(key_of(summary))
        if old and new and _reached_by(old) == _reached_by(new):
            return
        for summary in self._caches.summaries.cache.by("cluster", cluster):
            self._stop(key_of(summary), unless=new is not None and not new.terminating and not new.paused)
            self._queue.add(key_of(summary))

    def _source_changed(self, kind: str, change: Change[Metadata]) -> None:
        for summary in self._caches.summaries.cache.by("source", (kind, *change.key)):
            self._queue.add(key_of(summary))
        old, new = change.old, change.new
        if kind == SECRETS.kind and old and new and old.finalizers == new.finalizers:
            # The connection details of a cluster may have changed: an operation over the old connection might never
            # return.
            for summary in self._caches.summaries.cache.by("secret", change.key):
                self._withdrawal.interrupt(summary)
                self._queue.add(key_of(summary))

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        old, new = change.old, change.new
        if new and new.spec.target.kind == CLUSTER_SUMMARIES.kind:
            # The record of its withdrawal: the summary names the same blocker.
            if new.spec.cause == Cause.WITHDRAWN and (old is None or old.status.blockers != new.status.blockers):
                self._queue.add(Key(new.spec.target.namespace, new.spec.target.name))
        elif new:
            ref = new.spec.target
            cluster = ClusterKey(ClusterType.CAPI.value, ref.namespace, ref.name)
            for summary in self._caches.summaries.cache.by("cluster", cluster):
                if summary.metadata.terminating:
                    self._queue.add(key_of(summary))

    def _enqueue_all(self) -> None:
        if self._caches.settled:
            for key in list(self._caches.summaries.cache.keys()):
                self._queue.add(key)

    def _group(self, key: Key) -> ClusterKey | Key:
        summary = self._caches.summaries.cache.get(key)
        return cluster_summaries.cluster_of(summary) if summary else key

    def _shard(self, key: Key) -> str | None:
        summary = self._caches.summaries.cache.get(key)
        return cluster_summaries.cluster_of(summary).shard if summary else None

    def _describe(self, key: Key) -> dict[str, str]:
        return {"object": f"ClusterSummary {key}"}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        caches = self._caches
        summary = caches.summaries.cache.get(key)
        if summary is None or not self._owner.owns(cluster_summaries.cluster_of(summary).shard):
            self._forget(key)
            return None
        if not caches.settled:
            return None  # it is queued again when they are
        self._idle.discard(key)
        if summary.metadata.terminating:
            self._prepared.forget(summary)
            await self._withdrawal.withdraw(summary)
        elif why := caches.unbacked(summary):
            await self._stay_idle(summary, why)
        elif Finalizer.SUMMARY not in summary.metadata.finalizers:
            # Created by Sveltos before Unwind. Nothing is deployed for a summary without a finalizer.
            await self._writer.set_finalizer(summary, wanted=True)
        else:
            await self._deploy(summary)
        return None

    async def _stay_idle(self, summary: ClusterSummary, why: str) -> None:
        """Deploy nothing for a summary that no profile backs, and report why.

        The profile controller deletes a summary that names a profile and whose objects are no longer wanted. Others
        stay; one that the manager never deployed anything for does not keep our finalizer.
        """
        self._idle.add(key_of(summary))
        unowned = cluster_summaries.misplaced(summary) or cluster_summaries.profile_of(summary) is None
        if not unowned and self._caches.target(cluster_summaries.cluster_of(summary)) is None:
            return  # the profile controller deletes it
        then = "nothing is deployed" if unowned else "nothing is deployed, and the manager deletes the ClusterSummary"
        self._writer.wait(summary, Reason.NO_PROFILE, f"{why}; {then}")
        if unowned and Finalizer.SUMMARY in summary.metadata.finalizers:
            await self._withdrawal.dismiss(summary)

    async def _deploy(self, summary: ClusterSummary) -> None:
        target = self._caches.target_of_summary(summary)
        if target is None or target.terminating:
            return
        key, profile = cluster_summaries.profile_of(summary), self._caches.profile_of_summary(summary)
        paused = profile is not None and is_paused(profile.metadata)
        differs = key is not None and profile is not None and not cluster_summaries.in_step(summary, key, profile)
        said = summary.spec.cluster_profile_spec.cluster_deletion_behavior
        if not paused and profile and said in (None, profile.spec.cluster_deletion_behavior):
            await self._record_effort(summary)
        if target.paused:
            # Before anything else: the status must tell it if the cluster is moved while no manager runs.
            self._writer.wait(
                summary, Reason.CLUSTER_PAUSED, f"{target} is paused: nothing is deployed until it is unpaused"
            )
            return
        if paused:
            self._writer.wait(summary, Reason.PAUSED, f"{key} is paused: nothing is deployed until it is unpaused")
            return
        if unknown := self._caches.not_understood(summary):
            self._idle.add(key_of(summary))
            self._writer.wait(summary, Reason.UNKNOWN_VALUE, f"{key}: {validation.unknown_clusters(unknown)}")
            return
        if differs:
            # The profile controller corrects it, and that event queues it again.
            self._idle.add(key_of(summary))
            self._writer.wait(
                summary, Reason.WAITING, f"waiting for the manager to copy the current spec of {key} here"
            )
            return
        if not target.ready:
            self._writer.wait(
                summary, Reason.NOT_READY, f"{target} is not ready yet: waiting until its control plane is initialized"
            )
            return
        needed = self._caches.needed(summary)
        if waited_for := cluster_summaries.waited_for(summary, needed, self._landed):
            why = f"waiting for dependencies: {'; '.join(waited_for)}"
            self._writer.wait(summary, Reason.WAITING, why, for_order=True)
            if needed and not cluster_summaries.provisioned(summary) and all(self._comes(item) for item in needed):
                await self._prepared.make(self._deploying, summary, self._caches.profile_of_summary(summary), target)
            return
        stop = self._stops[key_of(summary)] = asyncio.Event()
        self._enqueue_dependents(summary)  # they come next
        try:
            await unless(stop, self._put(summary, target))
        finally:
            self._prunes.pop(summary.metadata.uid, None)
            self._records.drop(summary.metadata.uid, Cause.PRUNED)
            del self._stops[key_of(summary)]
            self._landed.discard(summary.metadata.uid)

    async def _record_effort(self, summary: ClusterSummary) -> None:
        """Record a changed clusterDeletionBehavior in existing Inventories, also if nothing is deployed now."""
        now = effort(summary)
        if summary_status.lacks_effort(summary.status, now):
            await self._deploying.deps.inventories.record_effort(summary.metadata.uid, now)
            await self._writer.write(summary, lambda status: summary_status.with_efforts(status, now))

    def _comes(self, needed: ClusterSummary) -> bool:
        """Whether a dependency is deployed or being deployed."""
        there = cluster_summaries.provisioned(needed) or key_of(needed) in self._stops
        return there and not needed.metadata.terminating

    async def _put(self, summary: ClusterSummary, target: AddonTarget) -> None:
        """Deploy the summary to its cluster and report the result."""
        try:
            work = await self._prepared.take(self._deploying, summary, self._caches.profile_of_summary(summary), target)
            if work is None:
                self._writer.wait(summary, None)  # deployed
                return
            if not work.dry_run and not self._is_held(target):
                # Before the first object is created: without the finalizer the objects could be orphaned.
                await gather_limited((credentials.hold_secret(self._client, target), work.intend()), limit=2)
            self._writer.mention(summary, work.begun)
            self._prunes[summary.metadata.uid] = target, work.prunes

            def news() -> None:
                self._writer.mention(summary, work.begun)
                self._follow_prune(summary)

            done = await work.run(landed=lambda: self._has_landed(summary), news=news)
            await self._records.settle(_pruned(summary, target, work.prunes))
        except UnwindError as error:
            await self._writer.say(summary, summary_status.all_of(summary, FeatureStatus.FAILED, str(error)))
            raise
        now = self._clock.now()
        await self._writer.write(
            summary, lambda it: summary_status.waiting_status(done.apply(it, now=now), None, now=now)
        )
        await self._enqueue_others(summary, done)
        if done.trouble:
            raise NotDeployedError(done.trouble)

    def _follow_prune(self, summary: ClusterSummary) -> None:
        """Record the prune of a summary, if one is in progress, with the current annotations of the summary."""
        target, prunes = self._prunes.get(summary.metadata.uid, (None, None))
        if target and prunes and prunes.runners:
            now = self._caches.summaries.cache.get(key_of(summary)) or summary
            self._records.follow(_pruned(now, target, prunes), lambda: prunes.runners)

    async def _enqueue_others(self, summary: ClusterSummary, done: DeploymentResult) -> None:
        """Enqueue summaries that lost an object to this one, or whose conflict may be resolved."""
        cluster = cluster_summaries.cluster_of(summary)
        self._note_lacking(summary, lacking=done.lacking)
        if done.pruned:
            self._enqueue_conflicting(cluster)
        if not done.taken_from:
            return
        message = (
            f"{cluster_summaries.profile_of(summary)} took over some of its objects; it is deployed again without them"
        )
        for other in self._caches.summaries.cache.by("cluster", cluster):
            once = other.spec.cluster_profile_spec.sync_mode == SyncMode.ONE_TIME
            if other.metadata.uid in done.taken_from and not once and not other.metadata.terminating:
                # The status keeps this until its next reconcile, also across a restart.
                await self._writer.say(other, summary_status.all_of(other, FeatureStatus.PROVISIONING, message))
                self._queue.add(key_of(other))

    def _has_landed(self, summary: ClusterSummary) -> None:
        """Start its dependents from this event, without waiting for a status write (docs/architecture.md, Events drive,
        timers insure)."""
        self._landed.add(summary.metadata.uid)
        self._enqueue_dependents(summary)

    def _is_held(self, target: AddonTarget) -> bool:
        return credentials.is_held(self._caches.sources[SECRETS.kind].cache.get(Key(target.home, target.secret)))

    # Helpers

    def _stop(self, key: Key, *, unless: bool) -> None:
        if not unless and (stop := self._stops.get(key)):
            stop.set()

    def _forget(self, key: Key) -> None:
        self._idle.discard(key)
        self._stop(key, unless=False)
        self._withdrawal.forget(key)


def _pruned(summary: ClusterSummary, target: AddonTarget, prunes: Prunes) -> RecordedRemoval:
    """The prune of a summary, for its Teardown."""
    return RecordedRemoval(
        owner=ref_of(CLUSTER_SUMMARIES, summary.metadata),
        annotations=summary.metadata.annotations,
        generation=summary.metadata.generation,
        member=target.ref,
        step=step_name(summary),
        release=prunes.release,
    )


def _stops_deployment(key: ProfileKey, profile: SeenProfile | None) -> tuple[bool, bool]:
    """Whether a profile is paused, and whether it is not known which clusters it selects."""
    if profile is None:
        return False, False
    return is_paused(profile.metadata), bool(matching.not_understood(key, profile.spec, profile.unread))


def _shared_state(summary: ClusterSummary) -> object:
    """The fields of a summary that matter to others on its cluster."""
    return summary.metadata.uid, cluster_summaries.provisioned(summary), summary.metadata.terminating


def _reached_by(target: AddonTarget) -> object:
    """The fields of a cluster that decide whether it can be deployed to."""
    return target.ref.uid, target.terminating, target.paused, target.ready, target.secret, target.secret_key
