"""The controller of ClusterSummaries: deploys a profile's add-ons to one cluster, and removes them.

A summary is deployed once its dependencies are, and removed once nothing on that cluster depends on it. Summaries of a
terminating cluster are left to its Teardown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.addons import backing, cluster_summaries, summary_status
from unwind.addons.matching import ProfileKey
from unwind.addons.summary_deployment import Preparations, SummaryDeployment, matters
from unwind.addons.summary_status import SummaryWriter, key_of
from unwind.api import names
from unwind.api.annotation_values import volume_policy
from unwind.api.fields import Unknown
from unwind.api.names import Finalizer, Reason
from unwind.api.resources import SECRETS
from unwind.api.sveltos import ClusterSummary, ClusterType, FeatureStatus, SyncMode
from unwind.concurrency import to_tell
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.errors import UnwindError
from unwind.inventory.inventories import items
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.members import credentials
from unwind.members.targets import ClusterKey
from unwind.planning.dependency_graph import dependents
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal import Manner, Withdrawal, Withdrawals

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unwind.addons.caches import AddonCaches, SeenProfile
    from unwind.addons.summary_deployment import DeploymentResult
    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.unwind import Teardown
    from unwind.helm.program import Helm
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.metrics import Metrics
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps

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
        client: Client,
        caches: AddonCaches,
        deps: RemovalDeps,
        *,
        owner: ShardOwner,
        metrics: Metrics,
        helm: Helm | None = None,
        keys: RecordKeys | None = None,
    ) -> None:
        super().__init__(caches, owner=owner, metrics=metrics, clock=deps.clock, per_group=_SIDE_BY_SIDE)
        self._client = client
        self._helm = helm
        self._deps = deps
        self._inventories = deps.inventories
        self._record_keys = keys or RecordKeys(client, namespace=deps.inventories.namespace)
        self._writer = SummaryWriter(client, caches, clock=deps.clock)
        self._keys: dict[str, Key] = {}
        """Summaries that are being removed, by uid."""
        self._stops: dict[Key, asyncio.Event] = {}
        """Deployments in progress, and the event that stops each."""
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
            self._deploying = SummaryDeployment(self._client, self._deps, helm=self._helm)
            self._withdrawals = Withdrawals(
                self._deps,
                tasks,
                changed=self._withdrawal_changed,
                releases=HelmReleases(self._helm),  # without the helm binary a release is blocked
            )
            tasks.create_task(self._writer.run())
            tasks.create_task(self._queue.run())

    # Events

    def _summary_changed(self, change: Change[ClusterSummary]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or matters(old) != matters(new):
            # Ignore our own status writes.
            self._stop(change.key, unless=new is not None and not new.metadata.terminating)
            self._queue.add(change.key)
        it = new or old
        if it is None or (old and new and _shared_state(old) == _shared_state(new)):
            return
        self._enqueue_dependents(it)
        if new is None or new.metadata.terminating:
            self._enqueue_dependencies(it)
        if new is None:
            self._note_lacking(it, lacking=False)
            self._enqueue_conflicting(cluster_summaries.cluster_of(it))

    def _enqueue_dependents(self, it: ClusterSummary) -> None:
        """Enqueue the summaries that depend on it."""
        for other in self._caches.needing(it):
            waits = not cluster_summaries.provisioned(other) and key_of(other) not in self._stops
            if waits or other.metadata.terminating:
                self._queue.add(key_of(other))

    def _enqueue_dependencies(self, it: ClusterSummary) -> None:
        """Enqueue the summaries it depends on, which wait for its removal."""
        for other in self._caches.needed(it):
            if other.metadata.terminating:
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
        if self._idle:
            for summary in self._caches.summaries.cache.by("profile", ProfileKey(kind, *change.key)):
                if key_of(summary) in self._idle:
                    self._queue.add(key_of(summary))

    def _target_changed(self, cluster: ClusterKey, old: AddonTarget | None, new: AddonTarget | None) -> None:
        if self._idle and old and new and old.labels != new.labels:
            for summary in self._caches.summaries.cache.by("cluster", cluster):
                if key_of(summary) in self._idle:
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
                it = self._withdrawals.get(summary.metadata.uid)
                if it and not it.absent:
                    self._withdrawals.give_up(summary.metadata.uid)
                self._queue.add(key_of(summary))

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        if change.new:
            ref = change.new.spec.target
            cluster = ClusterKey(ClusterType.CAPI.value, ref.namespace, ref.name)
            for summary in self._caches.summaries.cache.by("cluster", cluster):
                if summary.metadata.terminating:
                    self._queue.add(key_of(summary))

    def _withdrawal_changed(self, uid: str) -> None:
        key = self._keys.get(uid)
        summary = self._caches.summaries.cache.get(key) if key else None
        if key and summary and summary.metadata.uid == uid:
            self._queue.add(key)
            it = self._withdrawals.get(uid)
            if it and it.absent and not it.done:
                # Its dependencies need not wait until the status is written.
                self._enqueue_dependencies(summary)

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
            await self._withdraw(summary)
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
        self._writer.wait(summary, Reason.NO_PROFILE, f"{why}; nothing is deployed")
        if unowned and Finalizer.SUMMARY in summary.metadata.finalizers:
            await self._dismiss(summary)

    async def _dismiss(self, summary: ClusterSummary) -> bool:
        """Remove our finalizer from a summary that the manager never deployed anything for; whether it did."""
        if await self._inventories.of(summary.metadata.uid):
            return False
        await self._writer.set_finalizer(summary, wanted=False)
        return True

    async def _deploy(self, summary: ClusterSummary) -> None:
        target = self._target_of(summary)
        if target is None or target.terminating:
            return
        key, profile = cluster_summaries.profile_of(summary), self._profile_of(summary)
        if key and profile and not backing.in_step(summary, key, profile):
            # The profile controller corrects it, and that event queues it again.
            self._idle.add(key_of(summary))
            self._writer.wait(summary, Reason.WAITING, f"the ClusterSummary differs from {key}")
            return
        if target.paused or not target.ready:
            reason = Reason.PAUSED if target.paused else Reason.NOT_READY
            self._writer.wait(summary, reason, f"{target} is {'paused' if target.paused else 'not ready'}")
            return
        needed = self._caches.needed(summary)
        if waited_for := cluster_summaries.waited_for(summary, needed, self._landed):
            self._writer.wait(summary, Reason.WAITING, f"waiting for dependencies: {'; '.join(waited_for)}")
            if needed and not cluster_summaries.provisioned(summary) and all(self._comes(item) for item in needed):
                await self._prepared.make(self._deploying, summary, self._profile_of(summary), target)
            return
        stop = self._stops[key_of(summary)] = asyncio.Event()
        self._enqueue_dependents(summary)  # they come next
        try:
            await _unless(stop, self._put(summary, target))
        finally:
            del self._stops[key_of(summary)]
            self._landed.discard(summary.metadata.uid)

    def _comes(self, needed: ClusterSummary) -> bool:
        """Whether a dependency is deployed or being deployed."""
        there = cluster_summaries.provisioned(needed) or key_of(needed) in self._stops
        return there and not needed.metadata.terminating

    async def _put(self, summary: ClusterSummary, target: AddonTarget) -> None:
        """Deploy the summary to its cluster and report the result."""
        try:
            work = await self._prepared.take(self._deploying, summary, self._profile_of(summary), target)
            if work is None:
                self._writer.wait(summary, None)  # deployed
                return
            if not work.dry_run and not self._is_held(target):
                # Before the first object is created: without the finalizer the objects could be orphaned.
                await credentials.hold(self._client, target)
            self._writer.mention(summary, work.begun)
            done = await work.run(
                landed=lambda: self._has_landed(summary), news=lambda: self._writer.mention(summary, work.begun)
            )
        except UnwindError as error:
            await self._writer.say(summary, summary_status.all_of(summary, FeatureStatus.FAILED, str(error)))
            raise
        now = self._clock.now()
        await self._writer.write(summary, lambda it: summary_status.waiting(done.apply(it, now=now), None, now=now))
        await self._enqueue_others(summary, done)
        if done.trouble:
            raise NotDeployedError(done.trouble)

    async def _enqueue_others(self, summary: ClusterSummary, done: DeploymentResult) -> None:
        """Enqueue summaries that lost an object to this one, or whose conflict may be resolved."""
        cluster = cluster_summaries.cluster_of(summary)
        self._note_lacking(summary, lacking=done.lacking)
        if done.pruned:
            self._enqueue_conflicting(cluster)
        if not done.taken_from:
            return
        message = f"{cluster_summaries.profile_of(summary)} took over some of its objects"
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
        secret = self._caches.sources[SECRETS.kind].cache.get(Key(target.ref.namespace, target.secret))
        return secret is not None and not secret.deletion_timestamp and Finalizer.CREDENTIALS in secret.finalizers

    async def _withdraw(self, summary: ClusterSummary) -> None:
        self._prepared.forget(summary)
        if Finalizer.SUMMARY not in summary.metadata.finalizers:
            return  # the owner of that shard handles it
        if cluster_summaries.misplaced(summary) and await self._dismiss(summary):
            return
        cluster, target = cluster_summaries.cluster_of(summary), self._target_of(summary)
        if target is None or target.terminating:
            if not self._caches.knows(cluster):
                return
            # Read fresh, not from a cache (docs/architecture.md, Fresh reads open gates).
            target = self._same(summary, await self._caches.read_target(cluster))
        gone = target is None or target.terminating
        if gone and cluster.type == ClusterType.CAPI:
            await self._leave_to_teardown(summary, target)
        elif gone:
            await self._take_back(summary, target, Manner.FORGET)
        elif target and target.paused:
            # A removal in progress sends no further DELETE. It restarts when the cluster is unpaused.
            it = self._withdrawals.get(summary.metadata.uid)
            if it and not it.absent:
                self._withdrawals.give_up(summary.metadata.uid)
            self._writer.wait(summary, Reason.PAUSED, f"{target} is paused")
        else:
            withdraws = cluster_summaries.withdraws(summary.spec.cluster_profile_spec)
            if isinstance(withdraws, Unknown):
                message = f"stopMatchingBehavior {withdraws}; nothing is removed: correct the profile"
                self._writer.wait(summary, Reason.UNKNOWN_VALUE, message)
            elif withdraws and (before := self._dependents(summary)):
                if all((it := self._withdrawals.get(item.metadata.uid)) and it.free.is_set() for item in before):
                    # It comes next: prepare it now.
                    self._begin(summary, target, Manner.REMOVE, free=False)
                named = ", ".join(sorted(str(cluster_summaries.profile_of(item)) for item in before))
                self._writer.wait(summary, Reason.WAITING, f"waiting for removal of dependents: {named}")
            else:
                await self._take_back(summary, target, Manner.REMOVE if withdraws else Manner.RELEASE)

    def _dependents(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """Its dependents that still exist. One without our finalizer has nothing on the cluster."""
        return [
            dependent
            for dependent in dependents(summary, self._caches.needing, self._caches.needed)
            if Finalizer.SUMMARY in dependent.metadata.finalizers
            and not ((it := self._withdrawals.get(dependent.metadata.uid)) and it.absent)
        ]

    def _begin(self, summary: ClusterSummary, target: AddonTarget | None, manner: Manner, *, free: bool) -> Withdrawal:
        uid, cluster, profile = summary.metadata.uid, cluster_summaries.cluster_of(summary), self._profile_of(summary)
        self._keys[uid] = key_of(summary)
        along = bool(profile and profile.metadata.annotations.get(names.TAKE_ALONG_ANNOTATION) == "true")

        def volumes() -> VolumePolicy | Unknown:
            now = self._profile_of(summary)
            return volume_policy(now.metadata.annotations if now else None)

        return self._withdrawals.begin(uid, cluster, target, manner, free=free, take_along=along, volumes=volumes)

    async def _take_back(self, summary: ClusterSummary, target: AddonTarget | None, manner: Manner) -> None:
        uid = summary.metadata.uid
        it = self._begin(summary, target, manner, free=True)
        if not it.removals:
            self._enqueue_dependencies(summary)  # they come next
        if it.done:
            # Dropped when the summary is seen to be gone: until then it must not start again.
            if not it.ended:
                await self._end(summary, target)
                it.ended = True
        elif it.error:
            self._withdrawals.give_up(uid)
            await self._writer.say(summary, summary_status.all_of(summary, FeatureStatus.REMOVING, str(it.error)))
            raise it.error
        else:
            self._writer.mention(summary, summary_status.all_of(summary, FeatureStatus.REMOVING, it.waits))

    async def _leave_to_teardown(self, summary: ClusterSummary, target: AddonTarget | None) -> None:
        """Remove our finalizer only when the Teardown accounts for everything the summary deployed."""
        self._forget(
            key_of(summary)
        )  # two removals of the same objects do no harm, but only one reports the right state
        uid = summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION, "")
        await self._record_keys.load()
        teardown = self._record_keys.chosen(self._caches.teardowns.cache.by("uid", uid), uid)
        if target is not None or teardown is None or not teardown.finished:
            chunks = await self._inventories.of(summary.metadata.uid)
            if not all(item.done for item in items(chunks)):
                self._writer.wait(summary, Reason.WAITING, f"waiting for Teardown {uid} of the cluster")
                return
        await self._writer.set_finalizer(summary, wanted=False)

    async def _end(self, summary: ClusterSummary, target: AddonTarget | None) -> None:
        """Remove our finalizer from the summary, and unmark the cluster's credentials with the last one."""
        if not self._needs_credentials(summary):
            anchor = target or cluster_summaries.cluster_gone(summary)
            if target or not self._caches.reached_by(anchor):
                await credentials.let_go(self._client, anchor)
            if target and self._needs_credentials(summary):
                # A new summary appeared meanwhile and found the Secret still marked.
                await credentials.hold(self._client, anchor)
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

    # Helpers

    def _profile_of(self, summary: ClusterSummary) -> SeenProfile | None:
        key = cluster_summaries.profile_of(summary)
        return self._caches.profile(key) if key else None

    def _target_of(self, summary: ClusterSummary) -> AddonTarget | None:
        return self._same(summary, self._caches.target(cluster_summaries.cluster_of(summary)))

    @staticmethod
    def _same(summary: ClusterSummary, target: AddonTarget | None) -> AddonTarget | None:
        """The cluster, if the summary was made for its uid, not for an earlier one of the same name."""
        made_for = summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION)
        return target if target and made_for in (None, target.ref.uid) else None

    def _stop(self, key: Key, *, unless: bool) -> None:
        if not unless and (stop := self._stops.get(key)):
            stop.set()

    def _forget(self, key: Key) -> None:
        self._idle.discard(key)
        self._stop(key, unless=False)
        for uid in [uid for uid, one in self._keys.items() if one == key]:
            del self._keys[uid]
            self._withdrawals.give_up(uid)


def _shared_state(summary: ClusterSummary) -> object:
    """The fields of a summary that matter to others on its cluster."""
    return summary.metadata.uid, cluster_summaries.provisioned(summary), summary.metadata.terminating


def _reached_by(target: AddonTarget) -> object:
    """The fields of a cluster that decide whether it can be deployed to."""
    return target.ref.uid, target.terminating, target.paused, target.ready, target.secret, target.secret_key


async def _unless(told: asyncio.Event, work: Awaitable[None]) -> None:
    """Await the work; cancel it if the event is set first."""

    async def doing() -> None:
        await work

    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(doing())
            waiting = group.create_task(told.wait())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            waiting.cancel()
    except ExceptionGroup as failures:
        raise to_tell(failures) from None
