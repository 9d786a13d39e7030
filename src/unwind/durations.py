"""Durations the way Kubernetes writes them: 10s, 1m30s, 500ms."""

from __future__ import annotations

import re

from unwind.errors import UnwindError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


def seconds(text: str) -> float:
    """How many seconds it is. Raises UnwindError if it is no duration."""
    rest, total = text.strip(), 0.0
    while match := _PART.match(rest):
        total += float(match[1]) * _UNITS[match[2]]
        rest = rest[match.end() :]
    if rest or not text.strip():
        if text.strip() == "0":
            return 0.0
        raise UnwindError(f"{text!r} is no duration", remedy="write 30s, 5m or 1h30m")
    return total
