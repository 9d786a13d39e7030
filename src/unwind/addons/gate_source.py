"""The ClusterSummaries that keep a cluster for which there is no Teardown yet, for Cluster API's gate."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind.addons.backing import that_hold
from unwind.addons.step_source import behaviour, is_of, step_name
from unwind.api.fields import Model
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.inventory.inventories import Inventories
from unwind.members.targets import key_of
from unwind.teardown import gate
from unwind.teardown.drafts import lost
from unwind.teardown.gate import GateClosed, GateHolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.addons.caches import AddonCaches
    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget


class SummaryGateSource:
    """What ClusterSummaries say of a cluster that Cluster API wants to take apart."""

    def __init__(self, client: Client, caches: AddonCaches, *, namespace: str) -> None:
        """`namespace`: Unwind's own, where the inventories are."""
        self._client = client
        self._caches = caches
        self._inventories = Inventories(client, namespace=namespace)

    @property
    def synced(self) -> bool:
        """Whether all summaries are known."""
        return self._caches.summaries.synced

    @property
    def settled(self) -> bool:
        """Whether the profiles and clusters behind them are known as well."""
        return self._caches.settled

    def known(self, target: AddonTarget) -> list[GateHolder]:
        """All that the caches know of for this cluster."""
        return _standing(self._known(target))

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        """Those that a profile backs, as the caches say. One without a profile may have an Inventory, or may be
        planted: `read` decides."""
        return _standing(item for item in self._known(target) if self._is_backed(item, target))

    async def read(self, target: AddonTarget) -> tuple[list[GateHolder], list[str]]:
        """Those that count, as the API server says now; and the names of summaries that are gone and left objects."""
        here = await self._read_summaries(target)
        chunks = await self._inventories.on(target.ref.uid)
        accounted = {chunk.spec.owner.uid for chunk in chunks}
        others = [item for item in here if item.metadata.uid not in accounted and not self._is_backed(item, target)]
        if isinstance(gate.of_summaries(target.ref.uid, _standing(others)), GateClosed):
            # What was put on the management cluster is accounted for by Inventories that are not about this one.
            owned = await self._inventories.owned([item.metadata.uid for item in others])
            accounted |= {item.spec.owner.uid for item in owned}
            accounted |= {item.metadata.uid for item in others if await self._caches.read_backed(item, target)}
            here = that_hold(here, accounted, lambda one: self._is_backed(one, target))
        return _standing(here), [item.step for item in lost([item.metadata.uid for item in here], chunks)]

    def _known(self, target: AddonTarget) -> list[ClusterSummary]:
        return [
            summary for summary in self._caches.summaries.cache.by("cluster", key_of(target)) if is_of(summary, target)
        ]

    async def _read_summaries(self, target: AddonTarget) -> list[ClusterSummary]:
        found: list[ClusterSummary] = []
        pages = self._client.pages(CLUSTER_SUMMARIES, namespace=target.ref.namespace)
        async with aclosing(pages):
            async for page in pages:
                # One of another cluster that cannot be read keeps nobody else's.
                here = [item for item in page.items or () if _cluster_of(item).spec.cluster_name == target.ref.name]
                found += map(_summary, here)
        return [summary for summary in found if is_of(summary, target)]

    def _is_backed(self, summary: ClusterSummary, target: AddonTarget) -> bool:
        """Whether a profile backs a summary, as the caches say. What is not known yet holds."""
        caches = self._caches
        return not (caches.settled and caches.unbacked(summary) and caches.unbacked(summary, target))


def _standing(summaries: Iterable[ClusterSummary]) -> list[GateHolder]:
    # Called as their steps will be, so that what people read does not change when the plan is made.
    return [GateHolder(step_name(summary), behaviour(summary)) for summary in summaries]


class _Of(Model, frozen=True, kw_only=True):
    cluster_name: str = ""


class _Named(Model, frozen=True, kw_only=True):
    """As much of a summary as tells which cluster it is of."""

    spec: _Of = _Of()


_cluster_of = msgspec.json.Decoder(_Named).decode
_summary = msgspec.json.Decoder(ClusterSummary).decode
