"""Measure, shorten and wrap text (pure)."""

from __future__ import annotations

# The width of characters relative to the font size. The viewer's font is unknown, so these are the widths of a wide one
# (DejaVu Sans): text that fits by them fits in any font.
_NARROW = 0.36
_USUAL = 0.62
_WIDE = 0.80
_BROAD = 1.0
_NARROW_ONES = frozenset("fijlrtI.,:;!|'`()[]/ -")
_WIDE_ONES = frozenset("mwMWABCDGHKNOQRUVX@%&")
_BOLD = 1.1

ELLIPSIS = "…"


def width(text: str, size: float, *, bold: bool = False) -> float:
    """The maximal width of a line of text in pixels, in a font of this size."""
    return sum(map(_part, text)) * size * (_BOLD if bold else 1.0)


def shortened(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text, shortened in the middle if it does not fit, because names differ at their ends."""
    if width(text, size, bold=bold) <= room:
        return text
    keep = len(text) - 1
    while keep > 2:
        # Start with an estimate, because names can be hundreds of characters long.
        short = _without_middle(text, keep)
        taken = width(short, size, bold=bold)
        if taken <= room:
            return short
        keep = min(keep - 1, int(keep * room / taken) + 1)
    return ELLIPSIS


def wrapped(text: str, room: float, size: float, *, most: int) -> tuple[str, ...]:
    """The text wrapped to at most `most` lines; the last ends with an ellipsis if the text is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if width(longer, size) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = shortened(word, room, size)
    if line:
        lines.append(line)
    if len(lines) <= most:
        return tuple(lines)
    return (*lines[: most - 1], _ended(lines[most - 1], room, size))


def _ended(line: str, room: float, size: float) -> str:
    while line and width(f"{line} {ELLIPSIS}", size) > room:
        line = line.rpartition(" ")[0]
    return f"{line} {ELLIPSIS}".strip()


def _without_middle(text: str, keep: int) -> str:
    head = (keep + 1) // 2
    tail = keep - head
    return f"{text[:head]}{ELLIPSIS}{text[len(text) - tail :] if tail else ''}"


def _part(character: str) -> float:
    if character in _NARROW_ONES:
        return _NARROW
    if character in _WIDE_ONES:
        return _WIDE
    return _USUAL if ord(character) < 0x2E80 else _BROAD


def plain(text: str) -> str:
    """Text of another system for a terminal: control characters could move the cursor or change what was printed."""
    return "".join(character if character.isprintable() else " " for character in text)


def counted(count: int, word: str) -> str:
    """A count with its noun: 1 step, 2 steps, 1,200 steps."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """A duration formatted as kubectl does: 95s, 12m, 3h, 4d."""
    whole = int(max(0.0, seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def duration(seconds: float) -> str:
    """A duration with two units: 40s, 1m40s, 2h5m, 3d4h."""
    whole = int(max(0.0, seconds))
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{f'{rest}{below}' if rest else ''}"
    return f"{whole}s"
