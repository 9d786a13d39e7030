"""Collapse large pictures: group steps into few boxes, and drop edges that others imply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.render.picture import Box, Column, Picture, kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Limits for a picture that is readable and fits on one or two screens.
MOST_BOXES = 60
MOST_COLUMNS = 16
_BLOCKED_APART = 12
"""The number of blocked steps per wave that are always shown separately."""
_KINDS = 4


def collapsed(picture: Picture, *, boxes: int = MOST_BOXES, columns: int = MOST_COLUMNS) -> Picture:
    """The picture with limited columns and boxes per column; every step is in exactly one box."""
    fewer, merged = _fewer(picture.columns, columns)
    shown = tuple(
        _grouped(column) if len(column.boxes) > boxes or place in merged else column
        for place, column in enumerate(fewer)
    )
    home: dict[str, tuple[str, int]] = {}
    for place, column in enumerate(shown):
        for box in column.boxes:
            for name in box.stands_for or (box.name,):
                home[name] = (box.name, place)
    # Edges within a group are not drawn. If several waves form one column, an edge between its boxes would look like a
    # cycle.
    edges = dict.fromkeys(
        (home[first][0], home[then][0])
        for first, then in picture.edges
        if first in home
        and then in home
        and home[first][0] != home[then][0]
        and not (home[first][1] == home[then][1] and home[first][1] in merged)
    )
    return msgspec.structs.replace(picture, columns=shown, edges=tuple(edges))


def direct(picture: Picture) -> tuple[tuple[str, str], ...]:
    """The transitive reduction of the edges: if a precedes b and b precedes c, a-c is dropped."""
    place = {box.name: number for number, column in enumerate(picture.columns) for box in column.boxes}
    edges = [(first, then) for first, then in picture.edges if first in place and then in place]
    forward = [edge for edge in edges if place[edge[0]] < place[edge[1]]]
    after: dict[str, list[str]] = {}
    for first, then in forward:
        after.setdefault(first, []).append(then)
    # All transitive successors of a box as bits of one integer, which is fast even for 2,000 steps.
    bits = {name: 1 << number for number, name in enumerate(place)}
    reached: dict[str, int] = {}
    for name in sorted(after, key=place.__getitem__, reverse=True):
        reached[name] = 0
        for then in after[name]:
            reached[name] |= bits[then] | reached.get(then, 0)
    implied: set[tuple[str, str]] = set()
    for first, thens in after.items():
        beyond = 0
        for then in thens:
            beyond |= reached.get(then, 0)
        implied.update((first, then) for then in thens if beyond & bits[then])
    return tuple(dict.fromkeys(edge for edge in edges if edge not in implied))


def _fewer(columns: Sequence[Column], most: int) -> tuple[tuple[Column, ...], frozenset[int]]:
    """At most `most` columns, and the indexes of those that combine several waves."""
    if len(columns) <= most:
        return tuple(columns), frozenset()
    each = -(-len(columns) // most)
    runs = [columns[start : start + each] for start in range(0, len(columns), each)]
    merged = frozenset(place for place, run in enumerate(runs) if len(run) > 1)
    return tuple(map(_one, runs)), merged


def _one(run: Sequence[Column]) -> Column:
    if len(run) == 1:
        return run[0]
    first, last = run[0].title, run[-1].title
    # "wave 3" and "wave 9": "wave 3 to 9".
    title = f"{first} to {last.rpartition(' ')[2]}"
    return Column(title=title, boxes=tuple(box for column in run for box in column.boxes))


def _grouped(column: Column) -> Column:
    """Boxes that look the same grouped into one; blocked ones separate, as far as there is room."""
    apart = [box for box in column.boxes if box.blocked][:_BLOCKED_APART]
    alone = {box.name for box in apart}
    others = [box for box in column.boxes if box.name not in alone]
    # Name prefixes are arbitrary: they are used for grouping only if that gives few groups.
    by_kind = len({kind(box.name) for box in others}) <= _KINDS
    groups: dict[tuple[str, str, str, bool], list[Box]] = {}
    for box in others:
        key = (kind(box.name) if by_kind else "", box.effort, box.state, bool(box.blocked))
        groups.setdefault(key, []).append(box)
    return Column(title=column.title, boxes=(*apart, *_groups(column.title, groups.values())))


def _groups(title: str, groups: Iterable[list[Box]]) -> Iterator[Box]:
    for number, boxes in enumerate(groups, 1):
        if len(boxes) == 1:
            yield boxes[0]
            continue
        first = boxes[0]
        yield Box(
            # Cannot collide with a step's name, because it contains the title.
            name=f"{title}: {number}",
            effort=first.effort,
            objects=sum(box.objects for box in boxes),
            removed=sum(box.removed for box in boxes),
            state=first.state,
            blocked=f"{len(boxes)} more are blocked: {first.blocked}" if first.blocked else "",
            details=(f"{_bare(first.name)} … {_bare(boxes[-1].name)}",),
            stands_for=tuple(box.name for box in boxes),
        )


def _bare(name: str) -> str:
    return name[len(kind(name)) + 1 :] if kind(name) else name
