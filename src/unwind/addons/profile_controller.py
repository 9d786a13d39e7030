"""The controller of ClusterProfiles and Profiles: creates, updates and deletes one ClusterSummary per matching cluster.

The controller of summaries deploys and removes the add-ons.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.addons import cluster_summaries, matching, summary_status, validation
from unwind.addons.gate_conditions import Gated, holds
from unwind.addons.matching import ProfileKey, Verdict, is_paused, match
from unwind.addons.stop_matching_behavior import withdraws
from unwind.api import names
from unwind.api.fields import Unknown
from unwind.api.meta import Reference
from unwind.api.names import Finalizer, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.clock import SYSTEM
from unwind.concurrency import run_all
from unwind.kube.controller import Controller, fenced_queue
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from unwind.kube.updates import IN_TIME, WORTH_TELLING, cached, revise
from unwind.kube.workqueue import Queue
from unwind.members.targets import ClusterKey, cluster_key
from unwind.planning.dependency_graph import dependents, shortest_cycle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from unwind.addons.caches import AddonCaches, SeenProfile
    from unwind.api.meta import Condition
    from unwind.api.sveltos import ClusterSummaryStatus, ProfileSpec
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.members.members import Members
    from unwind.members.targets import AddonTarget

# Concurrent reconciles per cluster. Each is a few small requests, and the last profile of a dependency chain may be
# the first one to remove.
_SIDE_BY_SIDE = 64


class ProfileMatch(NamedTuple):
    """One profile on one cluster."""

    profile: ProfileKey
    cluster: ClusterKey

    def __str__(self) -> str:
        return f"{self.profile} on {self.cluster}"


class ProfileController(Controller[ProfileKey]):
    """Reconciles all profiles."""

    name = "profiles"
    _caches: AddonCaches

    def __init__(
        self, shared: ControllerDeps, caches: AddonCaches, *, members: Members, gated: Gated | None = None
    ) -> None:
        super().__init__(shared, caches)
        self._members = members
        self._gated = gated or Gated(shared.recorder)
        self._gated.subscribe(self._gate_changed)
        self._taken: dict[ProfileMatch, str] = {}
        """Why a summary cannot be created: its name is in use by another profile or cluster."""
        self._withdrawing: dict[str, asyncio.Event] = {}
        """Summaries that are about to be deleted, by uid; the event is set when the DELETE is done."""
        self._pairs: Queue[ProfileMatch] = fenced_queue(
            "matches",
            self._reconcile_pair,
            lambda pair: pair.cluster.shard,
            shared,
            failed=self._failed,
            group=lambda pair: pair.cluster,
            per_group=_SIDE_BY_SIDE,
        )
        self._status_queue: Queue[ProfileKey] = Queue(self._write_status_later, clock=SYSTEM, failed=self._failed)
        for informer in (caches.cluster_profiles, caches.profiles):
            kind = informer.view.resource.kind
            informer.subscribe(lambda change, kind=kind: self._profile_changed(kind, change))  # type: ignore[misc]
        caches.summaries.subscribe(self._summary_changed)
        caches.follow_targets(self._target_changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await run_all(self._queue, self._status_queue, self._pairs)

    # Events

    def _profile_changed(self, kind: str, change: Change[SeenProfile]) -> None:
        key = ProfileKey(kind, *change.key)
        old, new = change.old, change.new
        if (
            old
            and new
            and (old.metadata.generation, old.metadata.finalizers, old.metadata.deletion_timestamp)
            == (
                new.metadata.generation,
                new.metadata.finalizers,
                new.metadata.deletion_timestamp,
            )
            and is_paused(old.metadata) is is_paused(new.metadata)
        ):
            # Only its status or a label changed. After our own status write there is nothing to write: a timer for it
            # would move the next write of the status forward, into the deletions that the next change causes.
            if self._status_patch(key, new):
                self._queue.add(key)
            return
        self._queue.add(key)
        self._enqueue(key, new)
        if (old.spec.depends_on if old else ()) != (new.spec.depends_on if new else ()):
            # A dependency cycle with other profiles may have been closed or broken.
            for other, one in list(self._caches.all_profiles()):
                if (other.kind, other.namespace) == (key.kind, key.namespace) and one.spec.depends_on:
                    self._queue.add(other)
                    self._enqueue(other, one)

    def _target_changed(self, cluster: ClusterKey, old: AddonTarget | None, new: AddonTarget | None) -> None:
        if old and new and _matters(old) == _matters(new):
            return
        for key, profile in self._caches.all_profiles():
            before, after = (match(key, profile.spec, item, profile.unread) for item in (old, new))
            if before is not Verdict.UNWANTED or after is not Verdict.UNWANTED:
                self._pairs.add(ProfileMatch(key, cluster))
                self._queue.add(key)
        # And the summaries of deleted profiles.
        for summary in self._caches.summaries.cache.by("cluster", cluster):
            if profile_key := cluster_summaries.profile_of(summary):
                self._pairs.add(ProfileMatch(profile_key, cluster))

    def _summary_changed(self, change: Change[ClusterSummary]) -> None:
        old, new = change.old, change.new
        if old and new and (old.spec, old.metadata.deletion_timestamp) == (new.spec, new.metadata.deletion_timestamp):
            return
        it = new or old
        profile = cluster_summaries.profile_of(it) if it else None
        if new is None:
            for pair in self._taken:  # its name may be free now
                self._pairs.add(pair)
        if it and profile:
            self._pairs.add(ProfileMatch(profile, cluster_summaries.cluster_of(it)))
            if new is None:
                self._queue.add(profile)

    def _gate_changed(self) -> None:
        for key, profile in list(self._caches.all_profiles()):
            if holds(profile):
                self._queue.add(key)
                self._enqueue(key, profile)  # the condition is on its summaries, too

    def _enqueue(self, key: ProfileKey, profile: SeenProfile | None) -> None:
        for cluster in self._clusters_of(key, profile):
            self._pairs.add(ProfileMatch(key, cluster))

    def _enqueue_all(self) -> None:
        if self._caches.settled:
            for key, profile in list(self._caches.all_profiles()):
                self._queue.add(key)
                self._enqueue(key, profile)
            for summary in list(self._caches.summaries.cache):
                if key_of_profile := cluster_summaries.profile_of(summary):
                    self._pairs.add(ProfileMatch(key_of_profile, cluster_summaries.cluster_of(summary)))

    def _clusters_of(self, key: ProfileKey, profile: SeenProfile | None) -> set[ClusterKey]:
        """The clusters that the profile matches, and those that it has a summary for."""
        found = {cluster_summaries.cluster_of(summary) for summary in self._caches.summaries.cache.by("profile", key)}
        return found | {cluster_key(item) for item in self._matching(key, profile)} if profile else found

    def _matching(self, key: ProfileKey, profile: SeenProfile) -> Iterator[AddonTarget]:
        """The clusters that the profile matches, without terminating ones. While it is not known which ones it
        selects, those that have its add-ons are among them."""
        spec = profile.spec
        by_name = [ref for ref in spec.cluster_refs if matching.type_of(ref)]
        named = [
            self._caches.target(ClusterKey(kind.value, item.namespace or key.namespace, item.name))
            for item in by_name
            if (kind := matching.type_of(item))
        ]
        labelled = () if spec.cluster_selector.empty else self._caches.targets(spec.cluster_selector.match_labels)
        kept = [
            (self._caches.target_of_summary(summary), (Verdict.UNKNOWN,))
            for summary in self._caches.summaries.cache.by("profile", key)
            if not summary.metadata.terminating
        ]
        found = [(target, (Verdict.WANTED, Verdict.LATER)) for target in (*named, *labelled)]
        seen: set[ClusterKey] = set()
        for target, verdicts in (*found, *kept):
            if target and cluster_key(target) not in seen and match(key, spec, target, profile.unread) in verdicts:
                seen.add(cluster_key(target))
                yield target

    # One profile on one cluster

    async def _reconcile_pair(self, pair: ProfileMatch) -> float | None:
        caches = self._caches
        # A cache that is not synced shows neither presence nor absence; the queue is filled again when it is.
        if not self._owner.owns(pair.cluster.shard) or not caches.settled:
            return None
        profile, summary = caches.profile(pair.profile), caches.summary(pair.profile, pair.cluster)
        target = caches.target(pair.cluster)
        if profile and is_paused(profile.metadata) and target and not target.terminating:
            return None  # nothing of it changes on a cluster that stays
        wanted = profile is not None and not profile.metadata.terminating
        said = match(pair.profile, profile.spec, target, profile.unread) if profile and wanted else Verdict.UNWANTED
        if said is Verdict.UNWANTED:
            self._taken.pop(pair, None)
            if summary and not summary.metadata.terminating:
                over = self._withdrawing[summary.metadata.uid] = asyncio.Event()
                try:
                    await self._withdraw(pair, summary)
                finally:
                    del self._withdrawing[summary.metadata.uid]
                    over.set()
        elif profile and summary and said is Verdict.UNKNOWN:
            # Nothing is deployed and nothing is withdrawn; the conditions of both report it.
            await self._keep_settings(pair, profile, summary)
        elif profile and target and said in (Verdict.WANTED, Verdict.LATER):
            if summary is not None:
                await self._keep(pair, profile, target, summary)
            elif said is Verdict.WANTED and self.held(pair.profile, profile) is None and _claimed(profile):
                await self._begin(pair, profile, target)
        return None

    async def _begin(self, pair: ProfileMatch, profile: SeenProfile, target: AddonTarget) -> None:
        body = cluster_summaries.new(pair.profile, profile.metadata.uid, profile.spec, target)
        try:
            written = await self._client.create(CLUSTER_SUMMARIES, body)
        except AlreadyExistsError:
            name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
            found = await self._client.get(CLUSTER_SUMMARIES, name, namespace=namespace, type=ClusterSummary)
            if (
                cluster_summaries.profile_of(found) != pair.profile
                or cluster_summaries.cluster_of(found) != pair.cluster
            ):
                # `a-capi-b` on `c`, and `a` on `b-capi-c`: Sveltos gives both summaries the same name.
                self._taken[pair] = (
                    f"cannot create ClusterSummary {namespace}/{name} for {pair.cluster}: the name is in use for"
                    " another profile or"
                    " cluster; rename the profile"
                )
                self._queue.add(pair.profile)
            self._caches.summaries.take(found)
            return
        self._taken.pop(pair, None)
        self._caches.summaries.take(msgspec.convert(written, ClusterSummary))

    async def _keep(
        self, pair: ProfileMatch, profile: SeenProfile, target: AddonTarget, summary: ClusterSummary
    ) -> None:
        """Update the summary to the profile's spec."""
        if summary.metadata.terminating:
            return
        if self.held(pair.profile, profile):
            await self._keep_settings(pair, profile, summary)
            return
        made_for = summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION)
        # A summary without the annotation was created by Sveltos before Unwind took over.
        if made_for not in (None, target.ref.uid) or cluster_summaries.owner_uid(summary) != profile.metadata.uid:
            # A new cluster or profile has the name of an earlier one: what was deployed for the earlier one is not its
            # own.
            await self._withdraw(pair, summary)
            return
        meta = summary.metadata
        await self._copy(summary, cluster_summaries.kept_in_step(pair.profile, profile.spec, summary))
        remembered = cluster_summaries.remembered_annotations(profile.spec, target)
        if any(meta.annotations.get(annotation) != value for annotation, value in remembered.items()):
            await self._patch(summary, {"metadata": {"uid": meta.uid, "annotations": remembered}})
        await self._warn(pair, profile, target)

    async def _keep_settings(self, pair: ProfileMatch, profile: SeenProfile, summary: ClusterSummary) -> None:
        """Update what the profile says about removal in the summary of a profile that deploys nothing new: it counts if
        the cluster is deleted, also if its value is unknown."""
        made_for = cluster_summaries.same_cluster(summary, self._caches.target(pair.cluster))
        owned = cluster_summaries.owner_uid(summary) == profile.metadata.uid
        if made_for and owned and not summary.metadata.terminating:
            await self._copy(summary, cluster_summaries.settings_in_step(profile.spec, summary))

    async def _copy(self, summary: ClusterSummary, spec: ProfileSpec) -> None:
        if spec != summary.spec.cluster_profile_spec:
            # Replaced, not merged: fields that the profile no longer sets must go.
            replaced: list[Object] = [
                {"op": "test", "path": "/metadata/uid", "value": summary.metadata.uid},
                {"op": "replace", "path": "/spec/clusterProfileSpec", "value": msgspec.to_builtins(spec)},
            ]
            await self._patch(summary, replaced)

    async def _warn(self, pair: ProfileMatch, profile: SeenProfile, target: AddonTarget) -> None:
        """Report on the summary whether the deletion of its cluster would not wait for the removal."""

        def change(status: ClusterSummaryStatus) -> ClusterSummaryStatus:
            said = self._gated.on_summary(status.conditions, profile, target, now=self._clock.now())
            return msgspec.structs.replace(status, conditions=said)

        summary = self._caches.summary(pair.profile, pair.cluster)
        if summary and change(summary.status) != summary.status:
            async with self._client.aside:
                await summary_status.put(self._client, self._caches.summaries, summary, change)

    async def _patch(self, summary: ClusterSummary, patch: Object | list[Object]) -> None:
        meta = summary.metadata
        written = await self._client.patch(CLUSTER_SUMMARIES, meta.name, patch, namespace=meta.namespace)
        self._caches.summaries.take(msgspec.convert(written, ClusterSummary))

    async def _withdraw(self, pair: ProfileMatch, summary: ClusterSummary) -> None:
        """Delete the summary; its own controller removes what was deployed, or leaves it.

        Decided by fresh reads, not from a cache that may be stale (docs/architecture.md, Fresh reads open gates).
        """
        if there := self._caches.target(pair.cluster):
            self._members.expect(there)
        async with asyncio.TaskGroup() as reading:
            what = reading.create_task(self._caches.read_profile(pair.profile))
            whereto = reading.create_task(self._caches.read_target(pair.cluster))
        profile, target = what.result(), whereto.result()
        if profile and not profile.metadata.terminating:
            same = cluster_summaries.same_cluster(summary, target) is not None
            same = same and cluster_summaries.owner_uid(summary) == profile.metadata.uid
            said = match(pair.profile, profile.spec, target, profile.unread)
            if same and said is not Verdict.UNWANTED:
                return
        if isinstance(withdraws(profile.spec if profile else summary.spec.cluster_profile_spec), Unknown):
            return  # blocked; the profile's condition reports it
        # The last profile of a dependency chain goes first: send no other request before this one.
        for dependent in dependents(summary, self._caches.needing, self._caches.needed):
            if over := self._withdrawing.get(dependent.metadata.uid):
                await over.wait()
        where = summary.metadata
        # Already deleted, or replaced by another object: nothing to delete.
        with suppress(NotFoundError, ConflictError):
            told = await self._client.delete(CLUSTER_SUMMARIES, where.name, uid=where.uid, namespace=where.namespace)
            if told["kind"] == CLUSTER_SUMMARIES.kind:
                # Record deletionTimestamp in the cache at once: no second DELETE, and no wait for the watch.
                self._caches.summaries.take(msgspec.convert(told, ClusterSummary))

    # One profile

    async def _reconcile(self, key: ProfileKey) -> float | None:
        profile = self._caches.profile(key)
        if profile is None or not self._owner.owns(str(key)) or not self._caches.settled:
            return None
        if profile.metadata.terminating:
            await self._release(key, profile)
        else:
            if not _claimed(profile):
                await self._set_finalizers(key, profile, add=True)
            self._queue_status(key, profile)
        return None

    def _queue_status(self, key: ProfileKey, profile: SeenProfile) -> None:
        said = self._conditions(key, profile) is not profile.status.conditions
        self._status_queue.add_after(key, WORTH_TELLING if said else IN_TIME)

    async def _write_status_later(self, key: ProfileKey) -> float | None:
        # Low priority, with the state at the time of writing.
        async with self._client.aside:
            if profile := self._caches.profile(key):
                await self._write_status(key, profile)
        return None

    def held(self, key: ProfileKey, profile: SeenProfile) -> validation.HeldProfile | None:
        """Why nothing new of the profile is deployed, or None."""
        objections = validation.objections(key, profile.spec, profile.unread)
        cycle = None
        if profile.spec.depends_on:
            needs: dict[str, Collection[str]] = {
                other.name: one.spec.depends_on
                for other, one in self._caches.all_profiles()
                if (other.kind, other.namespace) == (key.kind, key.namespace)
            }
            cycle = shortest_cycle(needs, key.name)
        return validation.HeldProfile(objections=objections, cycle=cycle) if objections.any or cycle else None

    async def _release(self, key: ProfileKey, profile: SeenProfile) -> None:
        """Remove our finalizer from a deleted profile once it has no summaries."""
        if not _claimed(profile):
            return
        if any(_holds(summary) for summary in self._caches.summaries.cache.by("profile", key)):
            self._queue_status(key, profile)
            return
        found = await self._client.list(CLUSTER_SUMMARIES, namespace=key.namespace or None)
        summaries = msgspec.convert(found, list[ClusterSummary])
        if not any(cluster_summaries.profile_of(summary) == key and _holds(summary) for summary in summaries):
            await self._set_finalizers(key, profile, add=False)

    async def _set_finalizers(self, key: ProfileKey, profile: SeenProfile, *, add: bool) -> None:
        resource = self._caches.of_kind(key.kind).view.resource

        def change(now: Object) -> Object | None:
            there = now["metadata"].get("finalizers") or []
            if (Finalizer.PROFILE in there) is add or (add and now["metadata"].get("deletionTimestamp")):
                return None
            left = [item for item in there if item != Finalizer.PROFILE]
            return {"metadata": {"finalizers": [*left, Finalizer.PROFILE.value] if add else left}}

        await revise(self._client, resource, cached(profile.metadata), change)

    def _status_patch(self, key: ProfileKey, profile: SeenProfile) -> Object:
        """The fields of the status that are not as they should be: matching clusters and conditions."""
        matching_clusters = tuple(
            sorted(
                (_reference(item) for item in self._matching(key, profile)),
                key=lambda one: (one.kind, one.namespace, one.name),
            )
        )
        conditions = self._conditions(key, profile)
        status: Object = {}
        if matching_clusters != profile.status.matching_clusters:
            status["matchingClusters"] = msgspec.to_builtins(matching_clusters)
        if conditions is not profile.status.conditions:
            status["conditions"] = msgspec.to_builtins(conditions)
        return status

    async def _write_status(self, key: ProfileKey, profile: SeenProfile) -> None:
        status, conditions = self._status_patch(key, profile), self._conditions(key, profile)
        if not status:
            return
        informer, meta = self._caches.of_kind(key.kind), profile.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        with suppress(NotFoundError, ConflictError):  # deleted meanwhile
            await self._client.patch(
                informer.view.resource, meta.name, body, namespace=meta.namespace or None, subresource="status"
            )
            self._gated.report(informer.view.resource, profile, conditions)

    def _conditions(self, key: ProfileKey, profile: SeenProfile) -> tuple[Condition, ...]:
        held = self.held(key, profile)
        taken = sorted(why for pair, why in self._taken.items() if pair.profile == key)
        objections = validation.objections(key, profile.spec, profile.unread)
        return validation.profile_conditions(
            profile.status.conditions,
            held,
            [*taken, *objections.mistaken],
            clusters=objections.clusters,
            unarmed=self._gated.why_not(profile, self._matching(key, profile)),
            unavailable=self._gated.unavailable(self._matching(key, profile)) if holds(profile) else None,
            served=profile.spec.cluster_deletion_behavior is not None,
            paused=is_paused(profile.metadata),
            reason=Reason.NAME_TAKEN if taken else Reason.UNKNOWN_VALUE,
            generation=profile.metadata.generation,
            now=self._clock.now(),
        )


def _claimed(profile: SeenProfile) -> bool:
    return Finalizer.PROFILE in profile.metadata.finalizers


def _holds(summary: ClusterSummary) -> bool:
    """Whether a profile must wait for this summary. The manager keeps its finalizer on summaries that it acts for until
    their objects are removed; any other summary does not block the profile."""
    return Finalizer.SUMMARY in summary.metadata.finalizers and not cluster_summaries.misplaced(summary)


def _matters(target: AddonTarget) -> object:
    """The fields of a cluster that decide which profiles match."""
    return target.ref.uid, target.labels, target.terminating, target.ready, target.has_class


def _reference(target: AddonTarget) -> Reference:
    ref = target.ref
    return Reference(api_version=f"{ref.group}/{ref.version}", kind=ref.kind, namespace=ref.namespace, name=ref.name)
