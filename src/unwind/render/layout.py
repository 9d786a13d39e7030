"""Layout of a picture: waves from left to right, boxes in columns, arrows around them (pure).

A wave is a column; one with many boxes is several columns side by side. Arrows run in the channels between columns, and
pass a column through the free space between two of its boxes. So no arrow crosses a box, and no layout search is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import Effort, StepState
from unwind.render import text
from unwind.render.picture import Box, Column, Picture, collapsed, direct, kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH = 224.0
STRIPE = 5.0
PADDING = 14.0
MARGIN = 32.0
BAND = 14.0
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


"""How far a wave's background extends beyond its boxes."""
_BETWEEN_WAVES = 104.0
_INSIDE_A_WAVE = 48.0
_BETWEEN_ROWS = 24.0
_ROWS = 12
"""A wave with more boxes gets another column."""
_BAND_HEAD = 68.0
_BAND_TITLE = 48.0
"""The part of it that the heading uses."""
_BAND_FOOT = 24.0
_CLEAR = 6.0
"""The distance between an arrow and the boxes that it passes."""
_LANES = 4
_APART = 9.0


class PlacedBox(msgspec.Struct, frozen=True, kw_only=True):
    """A box with its position."""

    card: Card
    x: float
    y: float
    width: float = WIDTH

    @property
    def bottom(self) -> float:
        return self.y + self.card.height

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def port(self) -> float:
        return self.y + PORT


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """The background of a wave, with its heading."""

    column: Column
    x: float
    y: float
    width: float
    height: float


class Arrow(msgspec.Struct, frozen=True, kw_only=True):
    """The path from a box to another: between two stops it is a curve with horizontal ends."""

    first: str
    then: str
    stops: tuple[tuple[float, float], ...]
    loops: bool = False
    """Both boxes are in the same column: the arrow leaves and returns on the same side."""
    order: bool = True
    """Whether the edge defines order; false within a cycle and for steps that are left in place."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The whole layout, from (0, 0) to (width, height), without the header and footer of the picture."""

    picture: Picture
    """The picture that is drawn; steps are grouped if there are too many."""
    waves: tuple[Wave, ...]
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float


def laid_out(picture: Picture) -> Layout:
    """The layout of a picture."""
    shown = collapsed(picture)
    edges = direct(shown)
    ordered = [
        msgspec.structs.replace(column, boxes=tuple(column.boxes[place] for place in places))
        for column, places in zip(shown.columns, _orders(shown.columns, edges), strict=True)
    ]
    cards = [[card(box) for box in column.boxes] for column in ordered]
    tallest = max((_height(wave) for wave in cards), default=0.0)
    x = MARGIN + BAND
    waves: list[Wave] = []
    ranks: list[list[PlacedBox]] = []
    for column, wave in zip(ordered, cards, strict=True):
        top = _BAND_HEAD + (tallest - _height(wave)) / 2
        ranks_here = _placed(wave, x, top)
        right = max(item.right for rank in ranks_here for item in rank) if ranks_here else x + WIDTH
        waves.append(
            Wave(column=column, x=x - BAND, y=0.0, width=right - x + 2 * BAND, height=_BAND_HEAD + tallest + _BAND_FOOT)
        )
        ranks += ranks_here
        x = right + _BETWEEN_WAVES
    return Layout(
        picture=msgspec.structs.replace(shown, columns=tuple(ordered)),
        waves=tuple(waves),
        boxes=tuple(item for rank in ranks for item in rank),
        arrows=_arrows(ranks, edges),
        width=(x - _BETWEEN_WAVES if waves else MARGIN + BAND) + BAND + MARGIN,
        height=_BAND_HEAD + tallest + _BAND_FOOT,
    )


