"""The controller of ClusterConfigurations: what is deployed on each cluster, by profile, as Sveltos reports it.

This is a summary for Sveltos' users: the authoritative record is in the Inventories.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.addons import cluster_summaries
from unwind.api.meta import ObjectMeta, manifest
from unwind.api.sveltos import (
    CLUSTER_CONFIGURATIONS,
    PROFILES,
    ClusterConfiguration,
    ClusterConfigurationStatus,
    ClusterProfileResources,
    DeployedChart,
    DeployedFeature,
    DeployedResource,
    FeatureID,
    FeatureStatus,
    ProfileResources,
)
from unwind.api.unwind import EntryState
from unwind.deploy.helm_install import chart_of
from unwind.inventory.inventories import items
from unwind.kube.controller import Controller
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.addons.caches import AddonCaches
    from unwind.api.sveltos import ClusterSummary
    from unwind.api.unwind import Inventory
    from unwind.inventory.inventories import Inventories
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.members.targets import ClusterKey

# An object is limited to 1.5 MB, and about ten profiles may share this one; the Inventories are complete.
_MOST = 500
_COALESCED = 1.0


def configuration_name(cluster: ClusterKey) -> str:
    """Sveltos' name for the ClusterConfiguration."""
    return f"{cluster.type.lower()}-{cluster.name}"


def deployed_features(summary: ClusterSummary, chunks: Iterable[Inventory]) -> tuple[DeployedFeature, ...]:
    """What a summary has deployed on its cluster (pure)."""
    there = [
        item.entry
        for item in items(chunks)
        if item.entry.state == EntryState.CONFIRMED and not item.entry.left and not chart_of(item.entry)
    ]
    resources = tuple(
        DeployedResource(
            group=entry.object.group,
            version=entry.object.version,
            kind=entry.object.kind,
            namespace=entry.object.namespace,
            name=entry.object.name,
        )
        for entry in sorted(
            there, key=lambda entry: (entry.order, entry.object.kind, entry.object.namespace, entry.object.name)
        )
    )[:_MOST]
    provisioned = {
        item.feature_id for item in summary.status.feature_summaries if item.status == FeatureStatus.PROVISIONED
    }
    charts = tuple(
        DeployedChart(
            repo_url=chart.repository_url,
            release_name=chart.release_name,
            namespace=chart.release_namespace,
            chart_version=chart.chart_version,
        )
        for chart in summary.spec.cluster_profile_spec.helm_charts
        if FeatureID.HELM in provisioned
    )
    found = [
        DeployedFeature(feature_id=FeatureID.RESOURCES.value, resources=resources) if resources else None,
        DeployedFeature(feature_id=FeatureID.HELM.value, charts=charts) if charts else None,
    ]
    return tuple(item for item in found if item)


def spelled_out(status: ClusterConfigurationStatus) -> dict[str, Any]:
    """The status body, with the fields that the CRD requires even if empty. The core group is the empty string."""
    body: dict[str, Any] = msgspec.to_builtins(status)
    for profile in (*body.get("clusterProfileResources", ()), *body.get("profileResources", ())):
        for feature in profile.get("Features", ()):
            feature["resources"] = [{"group": ""} | resource for resource in feature.get("resources", ())]
            feature["charts"] = [{"chartVersion": ""} | chart for chart in feature.get("charts", ())]
    return body


