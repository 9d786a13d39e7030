"""What summaries, and teardowns without a plan, say of a teardown: projections, which nothing waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.sveltos_status import FeatureStatus
from unwind.api.unwind import TEARDOWNS, Phase, StepState
from unwind.clock import SYSTEM
from unwind.controllers.revising import revise
from unwind.controllers.teardowns import releasing, telling
from unwind.controllers.teardowns.telling import View
from unwind.kube.errors import NotFoundError
from unwind.kube.queue import Queue

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Teardown
    from unwind.clock import Clock
    from unwind.controllers.teardowns.drafting import Said
    from unwind.kube.client import Client, Object

_TOLD = {
    StepState.REMOVING: FeatureStatus.REMOVING,
    StepState.REMOVED: FeatureStatus.REMOVED,
}


class Projections:
    """Writes into summaries how far their steps have come, behind the back of who tells it."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._states: dict[ObjectRef, StepState] = {}
        self._queue: Queue[ObjectRef] = Queue(self._write, clock=clock)

    def tell(self, summary: ObjectRef, state: StepState) -> None:
        """Have it written, soon."""
        self._states[summary] = state
        self._queue.add(summary)

    async def run(self) -> None:
        await self._queue.run()

    async def _write(self, ref: ObjectRef) -> float | None:
        state = self._states.pop(ref, None)
        word = _TOLD.get(state) if state else None
        if word is None:
            return None
        try:
            read = await self._client.get(CLUSTER_SUMMARIES, ref.name, namespace=ref.namespace)
        except NotFoundError:
            return None
        if read["metadata"]["uid"] == ref.uid:
            await revise(self._client, CLUSTER_SUMMARIES, read, lambda obj: _features(obj, word), subresource="status")
        return None


def _features(summary: Object, word: FeatureStatus) -> Object | None:
    """Every feature of a summary at this word; None if it says so already."""
    before = (summary.get("status") or {}).get("featureSummaries") or []
    after = [one | {"status": word.value} for one in before]
    return None if after == before else {"status": {"featureSummaries": after}}


async def hold(
    client: Client, teardown: Teardown, said: tuple[Said, ...], *, gated: bool = True, now: datetime
) -> None:
    """Say why a teardown has no plan."""
    overdue = releasing.overdue(teardown.spec, now=now)
    view = View(steps=(), wave=0, phase=Phase.HELD, said=said, gated=gated, overdue=overdue)
    status = telling.status(teardown, view, now=now)
    if status == teardown.status:
        return
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": {"name": teardown.metadata.name, "uid": teardown.metadata.uid},
        "status": msgspec.to_builtins(status),
    }
    await client.apply(TEARDOWNS, body, subresource="status")
