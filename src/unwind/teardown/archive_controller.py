"""The controller of the archive: writes each finished Teardown to a directory (`unwind run --archive`).

A document is written after the end of a teardown, from what the API server has. So nothing is lost if the process is
killed in between: Teardowns are kept there until their document is written, and all of them are checked when the cache
is synced. No teardown and no gate waits for the archive.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from unwind import logs
from unwind.api.names import SET_ASIDE_LABEL, EventReason
from unwind.api.unwind import TEARDOWNS, Cause
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.events import Regarding
from unwind.teardown import archive_documents
from unwind.teardown.archive_directory import ArchiveDirectory, ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from unwind.api.unwind import Teardown, TimelineEntry
    from unwind.inventory.inventories import Inventories
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.teardown.records import TeardownCaches
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

T = TypeVar("T")

ASK_AGAIN = 10.0
"""Seconds until a record that is not in the archive yet is looked at again."""
# A hook that opened a gate with a failed check writes a condition for a moment after the end.
_SETTLED = 3.0
_PATIENCE = 60.0


class Archive(Protocol):
    """Where finished Teardowns are recorded for good."""

    def holds(self, teardown: Teardown) -> bool:
        """Whether the document of a finished Teardown is known to be there. Never waits: if it is not known, it is
        checked in the background."""


def may_forget(archive: Archive | None, teardown: Teardown) -> bool:
    """Whether a finished Teardown may be deleted: there is no archive, or it has its document."""
    return archive is None or archive.holds(teardown)


class ArchiveController(Controller[Key]):
    """Writes the documents of finished Teardowns."""

    name = "archive"
    _caches: TeardownCaches

    def __init__(
        self,
        shared: ControllerDeps,
        directory: ArchiveDirectory,
        caches: TeardownCaches,
        inventories: Inventories,
        *,
        keys: RecordKeys,
        registry: CollectorRegistry,
    ) -> None:
        super().__init__(shared, caches)
        self._directory = directory
        self._inventories = inventories
        self._keys = keys
        self._teardowns = caches.teardowns
        self._held: set[str] = set()
        """The uids of Teardowns whose documents are known to be there."""
        self._asked: set[str] = set()
        """The uids of Teardowns that another controller wants to delete."""
        self._gone: dict[Key, Teardown] = {}
        """Finished Teardowns that were deleted before their document was written."""
        self._dropped: dict[str, list[TimelineEntry]] = {}
        """Entries that timelines have no longer, and that are not on disk yet."""
        # A thread of its own: a volume that does not answer delays only the archive.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")
        self._written = Counter(
            "unwind_archived_teardowns", "Documents of finished Teardowns that were written.", registry=registry
        )
        self._failures = Counter(
            "unwind_archive_failures", "Attempts to use the archive that failed.", registry=registry
        )
        registry.register(_Pending(self._pending))
        self._teardowns.subscribe(self._teardown_changed)

    async def run(self) -> None:
        """Write documents until cancelled."""
        try:
            await self._keys.until_known()
            await self._teardowns.until_synced()
            await self._queue.run()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def holds(self, teardown: Teardown) -> bool:
        if teardown.metadata.uid in self._held:
            return True
        self._asked.add(teardown.metadata.uid)
        key = Key("", teardown.metadata.name)
        if not self._queue.failures(key):  # otherwise it is retried with back-off
            self._queue.add(key)
        return False

    # Events

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        old, new = change.old, change.new
        if old and (new is None or new.metadata.uid != old.metadata.uid):
            if self._is_record(old) and old.metadata.uid not in self._held:
                self._gone[change.key] = old
            else:
                self._forget(old.metadata.uid)
        elif old and new:
            now = self._clock.now().replace(microsecond=0)
            self._dropped.setdefault(new.metadata.uid, []).extend(archive_documents.dropped(old, new, now=now))
            if not self._dropped[new.metadata.uid]:
                del self._dropped[new.metadata.uid]
        if new is None or new.finished or new.metadata.uid in self._dropped:
            self._queue.add(change.key)

    def _enqueue_all(self) -> None:
        for teardown in self._teardowns.cache:
            uid = teardown.metadata.uid
            if (teardown.finished and uid not in self._held) or uid in self._dropped:
                self._queue.add(Key("", teardown.metadata.name))
        for key in self._gone:
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"teardown": key.name}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        if gone := self._gone.get(key):
            if self._owner.owns(key.name):
                await self._record(gone)
            self._gone.pop(key, None)
            self._forget(gone.metadata.uid)
        teardown = self._teardowns.cache.get(key)
        if teardown is None:
            return None
        if not teardown.finished:
            await self._keep_entries(key, teardown.metadata.uid)
            return None
        return await self._finished(key, teardown)

    async def _finished(self, key: Key, teardown: Teardown) -> float | None:
        uid = teardown.metadata.uid
        if uid in self._held or not self._is_record(teardown):
            return None
        if not self._owner.owns(key.name):
            # Another replica writes it. It is looked for if a record that is deleted here depends on it.
            if uid in self._asked and await self._has(teardown):
                self._hold(uid)
            return None
        if (wait := self._unsettled(teardown)) > 0:
            return wait
        await self._record(teardown)
        return None

    async def _record(self, teardown: Teardown) -> None:
        """Write the document of a finished Teardown, unless it is there."""
        uid = teardown.metadata.uid
        if not await self._has(teardown):
            genuine = teardown.spec.plan is not None and await self._keys.verified(teardown)
            owners = archive_documents.owners(teardown, genuine=genuine)
            inventories = await self._inventories.owned(owners)
            inventories = [chunk for chunk in inventories if chunk.spec.owner.uid in owners]
            more = [*await self._use(teardown, lambda: self._directory.kept_entries(uid)), *self._dropped.get(uid, ())]
            document = archive_documents.archived(teardown, inventories, more=more)
            await self._use(teardown, lambda: self._directory.write(document))
            self._written.inc()
            log.info("teardown archived", teardown=teardown.metadata.name, file=archive_documents.file_name(teardown))
        if teardown.status.timeline_omitted:
            await self._use(teardown, lambda: self._directory.discard_entries(uid))
        self._hold(uid)

    async def _keep_entries(self, key: Key, uid: str) -> None:
        """Write the dropped entries of a running teardown: this process may not live until its end."""
        entries = self._dropped.get(uid)
        if not entries or not self._owner.owns(key.name):
            return
        some = list(entries)
        await self._use(self._teardowns.cache.get(key), lambda: self._directory.keep_entries(uid, some))
        del entries[: len(some)]
        if not entries:
            self._dropped.pop(uid, None)

    def _unsettled(self, teardown: Teardown) -> float:
        """Seconds until the status of a finished Teardown is complete."""
        ended = teardown.status.finished_at
        if ended is None or teardown.spec.cause != Cause.CLUSTER_DELETED or teardown.metadata.terminating:
            return 0.0
        # Never longer, whatever the clocks are.
        return min(_SETTLED, _SETTLED - (self._clock.now() - ended).total_seconds())

    async def _has(self, teardown: Teardown) -> bool:
        return await self._use(teardown, lambda: self._directory.has(teardown))

    async def _use(self, teardown: Teardown | None, call: Callable[[], T]) -> T:
        """Use the directory in the thread of the archive. A failure is reported, and retried with back-off."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except TimeoutError:
            error = ArchiveError(
                f"cannot use the archive {self._directory.path}: it did not answer in {_PATIENCE:.0f}s",
                remedy="check the volume; will retry",
            )
        except ArchiveError as failed:
            error = failed
        self._failures.inc()
        if teardown:
            meta = teardown.metadata
            regarding = Regarding(TEARDOWNS.api_version, TEARDOWNS.kind, meta.name, meta.uid)
            self._recorder.report(regarding, EventReason.NOT_ARCHIVED, str(error), action="Archive", type="Warning")
        raise error

    def _hold(self, uid: str) -> None:
        self._held.add(uid)
        self._asked.discard(uid)
        self._dropped.pop(uid, None)

    def _forget(self, uid: str) -> None:
        self._held.discard(uid)
        self._asked.discard(uid)
        self._dropped.pop(uid, None)

    def _is_record(self, teardown: Teardown) -> bool:
        """Whether a Teardown is finished, and not one that this manager ignores: set aside, or of another manager."""
        ignored = SET_ASIDE_LABEL in teardown.metadata.labels or self._keys.is_of_another(teardown)
        return teardown.finished and not ignored

    def _pending(self) -> int:
        """The number of finished Teardowns of this replica without a document."""
        return sum(
            self._is_record(teardown)
            and teardown.metadata.uid not in self._held
            and self._owner.owns(teardown.metadata.name)
            for teardown in self._teardowns.cache
        )


class _Pending(Collector):
    """How many documents are missing, computed when the metrics are read."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "unwind_archive_pending_teardowns",
            "Finished Teardowns of this replica that are not in the archive yet.",
            value=self._count(),
        )
