"""The status of ClusterSummaries: rules (pure) and the writer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.addons import cluster_summaries
from unwind.api.meta import with_condition, without_condition
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, FeatureID, FeatureStatus, FeatureSummary
from unwind.api.unwind import Effort, StepState
from unwind.clock import SYSTEM
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import IN_TIME, WORTH_TELLING, set_finalizer
from unwind.kube.workqueue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from unwind.addons.caches import AddonCaches
    from unwind.api.meta import ObjectRef
    from unwind.api.sveltos import ClusterSummaryStatus, DeployedKinds, HelmReleaseSummary
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.kube.informers import Informer
    from unwind.teardown.status import StepReport


# Maximum length of a message in the status.
_LONGEST = 4096


class FeatureResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one feature."""

    feature: FeatureID
    status: FeatureStatus
    hash: str = ""
    message: str = ""


def with_results(
    status: ClusterSummaryStatus, results: Iterable[FeatureResult], *, now: datetime
) -> ClusterSummaryStatus:
    """The status with the results of features; repeated failures are counted."""
    before = {summary.feature_id: summary for summary in status.feature_summaries}
    after = dict(before)
    for result in results:
        old = before.get(result.feature, FeatureSummary())
        failed = result.status is FeatureStatus.FAILED
        finished = result.status is FeatureStatus.PROVISIONED
        # Keep the failure count during a retry.
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


# The hash of a feature also tells which effort is recorded in the Inventories, so that no Inventory need be read to
# know whether it is current. The format of the field is base64.

_DIGEST = hashlib.sha256().digest_size


def feature_hash(content: object) -> str:
    """The hash of what a feature deploys."""
    return base64.b64encode(hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest()).decode()


def with_effort(hash_: str, effort: Effort) -> str:
    """The hash of a feature whose Inventories have this effort."""
    return base64.b64encode(_raw(hash_)[:_DIGEST] + effort.value.encode()).decode()


def same_content(hash_: str, other: str) -> bool:
    """Whether two hashes are of the same content, with any effort."""
    return hash_ == other or _raw(hash_)[:_DIGEST] == _raw(other)[:_DIGEST] != b""


def lacks_effort(status: ClusterSummaryStatus, effort: Effort) -> bool:
    """Whether Inventories of a summary may have another effort. Without a hash, the deployment records it; but it may
    fail before that, so a stricter effort is recorded first."""
    features = [item for item in status.feature_summaries if item.status != FeatureStatus.REMOVED]
    return any(
        _raw(item.hash)[_DIGEST:] != effort.value.encode() if item.hash else effort is Effort.ENFORCE
        for item in features
    )


def with_efforts(status: ClusterSummaryStatus, effort: Effort) -> ClusterSummaryStatus:
    """The status after the effort was recorded in all Inventories of the summary."""
    features = tuple(
        msgspec.structs.replace(item, hash=with_effort(item.hash, effort)) if item.hash else item
        for item in status.feature_summaries
    )
    return msgspec.structs.replace(status, feature_summaries=features)


def _raw(hash_: str) -> bytes:
    try:
        return base64.b64decode(hash_, validate=True)
    except (binascii.Error, ValueError):
        return b""


def all_of(summary: ClusterSummary, status: FeatureStatus, message: str = "") -> list[FeatureResult]:
    """The same result for every feature that it has or had."""
    had = [FeatureID.read(item.feature_id) for item in summary.status.feature_summaries]
    known = [
        *cluster_summaries.features(summary.spec.cluster_profile_spec),
        *(item for item in had if isinstance(item, FeatureID)),
    ]
    return [FeatureResult(feature=feature, status=status, message=message) for feature in dict.fromkeys(known)]


def waiting_status(
    status: ClusterSummaryStatus, reason: str | None, message: str = "", *, now: datetime
) -> ClusterSummaryStatus:
    """The status with the reason why the summary waits; None to clear it."""
    conditions = status.conditions
    if reason is None:
        conditions = without_condition(conditions, ConditionType.BLOCKED)
    else:
        conditions = with_condition(
            conditions, type=ConditionType.BLOCKED, status=True, reason=reason, message=message, now=now
        )
    return msgspec.structs.replace(status, dependencies=message or None, conditions=conditions)


