"""Writing on Works: their status, and our finalizer. Nothing else of them is written here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.api.karmada import WORKS, Work
from unwind.api.names import Finalizer, Reason
from unwind.controllers.members import works_telling as telling
from unwind.controllers.revising import set_finalizer
from unwind.deleting.entering import Failed
from unwind.kube.errors import ConflictError, NotFoundError, UnreachableError
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.karmada import WorkStatus
    from unwind.clock import Clock
    from unwind.deleting.entering import Waiting
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer

_Change: TypeAlias = "Callable[[WorkStatus], WorkStatus]"


def key_of(work: Work) -> Key:
    return Key(work.metadata.namespace, work.metadata.name)


class WorkWords:
    """Says things on Works. What was written is in the cache at once: nobody need wait for a watch to tell it."""

    def __init__(self, client: Client, works: Informer[Work], *, clock: Clock) -> None:
        self._client = client
        self._works = works
        self._clock = clock
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """Each is there as long as somebody holds it or waits for it."""

    async def write(self, work: Work, change: _Change) -> None:
        """Have the status changed like this; nothing is written where it is there already."""
        # Two writes that cross would tell old things.
        lock = self._writing.setdefault(key_of(work), asyncio.Lock())
        async with lock:
            before = self._latest(work).status
            after = change(before)
            if after == before:
                return
            try:
                # Applied, so that what is not said any more disappears, and what others say stays.
                written = await self._client.apply(WORKS, telling.written(work, after), subresource="status")
            except (NotFoundError, ConflictError):
                return  # it is gone, or its name is another's: nobody reads it
            self._works.take(msgspec.convert(written, Work))

    async def wait(self, work: Work, waits: Iterable[Waiting | Failed | Exception]) -> None:
        """Say what is waited for until it is gone; nothing, if there is nothing."""
        waits = list(waits)
        told = telling.told(one.told if not isinstance(one, Exception) else str(one) for one in waits)
        reason = Reason.DELETING if waits else None
        reached = not any(_unreached(one) for one in waits)
        await self.write(work, lambda it: telling.waits(it, reason, told, reached=reached, now=self._clock.now()))

    async def wait_for(self, work: Work, others: str) -> None:
        """Say that others come first."""
        await self.write(work, lambda it: telling.waits(it, Reason.WAITING, others, now=self._clock.now()))

    async def set_finalizer(self, work: Work, *, wanted: bool) -> None:
        """Have our finalizer on it, or not."""
        meta = self._latest(work).metadata
        written = await set_finalizer(self._client, WORKS, meta, Finalizer.WORK, wanted=wanted)
        if written and wanted:
            self._works.take(msgspec.convert(written, Work))

    def _latest(self, work: Work) -> Work:
        there = self._works.cache.get(key_of(work))
        return there if there and there.metadata.uid == work.metadata.uid else work


def _unreached(what: Waiting | Failed | Exception) -> bool:
    if isinstance(what, Failed):
        return what.reason == Reason.UNREACHABLE
    return isinstance(what, UnreachableError)