def _orders(columns: Sequence[Column], edges: Sequence[tuple[str, str]]) -> list[list[int]]:
    """The vertical order of the boxes in each column: near the boxes they are connected to."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    wave = {box.name: place for place, column in enumerate(columns) for box in column.boxes}
    for first, then in edges:
        if wave[first] < wave[then]:
            after.setdefault(first, []).append(then)
            before.setdefault(then, []).append(first)
    orders = [list(range(len(column.boxes))) for column in columns]
    height: dict[str, float] = {}
    for column, order in zip(columns, orders, strict=True):
        _stack(column, order, height)
    # More than three passes did not improve real plans.
    for neighbours, sweep in ((before, 1), (after, -1), (before, 1)):
        for place in range(len(columns))[::sweep]:
            column = columns[place]
            orders[place].sort(key=lambda at, column=column, near=neighbours: _key(column, at, near, height))  # type: ignore[misc]
            _stack(column, orders[place], height)
    return orders


def _stack(column: Column, order: list[int], height: dict[str, float]) -> None:
    for place, at in enumerate(order):
        height[column.boxes[at].name] = (place + 0.5) / len(order)


def _key(
    column: Column, at: int, near: Mapping[str, Sequence[str]], height: Mapping[str, float]
) -> tuple[bool, float, int]:
    box = column.boxes[at]
    heights = [height[name] for name in near.get(box.name, ())]
    middle = sum(heights) / len(heights) if heights else height[box.name]
    # Steps left in place are below those that are removed.
    return box.effort == Effort.LEAVE, middle, at


def _rows(wave: Sequence[Card]) -> list[Sequence[Card]]:
    across = -(-len(wave) // _ROWS) if wave else 1
    # As even as possible: 50 boxes are 5 columns of 10.
    return [wave[start : start + across] for start in range(0, len(wave), across)]


def _height(wave: Sequence[Card]) -> float:
    rows = _rows(wave)
    tall = sum(max(item.height for item in row) for row in rows)
    return tall + _BETWEEN_ROWS * max(0, len(rows) - 1)


def _placed(wave: Sequence[Card], x: float, top: float) -> list[list[PlacedBox]]:
    """The boxes of a wave, column by column. Rows are aligned, so that arrows can pass straight through."""
    rows = _rows(wave)
    ranks: list[list[PlacedBox]] = [[] for _ in range(max(map(len, rows), default=0))]
    y = top
    for row in rows:
        for place, one in enumerate(row):
            ranks[place].append(PlacedBox(card=one, x=x + place * (WIDTH + _INSIDE_A_WAVE), y=y))
        y += max(item.height for item in row) + _BETWEEN_ROWS
    return ranks


def _arrows(ranks: Sequence[Sequence[PlacedBox]], edges: Sequence[tuple[str, str]]) -> tuple[Arrow, ...]:
    where = {box.card.box.name: (rank, box) for rank, boxes in enumerate(ranks) for box in boxes}
    lanes: dict[str, int] = {}
    arrows = []
    for first, then in edges:
        (source_rank, source), (target_rank, target) = where[first], where[then]
        lane = lanes.setdefault(then, len(lanes) % _LANES)
        if source_rank == target_rank:
            # Outgoing below, incoming above, so that arrows in both directions can be distinguished.
            out, into = source.port + _APART, target.port - _APART
            stops: tuple[tuple[float, float], ...] = ((source.right, out), (target.right, into))
            arrows.append(Arrow(first=first, then=then, stops=stops, loops=True, order=False))
        elif source_rank < target_rank:
            between = ranks[source_rank + 1 : target_rank]
            # Nothing waits for a step that is left in place.
            order = source.card.box.effort != Effort.LEAVE
            arrows.append(Arrow(first=first, then=then, stops=_way(source, target, between, lane), order=order))
        else:
            between = ranks[target_rank + 1 : source_rank]
            stops = tuple(reversed(_way(target, source, between, lane)))
            arrows.append(Arrow(first=first, then=then, stops=stops, order=False))
    return tuple(arrows)


def _way(
    left: PlacedBox, right: PlacedBox, between: Sequence[Sequence[PlacedBox]], lane: int
) -> tuple[tuple[float, float], ...]:
    """The path from the right side of one box to the left side of another, past the columns between."""
    stops = [(left.right, left.port)]
    for boxes in between:
        y = _lane(boxes, stops[-1][1], right.port, lane)
        stops += [(boxes[0].x - _CLEAR, y), (boxes[0].right + _CLEAR, y)]
    stops.append((right.x, right.port))
    return tuple(stops)


def _lane(boxes: Sequence[PlacedBox], now: float, end: float, lane: int) -> float:
    """The height at which to pass a column: straight if it is free, otherwise with the smallest detour."""
    free: list[tuple[float, float]] = []
    above = _BAND_TITLE
    for box in sorted(boxes, key=_top):
        free.append((above, box.y))
        above = box.bottom
    # Below the last box there is room down to the height of the tallest column, and no more is used.
    free.append((above, max(above + _BETWEEN_ROWS, now + _CLEAR, end + _CLEAR)))
    best, least = now, float("inf")
    for top, bottom in free:
        lowest, highest = top + _CLEAR, bottom - _CLEAR
        if lowest > highest:
            continue
        if lowest <= now <= highest:
            return now
        apart = min((highest - lowest) / (_LANES - 1), _CLEAR)
        y = highest - lane * apart if highest < now else lowest + lane * apart
        detour = abs(y - now) + abs(y - end)
        if detour < least:
            best, least = y, detour
    return best


def _top(one: PlacedBox) -> float:
    return one.y
