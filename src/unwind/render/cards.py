"""The text of a box and its size (pure)."""

from __future__ import annotations

import msgspec

from unwind.api.unwind import Effort, StepState
from unwind.render import text
from unwind.render.picture import Box, kind

WIDTH = 224.0
STRIPE = 5.0
PADDING = 14.0
ROOM = WIDTH - STRIPE - 2 * PADDING
"""The width available for a line of text."""
TITLE = 13.5
SMALL = 11.0
LINE = 15.0
"""The distance between two small lines."""
BAR = 6.0
PORT = 25.0
"""Where arrows attach, from the top: beside the name, whatever the height of the box."""

_HEAD = 48.0
_PROGRESS = 16.0
GAP = 5.0
"""The space above the small print."""
_DETAILS = 4
_BLOCKED = 5


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A box with its text, truncated to fit, and the resulting height."""

    box: Box
    above: str
    """The kind, in small letters above the name."""
    name: str
    count: str
    """The number of objects, in the upper right corner."""
    details: tuple[str, ...]
    blocked: tuple[str, ...]
    bar: float | None
    """The removed share, 0 to 1; None if no bar is shown."""
    state: str
    """The progress text beside the bar."""
    height: float
    full: str
    """The full text, for the tooltip."""


def card(box: Box) -> Card:
    """The text of a box."""
    above, name = _names(box)
    count = _count(box)
    # Without a kind above it, the name shares its line with the count.
    room = ROOM if above or not count else ROOM - text.width(count, SMALL) - 12
    details = _details(box)
    blocked = text.wrapped(box.blocked, ROOM, SMALL, most=_BLOCKED)
    bar = _share(box)
    height = _HEAD + (_PROGRESS if bar is not None else 0.0) + LINE * (len(details) + len(blocked))
    if details or blocked:
        height += GAP
    return Card(
        box=box,
        above=text.shortened(above, ROOM - text.width(count, SMALL) - 12, SMALL),
        name=text.shortened(name, room, TITLE, bold=True),
        count=count,
        details=details,
        blocked=blocked,
        bar=bar,
        state=_state(box),
        height=height,
        full=_full(box),
    )


def _names(box: Box) -> tuple[str, str]:
    if box.stands_for:
        kinds = {kind(name) for name in box.stands_for}
        return (kinds.pop() if len(kinds) == 1 else ""), text.counted(box.steps, "step")
    first = kind(box.name)
    return (first, box.name[len(first) + 1 :]) if first else ("", box.name)


def _count(box: Box) -> str:
    return text.counted(box.objects, "object") if box.objects else ""


def _details(box: Box) -> tuple[str, ...]:
    shown = box.details if len(box.details) <= _DETAILS else box.details[: _DETAILS - 1]
    lines = [text.shortened(line, ROOM, SMALL) for line in shown]
    if len(shown) < len(box.details):
        lines.append(f"and {len(box.details) - len(shown)} more")
    return tuple(lines)


def _share(box: Box) -> float | None:
    if not box.state:
        return None
    if box.state == StepState.REMOVED:
        return 1.0
    return min(1.0, box.removed / box.objects) if box.objects else 0.0


def _state(box: Box) -> str:
    match box.state:
        case "":
            return ""
        case StepState.REMOVING if box.objects:
            return f"{box.removed}/{box.objects}"
        case StepState.GIVEN_UP:
            return "given up"
        case _:
            return box.state.lower()


def _full(box: Box) -> str:
    names = box.stands_for or (box.name,)
    shown = names[:_NAMES]
    lines = list(shown)
    if len(shown) < len(names):
        lines.append(f"and {len(names) - len(shown)} more")
    lines.append(MEANINGS.get(box.effort, f"{box.effort or 'no effort'}: unknown, so it blocks"))
    if box.objects:
        lines.append(f"{_count(box)}, {box.removed} gone" if box.state else _count(box))
    if box.state:
        lines.append(box.state)
    lines.extend(box.details)
    if box.blocked:
        lines.append(f"blocked: {box.blocked}")
    return "\n".join(lines)


_NAMES = 40

MEANINGS: dict[str, str] = {
    Effort.ENFORCE.value: "Enforce: the target waits until it is removed",
    Effort.TRY.value: "Try: best effort, with timeout",
    Effort.LEAVE.value: "Leave: left in place",
}
"""The meaning of each colour, for the legend."""
