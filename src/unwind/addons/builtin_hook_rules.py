"""The built-in lifecycle hook rules, for every hook except BeforeClusterDelete.

A rule may answer "wait" from the caches. It confirms "proceed" by a fresh read (docs/architecture.md, Fresh reads
open gates), within Cluster API's timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.addons import cluster_profiles, cluster_summaries, creation_rules, upgrade_rules
from unwind.addons.chart_availability import Where
from unwind.addons.creation_rules import Lack, ProfileSource
from unwind.addons.hook_rule_catalogue import ADDONS_ALLOW, ADDONS_SETTLED, DEPLOY_AT_ONCE, SOURCES_EXIST, steady
from unwind.addons.summary_deployment import SummaryDeployment
from unwind.api.capi import Cluster
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import HelmChartAction
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.helm import charts
from unwind.hooks import Wait
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.members import targets
from unwind.members.targets import cluster_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.addons.caches import AddonCaches
    from unwind.addons.chart_availability import ChartAvailability
    from unwind.addons.cluster_profiles import ProfileState
    from unwind.api.hooks import HookRequest, Upgrading
    from unwind.hooks import HookContext, Rule
    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps

log = logs.get(__name__)

_STARTING = Wait("Unwind is starting and has not read all objects yet; Cluster API asks again", 1)
_NAMELESS = Wait("the request of Cluster API names no Cluster uid; Cluster API asks again", 10)
_KINDS = {resource.kind: resource for resource in (CONFIG_MAPS, SECRETS)}
_AT_ONCE = 8
# Seconds reserved for the rest of the request after the chart lookups.
_RESERVE = 2.0


def builtin(caches: AddonCaches, *, charts: ChartAvailability, deps: RemovalDeps) -> tuple[Rule, ...]:
    """The built-in rules. The caller runs `charts`."""
    rules = Rulings(caches, looked_for=charts, deps=deps)
    return (
        *SOURCES_EXIST.rules(rules.sources_exist),
        *DEPLOY_AT_ONCE.rules(rules.deploy_at_once),
        *ADDONS_ALLOW.rules(rules.addons_allow),
        *ADDONS_SETTLED.rules(rules.addons_settled),
    )


class Rulings:
    """Evaluates the rules."""

    def __init__(self, caches: AddonCaches, *, looked_for: ChartAvailability, deps: RemovalDeps) -> None:
        self._caches = caches
        self._charts = looked_for
        self._deps = deps

    # BeforeClusterCreate

    async def sources_exist(self, request: HookRequest, ctx: HookContext[Any]) -> Wait | None:
        if not self._caches.settled:
            return _STARTING
        target = targets.of_capi(request.cluster)
        known = cluster_profiles.cached(self._caches, target)
        lacks = [lack for item in known for lack in self._missing(item, target)]
        # Look up all charts at once: slow lookups are then in progress when they are needed.
        lacks += await self._charts_lacking(known, within=0.0 if lacks else ctx.remaining - _RESERVE)
        if lacks:
            return creation_rules.before_create(lacks)
        now = await cluster_profiles.fresh(self._caches, ctx.client, target)
        lacks = await self._not_there(ctx.client, now, target)
        lacks += await self._charts_lacking(now, within=0.0)
        return creation_rules.before_create(lacks)

    def _missing(self, it: ProfileState, target: AddonTarget) -> Iterable[Lack]:
        for source in _sources(it, target):
            informer = self._caches.sources.get(source.kind)
            if informer and informer.synced and Key(source.namespace, source.name) not in informer.cache:
                yield Lack(str(it.key), str(source), "not found")

    async def _not_there(self, client: Client, known: Iterable[ProfileState], target: AddonTarget) -> list[Lack]:
        lacks: list[Lack] = []
        accept = self._caches.sources[SECRETS.kind].view.accept_watch  # metadata only: the data is not needed

        async def look(it: ProfileState, source: ProfileSource) -> None:
            resource = _KINDS[source.kind]
            try:
                await client.raw(resource.path(source.name, namespace=source.namespace), accept=accept)
            except NotFoundError:
                lacks.append(Lack(str(it.key), str(source), "not found"))

        await gather_limited((look(it, source) for it in known for source in _sources(it, target)), limit=_AT_ONCE)
        return lacks

    async def _charts_lacking(self, known: Iterable[ProfileState], *, within: float) -> list[Lack]:
        lacks: list[Lack] = []

        async def look(it: ProfileState, where: Where) -> None:
            if why := await self._charts.why_not(where, within=within):
                lacks.append(Lack(str(it.key), str(where), why))

        wanted = [(it, where) for it in known for where in _charts(it)]
        await gather_limited((look(it, where) for it, where in wanted), limit=max(1, len(wanted)))
        return lacks

    # AfterControlPlaneInitialized

    async def deploy_at_once(self, request: HookRequest, ctx: HookContext[Any]) -> Wait | None:
        target = targets.of_capi(request.cluster)
        where = target.ref
        try:
            found = await ctx.client.get(
                self._caches.clusters.resource, where.name, namespace=where.namespace, type=Cluster
            )
        except UnwindError as error:
            # This hook does not block. The Cluster's own event triggers the deployment as well.
            log.info("cluster not read, waiting for its watch event", cluster=str(target), why=str(error))
            return None
        if found.metadata.uid == where.uid:
            self._caches.clusters.take(found)
            self._caches.look_again(cluster_key(target))
        return None

    # Before an upgrade

    async def addons_allow(self, request: Upgrading, ctx: HookContext[Any]) -> Wait | None:
        if not self._caches.settled:
            return _STARTING
        target = targets.of_capi(request.cluster)
        if not target.ref.uid:
            return _NAMELESS
        to = _versions(request)
        wait = upgrade_rules.before_upgrade([item.add_on for item in cluster_profiles.cached(self._caches, target)], to)
        if wait:
            return wait
        now = await cluster_profiles.fresh(self._caches, ctx.client, target)
        return upgrade_rules.before_upgrade([item.add_on for item in now], to)

    # After an upgrade

    async def addons_settled(self, request: HookRequest, ctx: HookContext[Any]) -> Wait | None:
        target = targets.of_capi(request.cluster)
        if target.paused or target.terminating:
            return None  # nothing is deployed to it
        if not target.ref.uid:
            return _NAMELESS
        if not self._caches.settled:
            return _STARTING
        wait = upgrade_rules.after(item.add_on for item in cluster_profiles.cached(self._caches, target))
        if wait:
            return wait
        now = await cluster_profiles.fresh(self._caches, ctx.client, target)
        return upgrade_rules.after(item.add_on for item in now) or await self._to_do(ctx.client, now, target)

    async def _to_do(self, client: Client, known: Iterable[ProfileState], target: AddonTarget) -> Wait | None:
        """Compare with the current sources: Provisioned may refer to their earlier content."""
        missing: list[str] = []
        deploying = SummaryDeployment(client, self._deps)  # to compare only: nothing is deployed

        async def look(it: ProfileState) -> None:
            assert it.summary  # noqa: S101 - the others are left out below
            try:
                if await deploying.prepare(it.summary, it.profile, target) is not None:
                    missing.append(f"{it.key} has changed and is not deployed yet")
            except UnwindError as error:
                why = steady(str(error))
                missing.append(f"{it.key} cannot be deployed ({why}); fix the profile")

        there = [state for state in known if state.summary and state.carried_out]
        await gather_limited((look(item) for item in there), limit=_AT_ONCE)
        return upgrade_rules.waiting(missing) if missing else None


def _sources(it: ProfileState, target: AddonTarget) -> list[ProfileSource]:
    if not it.carried_out:
        return []
    return creation_rules.needed_sources(
        cluster_summaries.at_home(it.key, it.profile.spec), namespace=target.ref.namespace
    )


def _charts(it: ProfileState) -> Iterable[Where]:
    if it.carried_out:
        for asked in it.profile.spec.helm_charts:
            if asked.helm_chart_action == HelmChartAction.INSTALL:
                chart = charts.read_chart(asked)
                yield Where(chart.chart, chart.repository, chart.version)


def _versions(request: Upgrading) -> list[str]:
    """All versions on the upgrade path; the last one is the requested version."""
    on_the_way = [upgrade.version for upgrade in (*request.control_plane_upgrades, *request.workers_upgrades)]
    return [*on_the_way, request.to_kubernetes_version]
