"""ClusterSummaries as a step source: each profile on a cluster is one step of the cluster's teardown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.addons.cluster_deletion_behavior import behaviour, effort, planned_effort, said_of
from unwind.addons.cluster_summaries import cluster_of, cluster_paused, profile_of, profile_or_self
from unwind.addons.matching import ProfileKey, is_paused
from unwind.addons.summary_status import Projections
from unwind.api.annotation_values import volume_policy
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import (
    CLUSTER_UID_ANNOTATION,
    SVELTOS_PAUSED_ANNOTATION,
    TAKE_ALONG_ANNOTATION,
    ConditionType,
    Finalizer,
    Reason,
)
from unwind.api.policies import SourceKind
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    PROFILES,
    ClusterSummary,
    ClusterType,
    DeploymentType,
)
from unwind.api.unwind import Effort
from unwind.errors import UnwindError, will_retry
from unwind.kube.decoding import Key
from unwind.members.targets import AddonTarget, ClusterKey, cluster_key
from unwind.planning.waves import Draft
from unwind.teardown.drafts import TeardownNotice, lost_step
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_sources import (
    Elsewhere,
    FollowedSource,
    OwnSetting,
    SourceStep,
    SourceSteps,
    StepPause,
    StepTerms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from unwind.addons.caches import AddonCaches, SeenProfile
    from unwind.api.meta import ObjectMeta
    from unwind.api.unwind import Step
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.removal.helm_release_removal import Releases
    from unwind.teardown.status import StepReport
    from unwind.teardown.step_sources import ClusterVoices, StepPolicies


class AddonAdopter(Protocol):
    """Adopts the objects of add-ons that were deployed from a former management cluster of their cluster."""

    async def adopt_all(self, target: AddonTarget, summary: ClusterSummary) -> list[str]:
        """Adopt the objects of a summary; return the Helm releases that are not adopted. Raises if the member does not
        answer."""

    def had_owner(self, target: AddonTarget, name: str) -> bool:
        """Whether a ClusterSummary of this name deployed to the cluster from a former management cluster."""


class SummarySteps(FollowedSource):
    """The steps of clusters with add-ons from profiles."""

    def __init__(
        self,
        client: Client,
        caches: AddonCaches,
        *,
        releases: Releases | None = None,
        moved: AddonAdopter | None = None,
        policies: StepPolicies | None = None,
    ) -> None:
        """`releases`: uninstalls Helm releases. `moved`: adopts what was deployed from a former management cluster.
        `policies`: TeardownPolicies, whose voices count besides those of profiles."""
        self._client = client
        self._caches = caches
        self._moved = moved
        self._policies = policies
        self._targets: set[Key] = set()
        """The clusters whose steps were asked for their terms."""
        self.remover = InventoryRemover(releases)
        self._projections = Projections(client, caches.summaries)

    def owns(self, owner: ObjectRef) -> bool:
        return (owner.group, owner.kind) == (CLUSTER_SUMMARIES.group, CLUSTER_SUMMARIES.kind)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        if not isinstance(target, AddonTarget):
            return SourceSteps()  # it gets no add-ons
        found = await read_steps(
            self._client,
            target,
            backed=lambda one: not self._caches.unbacked(one, target),
            had_owner=partial(self._moved.had_owner, target) if self._moved else lambda _: False,
        )
        # The summaries carry the uid of a cluster that is gone.
        decided = found.steps if gone else await self._decided(target, found.steps)
        steps = [await self._adopted(step, target) for step in decided]
        return msgspec.structs.replace(found, steps=tuple(steps), warnings=tuple(self._paused_steps(found.steps)))

    async def _decided(self, target: ClusterTarget, steps: Sequence[SourceStep]) -> Sequence[SourceStep]:
        """The steps with the efforts that profiles and policies decide together."""
        if self._policies is None or not steps:
            return steps
        voices = await self._policies.of(target)
        return [merged(voices, step) for step in steps]

    def _conflict(self, step: Step, target: ClusterTarget, summary: ClusterSummary | None) -> StepPause | None:
        """Why policies do not allow to remove a step now."""
        if self._policies is None or step.effort == Effort.LEAVE:
            return None
        self._targets.add(Key(target.ref.namespace, target.ref.name))
        profile = profile_or_self(summary) if summary else ProfileKey(CLUSTER_SUMMARIES.kind, "", step.object.name)
        own, own_from = effort(summary) if summary else None, _own_from(step.name)
        named = ObjectRef(kind=profile.kind, namespace=profile.namespace, name=profile.name)
        setting = OwnSetting(named=named, effort=own, origin=own_from)
        pause = self._policies.conflict(step, SourceKind.PROFILE, target, setting)
        if pause is None and step.effort_from and own is Effort.LEAVE:
            # The policy that enforced it is gone, and the plan is frozen. Leave wins all the same.
            why = f"left in place by {own_from}: nothing of it is deleted until that changes to RemovePolicies"
            return StepPause(step.object, own_from, why=why, reason=Reason.POLICY_CONFLICT, actor="its author")
        return pause

    async def _adopted(self, step: SourceStep, target: AddonTarget) -> SourceStep:
        """The step, after its objects from a former management cluster are adopted. If that is not possible, an
        enforced step holds the cluster."""
        ref = step.draft.object
        summary = self._caches.summaries.cache.get(Key(ref.namespace, ref.name))
        if self._moved is None or summary is None or summary.metadata.uid != ref.uid:
            return step
        try:
            left = await self._moved.adopt_all(target, summary)
            why = f"will retry Helm releases {', '.join(left)}" if left else ""
        except UnwindError as error:
            why = will_retry(error)
        if not why or step.draft.effort is not Effort.ENFORCE:
            return step
        message = (
            f"the cluster was moved here, and objects of {step.draft.name} from before that are not adopted yet: {why}"
        )
        notice = TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.MOVED, message)
        return msgspec.structs.replace(step, said=(*step.said, notice))

    def _paused_steps(self, steps: Iterable[SourceStep]) -> Iterator[str]:
        """A warning for each step whose profile is paused."""
        for step in steps:
            pause = self._pause(step.draft.object)
            if pause and step.draft.effort is Effort.ENFORCE:
                yield f"{step.draft.name} blocks: {pause.message}"
            elif pause:
                yield f"the objects of {step.draft.name} are left in place: {left_while(pause)}"

    def _pause(self, ref: ObjectRef) -> StepPause | None:
        summary = self._caches.summaries.cache.get(Key(ref.namespace, ref.name))
        if summary is None or summary.metadata.uid != ref.uid:
            return None
        return pause_of(summary, self._caches.profile_of_summary(summary))

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        if step.name == lost_step(step.object):
            return StepTerms(
                left=f"{step.object} was deleted before it, so how to remove it is not known",
                left_reason=Reason.OWNER_GONE,
            )
        summary = self._caches.summaries.cache.get(Key(step.object.namespace, step.object.name))
        key = profile_of(summary) if summary else None
        profile = self._caches.profile(key) if key else None
        annotations = profile.metadata.annotations if profile else {}
        ours = summary if summary and summary.metadata.uid == step.object.uid else None
        return StepTerms(
            take_along=annotations.get(TAKE_ALONG_ANNOTATION) == "true",
            volumes=volume_policy(annotations),
            left="a TeardownPolicy says Leave" if step.effort_from else "LeavePolicies: left in place",
            gave_up="best-effort time exceeded" if step.effort_from else "RemovePolicies: timed out",
            decided_by=step.effort_from or _own_from(step.name),
            said=said_of(ours) if ours else (),
            paused=self._pause(step.object) or self._conflict(step, target, ours),
        )

    def step_reported(self, step: Step, report: StepReport, target: ClusterTarget) -> None:
        del target
        self._projections.tell(step.object, report)

    async def run(self) -> None:
        await self._projections.run()

    # Targets

    def follow(self, changed: Callable[[Key], None]) -> None:
        def tell(change: Change[ClusterSummary]) -> None:
            it = change.new or change.old
            if it and (key := _capi_key(it)):
                changed(key)

        self._caches.summaries.subscribe(tell)

    def follow_terms(self, changed: Callable[[Key], None]) -> None:
        def tell(kind: str, change: Change[SeenProfile]) -> None:
            before, after = (
                profile is not None and is_paused(profile.metadata) for profile in (change.old, change.new)
            )
            if before is not after:
                summaries = self._caches.summaries.cache.by("profile", ProfileKey(kind, *change.key))
                for key in {key for summary in summaries if (key := _capi_key(summary))}:
                    changed(key)

        for profiles in (self._caches.cluster_profiles, self._caches.profiles):
            profiles.subscribe(partial(tell, profiles.view.resource.kind))

        def tell_all() -> None:
            for key in self._targets:
                changed(key)

        def tell_summary(change: Change[ClusterSummary]) -> None:
            old, new = change.old, change.new
            if old and new and behaviour(old) != behaviour(new) and (key := _capi_key(new)) in self._targets:
                changed(key)

        if self._policies:
            self._policies.follow(tell_all)
            self._caches.summaries.subscribe(tell_summary)

    def targets(self) -> Collection[Key]:
        return {key for summary in self._caches.summaries.cache if (key := _capi_key(summary))}

    def target_uids(self, key: Key) -> Collection[str]:
        summaries = self._caches.summaries.cache.by("cluster", ClusterKey(ClusterType.CAPI.value, *key))
        return {
            summary.metadata.annotations.get(CLUSTER_UID_ANNOTATION, "")
            for summary in summaries
            if Finalizer.SUMMARY in summary.metadata.finalizers
        }

    def was_paused(self, key: Key, uid: str) -> bool:
        summaries = self._caches.summaries.cache.by("cluster", ClusterKey(ClusterType.CAPI.value, *key))
        return any(
            cluster_paused(summary)
            for summary in summaries
            if summary.metadata.annotations.get(CLUSTER_UID_ANNOTATION) == uid
        )


async def read_steps(
    client: Client,
    target: AddonTarget,
    *,
    backed: Callable[[ClusterSummary], bool] = lambda _: False,
    had_owner: Callable[[str], bool] = lambda _: False,
) -> SourceSteps:
    """The steps of a cluster, read from the API server. `backed`: whether a profile backs a summary. `had_owner`:
    whether a summary of this name deployed to the cluster from a former management cluster.

    A summary with neither a profile nor an Inventory of its own is not a step: the manager deployed nothing for it.
    """
    found = msgspec.convert(await client.list(CLUSTER_SUMMARIES, namespace=target.ref.namespace), list[ClusterSummary])
    found.sort(key=lambda summary: summary.metadata.name)
    here = [summary for summary in found if is_on_cluster(summary, target)]
    stale = [summary for summary in found if is_restored(summary, target) and had_owner(summary.metadata.name)]
    return SourceSteps(
        steps=tuple(step_of(item, required=backed(item)) for item in here), said=tuple(map(_said_of_restored, stale))
    )


def is_restored(summary: ClusterSummary, target: AddonTarget) -> bool:
    """Whether an enforced summary is from a backup: it names the cluster by the uid that it had before (pure)."""
    named = cluster_of(summary) == cluster_key(target)
    return named and not is_on_cluster(summary, target) and effort(summary) is Effort.ENFORCE


def _said_of_restored(summary: ClusterSummary) -> TeardownNotice:
    # Its profile could not create a summary of its own, which would have adopted the objects.
    it = ref_of(CLUSTER_SUMMARIES, summary.metadata)
    message = (
        f"{it} is from a backup, and its profile did not adopt its objects on this cluster; delete it to continue"
        " without removing them"
    )
    return TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.MOVED, message)


def merged(voices: ClusterVoices, step: SourceStep) -> SourceStep:
    """The step of a profile with the effort that the profile and the policies of its cluster decide together (pure)."""
    draft = step.draft
    named = ObjectRef(kind=draft.kind, namespace=draft.namespace, name=draft.declared)
    return voices.merged(SourceKind.PROFILE, named, step, own_from=_own_from(draft.name))


def _own_from(step: str) -> str:
    return f"clusterDeletionBehavior of {step}"


def step_of(summary: ClusterSummary, *, required: bool = True) -> SourceStep:
    """The step of a summary. `required`: whether it counts even without an Inventory (pure)."""
    profile = profile_or_self(summary)
    return SourceStep(
        draft=Draft(
            name=step_name(summary),
            object=ref_of(CLUSTER_SUMMARIES, summary.metadata),
            kind=profile.kind,
            namespace=profile.namespace,
            declared=profile.name,
            depends_on=summary.spec.cluster_profile_spec.depends_on,
            effort=planned_effort(summary),
        ),
        said=said_of(summary),
        elsewhere=Elsewhere.YES if is_local(summary) else Elsewhere.PERHAPS,
        required=required,
    )


def pause_of(summary: ClusterSummary, profile: SeenProfile | None) -> StepPause | None:
    """Why nothing of a summary is removed for now; None if its profile is not paused (pure)."""
    key = profile_of(summary)
    return pause_of_profile(key.kind, profile.metadata) if key and profile else None


def pause_of_profile(kind: str, metadata: ObjectMeta) -> StepPause | None:
    """Why nothing of a profile is removed for now; None if it is not paused (pure)."""
    if not is_paused(metadata):
        return None
    paused = ref_of(PROFILES if kind == PROFILES.kind else CLUSTER_PROFILES, metadata)
    return StepPause(paused, f"annotation {SVELTOS_PAUSED_ANNOTATION} of {paused}")


def left_while(pause: StepPause) -> str:
    """Why a step that nothing waits for leaves its objects, and how to have them removed (pure)."""
    return f"{pause.ledger}; unpause it to have them removed"


def step_name(summary: ClusterSummary) -> str:
    """The name of a summary's step (pure)."""
    return "/".join(part for part in profile_or_self(summary) if part)


def is_local(summary: ClusterSummary) -> bool:
    """Whether some of its objects are on the management cluster (pure)."""
    return any(ref.deployment_type == DeploymentType.LOCAL for ref in summary.spec.cluster_profile_spec.policy_refs)


def is_on_cluster(summary: ClusterSummary, target: AddonTarget) -> bool:
    """Whether a summary belongs to this cluster, by uid (pure)."""
    # An earlier cluster of the same name had its own summaries.
    made_for = summary.metadata.annotations.get(CLUSTER_UID_ANNOTATION, target.ref.uid)
    return cluster_of(summary) == cluster_key(target) and made_for == target.ref.uid


def _capi_key(summary: ClusterSummary) -> Key | None:
    """The Cluster of Cluster API of a summary."""
    spec = summary.spec
    return Key(spec.cluster_namespace, spec.cluster_name) if spec.cluster_type == ClusterType.CAPI else None
