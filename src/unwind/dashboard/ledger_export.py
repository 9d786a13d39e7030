"""The ledger for other programs: the rows that a person has filtered, as CSV and JSON (pure)."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.cli.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.cli.ledger import LedgerRow

# A spreadsheet takes a cell that begins with one of these for a formula; the last ones are their full-width forms.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COLUMNS = ("cluster", "kind", "namespace", "name", "uid", "owner", "outcome", "reason", "message", "by", "at", "costs")


class LedgerFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants to see of the ledger; an empty value selects everything."""

    cluster: str = ""
    by: str = ""
    reason: str = ""
    words: tuple[str, ...] = ()
    """Each must occur somewhere, in lower case."""

    def selected(self, whole: Ledger) -> Ledger:
        """The part of the ledger that is shown."""
        return Ledger(
            released=tuple(
                item
                for item in whole.released
                if self._fits(str(item.target), item.release.by, item.release.reason, item.title, item.release.message)
            ),
            left=tuple(row for row in whole.left if self._fits(row.cluster, row.by, row.reason, *_texts(row))),
            set_aside=tuple(it for it in whole.set_aside if self._fits(str(it.target), "", "", it.message)),
            not_verified=tuple(
                it for it in whole.not_verified if self._fits(str(it.target), "", it.reason, it.title, it.message)
            ),
        )

    def _fits(self, cluster: str, by: str, reason: str, *more: str) -> bool:
        wanted = ((self.cluster, cluster), (self.by, by), (self.reason, reason))
        text = " ".join((cluster, by, reason, *more)).lower()
        return all(not value or value == found for value, found in wanted) and all(it in text for it in self.words)


def _texts(row: LedgerRow) -> tuple[str, ...]:
    return str(row.object), row.owner, row.message, row.costs


def outcome(row: LedgerRow) -> str:
    return "removed" if row.removed else "kept" if row.kept else "left behind"


def moment(at: datetime | None) -> str:
    """A time for a machine."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if at else ""


def ledger_csv(rows: Sequence[LedgerRow]) -> str:
    """The ledger as CSV. No cell is a formula for a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(_COLUMNS)
    for row in rows:
        ref = row.object
        cells = (
            row.cluster,
            ref.kind,
            ref.namespace,
            ref.name,
            ref.uid,
            row.owner,
            outcome(row),
            row.reason,
            row.message,
            row.by,
            moment(row.at),
            row.costs,
        )
        writer.writerow([_cell(cell) for cell in cells])
    return text.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
