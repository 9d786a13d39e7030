"""The controller of objects with an external resource: the resource is deleted before the object.

Our finalizer is added first, and removed only when the resource is verified absent or knowingly kept. In between, the
object's chain runs as often as needed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import prometheus_client

from unwind import logs
from unwind.api.meta import ref_of
from unwind.api.names import Reason
from unwind.api.resources import NAMESPACES
from unwind.deleters.chain_attempt import Failed, Waiting, attempt
from unwind.deleters.deletion import delay
from unwind.deleters.outcomes import Gone, Kept, Pace, Severity
from unwind.deleters.registry import DeleterRegistry, skipped
from unwind.errors import will_retry
from unwind.external import tracked_objects
from unwind.external.external_deletion import OPERATOR_AGAIN, Chains, Ends, Waits
from unwind.external.kind_informers import ExternalInformers
from unwind.external.tracked_objects import Act, ExternalTarget, is_claimed, relevant_fields
from unwind.kube.controller import fenced_queue
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, UnreachableError
from unwind.kube.informers import InformerFactory
from unwind.kube.resource_versions import may_be_newer
from unwind.kube.updates import cached, revise
from unwind.kube.watches import Watches
from unwind.kube.workqueue import JITTER, Backoff, Queue

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.external.kind_informers import ExternalKindInformer
    from unwind.external.tracked_objects import ExternalObject
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata

log = logs.get(__name__)

# Deletion is mostly waiting; a kind whose external system hangs delays no other kind.
_SIDE_BY_SIDE = 16
_RETRY = Backoff(first=0.2, limit=30.0)
_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 10800.0, 86400.0)


def _log_watch_failed(error: Exception) -> None:
    log.warning("namespace watch failed, will retry; until then policy changes are delayed", why=str(error))


class _Deletion:
    """The state of one deletion in this process. None of it is needed after a restart."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.failures = 0
        self.noted = False
        """Whether it is recorded in the ledger."""
        self.attentive: str | None = None
        """Set if it waits for any change of the object after this version, not only for relevant ones."""


