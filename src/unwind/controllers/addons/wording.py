"""Writing on ClusterSummaries: their status, and our finalizer. Nothing else of them is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Finalizer
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.controllers.addons import statuses
from unwind.controllers.revising import revise
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.views import Key

if TYPE_CHECKING:
    from unwind.api.names import Reason
    from unwind.api.sveltos_status import ClusterSummaryStatus
    from unwind.clock import Clock
    from unwind.controllers.addons.caches import Caches
    from unwind.kube.client import Client, Object


def key_of(summary: ClusterSummary) -> Key:
    return Key(summary.metadata.namespace, summary.metadata.name)


class Words:
    """Says things on summaries. What is said is in the cache at once: nobody need wait for a watch to tell it."""

    def __init__(self, client: Client, caches: Caches, *, clock: Clock) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock

    async def wait(self, summary: ClusterSummary, reason: Reason | None, message: str = "") -> None:
        """Say what is waited for before anything is done; None for nothing."""
        await self.write(summary, statuses.waiting(summary.status, reason, message, now=self._clock.now()))

    async def say(self, summary: ClusterSummary, results: list[statuses.Result]) -> None:
        """Say how far features are."""
        now = self._clock.now()
        await self.write(
            summary, statuses.waiting(statuses.with_results(summary.status, results, now=now), None, now=now)
        )

    async def write(self, summary: ClusterSummary, status: ClusterSummaryStatus) -> None:
        """Have this status; nothing is written where it is there already."""
        # What was written last may be in the cache already: two writes that cross would tell old things.
        change = statuses.patch(self._latest(summary).status, status)
        if not change:
            return
        meta = summary.metadata
        body: Object = {"metadata": {"uid": meta.uid}, "status": change}
        try:
            written = await self._client.patch(
                CLUSTER_SUMMARIES, meta.name, body, namespace=meta.namespace, subresource="status"
            )
        except (NotFoundError, ConflictError):
            return  # it is gone, and nobody reads it
        self._caches.summaries.take(msgspec.convert(written, ClusterSummary))

    async def set_finalizer(self, summary: ClusterSummary, *, wanted: bool) -> None:
        """Have our finalizer on it, or not."""
        meta = self._latest(summary).metadata
        read: Object = {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": list(meta.finalizers),
        }

        def change(now: Object) -> Object | None:
            have = now["metadata"].get("finalizers") or []
            if (Finalizer.SUMMARY in have) is wanted:
                return None
            left = [one for one in have if one != Finalizer.SUMMARY]
            return {"metadata": {"finalizers": [*left, Finalizer.SUMMARY.value] if wanted else left}}

        await revise(self._client, CLUSTER_SUMMARIES, {"metadata": read}, change)

    def _latest(self, summary: ClusterSummary) -> ClusterSummary:
        there = self._caches.summaries.cache.get(key_of(summary))
        return there if there and there.metadata.uid == summary.metadata.uid else summary
