"""Parse comma-separated and duration options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import durations
from unwind.api.fields import Unknown
from unwind.errors import UsageError

if TYPE_CHECKING:
    from datetime import timedelta


def words(text: str) -> list[str]:
    """The values of a comma-separated option."""
    return [word for word in text.replace(" ", "").split(",") if word]


def duration(text: str, *, option: str) -> timedelta:
    """The value of a duration option."""
    read = durations.parse(text)
    if isinstance(read, Unknown):
        raise UsageError(f"invalid duration {text!r} for {option}", remedy="use a duration such as 20s, 1m30s or 7d")
    return read
