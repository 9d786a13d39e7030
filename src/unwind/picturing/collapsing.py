"""Pictures that stay readable: hundreds of steps become a few boxes, and arrows that say nothing new are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.picturing.picture import Box, Column, Picture, kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# What one can take in at a glance, and what fits on a screen or two.
MOST_BOXES = 60
MOST_COLUMNS = 16
_BLOCKED_APART = 12
"""So many that are blocked are shown by themselves, whatever happens to the others of their wave."""
_KINDS = 4


def collapsed(picture: Picture, *, boxes: int = MOST_BOXES, columns: int = MOST_COLUMNS) -> Picture:
    """The same, with no more columns, and boxes in a column, than one can look at; every step is in exactly one box."""
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
    # Inside of what is drawn as one there is nothing to be drawn, and where several waves are one column, an arrow
    # from one of its boxes to another would look like a circle.
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
    """The edges without those that others imply: if a goes before b and b before c, a goes before c."""
    place = {box.name: number for number, column in enumerate(picture.columns) for box in column.boxes}
    edges = [(first, then) for first, then in picture.edges if first in place and then in place]
    forward = [edge for edge in edges if place[edge[0]] < place[edge[1]]]
    after: dict[str, list[str]] = {}
    for first, then in forward:
        after.setdefault(first, []).append(then)
    # Who comes after a box, by however many arrows: as bits of one number, so that 2,000 steps take no time.
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
    """No more columns than can be looked at, and which of them are several waves."""
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
    """The boxes that differ in nothing that is seen as one box; what is blocked by itself, as far as there is room."""
    apart = [box for box in column.boxes if box.blocked][:_BLOCKED_APART]
    alone = {box.name for box in apart}
    others = [box for box in column.boxes if box.name not in alone]
    # Names may begin with anything: they are gone by only if that makes few groups.
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
            # No step is called so: the title is part of it, and steps have no such thing in their names.
            name=f"{title}: {number}",
            effort=first.effort,
            objects=sum(box.objects for box in boxes),
            removed=sum(box.removed for box in boxes),
            state=first.state,
            blocked=f"{len(boxes)} more are held up: {first.blocked}" if first.blocked else "",
            details=(f"{_bare(first.name)} … {_bare(boxes[-1].name)}",),
            stands_for=tuple(box.name for box in boxes),
        )


def _bare(name: str) -> str:
    return name[len(kind(name)) + 1 :] if kind(name) else name