# The condition for the state of a removal. A summary has at most one of them.
_REMOVAL_CONDITIONS = {
    StepState.REMOVING: ConditionType.REMOVING,
    StepState.REMOVED: ConditionType.REMOVED,
    StepState.LEFT: ConditionType.LEFT,
    StepState.GIVEN_UP: ConditionType.GIVEN_UP,
}
_REMOVAL_STATUSES = {
    StepState.REMOVING: FeatureStatus.REMOVING,
    StepState.REMOVED: FeatureStatus.REMOVED,
    StepState.GIVEN_UP: FeatureStatus.FAILED_NON_RETRIABLE,
}


def of_step(status: ClusterSummaryStatus, report: StepReport, *, now: datetime) -> ClusterSummaryStatus:
    """The status of a summary whose cluster is deleted, as the Teardown of the cluster reports its step.

    Objects that are left keep the status of their features, because they are still deployed.
    """
    over = report.state not in (StepState.WAITING, StepState.REMOVING)
    reason = report.reason if not over and report.reason else None
    message = report.message[:_LONGEST]
    after = waiting_status(status, reason, message if reason else "", now=now)
    why = report.reason if over and report.reason else report.state.value
    after = _with_removal(after, report.state, reason=why, message=message, now=now)
    features = after.feature_summaries
    if word := _REMOVAL_STATUSES.get(report.state):
        failure = message if report.state is not StepState.REMOVED else ""
        features = tuple(
            msgspec.structs.replace(item, status=word.value, failure_message=failure or None) for item in features
        )
    return msgspec.structs.replace(after, feature_summaries=features)


_REMOVAL_MESSAGES = {
    StepState.REMOVING: "its objects are being removed",
    StepState.REMOVED: "its objects are removed (verified absent)",
}


def _with_removal(
    status: ClusterSummaryStatus, state: StepState | None, *, reason: str = "", message: str = "", now: datetime
) -> ClusterSummaryStatus:
    """The status with the condition for this state of the removal, and without the others; None if there is none."""
    conditions = status.conditions
    for other, type_ in _REMOVAL_CONDITIONS.items():
        if other is state:
            told = _REMOVAL_MESSAGES.get(other, message)
            conditions = with_condition(
                conditions, type=type_, status=True, reason=reason or other.value, message=told, now=now
            )
        else:
            conditions = without_condition(conditions, type_)
    return msgspec.structs.replace(status, conditions=conditions)