class ExternalController:
    """Reconciles all objects whose kind has an external resource."""

    name = "external"

    def __init__(
        self,
        shared: ControllerDeps,
        registry: DeleterRegistry,
        *,
        namespace: str,
        measures: DeletionMetrics,
        policy: DeletePolicy | None = None,
        informers: InformerFactory | None = None,
    ) -> None:
        """`namespace`: Unwind's own. `policy`: the default if neither an object nor its namespace has one. `informers`:
        those that the process shares."""
        informers = informers or InformerFactory(shared.client, clock=shared.clock)
        self._client = shared.client
        self._registry = registry
        self._namespace = namespace
        self._owner = shared.owner
        self._measures = measures
        self._policy = policy
        self._clock = shared.clock
        self._chance = JITTER
        self._following = ExternalInformers(
            shared, registry, informers=informers, changed=self._changed, left=self._left
        )
        self._namespaces = informers.metadata(NAMESPACES, troubled=_log_watch_failed)
        self._deletions: dict[ExternalTarget, _Deletion] = {}
        self._counts: Counter[Resource] = Counter()
        self._queue: Queue[ExternalTarget] = fenced_queue(
            self.name,
            self._reconcile,
            self._shard,
            shared,
            failed=self._failed,
            group=lambda target: target.resource,
            per_group=_SIDE_BY_SIDE,
        )
        self._namespaces.subscribe(self._namespace_changed)
        shared.owner.subscribe(self._enqueue_all)

    @property
    def ready(self) -> bool:
        return self._following.ready

    async def run(self) -> None:
        """Reconcile until cancelled."""
        for name, why in skipped().items():
            log.info("plugin skipped", plugin=name, why=why)
        cluster = await self._cluster()
        async with (
            Watches(self._client, cluster=cluster, clock=self._clock) as watches,
            asyncio.TaskGroup() as tasks,
        ):
            self._waits = Waits(tasks, self._queue.add, self._clock)
            self._chains = Chains(
                self._registry,
                watches,
                Ends(self._client, tasks),
                discovery=self._following.discovery,
                namespace=self._namespace,
                policy=self._policy,
                clock=self._clock,
            )
            for item in (self._queue, self._namespaces, self._following):
                tasks.create_task(item.run())

    async def _cluster(self) -> str:
        failures = 0
        while True:
            try:
                return await self._client.cluster_uid()
            except (ApiError, UnreachableError) as error:
                failures += 1
                log.warning("cluster identity not read, will retry", why=str(error))
                await self._clock.sleep(_RETRY.after(failures, self._chance))

    # Events

    def _changed(self, resource: Resource, change: Change[ExternalObject]) -> None:
        target = ExternalTarget(resource, change.key)
        deletion = self._deletions.get(target)
        old, new = change.old, change.new
        kind = self._following.kinds.get(resource)
        if new is None or kind is None or kind.act(new.metadata) is Act.NOTHING:
            if deletion:
                self._queue.add(target)
        elif (
            old is None
            or relevant_fields(old.metadata) != relevant_fields(new.metadata)
            or (deletion and _newer(new.metadata, deletion.attentive))
        ):
            self._queue.add(target)

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        """The policy of a namespace may have been corrected: retry the objects that are blocked by it."""
        old, new = change.old, change.new
        if old is None or new is None or old.annotations == new.annotations:
            return
        for resource, kind in self._following.kinds.items():
            for seen in kind.informer.cache.by("namespace", change.key.name):
                if kind.act(seen.metadata) is Act.DELETE:
                    self._queue.add(_target(resource, seen.metadata))

    def _enqueue_all(self) -> None:
        """Our shards have changed: take up new objects, and drop those of others."""
        for resource, kind in self._following.kinds.items():
            for seen in kind.informer.cache:
                if kind.act(seen.metadata) is not Act.NOTHING:
                    self._queue.add(_target(resource, seen.metadata))

    def _left(self, resource: Resource) -> None:
        for target in [target for target in self._deletions if target.resource == resource]:
            self._forget(target)
        self._measures.forget(resource)

    def _failed(self, target: ExternalTarget, error: Exception) -> None:
        expected = isinstance(error, ApiError | UnreachableError)
        why = str(error) or type(error).__name__
        log.warning("reconcile failed, will retry", object=str(target), why=why, exc_info=None if expected else error)

    # Reconcile

    def _shard(self, target: ExternalTarget) -> str | None:
        kind = self._following.kinds.get(target.resource)
        seen = kind.informer.cache.get(target.key) if kind else None
        return seen.metadata.uid if seen else None

    async def _reconcile(self, target: ExternalTarget) -> float | None:
        kind = self._following.kinds.get(target.resource)
        seen = kind.informer.cache.get(target.key) if kind else None
        if kind is None or seen is None or not self._owner.owns(seen.metadata.uid):
            self._forget(target)
            return None
        todo = kind.act(seen.metadata)
        if todo is Act.DELETE:
            return await self._delete(kind, target, seen.metadata)
        self._forget(target)
        if todo is Act.CLAIM and not isinstance(kind.end, Failed):
            await self._claim(kind, seen.metadata)
        return None

    async def _claim(self, kind: ExternalKindInformer, metadata: ObjectMeta) -> None:
        if await revise(self._client, kind.resource, cached(metadata), tracked_objects.claimed):
            kind.reports.claimed(ref_of(kind.resource, metadata))

    async def _delete(self, kind: ExternalKindInformer, target: ExternalTarget, metadata: ObjectMeta) -> float | None:
        """Run the object's chain and handle the result; returns the seconds until the next run."""
        self._waits.give_up(target)
        ref = ref_of(kind.resource, metadata)
        # Read fresh, not from a cache (docs/architecture.md, Fresh reads open gates).
        obj = await self._chains.read(kind.resource, ref)
        if obj is None or kind.act(tracked_objects.metadata_of(obj)) is not Act.DELETE:
            self._forget(target)
            return None
        if (
            not is_claimed(tracked_objects.metadata_of(obj))
            and not isinstance(kind.end, Failed)
            and await self._chains.operator(kind.end)
        ):
            # It was terminating when Unwind first saw it, and its operator deletes it.
            self._forget(target)
            return OPERATOR_AGAIN
        deletion = self._begin(kind, target, metadata)
        result = await self._chains.enter(kind.resource, kind.end, ref, obj)
        if isinstance(result, Kept) and self._owner.owns(ref.uid):
            result = await self._chains.note(kind.resource, ref, result)
            deletion.noted = deletion.noted or isinstance(result, Kept)
        if not self._owner.owns(ref.uid):
            # The new owner of the shard gets the same result.
            _close(result)
            self._forget(target)
            return None
        released: tuple[str, ...] = ()
        if isinstance(result, Gone) and not isinstance(kind.end, Failed):
            allowed = await attempt(self._chains.release(kind.resource, kind.end, ref, obj))
            if isinstance(allowed, tuple):
                released = allowed
            else:
                result = allowed
        if isinstance(result, Gone | Kept):
            try:
                return await self._end(kind, target, deletion, obj, result, released)
            except (ApiError, UnreachableError) as error:
                told = f"cannot remove the finalizer from {ref}: {will_retry(error)}"
                result = Failed(told, Reason.FAILED, Severity.WARNING, Pace.SLOW, error=error)
        try:
            version = await kind.reports.unfinished(ref, obj, result)
        except BaseException:
            _close(result)
            raise
        if isinstance(result, Failed):
            return self._later(target, deletion, result)
        deletion.failures = 0
        self._waits.begin(target, result)
        if result.after is None and result.until is None:
            deletion.attentive = version
            # The watch may have reported a change before the chain decided to wait for one.
            seen = kind.informer.cache.get(target.key)
            return 0.0 if seen and _newer(seen.metadata, version) else None
        return result.after

    def _later(self, target: ExternalTarget, deletion: _Deletion, result: Failed) -> float:
        deletion.failures += 1
        again = delay(result, deletion.failures, self._chance)
        # An unexpected exception is named by its type, and logged with its traceback.
        bug = result.error if result.reason == type(result.error).__name__ else None
        log.warning(
            "deletion failed, will retry",
            object=str(target),
            uid=deletion.uid,
            reason=str(result.reason),
            why=result.message,
            again=round(again),
            exc_info=bug,
        )
        return again

    async def _end(
        self,
        kind: ExternalKindInformer,
        target: ExternalTarget,
        deletion: _Deletion,
        obj: Object,
        outcome: Gone | Kept,
        operator_finalizers: tuple[str, ...],
    ) -> float | None:
        """Remove our finalizer, and these finalizers of an operator that is not running."""
        read = tracked_objects.metadata_of(obj)
        ref = ref_of(kind.resource, read)

        def release(now: Object) -> Object | None:
            if isinstance(outcome, Kept) and relevant_fields(tracked_objects.metadata_of(now)) != relevant_fields(read):
                return None  # the object changed meanwhile, and nothing is lost yet: decide again
            return tracked_objects.release_patch(now, operator_finalizers)

        if isinstance(outcome, Gone) and deletion.noted:
            await self._chains.unnote(ref)
        if isinstance(outcome, Kept) and not is_claimed(read):
            # Nothing of ours is on it. The finalizer of the operator stays, because the external resource does.
            self._forget(target)
            await kind.reports.left_to_others(ref, obj)
            return None
        written = await revise(self._client, kind.resource, obj, release)
        if written is None:
            return 0.0 if isinstance(outcome, Kept) else None
        now = self._clock.now()
        began = read.deletion_timestamp or now
        self._measures.ended(kind.resource, outcome, seconds=(now - began).total_seconds())
        kind.reports.ended(ref, outcome)
        log.info("deletion finished", object=str(target), uid=ref.uid, end=type(outcome).__name__)
        if operator_finalizers:
            log.info("finalizer of an operator removed", object=str(target), finalizers=list(operator_finalizers))
        self._forget(target)
        await kind.reports.left_to_others(ref, written)
        return None

    def _begin(self, kind: ExternalKindInformer, target: ExternalTarget, metadata: ObjectMeta) -> _Deletion:
        deletion = self._deletions.get(target)
        if deletion is None or deletion.uid != metadata.uid:
            self._forget(target)
            deletion = self._deletions[target] = _Deletion(metadata.uid)
            self._count(target.resource, 1)
            kind.reports.started(ref_of(kind.resource, metadata))
        deletion.attentive = None
        return deletion

    def _forget(self, target: ExternalTarget) -> None:
        self._waits.give_up(target)
        if deletion := self._deletions.pop(target, None):
            self._count(target.resource, -1)
            if kind := self._following.kinds.get(target.resource):
                kind.reports.forget(deletion.uid)

    def _count(self, resource: Resource, more: int) -> None:
        self._counts[resource] += more
        self._measures.waiting(resource, self._counts[resource])


