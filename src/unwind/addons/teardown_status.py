"""Copies the progress of teardown steps into ClusterSummaries; nothing waits for these writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.addons import summary_status
from unwind.api.sveltos import FeatureStatus
from unwind.api.unwind import StepState
from unwind.kube.decoding import Key
from unwind.kube.updates import IN_TIME
from unwind.kube.workqueue import Queue

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.sveltos import ClusterSummary
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer

_TOLD = {
    StepState.REMOVING: FeatureStatus.REMOVING,
    StepState.REMOVED: FeatureStatus.REMOVED,
}


class Projections:
    """Writes the progress of steps into their summaries, in the background."""

    def __init__(self, client: Client, summaries: Informer[ClusterSummary]) -> None:
        self._client = client
        self._summaries = summaries
        self._states: dict[ObjectRef, StepState] = {}
        self._queue: Queue[ObjectRef] = Queue(self._write)

    def tell(self, summary: ObjectRef, state: StepState) -> None:
        """Queue the write."""
        self._states[summary] = state
        self._queue.add_after(summary, IN_TIME)

    async def run(self) -> None:
        await self._queue.run()

    async def _write(self, ref: ObjectRef) -> float | None:
        async with self._client.aside:
            state = self._states.get(ref)
            word = _TOLD.get(state) if state else None
            summary = self._summaries.cache.get(Key(ref.namespace, ref.name))
            if word and summary and summary.metadata.uid == ref.uid:
                await self._put(summary, word)
            if self._states.get(ref) is state:
                self._states.pop(ref, None)
        return None

    async def _put(self, summary: ClusterSummary, word: FeatureStatus) -> None:
        before = summary.status.feature_summaries
        after = tuple(msgspec.structs.replace(item, status=word.value) for item in before)
        if after != before:
            change = {"featureSummaries": msgspec.to_builtins(after)}
            await summary_status.put(self._client, self._summaries, summary, change)
