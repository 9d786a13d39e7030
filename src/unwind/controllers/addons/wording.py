"""Writing on ClusterSummaries: their status, and our finalizer. Nothing else of them is written here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.api.names import Finalizer
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.clock import SYSTEM
from unwind.controllers.addons import statuses
from unwind.controllers.revising import IN_TIME, WORTH_TELLING, set_finalizer
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.queue import Queue
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.names import Reason
    from unwind.api.sveltos_status import ClusterSummaryStatus
    from unwind.clock import Clock
    from unwind.controllers.addons.caches import Caches
    from unwind.kube.client import Client, Object
    from unwind.kube.informers import Informer

_Change: TypeAlias = "Callable[[ClusterSummaryStatus], ClusterSummaryStatus]"


def key_of(summary: ClusterSummary) -> Key:
    return Key(summary.metadata.namespace, summary.metadata.name)


async def put(client: Client, summaries: Informer[ClusterSummary], summary: ClusterSummary, change: Object) -> None:
    """Have a change merged into the status of a summary, and the cache know it."""
    meta = summary.metadata
    body: Object = {"metadata": {"uid": meta.uid}, "status": change}
    try:
        written = await client.patch(CLUSTER_SUMMARIES, meta.name, body, namespace=meta.namespace, subresource="status")
    except (NotFoundError, ConflictError):
        return  # it is gone, and nobody reads it
    summaries.take(msgspec.convert(written, ClusterSummary))


class Words:
    """Says things on summaries. What was written is in the cache at once: nobody need wait for a watch to tell it.

    What is only of interest as long as it lasts, such as a wait, is mentioned: it is written beside what has to be
    done, and not at all if it is over before anybody could have read it.
    """

    def __init__(self, client: Client, caches: Caches, *, clock: Clock) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock
        self._mentioned: dict[Key, tuple[ClusterSummary, _Change]] = {}
        """What is to be written when there is room."""
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """Each is there as long as somebody holds it or waits for it."""
        # On the clock of the wall: nothing depends on when it is written.
        self._queue: Queue[Key] = Queue(self._write_mentioned, clock=SYSTEM)

    async def run(self) -> None:
        """Write what is mentioned, until cancelled."""
        await self._queue.run()

    def wait(self, summary: ClusterSummary, reason: Reason | None, message: str = "") -> None:
        """Mention what is waited for before anything is done; None for nothing."""
        self._mention(
            summary, lambda status: statuses.waiting(status, reason, message, now=self._clock.now()), WORTH_TELLING
        )

    def mention(self, summary: ClusterSummary, results: list[statuses.Result]) -> None:
        """Mention how far features are."""
        waits = any(one.message for one in results)
        self._mention(summary, partial(self._with, results), WORTH_TELLING if waits else IN_TIME)

    async def say(self, summary: ClusterSummary, results: list[statuses.Result]) -> None:
        """Say how far features are."""
        await self.write(summary, partial(self._with, results))

    async def write(self, summary: ClusterSummary, change: _Change) -> None:
        """Have the status changed like this; nothing is written where it is there already."""
        self._mentioned.pop(key_of(summary), None)
        await self._write(summary, change)

    def _with(self, results: list[statuses.Result], status: ClusterSummaryStatus) -> ClusterSummaryStatus:
        now = self._clock.now()
        return statuses.waiting(statuses.with_results(status, results, now=now), None, now=now)

    def _mention(self, summary: ClusterSummary, change: _Change, after: float) -> None:
        key, status = key_of(summary), self._latest(summary).status
        if key in self._mentioned or key in self._writing or statuses.patch(status, change(status)):
            self._mentioned[key] = (summary, change)
            self._queue.add_after(key, after)

    async def _write_mentioned(self, key: Key) -> float | None:
        async with self._client.aside:
            # It may be gone by now.
            if (mentioned := self._mentioned.pop(key, None)) and key in self._caches.summaries.cache:
                await self._write(*mentioned)
        return None

    async def _write(self, summary: ClusterSummary, change: _Change) -> None:
        # Two writes that cross would tell old things.
        key = key_of(summary)
        lock = self._writing.setdefault(key, asyncio.Lock())
        async with lock:
            status = self._latest(summary).status
            if patch := statuses.patch(status, change(status)):
                await put(self._client, self._caches.summaries, summary, patch)

    async def set_finalizer(self, summary: ClusterSummary, *, wanted: bool) -> None:
        """Have our finalizer on it, or not."""
        if not wanted:
            self._mentioned.pop(key_of(summary), None)  # nobody could read it any more
        meta = self._latest(summary).metadata
        await set_finalizer(self._client, CLUSTER_SUMMARIES, meta, Finalizer.SUMMARY, wanted=wanted)

    def _latest(self, summary: ClusterSummary) -> ClusterSummary:
        there = self._caches.summaries.cache.get(key_of(summary))
        return there if there and there.metadata.uid == summary.metadata.uid else summary
