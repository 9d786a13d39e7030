"""The deployment of one ClusterSummary: sources, comparison with the cluster, and result."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.addons import cluster_summaries, summary_status
from unwind.addons import policy_refs as reading
from unwind.addons.cluster_deletion_behavior import effort
from unwind.addons.moved_cluster_adoption import MovedAddons
from unwind.addons.release_inventory import ReleaseBook
from unwind.addons.step_source import step_name
from unwind.addons.summary_status import FeatureResult, feature_hash, same_content, with_effort
from unwind.api import names
from unwind.api.annotation_values import volume_policy
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.sveltos import (
    CLUSTER_SUMMARIES,
    DeployedKinds,
    FeatureID,
    FeatureStatus,
    HelmChartAction,
    HelmReleaseSummary,
    SyncMode,
)
from unwind.deleters.chain_attempt import Waiting
from unwind.deleters.registry import DeleterRegistry
from unwind.deploy import deployment as manifests
from unwind.deploy import dry_run, helm_install, prune
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.deploy.reports import ObjectOutcome
from unwind.errors import UnwindError
from unwind.helm import charts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from unwind.addons.caches import SeenProfile
    from unwind.api.sveltos import ClusterSummary, ClusterSummaryStatus
    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.reports import DeploymentReport
    from unwind.helm.charts import Chart
    from unwind.helm.program import Helm
    from unwind.inventory.writer import Records
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps


_SHOWN = 20


class DeploymentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a deployment."""

    results: tuple[FeatureResult, ...] = ()
    kinds: tuple[DeployedKinds, ...] = ()
    releases: tuple[HelmReleaseSummary, ...] = ()
    report: str | None = None
    """The preview of a DryRun."""
    taken_from: frozenset[str] = frozenset()
    """The uids of the owners that objects were taken over from."""
    lacking: bool = False
    """Whether an object is in conflict with another owner."""
    pruned: bool = False
    """Whether objects were removed that others may be waiting for."""

    @property
    def trouble(self) -> str:
        return "; ".join(result.message for result in self.results if result.status is FeatureStatus.FAILED)

    def apply(self, status: ClusterSummaryStatus, *, now: datetime) -> ClusterSummaryStatus:
        """The status with this result."""
        after = summary_status.with_results(status, self.results, now=now)
        if self.report is None:
            after = summary_status.with_deployed(after, self.kinds, self.releases)
        return summary_status.previewed(after, self.report, now=now)


class SummaryDeployment:
    """The dependencies shared by all deployments."""

    def __init__(self, client: Client, deps: RemovalDeps, *, helm: Helm | None = None) -> None:
        """`helm`: None if the helm binary is not installed; then charts fail."""
        self.client = client
        self.deps = deps
        self.helm = helm
        self.moved = MovedAddons(deps)
        self.registry = DeleterRegistry(deps.deleters, plugins=deps.plugins)

    async def prepare(
        self, summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget
    ) -> DeploymentTask | None:
        """The deployment to run; None if it is already done. Changes nothing, and needs no member."""
        spec = summary.spec.cluster_profile_spec
        once = spec.sync_mode == SyncMode.ONE_TIME
        provisioned = cluster_summaries.provisioned(summary)
        if once and provisioned:
            return None
        if not provisioned:
            self.deps.members.expect(target)  # while the sources are read
        key = cluster_summaries.profile_of(summary)
        tenant = key.namespace if key else ""
        namespace = summary.spec.cluster_namespace
        found = await reading.read_sources(self.client, spec.policy_refs, namespace=namespace, tenant=tenant)
        wanted = [chart for chart in spec.helm_charts if chart.helm_chart_action == HelmChartAction.INSTALL]
        asked = [
            charts.read_chart(
                chart,
                values=await charts.collect(self.client, chart, namespace=namespace),
                order=len(spec.policy_refs) + place,
            )
            for place, chart in enumerate(wanted)
        ]
        annotations = profile.metadata.annotations if profile else {}
        adopt = annotations.get(names.ADOPT_ANNOTATION) == "true"
        hashes = {
            FeatureID.RESOURCES: feature_hash([found, spec.tier, adopt]),
            FeatureID.HELM: feature_hash([*(item.inputs for item in asked), spec.tier]),
        }
        had = {
            FeatureID.read(item.feature_id): item
            for item in summary.status.feature_summaries
            if item.status != FeatureStatus.REMOVED
        }
        features = [
            feature
            for feature in hashes
            if (feature in cluster_summaries.features(spec) or feature in had)
            and not (
                feature in had
                and had[feature].status == FeatureStatus.PROVISIONED
                and same_content(had[feature].hash, hashes[feature])
                and spec.sync_mode != SyncMode.DRY_RUN
            )
        ]
        if not features:
            return None
        owner = DeploymentOwner(
            object=_ref(summary),
            profile=cluster_summaries.profile_ref(summary),
            tier=spec.tier,
            adopt=adopt,
            effort=effort(summary),
            former=await self.moved.former(target, summary),
        )
        wanted_hashes = {feature: with_effort(hashes[feature], effort(summary)) for feature in features}
        return DeploymentTask(self, target, owner, found, asked, wanted_hashes, summary, annotations)


