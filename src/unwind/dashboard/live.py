"""The Teardowns of a cluster, followed by one watch for all open pages, and the labels of their clusters."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unwind.api import capi, karmada
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.cli import teardowns
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError
from unwind.kube.informers import Informer
from unwind.members import contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unwind.kube.cache import Change
    from unwind.kube.client import Client


_LABELLED = (capi.CLUSTERS, capi.CLUSTERS_V1BETA1, karmada.CLUSTERS)
# Seconds between two lists of clusters: they are read only for new Teardowns, and many clusters may be deleted at once.
_PAUSE = 1.0


class LiveTeardowns:
    """A cache of all Teardowns, and wake-ups for the pages that show them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._labels: dict[str, Mapping[str, str]] = {}
        self._unlabelled = asyncio.Event()
        self._informer = Informer(client, decoding.typed(TEARDOWNS, Teardown), troubled=self._troubled)
        self._informer.subscribe(self._changed)
        self._listeners: set[tuple[str, asyncio.Event]] = set()
        self.closing = False
        self._trouble = ("", 0.0)

    @property
    def trouble(self) -> str:
        """Why the list may be out of date; empty if the server was heard from since then."""
        message, at = self._trouble
        return message if message and self._informer.age > SYSTEM.monotonic() - at else ""

    @property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of clusters by uid, as far as they may be read. Those of a deleted one are kept."""
        return self._labels

    @property
    def synced(self) -> bool:
        return self._informer.synced

    def all(self) -> list[Teardown]:
        """Without those that the manager did not write."""
        return [item for item in self._informer.cache if not teardowns.is_set_aside(item)]

    def get(self, name: str) -> Teardown | None:
        found = self._informer.cache.get(Key("", name))
        return None if found and teardowns.is_set_aside(found) else found

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.until_synced()
            self._wake()
            group.create_task(self._read_labels())

    async def _read_labels(self) -> None:
        """List the clusters at the beginning, and when there are new Teardowns."""
        while True:
            await self._unlabelled.wait()
            self._unlabelled.clear()
            for resource in _LABELLED:
                try:
                    found = await contents.of_kind(self._client, resource)
                except UnwindError:
                    continue  # not installed, or the person may not list them: filters know the Teardown's labels only
                self._labels |= {it.metadata.uid: it.metadata.labels or {} for it in found}
            for item in self._informer.cache:
                self._labels.setdefault(item.spec.target.uid, {})  # not asked for again
            self._wake()
            await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """End all streams."""
        self.closing = True
        self._wake()

    @contextmanager
    def listening(self, name: str = "") -> Iterator[asyncio.Event]:
        """An event that is set at each change: of the Teardown with this name, or of any."""
        changed = asyncio.Event()
        listener = (name, changed)
        self._listeners.add(listener)
        try:
            yield changed
        finally:
            self._listeners.discard(listener)

    def _changed(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it and (change.old is None or it.spec.target.uid not in self._labels):
            self._unlabelled.set()  # its cluster may have got labels since it was listed
        self._wake(it.metadata.name if it else "")

    def _troubled(self, error: Exception) -> None:
        message = str(error)
        if isinstance(error, ApiError) and error.code == 404:
            message = "the CRD of Teardown is not installed; install it with `unwind install`"
        self._trouble = (message, SYSTEM.monotonic())
        self._wake()

    def _wake(self, name: str = "") -> None:
        for listens_to, changed in self._listeners:
            if not name or not listens_to or name == listens_to:
                changed.set()
