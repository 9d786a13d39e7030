"""Controllers of Teardowns that run on caches which a test fills."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.addons.caches import AddonCaches
    from unwind.components import Component
    from unwind.kube.workqueue import Queue
    from unwind.teardown.signatures import RecordKeys


@asynccontextmanager
async def running_on(caches: AddonCaches, keys: RecordKeys, controller: Component) -> AsyncIterator[None]:
    await keys.load()
    # As if the informer had listed: from then on it has each write at once.
    caches.teardowns._version = "1"
    caches.teardowns._synced.set()
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle(queue: Queue[Any], *, every: float = 0.0) -> None:
    """Return when the queue has nothing to do."""
    await asyncio.sleep(0)
    await eventually(lambda: not (queue.depth or queue.working), "an idle queue", every=every)
