"""Spans of time as people write them: 90s, 30m, 1h30m, 7d."""

from __future__ import annotations

import re
from datetime import timedelta

from unwind.api.fields import Unknown

PATTERN = "^(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?$"
"""Also for CRDs, where `minLength: 1` goes with it, because each part may be missing."""


def parse(text: str) -> timedelta | Unknown:
    """Read a span; what is none is Unknown, and holds."""
    found = re.fullmatch(PATTERN, text, flags=re.ASCII)
    if not text or not found:
        return Unknown(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