class DeploymentTask:
    """One deployment that is ready to run."""

    def __init__(
        self,
        shared: SummaryDeployment,
        target: AddonTarget,
        owner: DeploymentOwner,
        found: list[ManifestSource],
        asked: list[Chart],
        hashes: Mapping[FeatureID, str],
        summary: ClusterSummary,
        annotations: Mapping[str, str],
    ) -> None:
        self._shared = shared
        self._target = target
        self._owner = owner
        self._sources = found
        self._charts = asked
        self._hashes = hashes
        self._wanted = cluster_summaries.features(summary.spec.cluster_profile_spec)
        # A summary that was never deployed has nothing to prune.
        self._first = not summary.status.feature_summaries and not owner.former
        self._volumes = volume_policy(annotations)
        self.dry_run = summary.spec.cluster_profile_spec.sync_mode == SyncMode.DRY_RUN
        self.prunes = prune.Prunes(
            owner.object,
            step_name(summary),
            target,
            shared.deps,
            take_along=annotations.get(names.TAKE_ALONG_ANNOTATION) == "true",
            volumes=lambda: self._volumes,
            changed=lambda: self._news(),  # noqa: PLW0108 - it is set later
        )
        """They remove objects that are no longer in the profile."""
        self._plain = not asked and not any(source.local for source in found)
        self.intended: Records | None = None
        """Its objects, as far as they were recorded in advance."""
        self._landed: Callable[[], None] = lambda: None
        self._news: Callable[[], None] = lambda: None

    @property
    def begun(self) -> list[FeatureResult]:
        """The status of each feature while it runs."""
        if self.dry_run:
            return []
        waits = self.prunes.waits
        message = "; ".join(what.reason if isinstance(what, Waiting) else what.message for what in waits[:_SHOWN])
        return [
            FeatureResult(feature=feature, status=FeatureStatus.PROVISIONING, message=message)
            for feature in self._hashes
        ]

    async def intend(self) -> None:
        """Record the objects of a first deployment in advance. Errors are reported when it runs."""
        if not (self._first and self._plain) or self.dry_run or self.intended:
            return
        with suppress(UnwindError):
            async with self._shared.deps.members.member(self._target) as member:
                self.intended = await manifests.intend(
                    member, self._shared.deps.inventories, self._owner, self._sources
                )

    async def run(self, *, landed: Callable[[], None], news: Callable[[], None]) -> DeploymentResult:
        """Run the deployment. Raises if the member cannot be reached, or the summary is being removed.

        `landed`: called when everything is on the member for the first time, before any status write. `news`: called
        when it waits for something else.
        """
        self._news = news
        done = DeploymentResult(report="" if self.dry_run else None)
        if self._first and self._plain:
            self._landed = landed
        async with self._shared.deps.members.member(self._target) as member:
            if not self.dry_run:
                await self._shared.moved.adopt(member, self._owner)
            if FeatureID.RESOURCES in self._hashes:
                done = await self._resources(member, done)
            if FeatureID.HELM in self._hashes:
                done = await self._helm(member, done)
        return msgspec.structs.replace(done, pruned=bool(self.prunes.runners))

    async def _resources(self, member: Member, done: DeploymentResult) -> DeploymentResult:
        """Apply manifests to the member, and Local ones to the management cluster. Each has its own Inventory."""
        reports = [await self._put(member, [source for source in self._sources if not source.local], first=self._first)]
        local = [source for source in self._sources if source.local]
        if local or (not (self._first or self.dry_run) and await self._was_local()):
            async with self._shared.deps.members.management() as home:
                reports.append(await self._put(home, local, within=self._owner.profile.namespace))
        if self.dry_run:
            changes = [
                str(result)
                for report in reports
                for result in report.results
                if result.outcome is not ObjectOutcome.UNCHANGED
            ]
            faults = [fault for report in reports for fault in report.faults]
            told = _first([*faults, *changes]) or "nothing would change"
            return msgspec.structs.replace(done, report=f"Resources: {told}")
        trouble = "; ".join(report.trouble for report in reports if not report.complete)
        there = [
            item.object
            for report in reports
            for item in report.of(ObjectOutcome.CREATED, ObjectOutcome.UPDATED, ObjectOutcome.UNCHANGED)
        ]
        kinds = sorted({f"{ref.kind}.{ref.version}.{ref.group}" for ref in there})
        deployed = DeployedKinds(feature_id=FeatureID.RESOURCES.value, deployed_group_version_kind=tuple(kinds))
        result = self._result(FeatureID.RESOURCES, trouble)
        return msgspec.structs.replace(
            done,
            results=(*done.results, result),
            kinds=(*done.kinds, deployed),
            taken_from=frozenset(
                result.taken_from for report in reports for result in report.results if result.taken_from
            ),
            lacking=any(report.of(ObjectOutcome.CONFLICT) for report in reports),
        )

    async def _put(
        self, member: Member, found: list[ManifestSource], *, within: str = "", first: bool = False
    ) -> DeploymentReport:
        shared, owner = self._shared, self._owner
        if self.dry_run:
            return await dry_run.rehearse(member, shared.deps.inventories, owner, found, within=within)
        report = await manifests.deploy(
            member,
            shared.deps.inventories,
            owner,
            found,
            within=within,
            first=first,
            intended=self.intended if first else None,
            landed=self._landed,
        )
        if self._first:
            return report
        await prune.prune(self.prunes, member, report)
        return report

    async def _was_local(self) -> bool:
        chunks = await self._shared.deps.inventories.of(self._owner.uid)
        return any(chunk.spec.member.object.uid != self._target.ref.uid for chunk in chunks)

    async def _helm(self, member: Member, done: DeploymentResult) -> DeploymentResult:
        """Install charts one by one, in the profile's order; a failure does not stop the others."""
        if self._shared.helm is None:
            trouble = (
                "the helm program is not installed: use the image of Unwind, or install Helm 3 where the manager runs"
                if self._charts
                else ""
            )
            return msgspec.structs.replace(done, results=(*done.results, self._result(FeatureID.HELM, trouble)))
        if self.dry_run:
            told = [await self._preview(self._shared.helm, member, chart) for chart in self._charts]
            return msgspec.structs.replace(done, report=". ".join(filter(None, [done.report, *told])))
        troubles: list[str] = []
        taken_from = set(done.taken_from)
        releases: list[HelmReleaseSummary] = []
        for chart in self._charts:
            conflict = failure = ""
            try:
                deployed = await helm_install.install_or_upgrade(
                    self._shared.helm,
                    member,
                    chart,
                    owner=self._owner,
                    book=self._book(member, chart),
                    registry=self._shared.registry,
                )
                taken_from |= {deployed.taken_from} - {""}
            except helm_install.HelmConflictError as error:
                conflict = str(error)
            except UnwindError as error:
                failure = str(error)
            troubles += [f"{chart.source}: {item}" for item in (conflict, failure) if item]
            releases.append(
                HelmReleaseSummary(
                    release_name=chart.release,
                    release_namespace=chart.namespace,
                    status="Conflict" if conflict else "Managing",
                    conflict_message=conflict,
                    failure_message=failure or None,
                )
            )
        await prune.prune_charts(
            self.prunes, member, HelmReleases(self._shared.helm), {chart.source for chart in self._charts}
        )
        result = self._result(FeatureID.HELM, "; ".join(troubles))
        return msgspec.structs.replace(
            done,
            results=(*done.results, result),
            releases=tuple(releases),
            taken_from=frozenset(taken_from),
            lacking=done.lacking or any(summary.conflict_message for summary in releases),
        )

    def _book(self, member: Member, chart: Chart) -> ReleaseBook:
        owner = self._owner
        return ReleaseBook(self._shared.deps.inventories, owner.object, member, chart, effort=owner.effort)

    async def _preview(self, helm: Helm, member: Member, chart: Chart) -> str:
        found = await helm_install.preview(helm, member, chart, owner=self._owner, book=self._book(member, chart))
        what = "would be installed" if found.installs else "would change" if found.changes else "would not change"
        if found.taken_from:
            what = f"would be taken over from {found.taken_from}"
        return f"{chart.source} {what}{': ' if found.conflicts else ''}{_first(found.conflicts)}"

    def _result(self, feature: FeatureID, trouble: str) -> FeatureResult:
        if feature not in self._wanted and not trouble:
            return FeatureResult(feature=feature, status=FeatureStatus.REMOVED)
        status = FeatureStatus.FAILED if trouble else FeatureStatus.PROVISIONED
        return FeatureResult(feature=feature, status=status, hash=self._hashes[feature], message=trouble)


