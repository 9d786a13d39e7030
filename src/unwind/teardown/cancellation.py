"""Cancels a requested deletion that is stopped: finds what is gone, and restores what was stopped for it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import CANCEL_REASON_ANNOTATION, CANCEL_REASON_BY_ANNOTATION
from unwind.api.unwind import CANCELLED_SHOWN, REASON_LENGTH, Cancellation
from unwind.concurrency import gather_limited
from unwind.deleters.builtin import replicas_before
from unwind.inventory.inventories import Item, items
from unwind.kube.errors import ApiError, NotFoundError
from unwind.kube.updates import revise
from unwind.members import contents
from unwind.members.member import RECENT
from unwind.removal.step_reader import Served
from unwind.render.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Inventory
    from unwind.kube.client import Object
    from unwind.kube.decoding import Metadata
    from unwind.members.member import Member

_AT_ONCE = 8
_NAMED = 3
# The API server refuses it, and will do so again: a user must restore the object.
_PERMANENT = (400, 403, 404, 405, 422)


class ObjectState(Enum):
    """What became of an object."""

    GONE = "gone"
    DELETING = "deleting"
    """It has a deletionTimestamp, which cannot be removed."""
    STAYS = "stays"
    UNKNOWN = "unknown"
    """It could not be read."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, and what a user must restore."""

    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


async def cancel(member: Member, target: ObjectRef, chunks: Iterable[Inventory], *, now: datetime) -> Cancellation:
    """Restore what was stopped, and return what the deletion has done. Nothing may delete these objects any more.

    Can be repeated. Raises if the API server does not answer.
    """
    found = await survey_objects(member, items(chunks))
    restored = await restore(member, [item for item, state in found if state is ObjectState.STAYS])
    # The target is named first.
    found.sort(key=lambda it: it[0].entry.object.uid != target.uid)
    return cancellation_result(found, restored, now=now)


async def survey_objects(member: Member, some: Iterable[Item]) -> list[tuple[Item, ObjectState]]:
    """Each object, and what became of it, by fresh lists."""
    await member.verify(within=RECENT)
    places: dict[tuple[str, str, str], list[Item]] = {}
    for item in some:
        ref = item.entry.object
        places.setdefault((ref.group, ref.kind, ref.namespace), []).append(item)
    served, found = Served(member), list[tuple[Item, ObjectState]]()

    async def look(those: list[Item]) -> None:
        resource = await served.resource(those[0])
        if resource is None:
            found.extend((item, ObjectState.GONE) for item in those)
            return
        try:
            there = await contents.of_kind(member.client, resource, namespace=those[0].entry.object.namespace or None)
        except ApiError:
            found.extend((item, ObjectState.UNKNOWN) for item in those)
            return
        by_uid = {content.metadata.uid: content.metadata for content in there}
        found.extend((item, _state(by_uid.get(item.entry.object.uid))) for item in those)

    await gather_limited((look(those) for those in places.values()), limit=_AT_ONCE)
    return found


def _state(found: Metadata | None) -> ObjectState:
    if found is None:
        return ObjectState.GONE
    return ObjectState.DELETING if found.deletion_timestamp else ObjectState.STAYS


async def restore(member: Member, those: Iterable[Item]) -> Restored:
    """Scale workloads back that were scaled to zero for their deletion, unless a user has scaled them since."""
    done: list[str] = []
    failed: list[str] = []
    for item in those:
        replicas = replicas_before(item.entry.memo)
        if replicas is None:
            continue
        ref, resource = item.entry.object, item.resource
        try:
            if await _scale_back(member, resource, ref, replicas):
                done.append(f"{ref} has {replicas} replicas again")
        except ApiError as error:
            if error.code not in _PERMANENT:
                raise
            command = f"kubectl scale -n {ref.namespace} {resource.plural}/{ref.name} --replicas={replicas}"
            failed.append(f"cannot scale {ref} to {replicas} replicas: {error}; run: {command}")
    return Restored(done=tuple(done), failed=tuple(failed))


async def _scale_back(member: Member, resource: Resource, ref: ObjectRef, replicas: int) -> bool:
    """Set the replicas of a workload that has none; return whether it has this many now."""
    try:
        read = await member.client.get(resource, ref.name, namespace=ref.namespace)
    except NotFoundError:
        return False
    if read["metadata"]["uid"] != ref.uid:
        return False

    def change(now: Object) -> Object | None:
        idle = now["spec"].get("replicas") == 0 and not now["metadata"].get("deletionTimestamp")
        return {"spec": {"replicas": replicas}} if idle else None

    scaled = await revise(member.client, resource, read, change)
    return scaled is not None or bool(read["spec"].get("replicas") == replicas)


def cancellation_result(
    found: Iterable[tuple[Item, ObjectState]], restored: Restored, *, now: datetime
) -> Cancellation:
    """The result of a cancellation (pure)."""
    refs: dict[ObjectState, list[ObjectRef]] = {state: [] for state in ObjectState}
    for item, state in found:
        refs[state].append(item.entry.object)
    gone, deleting, unknown = (refs[it] for it in (ObjectState.GONE, ObjectState.DELETING, ObjectState.UNKNOWN))
    return Cancellation(
        at=now.replace(microsecond=0),
        removed=len(gone),
        deleting=len(deleting),
        unknown=len(unknown),
        kept=len(refs[ObjectState.STAYS]),
        removed_objects=tuple(gone[:CANCELLED_SHOWN]),
        deleting_objects=tuple(deleting[:CANCELLED_SHOWN]),
        unknown_objects=tuple(unknown[:CANCELLED_SHOWN]),
        restored=restored.done[:CANCELLED_SHOWN],
        not_restored=restored.failed[:CANCELLED_SHOWN],
    )


def with_reason(done: Cancellation, annotations: Mapping[str, str]) -> Cancellation:
    """The result with the reason in the annotations of its Teardown, if there is one (pure).

    A user has written it. It is only recorded and shown.
    """
    reason = _one_line(annotations.get(CANCEL_REASON_ANNOTATION, ""))
    if not reason:
        return done
    return msgspec.structs.replace(
        done, reason=reason, by=_one_line(annotations.get(CANCEL_REASON_BY_ANNOTATION, "")) or "an unknown user"
    )


def _one_line(text: str) -> str:
    return " ".join(plain(text[:REASON_LENGTH]).split())


def message(done: Cancellation) -> str:
    """What a cancelled deletion has done, and why it was cancelled, in one line (pure)."""
    reason = f"; reason given by {done.by}: {done.reason}" if done.reason else ""
    return f"{_done(done)}{reason}"


def _done(done: Cancellation) -> str:
    total = done.removed + done.deleting + done.unknown + done.kept
    if not total:
        return "nothing was deleted"
    told = [f"{done.removed} of {total} objects are gone{_named(done.removed, done.removed_objects)}"]
    if done.deleting:
        named = _named(done.deleting, done.deleting_objects)
        told.append(f"{done.deleting} are being deleted, which cannot be undone{named}")
    if done.unknown:
        told.append(
            f"{done.unknown} could not be read, look at them with kubectl{_named(done.unknown, done.unknown_objects)}"
        )
    told.append(f"{done.kept} stay")
    return "; ".join((", ".join(told), *done.restored, *done.not_restored))


def _named(count: int, refs: tuple[ObjectRef, ...]) -> str:
    if not refs:
        return ""
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return f" ({', '.join(map(str, refs[:_NAMED]))}{more})"
