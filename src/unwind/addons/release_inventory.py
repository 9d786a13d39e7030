"""The inventory entries of one Helm release on one member, and their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.addons import cluster_summaries
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.api.unwind import EntryState
from unwind.deploy.helm_install import Account, chart_of
from unwind.inventory.writer import Records
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Effort, Entry
    from unwind.helm.charts import Chart
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member


class ReleaseBook:
    """The inventory of one Helm release of a ClusterSummary."""

    def __init__(
        self,
        inventories: Inventories,
        owner: ObjectRef,
        member: Member,
        chart: Chart,
        *,
        effort: Effort | None = None,
    ) -> None:
        """`effort`: recorded in the inventory; None to keep what is recorded."""
        self._inventories = inventories
        self._member = member
        self._chart = chart
        self._records = Records(inventories, owner, member, effort=effort)

    async def mine(self) -> dict[str, Entry]:
        await self._records.load()
        return self._of_release(self._records.entries)

    async def theirs(self, owner: str) -> Account:
        chunks = await self._inventories.of(owner)
        entries = {
            key: entry
            for chunk in chunks
            if chunk.spec.member.object.uid == self._member.ref.uid
            for key, entry in self._of_release(chunk.spec.entries).items()
            if entry.state != EntryState.REMOVED
        }
        return Account(await self._whose(chunks[0].spec.owner) if chunks else "another profile", entries)

    async def record(self, changes: Mapping[str, Entry | None]) -> None:
        await self._records.put({key: entry for key, entry in changes.items() if entry is not None})
        await self._records.change({key: None for key, entry in changes.items() if entry is None})

    async def _whose(self, owner: ObjectRef) -> str:
        try:
            summary = await self._inventories.client.get(
                CLUSTER_SUMMARIES, owner.name, namespace=owner.namespace, type=ClusterSummary
            )
        except NotFoundError:
            return str(owner)
        return str(cluster_summaries.profile_of(summary) or owner)

    def _of_release(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        return {key: entry for key, entry in entries.items() if chart_of(entry) == self._chart.source}
