"""What summaries, and teardowns without a plan, say of a teardown: projections, which nothing waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.conditions import without_condition
from unwind.api.names import ConditionType
from unwind.api.sveltos_status import FeatureStatus
from unwind.api.unwind import TEARDOWNS, Phase, StepState
from unwind.controllers.addons import wording
from unwind.controllers.teardowns import releasing, telling
from unwind.controllers.teardowns.telling import View
from unwind.kube.queue import Queue
from unwind.kube.views import Key

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.sveltos import ClusterSummary
    from unwind.api.unwind import Teardown
    from unwind.controllers.teardowns.drafting import Said
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer

_TOLD = {
    StepState.REMOVING: FeatureStatus.REMOVING,
    StepState.REMOVED: FeatureStatus.REMOVED,
}


class Projections:
    """Writes into summaries how far their steps have come, behind the back of who tells it."""

    def __init__(self, client: Client, summaries: Informer[ClusterSummary]) -> None:
        self._client = client
        self._summaries = summaries
        self._states: dict[ObjectRef, StepState] = {}
        self._queue: Queue[ObjectRef] = Queue(self._write)

    def tell(self, summary: ObjectRef, state: StepState) -> None:
        """Have it written, soon."""
        self._states[summary] = state
        self._queue.add_after(summary, wording.IN_TIME)

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
        after = tuple(msgspec.structs.replace(one, status=word.value) for one in before)
        if after != before:
            change = {"featureSummaries": msgspec.to_builtins(after)}
            await wording.put(self._client, self._summaries, summary, change)


async def hold(
    client: Client, teardown: Teardown, said: tuple[Said, ...], *, gated: bool = True, now: datetime
) -> None:
    """Say why a teardown has no plan."""
    overdue = releasing.overdue(teardown, now=now)
    view = View(steps=(), wave=0, phase=Phase.HELD, said=said, gated=gated, overdue=overdue)
    status = telling.status(teardown, view, now=now)
    # What somebody else says of it is not taken back, and is no reason to say the same again.
    others = without_condition(teardown.status.conditions, ConditionType.GATE_NOT_ARMED)
    if status == msgspec.structs.replace(teardown.status, conditions=others):
        return
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": telling.guarded(teardown),
        "status": msgspec.to_builtins(status),
    }
    await client.apply(TEARDOWNS, body, subresource="status")
