"""What is said on a ClusterSummary: how far each feature is, what is waited for (pure)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.addons import cluster_summaries
from unwind.api.meta import with_condition, without_condition
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, FeatureID, FeatureStatus, FeatureSummary
from unwind.clock import SYSTEM
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import IN_TIME, WORTH_TELLING, set_finalizer
from unwind.kube.workqueue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from unwind.addons.caches import AddonCaches
    from unwind.api.sveltos import ClusterSummaryStatus, DeployedKinds, HelmReleaseSummary
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.kube.informers import Informer


# A status is no log: what is longer is cut where people stop reading.
_LONGEST = 4096


class FeatureResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one feature."""

    feature: FeatureID
    status: FeatureStatus
    hash: str = ""
    message: str = ""


def with_results(
    status: ClusterSummaryStatus, results: Iterable[FeatureResult], *, now: datetime
) -> ClusterSummaryStatus:
    """The status with what became of features; one that fails again counts on."""
    before = {summary.feature_id: summary for summary in status.feature_summaries}
    after = dict(before)
    for result in results:
        old = before.get(result.feature, FeatureSummary())
        failed = result.status is FeatureStatus.FAILED
        finished = result.status is FeatureStatus.PROVISIONED
        # While it is tried again it is still known how often it failed.
        failures = old.consecutive_failures + 1 if failed else 0 if finished else old.consecutive_failures
        after[result.feature] = FeatureSummary(
            feature_id=result.feature.value,
            status=result.status.value,
            hash=result.hash or old.hash,
            failure_message=result.message[:_LONGEST] or None,
            consecutive_failures=failures,
            last_applied_time=now.replace(microsecond=0) if finished else old.last_applied_time,
        )
    return msgspec.structs.replace(status, feature_summaries=tuple(after.values()))


def all_of(summary: ClusterSummary, status: FeatureStatus, message: str = "") -> list[FeatureResult]:
    """The same of every feature that it has or had."""
    had = [FeatureID.read(item.feature_id) for item in summary.status.feature_summaries]
    known = [
        *cluster_summaries.features(summary.spec.cluster_profile_spec),
        *(item for item in had if isinstance(item, FeatureID)),
    ]
    return [FeatureResult(feature=feature, status=status, message=message) for feature in dict.fromkeys(known)]


def waiting(
    status: ClusterSummaryStatus, reason: Reason | None, message: str = "", *, now: datetime
) -> ClusterSummaryStatus:
    """The status with what is waited for before anything is done; None for nothing."""
    conditions = status.conditions
    if reason is None:
        conditions = without_condition(conditions, ConditionType.BLOCKED)
    else:
        conditions = with_condition(
            conditions, type=ConditionType.BLOCKED, status=True, reason=reason, message=message, now=now
        )
    return msgspec.structs.replace(status, dependencies=message or None, conditions=conditions)


def previewed(status: ClusterSummaryStatus, report: str | None, *, now: datetime) -> ClusterSummaryStatus:
    """The status with what would be done (DryRun); None where that is over."""
    conditions = status.conditions
    if report is None:
        conditions = without_condition(conditions, ConditionType.DRY_RUN)
    else:
        conditions = with_condition(
            conditions,
            type=ConditionType.DRY_RUN,
            status=True,
            reason=Reason.WOULD_CHANGE,
            message=report[:_LONGEST],
            now=now,
        )
    return msgspec.structs.replace(status, conditions=conditions)


def with_deployed(
    status: ClusterSummaryStatus, kinds: Iterable[DeployedKinds], releases: Iterable[HelmReleaseSummary]
) -> ClusterSummaryStatus:
    return msgspec.structs.replace(status, deployed_gvks=tuple(kinds), helm_release_summaries=tuple(releases))


def status_patch(before: ClusterSummaryStatus, after: ClusterSummaryStatus) -> dict[str, Any]:
    """What has to be written: the fields that differ, null for those that are no more. Empty for nothing."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


# Writing on ClusterSummaries: their status, and our finalizer. Nothing else of them is written here.

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


class SummaryWriter:
    """Says things on summaries. What was written is in the cache at once: nobody need wait for a watch to tell it.

    What is only of interest as long as it lasts, such as a wait, is mentioned: it is written beside what has to be
    done, and not at all if it is over before anybody could have read it.
    """

    def __init__(self, client: Client, caches: AddonCaches, *, clock: Clock) -> None:
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
        self._mention(summary, lambda status: waiting(status, reason, message, now=self._clock.now()), WORTH_TELLING)

    def mention(self, summary: ClusterSummary, results: list[FeatureResult]) -> None:
        """Mention how far features are."""
        waits = any(result.message for result in results)
        self._mention(summary, partial(self._with, results), WORTH_TELLING if waits else IN_TIME)

    async def say(self, summary: ClusterSummary, results: list[FeatureResult]) -> None:
        """Say how far features are."""
        await self.write(summary, partial(self._with, results))

    async def write(self, summary: ClusterSummary, change: _Change) -> None:
        """Have the status changed like this; nothing is written where it is there already."""
        self._mentioned.pop(key_of(summary), None)
        await self._write(summary, change)

    def _with(self, results: list[FeatureResult], status: ClusterSummaryStatus) -> ClusterSummaryStatus:
        now = self._clock.now()
        return waiting(with_results(status, results, now=now), None, now=now)

    def _mention(self, summary: ClusterSummary, change: _Change, after: float) -> None:
        key, status = key_of(summary), self._latest(summary).status
        if key in self._mentioned or key in self._writing or status_patch(status, change(status)):
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
            if patch := status_patch(status, change(status)):
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
