"""Durations such as 90s, 30m, 1h30m and 7d."""

from __future__ import annotations

import re
from datetime import timedelta

from unwind.api.fields import Unknown

PATTERN = "^(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?$"
"""Used in CRDs together with `minLength: 1`, because every part is optional."""


def parse(text: str) -> timedelta | Unknown:
    """Parse a duration; invalid text is Unknown."""
    found = re.fullmatch(PATTERN, text, flags=re.ASCII)
    if not text or not found:
        return Unknown(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