def previewed(status: ClusterSummaryStatus, report: str | None, *, now: datetime) -> ClusterSummaryStatus:
    """The status with the preview of a DryRun; None to clear it."""
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
    """The merge patch of the status: changed fields, null for removed ones; empty if equal."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


# Writes to ClusterSummaries: status and our finalizer only.

Change: TypeAlias = "Callable[[ClusterSummaryStatus], ClusterSummaryStatus]"


def key_of(summary: ClusterSummary) -> Key:
    return Key(summary.metadata.namespace, summary.metadata.name)


async def put(client: Client, summaries: Informer[ClusterSummary], summary: ClusterSummary, change: Change) -> None:
    """Change the status of a summary and update the cache; no write if it is equal."""
    while patch := status_patch(summary.status, change(summary.status)):
        meta = summary.metadata
        guard: Object = {"uid": meta.uid}
        if "conditions" in patch:
            # The patch replaces the whole list, and several controllers write conditions.
            guard["resourceVersion"] = meta.resource_version
        body: Object = {"metadata": guard, "status": patch}
        try:
            written = await client.patch(
                CLUSTER_SUMMARIES, meta.name, body, namespace=meta.namespace, subresource="status"
            )
        except NotFoundError:
            return  # deleted meanwhile
        except ConflictError:
            try:
                summary = await client.get(CLUSTER_SUMMARIES, meta.name, namespace=meta.namespace, type=ClusterSummary)
            except NotFoundError:
                return
            if summary.metadata.uid != meta.uid:
                return
            continue
        summaries.take(msgspec.convert(written, ClusterSummary))
        return


class SummaryWriter:
    """Writes the status and finalizer of summaries. The cache has each write at once, without waiting for the watch.

    Transient state, such as a wait, is queued: it is written with low priority, and not at all if it is over before
    the write.
    """

    def __init__(self, client: Client, caches: AddonCaches, *, clock: Clock) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock
        self._mentioned: dict[Key, tuple[ClusterSummary, Change]] = {}
        """Queued status changes."""
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """A lock exists as long as it is held or awaited."""
        # The system clock: nothing depends on when it is written.
        self._queue: Queue[Key] = Queue(self._write_mentioned, clock=SYSTEM)

    async def run(self) -> None:
        """Write queued changes until cancelled."""
        await self._queue.run()

    def wait(
        self, summary: ClusterSummary, reason: Reason | None, message: str = "", *, for_order: bool = False
    ) -> None:
        """Queue the reason why the summary waits; None to clear it. While it waits, nothing is being removed.
        `for_order`: it waits for its turn. In a chain of profiles all but one do, and most of them for less than a
        second."""

        def change(status: ClusterSummaryStatus) -> ClusterSummaryStatus:
            now = self._clock.now()
            return _with_removal(waiting_status(status, reason, message, now=now), None, now=now)

        self._mention(summary, change, IN_TIME if for_order else WORTH_TELLING)

    def mention(self, summary: ClusterSummary, results: list[FeatureResult], blocked: StepReport | None = None) -> None:
        """Queue the progress of features. `blocked`: what the Teardown of their removal reports."""
        waits = any(result.message for result in results)
        change = partial(self._with, results, blocked=blocked)
        self._mention(summary, change, WORTH_TELLING if waits else IN_TIME)

    async def say(self, summary: ClusterSummary, results: list[FeatureResult]) -> None:
        """Write the progress of features."""
        await self.write(summary, partial(self._with, results))

    async def write(self, summary: ClusterSummary, change: Change) -> None:
        """Apply a change to the status; no write if it is equal."""
        self._mentioned.pop(key_of(summary), None)
        await self._write(summary, change)

    def _with(
        self, results: list[FeatureResult], status: ClusterSummaryStatus, blocked: StepReport | None = None
    ) -> ClusterSummaryStatus:
        now = self._clock.now()
        removing = any(result.status is FeatureStatus.REMOVING for result in results)
        reason, message = (blocked.reason, blocked.message[:_LONGEST]) if blocked and blocked.reason else (None, "")
        after = waiting_status(with_results(status, results, now=now), reason, message, now=now)
        return _with_removal(after, StepState.REMOVING if removing else None, now=now)

    def _mention(self, summary: ClusterSummary, change: Change, after: float) -> None:
        key, status = key_of(summary), self._latest(summary).status
        if key in self._mentioned or key in self._writing or status_patch(status, change(status)):
            self._mentioned[key] = (summary, change)
            self._queue.add_after(key, after)

    async def _write_mentioned(self, key: Key) -> float | None:
        async with self._client.aside:
            # It may be deleted by now.
            if (mentioned := self._mentioned.pop(key, None)) and key in self._caches.summaries.cache:
                await self._write(*mentioned)
        return None

    async def _write(self, summary: ClusterSummary, change: Change) -> None:
        # Concurrent writes could leave an old state.
        key = key_of(summary)
        lock = self._writing.setdefault(key, asyncio.Lock())
        async with lock:
            await put(self._client, self._caches.summaries, self._latest(summary), change)

    async def set_finalizer(self, summary: ClusterSummary, *, wanted: bool) -> None:
        """Add or remove our finalizer."""
        if not wanted:
            self._mentioned.pop(key_of(summary), None)  # it is being deleted
        meta = self._latest(summary).metadata
        await set_finalizer(self._client, CLUSTER_SUMMARIES, meta, Finalizer.SUMMARY, wanted=wanted)

    def _latest(self, summary: ClusterSummary) -> ClusterSummary:
        there = self._caches.summaries.cache.get(key_of(summary))
        return there if there and there.metadata.uid == summary.metadata.uid else summary


class Projections:
    """Copies what Teardowns report about steps into their summaries. Nothing waits for these writes."""

    def __init__(self, client: Client, summaries: Informer[ClusterSummary], *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._summaries = summaries
        self._clock = clock
        self._reports: dict[ObjectRef, StepReport] = {}
        self._queue: Queue[ObjectRef] = Queue(self._write)

    def tell(self, summary: ObjectRef, report: StepReport) -> None:
        """Queue the write."""
        self._reports[summary] = report
        self._queue.add_after(summary, IN_TIME)

    async def run(self) -> None:
        await self._queue.run()

    async def _write(self, ref: ObjectRef) -> float | None:
        async with self._client.aside:
            report = self._reports.get(ref)
            summary = self._summaries.cache.get(Key(ref.namespace, ref.name))
            if report and summary and summary.metadata.uid == ref.uid:
                change = partial(of_step, report=report, now=self._clock.now())
                await put(self._client, self._summaries, summary, change)
            if self._reports.get(ref) is report:
                self._reports.pop(ref, None)
        return None
