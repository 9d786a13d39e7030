"""The ledger: objects that were left behind on purpose, why, and who decided it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Word
from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry, EntryState, LedgerNote

if TYPE_CHECKING:
    from unwind.deleters.outcomes import Kept


class Fate(Word):
    """Why an object was not removed."""

    KEPT = "Kept"
    """Kept on purpose, by a policy or a deleter."""
    LEFT = "Left"
    """It was to be removed, but was left behind when the target was released."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One object that was left behind."""

    object: ObjectRef
    fate: Fate
    reason: str
    """Why, as a CamelCase word."""
    message: str = ""
    """Why, in one sentence."""
    by: str
    """Who decided it: an annotation, a deleter, a user."""
    at: datetime


def kept(ref: ObjectRef, outcome: Kept, *, at: datetime) -> Line:
    """The ledger line of an object that the chain kept."""
    return Line(
        object=ref, fate=Fate.KEPT, reason=outcome.reason, message=outcome.message, by=outcome.by or "unwind", at=at
    )


def entry(line: Line, *, resource: str = "") -> Entry:
    """The line as a flagged entry of an Inventory."""
    note = LedgerNote(reason=line.reason, message=line.message, by=line.by, at=line.at.replace(microsecond=0))
    # The object still exists: code that reads Inventories must not take it for removed.
    return Entry(object=line.object, resource=resource, state="Confirmed", kept=line.fate is Fate.KEPT, ledger=note)


def line(entry: Entry) -> Line | None:
    """The ledger line of an Inventory entry; None if the object was not left behind."""
    note = entry.ledger
    if note is None or note.at is None or (note.provisional and entry.state == EntryState.REMOVED):
        return None
    fate = Fate.KEPT if entry.kept else Fate.LEFT
    return Line(object=entry.object, fate=fate, reason=note.reason, message=note.message, by=note.by, at=note.at)