class ConfigurationController(Controller["ClusterKey"]):
    """Writes ClusterConfigurations."""

    name = "configurations"
    _caches: AddonCaches

    def __init__(self, shared: ControllerDeps, caches: AddonCaches, inventories: Inventories) -> None:
        super().__init__(shared, caches)
        self._inventories = inventories
        self._known: dict[str, tuple[object, tuple[DeployedFeature, ...]]] = {}
        """The deployed features of each summary by uid, with the state that they were computed for."""
        self._written: dict[ClusterKey, ClusterConfigurationStatus] = {}
        caches.summaries.subscribe(self._changed)

    def _changed(self, change: Change[ClusterSummary]) -> None:
        old, new = (_state(item) if item else None for item in (change.old, change.new))
        it = change.new or change.old
        if it and old != new:
            if change.new is None:
                self._known.pop(it.metadata.uid, None)
            # Profiles change in bursts, and nothing waits for this write.
            self._queue.add_after(cluster_summaries.cluster_of(it), _COALESCED)

    def _enqueue_all(self) -> None:
        self._written.clear()
        if self._caches.settled:
            for summary in list(self._caches.summaries.cache):
                self._queue.add(cluster_summaries.cluster_of(summary))

    def _shard(self, key: ClusterKey) -> str:
        return key.shard

    def _describe(self, key: ClusterKey) -> dict[str, str]:
        return {"cluster": str(key)}

    async def _reconcile(self, cluster: ClusterKey) -> float | None:
        if not self._caches.settled or not self._owner.owns(cluster.shard):
            return None
        summaries = self._caches.summaries.cache.by("cluster", cluster)
        if not summaries:
            await self._discard(cluster)
            return None
        # Low priority: nothing waits for this write, and the state has settled meanwhile.
        async with self._client.aside:
            status = await self._status(self._caches.summaries.cache.by("cluster", cluster))
        if self._written.get(cluster) == status:
            return None
        if status != ClusterConfigurationStatus() or cluster in self._written:
            await self._write(cluster, status)
            self._written[cluster] = status
        return None

    async def _status(self, summaries: Iterable[ClusterSummary]) -> ClusterConfigurationStatus:
        wide: list[ClusterProfileResources] = []
        narrow: list[ProfileResources] = []
        for summary in summaries:
            profile = cluster_summaries.profile_of(summary)
            found = await self._features(summary)
            if profile and found and profile.kind == PROFILES.kind:
                narrow.append(ProfileResources(profile_name=profile.name, features=found))
            elif profile and found:
                wide.append(ClusterProfileResources(cluster_profile_name=profile.name, features=found))
        wide.sort(key=lambda one: one.cluster_profile_name)
        narrow.sort(key=lambda one: one.profile_name)
        return ClusterConfigurationStatus(cluster_profile_resources=tuple(wide), profile_resources=tuple(narrow))

    async def _features(self, summary: ClusterSummary) -> tuple[DeployedFeature, ...]:
        state, uid = _state(summary), summary.metadata.uid
        told = summary.status.feature_summaries
        if all(item.status == FeatureStatus.PROVISIONING and not item.last_applied_time for item in told):
            return ()  # nothing deployed yet
        known = self._known.get(uid)
        if known is None or known[0] != state:
            known = self._known[uid] = (state, deployed_features(summary, await self._inventories.at_hand(uid)))
        return known[1]

    async def _write(self, cluster: ClusterKey, status: ClusterConfigurationStatus) -> None:
        name, namespace = configuration_name(cluster), cluster.namespace
        body = {"status": spelled_out(status) or None}
        while True:
            try:
                await self._client.patch(CLUSTER_CONFIGURATIONS, name, body, namespace=namespace, subresource="status")
            except NotFoundError:
                new = ClusterConfiguration(metadata=ObjectMeta(name=name, namespace=namespace))
                with suppress(AlreadyExistsError):  # created concurrently
                    await self._client.create(CLUSTER_CONFIGURATIONS, manifest(CLUSTER_CONFIGURATIONS, new))
            else:
                return

    async def _discard(self, cluster: ClusterKey) -> None:
        self._written.pop(cluster, None)
        name, namespace = configuration_name(cluster), cluster.namespace
        with suppress(NotFoundError, ConflictError):  # already deleted or replaced
            found = await self._client.get(CLUSTER_CONFIGURATIONS, name, namespace=namespace)
            uid = found["metadata"]["uid"]
            await self._client.delete(CLUSTER_CONFIGURATIONS, name, uid=uid, namespace=namespace)


def _state(summary: ClusterSummary) -> object:
    """The fields of a summary that change when its deployed objects change."""
    return tuple((item.feature_id, item.hash, item.last_applied_time) for item in summary.status.feature_summaries)
