"""The ledger: what was knowingly left behind, why, and who decided it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Word
from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry, LedgerNote

if TYPE_CHECKING:
    from unwind.deleting.outcomes import Kept


class Fate(Word):
    """What became of something that was not removed."""

    KEPT = "Kept"
    """On purpose, by a policy or a deleter that said so."""
    LEFT = "Left"
    """It should have gone, and whoever let the target go left it behind."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was left behind."""

    object: ObjectRef
    fate: Fate
    reason: str
    """Why, as one word."""
    message: str = ""
    """Why, for people."""
    by: str
    """Who decided it: an annotation, a deleter, a person."""
    at: datetime


def kept(ref: ObjectRef, outcome: Kept, *, at: datetime) -> Line:
    """What the chain kept."""
    return Line(
        object=ref, fate=Fate.KEPT, reason=outcome.reason, message=outcome.message, by=outcome.by or "unwind", at=at
    )


def entry(line: Line, *, resource: str = "") -> Entry:
    """How the line is written down: as a flagged entry of an inventory."""
    note = LedgerNote(reason=line.reason, message=line.message, by=line.by, at=line.at.replace(microsecond=0))
    # It was put there by somebody, and is there still: whoever goes through inventories must not take it for removed.
    return Entry(object=line.object, resource=resource, state="Confirmed", kept=line.fate is Fate.KEPT, ledger=note)


def line(entry: Entry) -> Line | None:
    """The line that an inventory's entry is; None if it was not left behind."""
    note = entry.ledger
    if note is None or note.at is None:
        return None
    fate = Fate.KEPT if entry.kept else Fate.LEFT
    return Line(object=entry.object, fate=fate, reason=note.reason, message=note.message, by=note.by, at=note.at)
