"""How options are read that take several words, or a span of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import durations
from unwind.api.fields import Unknown
from unwind.errors import UsageError

if TYPE_CHECKING:
    from datetime import timedelta


def words(text: str) -> list[str]:
    """The words of an option, separated by commas."""
    return [word for word in text.replace(" ", "").split(",") if word]


def span(text: str, *, option: str) -> timedelta:
    """The span of time that was given for an option."""
    read = durations.parse(text)
    if isinstance(read, Unknown):
        raise UsageError(f"{option} is {text!r}", remedy="write a span such as 20s, 1m30s or 7d")
    return read
