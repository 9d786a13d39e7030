"""Deletions of objects on one cluster, each from the first entry into its chain to the end."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.clock import SYSTEM
from unwind.deleting.context import DeleteContext
from unwind.deleting.entering import Failed, Waiting, attempt, enter
from unwind.deleting.kubernetes import KubernetesEnd
from unwind.deleting.outcomes import Gone, Kept, Pace, TransientError
from unwind.kube.absence import Presence
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.fields import Unknown
    from unwind.api.meta import ObjectRef
    from unwind.api.policies import DeletePolicy
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleting.memo import Memo
    from unwind.deleting.outcomes import Event, Outcome
    from unwind.deleting.registry import Registry
    from unwind.deleting.resolver import Resolver
    from unwind.kube.client import Object
    from unwind.kube.views import Metadata
    from unwind.kube.watches import Absence, Watches


class Deletions:
    """What deletions on one cluster share, so that ten thousand of them cost little more than their DELETEs."""

    def __init__(
        self,
        registry: Registry,
        watches: Watches,
        resolver: Resolver,
        *,
        clock: Clock = SYSTEM,
        policy: DeletePolicy | Unknown | None = None,
        teardown: str = "",
        say: Callable[[ObjectRef, Waiting | Failed], None] = lambda *_: None,
    ) -> None:
        """`say` is told of every wait as it begins, and must not wait itself."""
        self._registry = registry
        self._watches = watches
        self._resolver = resolver
        self._clock = clock
        self._policy = policy
        self._teardown = teardown
        self._say = say
        self._end = KubernetesEnd()
        self._chance = random.Random()  # noqa: S311 - no secret in it

    async def delete(self, resource: Resource, ref: ObjectRef, memo: Memo) -> Gone | Kept:
        """Have the object with this uid deleted: its chain is entered until it comes to an end, however long."""
        # This one keeps the watch open between the entries, too.
        absence = await self._watches.absence(resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)
        failures = 0
        first = True
        try:
            while True:
                looked_at = absence.seen
                result = await attempt(self._enter(resource, ref, memo, absence, first=first))
                if isinstance(result, Gone | Kept):
                    return result
                first = False
                failures = failures + 1 if isinstance(result, Failed) else 0
                self._say(ref, result)
                await self._pause(resource, ref, result, failures, absence=absence, looked_at=looked_at)
        finally:
            absence.close()

    async def _enter(self, resource: Resource, ref: ObjectRef, memo: Memo, absence: Absence, *, first: bool) -> Outcome:
        obj = await self._look(resource, ref, absence, first=first)
        ctx = DeleteContext(
            resource=resource,
            ref=ref,
            memo=memo,
            resolver=self._resolver,
            watches=self._watches,
            clients=(self._watches.client,),
            clock=self._clock,
            absent=obj is None,
            policy=self._policy,
            teardown=self._teardown,
            cluster=self._watches.cluster,
        )
        return await enter(self._registry, self._end, ctx, ctx.tombstone() if obj is None else obj)

    async def _look(self, resource: Resource, ref: ObjectRef, absence: Absence, *, first: bool) -> Object | None:
        """The object as it is now; None if it was seen to be absent."""
        if absence.happened:
            return None
        # The first time what the watch shows may do: the DELETE carries the version that was decided by.
        links = await self._registry.deleters(resource)
        if first and (seen := absence.seen) and all(link.metadata_only for link in links):
            return _as_object(resource, seen)
        client, namespace = self._watches.client, ref.namespace or None
        try:
            obj = await client.get(resource, ref.name, namespace=namespace)
            if obj["metadata"]["uid"] == ref.uid:
                return obj
        except NotFoundError:
            pass  # in whose words, is looked at below
        cluster = self._watches.cluster or None
        sighting = await client.sighting(resource, ref.name, uid=ref.uid, namespace=namespace, cluster=cluster)
        if sighting.presence is not Presence.ABSENT:
            raise TransientError(f"it is not known whether {ref} is still there: {sighting.why}")
        return None

    async def _pause(
        self,
        resource: Resource,
        ref: ObjectRef,
        result: Waiting | Failed,
        failures: int,
        *,
        absence: Absence,
        looked_at: Metadata | None,
    ) -> None:
        """Wait for what is waited for."""
        if isinstance(result, Waiting) and (result.until or result.after is not None):
            try:
                await self._first(result.after, result.until)
            finally:
                result.close()
            return
        # Somebody may put the object right.
        changes = await self._watches.changes(resource, namespace=ref.namespace, name=ref.name)
        try:
            if absence.happened or absence.seen is not looked_at:
                return  # it has changed meanwhile
            await self._first(delay(result, failures, self._chance) if isinstance(result, Failed) else None, changes)
        finally:
            changes.close()

    async def _first(self, after: float | None, until: Event | None) -> None:
        """Return when so many seconds have passed, or the event has happened."""
        if until is None:
            await self._clock.sleep(after or 0)
            return
        over = asyncio.Event()
        timer = self._clock.call_later(after, over.set) if after is not None else None
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(_wait(one)) for one in (until, over)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
        if timer:
            timer.cancel()


def delay(failed: Failed, failures: int, chance: random.Random) -> float:
    """How long to wait before the next try: as the pace says, and not sooner than the other side asked for."""
    pace: Pace = failed.pace
    return max(failed.retry_after, pace.value.after(failures, chance))


async def _wait(event: Event) -> None:
    await event.wait()


def _as_object(resource: Resource, metadata: Metadata) -> Object:
    fields: dict[str, Any] = msgspec.to_builtins(metadata)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": fields}
