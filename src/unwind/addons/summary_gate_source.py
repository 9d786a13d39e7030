"""The ClusterSummaries that block the deletion of a Cluster before its Teardown exists."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind.addons.cluster_deletion_behavior import behaviour
from unwind.addons.cluster_summaries import that_hold
from unwind.addons.step_source import is_on_cluster, step_name
from unwind.api.fields import Model
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.members.targets import cluster_key
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed, GateHolder
from unwind.teardown.drafts import lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.addons.caches import AddonCaches
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget


class SummaryGateSource:
    """The ClusterSummaries that block the deletion of a Cluster."""

    def __init__(self, client: Client, caches: AddonCaches, inventories: Inventories) -> None:
        self._client = client
        self._caches = caches
        self._inventories = inventories

    @property
    def synced(self) -> bool:
        """Whether the cache of summaries is synced."""
        return self._caches.summaries.synced

    @property
    def settled(self) -> bool:
        """Whether the caches of profiles and clusters are synced as well."""
        return self._caches.settled

    def known(self, target: AddonTarget) -> list[GateHolder]:
        """All summaries of this cluster in the caches."""
        return _standing(self._known(target))

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        """The summaries that a profile backs, by the caches. One without a profile may have an Inventory or be forged:
        `read` decides."""
        return _standing(item for item in self._known(target) if self._is_backed(item, target))

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        """The summaries that count, read from the API server, and the names of deleted summaries whose objects block
        the deletion. `reading`: called with what is read next."""
        reading(f"the ClusterSummaries in namespace {target.ref.namespace}")
        here = await self._read_summaries(target)
        reading(f"the Inventories in namespace {self._inventories.namespace}")
        chunks = await self._inventories.on(target.ref.uid)
        accounted = {chunk.spec.owner.uid for chunk in chunks}
        others = [item for item in here if item.metadata.uid not in accounted and not self._is_backed(item, target)]
        if isinstance(deletion_gate.of_summaries(target.ref.uid, _standing(others)), GateClosed):
            # Objects on the management cluster are recorded in Inventories of their own.
            owned = await self._inventories.owned([item.metadata.uid for item in others])
            accounted |= {item.spec.owner.uid for item in owned}
            reading("the profiles of its ClusterSummaries")
            accounted |= {item.metadata.uid for item in others if await self._caches.read_backed(item, target)}
            here = that_hold(here, accounted, lambda one: self._is_backed(one, target))
        gone = lost([item.metadata.uid for item in here], chunks)
        return _standing(here), [item.step for item in gone if item.holds]

    def _known(self, target: AddonTarget) -> list[ClusterSummary]:
        return [
            summary
            for summary in self._caches.summaries.cache.by("cluster", cluster_key(target))
            if is_on_cluster(summary, target)
        ]

    async def _read_summaries(self, target: AddonTarget) -> list[ClusterSummary]:
        found: list[ClusterSummary] = []
        pages = self._client.pages(CLUSTER_SUMMARIES, namespace=target.ref.namespace)
        async with aclosing(pages):
            async for page in pages:
                # A summary of another cluster that cannot be decoded does not block this one.
                here = [item for item in page.items or () if _cluster_of(item).spec.cluster_name == target.ref.name]
                found += map(_summary, here)
        return [summary for summary in found if is_on_cluster(summary, target)]

    def _is_backed(self, summary: ClusterSummary, target: AddonTarget) -> bool:
        """Whether a profile backs a summary, by the caches. While unknown, it blocks."""
        caches = self._caches
        return not (caches.settled and caches.unbacked(summary) and caches.unbacked(summary, target))


def _standing(summaries: Iterable[ClusterSummary]) -> list[GateHolder]:
    # Named like the later steps, so that the message does not change when the plan exists.
    return [GateHolder(step_name(summary), behaviour(summary)) for summary in summaries]


class _Of(Model, frozen=True, kw_only=True):
    cluster_name: str = ""


class _Named(Model, frozen=True, kw_only=True):
    """The fields of a summary that identify its cluster."""

    spec: _Of = _Of()


_cluster_of = msgspec.json.Decoder(_Named).decode
_summary = msgspec.json.Decoder(ClusterSummary).decode
