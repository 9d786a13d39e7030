"""Runs deletions of objects on one cluster, from the first pass through the chain until the object is gone or kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind import logs
from unwind.api.annotation_values import DeletePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.clock import SYSTEM, Clock
from unwind.deleters.chain_attempt import Failed, Waiting, attempt, enter
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.external_end import ExternalObjects
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import Gone, Kept, Pace, TransientError
from unwind.deleters.registry import DeleterRegistry
from unwind.kube.errors import NotFoundError, UnreachableError
from unwind.kube.watches import Watches
from unwind.kube.workqueue import JITTER
from unwind.plugins import TaskCancellation, error_message

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unwind.api.resources import Resource
    from unwind.deleters.memo import Memo
    from unwind.deleters.outcomes import Event, Outcome
    from unwind.kube.client import Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.watches import Absence

log = logs.get(__name__)
T = TypeVar("T")

_AFTER_BROKEN_EVENT = 10.0
# How often in a row a chain may run again at once, for example because the object has changed between the decision and
# the DELETE. After that it backs off: some objects are written all the time.
_AT_ONCE = 5


class Deletions(msgspec.Struct):
    """Shared state of all deletions on one cluster, so that ten thousand of them cost little more than their
    DELETEs."""

    registry: DeleterRegistry
    watches: Watches
    resolver: Resolver
    clock: Clock = SYSTEM
    policy: DeletePolicy | Unknown | None = None
    teardown: str = ""
    say: Callable[[ObjectRef, Waiting | Failed], None] = lambda *_: None
    """Called when a wait begins. Must not block."""
    external: ExternalObjects | None = None
    """Chooses the end of the chain for objects with an external resource; without it, they are deleted like all
    others."""
    end: KubernetesEnd = KubernetesEnd()
    chance: random.Random = JITTER

    async def delete(self, resource: Resource, ref: ObjectRef, memo: Memo) -> Gone | Kept:
        """Delete the object with this uid: retries its chain until it ends, however long that takes."""
        return await _Deletion(self, resource, ref, memo).run()


class _Deletion:
    """The deletion of one object."""

    def __init__(self, shared: Deletions, resource: Resource, ref: ObjectRef, memo: Memo) -> None:
        self._shared = shared
        self._resource = resource
        self._ref = ref
        self._memo = memo
        # Also keeps the watch open between retries.
        self._absence: Absence | None = None
        self._entries = 0
        self._failures = 0
        self._restarts = 0
        """How often in a row the chain asked to run again at once."""

    async def run(self) -> Gone | Kept:
        try:
            while True:
                looked_at = self._seen
                result = await attempt(self._enter())
                if isinstance(result, Gone | Kept):
                    return result
                self._entries += 1
                self._failures = self._failures + 1 if isinstance(result, Failed) else 0
                self._shared.say(self._ref, result)
                broken = await attempt(self._pause(result, looked_at))
                if isinstance(broken, Failed):
                    # The wait itself failed, for example because a watch cannot be opened.
                    self._shared.say(self._ref, broken)
                    await self._shared.clock.sleep(delay(broken, self._failures + 1, self._shared.chance))
        finally:
            if self._absence:
                self._absence.close()

    @property
    def _seen(self) -> Metadata | None:
        return self._absence.seen if self._absence else None

    async def _enter(self) -> Outcome:
        shared, ref = self._shared, self._ref
        if self._absence and self._absence.lost:
            self._absence.close()
            self._absence = None
        if self._absence is None:
            self._absence = await shared.watches.absence(
                self._resource, name=ref.name, uid=ref.uid, namespace=ref.namespace
            )
        obj = await self._look(self._absence)
        ctx = DeleteContext(
            resource=self._resource,
            ref=ref,
            memo=self._memo,
            resolver=shared.resolver,
            watches=shared.watches,
            clients=(shared.watches.client,),
            clock=shared.clock,
            absent=obj is None,
            policy=shared.policy,
            teardown=shared.teardown,
            cluster=shared.watches.cluster,
        )
        it = ctx.tombstone() if obj is None else obj
        if shared.external and (external := await shared.registry.external(self._resource)):
            end, left_to_others = await shared.external.choose(external, ctx, it)
            ctx = ctx.with_clients(end.clients)
            return await enter(shared.registry, end, ctx, it, left_to_others=left_to_others)
        return await enter(shared.registry, shared.end, ctx, it)

    async def _look(self, absence: Absence) -> Object | None:
        """The object as it is now; None if it is verified absent."""
        if absence.happened:
            return None
        # On the first pass the state of the watch is enough: the DELETE has its resourceVersion as a precondition.
        registry = self._shared.registry
        links = await registry.deleters(self._resource)
        outside = self._shared.external is not None and await registry.external(self._resource) is not None
        if not (self._entries or outside) and (seen := absence.seen) and all(link.metadata_only for link in links):
            return _as_object(self._resource, seen)
        client, cluster = self._shared.watches.client, self._shared.watches.cluster or None
        name, uid, namespace = self._ref.name, self._ref.uid, self._ref.namespace or None
        try:
            obj = await client.get(self._resource, name, namespace=namespace)
            if obj["metadata"]["uid"] == uid:
                return obj
        except NotFoundError:
            pass  # which kind of 404 it was is checked below
        sighting = await client.sighting(self._resource, name, uid=uid, namespace=namespace, cluster=cluster)
        if not sighting.absent:
            raise TransientError(
                f"cannot determine whether {self._ref} still exists: {sighting.why}", remedy="will retry"
            )
        return None

    async def _pause(self, result: Waiting | Failed, looked_at: Metadata | None) -> None:
        """Wait until the chain should run again."""
        if isinstance(result, Failed) and isinstance(result.error, UnreachableError):
            # Only one of the thousands that wait for the same server probes whether it is back.
            await self._shared.watches.probe.until_answers()
            if self._failures == 1:
                return
        after = (
            self._after(result) if isinstance(result, Waiting) else delay(result, self._failures, self._shared.chance)
        )
        if isinstance(result, Waiting) and (result.until or after is not None):
            try:
                await pause(self._shared.clock, after, result.until)
            finally:
                result.close()
        elif self._absence is None:
            await pause(self._shared.clock, after, None)
        elif self._seen is looked_at and not self._absence.happened:
            # A user may fix the object. If it has changed since, there is nothing to wait for.
            name, namespace = self._ref.name, self._ref.namespace
            try:
                changes = await self._shared.watches.changes(self._resource, namespace=namespace, name=name)
            except UnreachableError:
                await pause(self._shared.clock, after, None)
                return
            try:
                await pause(self._shared.clock, after, changes)
            finally:
                changes.close()

    def _after(self, waiting: Waiting) -> float | None:
        self._restarts = self._restarts + 1 if waiting.after == 0 else 0
        if self._restarts <= _AT_ONCE:
            return waiting.after
        return Pace.FAST.value.after(self._restarts - _AT_ONCE, self._shared.chance)


async def retry_until_done(
    work: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    chance: random.Random,
    say: Callable[[Waiting | Failed], None],
) -> T:
    """Run the work until it succeeds: every wait and failure is reported, and it is retried."""
    failures = 0
    while True:
        result = await attempt(work())
        if not isinstance(result, Waiting | Failed):
            return result
        say(result)
        if isinstance(result, Waiting):
            failures = 0
            try:
                await pause(clock, result.after, result.until)
            finally:
                result.close()
        else:
            failures += 1
            await pause(clock, delay(result, failures, chance), None)


async def pause(clock: Clock, after: float | None, until: Event | None) -> None:
    """Return after this many seconds, or when the event happens."""
    if until is None:
        if after:
            await clock.sleep(after)
        return
    over = asyncio.Event()
    timer = clock.call_later(after, over.set) if after is not None else None
    try:
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(item) for item in (happened(until, clock), over.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
    finally:
        if timer:
            timer.cancel()


def delay(failed: Failed, failures: int, chance: random.Random) -> float:
    """Seconds until the next retry: as the pace says, but not earlier than the server asked for."""
    return max(failed.retry_after, failed.pace.value.after(failures, chance))


async def happened(event: Event, clock: Clock) -> None:
    """Return when an event happens, or some seconds after it failed: plugins can define events."""
    cancellation = TaskCancellation()
    try:
        await event.wait()
    except BaseException as error:  # noqa: BLE001 - it may raise anything
        cancellation.check(error)
        log.warning("event wait failed", why=error_message(error))
        # If the chain ran again at once, it would most likely wait for the same event.
        await clock.sleep(_AFTER_BROKEN_EVENT)
    else:
        cancellation.check()


def _as_object(resource: Resource, metadata: Metadata) -> Object:
    fields: dict[str, Any] = msgspec.to_builtins(metadata)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": fields}
