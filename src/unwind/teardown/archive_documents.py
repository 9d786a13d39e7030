"""The documents of an archive: one for each finished Teardown, with its plan, its timeline and its ledger (pure)."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Model
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import TEARDOWNS, Cause, EntryState, Teardown, TimelineEntry, TimelineEvent
from unwind.errors import UnwindError
from unwind.planning import timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.unwind import Inventory

API_VERSION = "archive.unwind.dev/v1"
KIND = "ArchivedTeardown"
SUFFIX = ".json"
_OWN = "unwind.dev/"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9.-]+")
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_NAME = 120


class NotADocumentError(UnwindError):
    """The content of a file is no document of an archive."""


class LeftObject(Model, frozen=True, kw_only=True):
    """One object in the ledger of a Teardown."""

    cluster: ObjectRef = ObjectRef()
    """The object that represents the cluster that it is on."""
    owner: ObjectRef = ObjectRef()
    """The owner that deployed it."""
    object: ObjectRef = ObjectRef()
    source: str = ""
    """Where it came from: a policyRef, a chart, a manifest, or what a drain knows of it."""
    kept: bool = False
    """Kept on purpose. If false, it was to be removed."""
    removed: bool = False
    """Not left behind: it is gone, and the entry records what Unwind did for that."""
    reason: str = ""
    message: str = ""
    by: str = ""
    at: datetime | None = None


class ArchivedTeardown(Model, frozen=True, kw_only=True, omit_defaults=False):
    """A finished Teardown with what belongs to it."""

    api_version: str = ""
    kind: str = ""
    teardown: Teardown = Teardown()
    timeline: tuple[TimelineEntry, ...] = ()
    """All that is known of its course, also what its status has no longer."""
    timeline_omitted: int = 0
    """The number of events that are not known any more."""
    ledger: tuple[LeftObject, ...] = ()


def archived(
    teardown: Teardown, inventories: Iterable[Inventory], *, more: Iterable[TimelineEntry] = ()
) -> ArchivedTeardown:
    """The document of a finished Teardown. Two replicas make the same document of the same objects.

    `inventories`: of the owners of its steps. `more`: the entries that its timeline has no longer.
    """
    entries = timeline.course(teardown, more)
    found = max(0, len(entries) - len(teardown.status.timeline))
    return ArchivedTeardown(
        api_version=API_VERSION,
        kind=KIND,
        teardown=msgspec.structs.replace(teardown, metadata=_metadata(teardown.metadata)),
        timeline=entries,
        timeline_omitted=max(0, teardown.status.timeline_omitted - found),
        ledger=tuple(sorted(_ledger(teardown, inventories), key=_order)),
    )


def encoded(document: ArchivedTeardown) -> bytes:
    """The document as JSON for people and programs."""
    body = msgspec.to_builtins(document)
    body["teardown"] = {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, **body["teardown"]}
    return msgspec.json.format(msgspec.json.encode(body)) + b"\n"


def decoded(content: bytes) -> ArchivedTeardown:
    """The document in a file. Raises NotADocumentError: the file may be damaged, or of another program."""
    try:
        found = msgspec.json.decode(content, type=ArchivedTeardown)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotADocumentError(f"not an archived Teardown: {error}") from error
    if found.kind != KIND or not found.teardown.metadata.uid:
        raise NotADocumentError("not an archived Teardown")
    if found.api_version != API_VERSION:
        raise NotADocumentError(
            f"unknown version {found.api_version!r} (known: {API_VERSION})", remedy="use the version that wrote it"
        )
    return found


def file_name(teardown: Teardown) -> str:
    """The file of a Teardown: its target for people, and its uid, which makes the name unique.

    A requester can write any text into the target. It is only a hint, so everything but letters, digits, dots and
    dashes is replaced: the name has no separators, does not begin with a dot, and is short.
    """
    target = teardown.spec.target
    parts = (_NOT_PLAIN.sub("-", part).strip(".-") for part in (target.kind.lower(), target.namespace, target.name))
    hint = "_".join(part for part in parts if part)[:_NAME]
    return f"{hint or 'teardown'}_{plain_uid(teardown.metadata.uid)}{SUFFIX}"


def plain_uid(uid: str) -> str:
    """A uid that can be a part of a file name. The API server writes UUIDs."""
    return uid if _UID.fullmatch(uid) else hashlib.sha256(uid.encode()).hexdigest()[:40]


def owners(teardown: Teardown, *, genuine: bool) -> set[str]:
    """The owners whose Inventories hold the ledger of a Teardown. `genuine`: whether the manager wrote its plan; any
    other plan could name the objects of others."""
    plan = teardown.spec.plan if genuine else None
    found = {teardown.metadata.uid, *(step.object.uid for step in plan.steps)} if plan else {teardown.metadata.uid}
    return {uid for uid in found if uid}


def dropped(before: Teardown, after: Teardown, *, now: datetime) -> list[TimelineEntry]:
    """The entries that a write has dropped from the timeline. The ends of steps are in status anyway."""
    known = {timeline.identity(entry) for entry in after.status.timeline}
    return [
        # It is dropped because it is over.
        msgspec.structs.replace(entry, until=now)
        if entry.event == TimelineEvent.BLOCKED and entry.until is None
        else entry
        for entry in before.status.timeline
        if timeline.identity(entry) not in known and entry.event != TimelineEvent.STEP_ENDED
    ]


def _metadata(meta: ObjectMeta) -> ObjectMeta:
    """What identifies a Teardown. Other programs may have written anything into annotations."""
    return ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        creation_timestamp=meta.creation_timestamp,
        labels=_own(meta.labels),
        annotations=_own(meta.annotations),
    )


def _own(values: Mapping[str, str]) -> dict[str, str]:
    return {key: values[key] for key in sorted(values) if key.startswith(_OWN)}


def _ledger(teardown: Teardown, inventories: Iterable[Inventory]) -> Iterable[LeftObject]:
    # The Inventories of a prune are in use: they have the entries of earlier prunes, too.
    since = teardown.spec.requested_at if teardown.spec.cause == Cause.PRUNED else None
    for inventory in inventories:
        for entry in inventory.spec.entries.values():
            note, removed = entry.ledger, entry.state == EntryState.REMOVED
            if note is None or (note.provisional and removed) or (since and note.at and note.at < since):
                continue
            yield LeftObject(
                cluster=inventory.spec.member.object,
                owner=inventory.spec.owner,
                object=entry.object,
                source=entry.source,
                kept=entry.kept or entry.adopted,
                removed=removed,
                reason=note.reason,
                message=note.message,
                by=note.by,
                at=note.at,
            )


def _order(line: LeftObject) -> tuple[float, str, str, str, str]:
    at = line.at.timestamp() if line.at else 0.0
    return at, str(line.cluster), str(line.object), line.object.uid, line.owner.uid
