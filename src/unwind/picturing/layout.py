"""Where everything goes: waves from left to right, boxes in columns, arrows around them (pure).

A wave is a column; one with many boxes is several columns side by side. Arrows run in the channels between columns, and
where they have to get past one they take the free space between two of its boxes. So no arrow crosses a box, and no
layout has to be searched for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import Effort
from unwind.picturing.cards import PORT, WIDTH, Card, card
from unwind.picturing.collapsing import collapsed, direct
from unwind.picturing.picture import Column, Picture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARGIN = 32.0
BAND = 14.0
"""A wave's background reaches so far beyond its boxes."""
_BETWEEN_WAVES = 104.0
_INSIDE_A_WAVE = 48.0
_BETWEEN_ROWS = 24.0
_ROWS = 12
"""A wave with more boxes than that gets another column."""
_BAND_HEAD = 68.0
_BAND_TITLE = 48.0
"""Of which so much is taken by what is written there."""
_BAND_FOOT = 24.0
_CLEAR = 6.0
"""An arrow stays so far from boxes that it passes."""
_LANES = 4
_APART = 9.0


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A box with its place."""

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
    """The background of a wave, with what stands over it."""

    column: Column
    x: float
    y: float
    width: float
    height: float


class Arrow(msgspec.Struct, frozen=True, kw_only=True):
    """A way from a box to another: between two stops it is a curve with level ends."""

    first: str
    then: str
    stops: tuple[tuple[float, float], ...]
    loops: bool = False
    """Both are in the same column: it leaves and comes back on the same side."""
    order: bool = True
    """Whether one goes before the other. Not so in a circle, and not for what stays."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, from (0, 0) to (width, height); the head and the foot of the picture come on top of it."""

    picture: Picture
    """What is drawn: with fewer boxes than there are steps, where those are too many."""
    waves: tuple[Wave, ...]
    boxes: tuple[Placed, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float


def laid_out(picture: Picture) -> Layout:
    """A place for everything."""
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
    ranks: list[list[Placed]] = []
    for column, wave in zip(ordered, cards, strict=True):
        top = _BAND_HEAD + (tallest - _height(wave)) / 2
        ranks_here = _placed(wave, x, top)
        right = max(one.right for rank in ranks_here for one in rank) if ranks_here else x + WIDTH
        waves.append(
            Wave(column=column, x=x - BAND, y=0.0, width=right - x + 2 * BAND, height=_BAND_HEAD + tallest + _BAND_FOOT)
        )
        ranks += ranks_here
        x = right + _BETWEEN_WAVES
    return Layout(
        picture=msgspec.structs.replace(shown, columns=tuple(ordered)),
        waves=tuple(waves),
        boxes=tuple(one for rank in ranks for one in rank),
        arrows=_arrows(ranks, edges),
        width=(x - _BETWEEN_WAVES if waves else MARGIN + BAND) + BAND + MARGIN,
        height=_BAND_HEAD + tallest + _BAND_FOOT,
    )


def _orders(columns: Sequence[Column], edges: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Each column's boxes from top to bottom: near those that their arrows come from and lead to."""
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
    # Three times is where it stops to become better on real plans.
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
    # What stays waits for nobody: it is below what goes.
    return box.effort == Effort.LEAVE, middle, at


def _rows(wave: Sequence[Card]) -> list[Sequence[Card]]:
    across = -(-len(wave) // _ROWS) if wave else 1
    # As even as can be: 50 are 5 columns of 10.
    return [wave[start : start + across] for start in range(0, len(wave), across)]


def _height(wave: Sequence[Card]) -> float:
    rows = _rows(wave)
    tall = sum(max(one.height for one in row) for row in rows)
    return tall + _BETWEEN_ROWS * max(0, len(rows) - 1)


def _placed(wave: Sequence[Card], x: float, top: float) -> list[list[Placed]]:
    """The boxes of a wave, column by column. Rows are level, so that an arrow gets through straight on."""
    rows = _rows(wave)
    ranks: list[list[Placed]] = [[] for _ in range(max(map(len, rows), default=0))]
    y = top
    for row in rows:
        for place, one in enumerate(row):
            ranks[place].append(Placed(card=one, x=x + place * (WIDTH + _INSIDE_A_WAVE), y=y))
        y += max(one.height for one in row) + _BETWEEN_ROWS
    return ranks


def _arrows(ranks: Sequence[Sequence[Placed]], edges: Sequence[tuple[str, str]]) -> tuple[Arrow, ...]:
    where = {one.card.box.name: (rank, one) for rank, boxes in enumerate(ranks) for one in boxes}
    lanes: dict[str, int] = {}
    arrows = []
    for first, then in edges:
        (source_rank, source), (target_rank, target) = where[first], where[then]
        lane = lanes.setdefault(then, len(lanes) % _LANES)
        if source_rank == target_rank:
            # Out below, in above: where they go both ways, one is told from the other.
            out, into = source.port + _APART, target.port - _APART
            stops: tuple[tuple[float, float], ...] = ((source.right, out), (target.right, into))
            arrows.append(Arrow(first=first, then=then, stops=stops, loops=True, order=False))
        elif source_rank < target_rank:
            between = ranks[source_rank + 1 : target_rank]
            # Nobody waits for what stays.
            order = source.card.box.effort != Effort.LEAVE
            arrows.append(Arrow(first=first, then=then, stops=_way(source, target, between, lane), order=order))
        else:
            between = ranks[target_rank + 1 : source_rank]
            stops = tuple(reversed(_way(target, source, between, lane)))
            arrows.append(Arrow(first=first, then=then, stops=stops, order=False))
    return tuple(arrows)


def _way(
    left: Placed, right: Placed, between: Sequence[Sequence[Placed]], lane: int
) -> tuple[tuple[float, float], ...]:
    """From the right side of one box to the left side of another, past the columns between them."""
    stops = [(left.right, left.port)]
    for boxes in between:
        y = _lane(boxes, stops[-1][1], right.port, lane)
        stops += [(boxes[0].x - _CLEAR, y), (boxes[0].right + _CLEAR, y)]
    stops.append((right.x, right.port))
    return tuple(stops)


def _lane(boxes: Sequence[Placed], now: float, end: float, lane: int) -> float:
    """At which height to pass a column: straight on if nothing is there, else where the detour is least."""
    free: list[tuple[float, float]] = []
    above = _BAND_TITLE
    for one in sorted(boxes, key=_top):
        free.append((above, one.y))
        above = one.bottom
    # Below the last one there is as much room as the tallest column takes, and it is not asked for more than that.
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


def _top(one: Placed) -> float:
    return one.y
