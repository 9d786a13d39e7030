"""What is said on a Work: whether it is on its member, what is waited for, how its objects are there (pure)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.api.karmada import WORKS, Identifier, ManifestStatus, Work
from unwind.api.meta import find, with_condition, without_condition
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.deleters.attempt import Failed
from unwind.deploy.reports import first
from unwind.karmada.object_health import health_of
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError, UnreachableError
from unwind.kube.updates import set_finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from unwind.api.karmada import WorkStatus
    from unwind.clock import Clock
    from unwind.deleters.attempt import Waiting
    from unwind.deploy.placements import PlacedObject
    from unwind.kube.client import Client, Object
    from unwind.kube.informers import Informer


# A status is no log: what is longer is cut where people stop reading.
_LONGEST = 4096
# A Work holds the statuses of all its objects, and has to fit into the API server's store itself.
_LARGEST = 16 * 1024
_SHOWN = 5
_OURS = (ConditionType.APPLIED, ConditionType.DISPATCHING, ConditionType.BLOCKED, ConditionType.UNREACHABLE)


def applied(
    status: WorkStatus, trouble: str, statuses: Iterable[ManifestStatus], *, generation: int, now: datetime
) -> WorkStatus:
    """The status of a Work that was put on its member; `trouble`: what of it was not, by name, empty for nothing."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.APPLIED,
        status=not trouble,
        reason=Reason.APPLIED_FAILED if trouble else Reason.APPLIED_SUCCESSFUL,
        message=trouble[:_LONGEST] or "all of it is on the member",
        generation=generation,
        now=now,
    )
    for answered in (ConditionType.DISPATCHING, ConditionType.UNREACHABLE):
        conditions = without_condition(conditions, answered)
    ordered = sorted(statuses, key=lambda one: (one.identifier.ordinal, one.identifier.kind, one.identifier.name))
    return msgspec.structs.replace(status, conditions=conditions, manifest_statuses=tuple(ordered))


def failed(status: WorkStatus, error: str, *, reached: bool, generation: int, now: datetime) -> WorkStatus:
    """The status of a Work that was not put on its member. `reached`: whether that answers."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.APPLIED,
        status=False,
        reason=Reason.APPLIED_FAILED,
        message=error[:_LONGEST],
        generation=generation,
        now=now,
    )
    return _reached(msgspec.structs.replace(status, conditions=conditions), error, reached=reached, now=now)


def suspended(status: WorkStatus, *, now: datetime) -> WorkStatus:
    """The status of a Work that is not to be put on its member for now."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.DISPATCHING,
        status=False,
        reason=Reason.SUSPENDED_DISPATCHING,
        message="spec.suspendDispatching: nothing is put on the member or changed there",
        now=now,
    )
    return msgspec.structs.replace(status, conditions=conditions)


def waiting_status(
    status: WorkStatus, reason: Reason | None, message: str = "", *, reached: bool = True, now: datetime
) -> WorkStatus:
    """The status with what is waited for until something is gone; None for nothing. `reached`: whether the member
    answers."""
    if reason is None:
        conditions = without_condition(status.conditions, ConditionType.BLOCKED)
    else:
        conditions = with_condition(
            status.conditions,
            type=ConditionType.BLOCKED,
            status=True,
            reason=reason,
            message=message[:_LONGEST],
            now=now,
        )
    return _reached(msgspec.structs.replace(status, conditions=conditions), message, reached=reached, now=now)


def _reached(status: WorkStatus, message: str, *, reached: bool, now: datetime) -> WorkStatus:
    """Since when a member does not answer is said by a condition of its own: other waits begin at other times."""
    conditions = status.conditions
    if reached:
        conditions = without_condition(conditions, ConditionType.UNREACHABLE)
    else:
        before = find(conditions, ConditionType.UNREACHABLE)
        since = (before and before.last_transition_time) or now
        conditions = with_condition(
            conditions,
            type=ConditionType.UNREACHABLE,
            status=True,
            reason=Reason.UNREACHABLE,
            message=f"since {since:%Y-%m-%dT%H:%M:%SZ}: {message}"[:_LONGEST],
            now=now,
        )
    return msgspec.structs.replace(status, conditions=conditions)


def manifest_status(placed: PlacedObject, ordinal: int, obj: Object) -> ManifestStatus:
    """What is said of one object as it is on the member."""
    said: dict[str, Any] = obj.get("status") or {}
    if len(msgspec.json.encode(said)) > _LARGEST:
        said = {}
    ref = placed.ref
    return ManifestStatus(
        identifier=Identifier(
            ordinal=ordinal,
            group=ref.group,
            version=ref.version,
            kind=ref.kind,
            resource=placed.resource.plural,
            namespace=ref.namespace,
            name=ref.name,
        ),
        status=said,
        health=health_of(obj).value,
    )


def status_to_apply(work: Work, status: WorkStatus) -> Object:
    """What is applied to say so: our conditions, and no one else's."""
    meta = work.metadata
    ours = [condition for condition in status.conditions if condition.type in _OURS]
    return {
        "apiVersion": WORKS.api_version,
        "kind": WORKS.kind,
        # With the uid: one that is gone, or whose name is another's, is not told anything.
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": msgspec.to_builtins(msgspec.structs.replace(status, conditions=tuple(ours))),
    }


def first_waits(waits: Iterable[str]) -> str:
    """What is waited for, the first of it; the same words as long as it is the same."""
    return first(waits, shown=_SHOWN)


# Writing on Works: their status, and our finalizer. Nothing else of them is written here.

_Change: TypeAlias = "Callable[[WorkStatus], WorkStatus]"


def key_of(work: Work) -> Key:
    return Key(work.metadata.namespace, work.metadata.name)


class WorkWriter:
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
                written = await self._client.apply(WORKS, status_to_apply(work, after), subresource="status")
            except (NotFoundError, ConflictError):
                return  # it is gone, or its name is another's: nobody reads it
            self._works.take(msgspec.convert(written, Work))

    async def wait(self, work: Work, waits: Iterable[Waiting | Failed | Exception]) -> None:
        """Say what is waited for until it is gone; nothing, if there is nothing."""
        waits = list(waits)
        told = first_waits(wait.told if not isinstance(wait, Exception) else str(wait) for wait in waits)
        reason = Reason.DELETING if waits else None
        reached = not any(_unreached(wait) for wait in waits)
        await self.write(work, lambda it: waiting_status(it, reason, told, reached=reached, now=self._clock.now()))

    async def wait_for(self, work: Work, others: str) -> None:
        """Say that others come first."""
        await self.write(work, lambda it: waiting_status(it, Reason.WAITING, others, now=self._clock.now()))

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