def _target(resource: Resource, metadata: ObjectMeta) -> ExternalTarget:
    return ExternalTarget(resource, Key(metadata.namespace, metadata.name))


def _newer(metadata: ObjectMeta, version: str | None) -> bool:
    return version is not None and may_be_newer(metadata.resource_version, than=version)


def _close(result: Gone | Kept | Waiting | Failed) -> None:
    if isinstance(result, Waiting):
        result.close()


class DeletionMetrics:
    """Counts the deletions of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ends = prometheus_client.Counter(
            "unwind_deletions",
            "Finished deletions of external resources, by outcome: gone or kept.",
            ["kind", "end"],
            registry=registry,
        )
        self._waiting = prometheus_client.Gauge(
            "unwind_deletions_waiting", "Objects whose external resource is being deleted.", ["kind"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "unwind_deletion_seconds",
            "Time from the deletionTimestamp of an object to the end of its deletion.",
            ["kind", "end"],
            buckets=_SECONDS,
            registry=registry,
        )

    def ended(self, resource: Resource, outcome: Gone | Kept, *, seconds: float) -> None:
        kind, end = _called(resource), type(outcome).__name__.lower()
        self._ends.labels(kind, end).inc()
        # Whole seconds of the API server's clock against ours: the difference may be negative.
        self._seconds.labels(kind, end).observe(max(0.0, seconds))

    def waiting(self, resource: Resource, count: int) -> None:
        self._waiting.labels(_called(resource)).set(count)

    def forget(self, resource: Resource) -> None:
        """Drop a kind that is not served any more."""
        with suppress(KeyError):
            self._waiting.remove(_called(resource))


def _called(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