def _ref(summary: ClusterSummary) -> ObjectRef:
    return ref_of(CLUSTER_SUMMARIES, summary.metadata)


def _first(told: Iterable[str]) -> str:
    told = list(told)
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return "; ".join(told[:_SHOWN]) + more


# Deployments prepared while their dependencies are still in progress.


class _Ready(NamedTuple):
    matters: object
    profile: SeenProfile | None
    work: DeploymentTask

    def is_for(self, summary: ClusterSummary, profile: SeenProfile | None) -> bool:
        return self.matters == matters(summary) and self.profile == profile


class Preparations:
    """Deployments that were read ahead, with the state that they were read for. A change of that state is an event,
    which reads or deploys again."""

    def __init__(self) -> None:
        self._ready: dict[str, _Ready] = {}

    async def make(
        self, deploying: SummaryDeployment, summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget
    ) -> None:
        """Prepare the deployment of a summary, and record its objects."""
        before = self._ready.pop(summary.metadata.uid, None)
        with suppress(UnwindError):  # reported when it is its turn
            work = await deploying.prepare(summary, profile, target)
            if work is None:
                return
            if before and before.is_for(summary, profile):
                work.intended = before.work.intended
            await work.intend()
            self._ready[summary.metadata.uid] = _Ready(matters(summary), profile, work)

    async def take(
        self, deploying: SummaryDeployment, summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget
    ) -> DeploymentTask | None:
        """The deployment of a summary; None if it is already done."""
        ready = self._ready.pop(summary.metadata.uid, None)
        if ready and ready.is_for(summary, profile):
            return ready.work
        return await deploying.prepare(summary, profile, target)

    def forget(self, summary: ClusterSummary) -> None:
        self._ready.pop(summary.metadata.uid, None)


def matters(summary: ClusterSummary) -> object:
    """The fields of a summary that decide its deployment; not its status."""
    meta = summary.metadata
    return meta.uid, summary.spec, meta.deletion_timestamp, meta.finalizers, meta.annotations
