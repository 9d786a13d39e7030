"""The model of a picture: steps as boxes, a column per wave, and edges; large ones are collapsed (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import Effort, StepState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unwind.api.unwind import Plan, Teardown

# Limits for a picture that is readable and fits on one or two screens.
MOST_BOXES = 60
MOST_COLUMNS = 16
_BLOCKED_APART = 12


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One step."""

    name: str
    effort: str
    """An Effort, which decides the colour."""
    objects: int = 0
    removed: int = 0
    state: str = ""
    """A StepState; empty for a plan that does not run."""
    blocked: str = ""
    """What blocks it, or why it would be refused; empty if nothing does."""
    details: tuple[str, ...] = ()
    """Lines of small print: its contents."""
    stands_for: tuple[str, ...] = ()
    """The names of the steps that this box groups; empty if it is one step."""

    @property
    def steps(self) -> int:
        return len(self.stands_for) or 1

    @property
    def done(self) -> bool:
        """Whether the step is finished."""
        return self.state in (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A wave: steps that run in parallel."""

    title: str
    boxes: tuple[Box, ...]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A plan or teardown, ready to render."""

    title: str
    subtitle: str = ""
    columns: tuple[Column, ...]
    edges: tuple[tuple[str, str], ...] = ()
    """Pairs of names: a box, and one that waits for it."""
    notes: tuple[str, ...] = ()
    """Notes below the picture: warnings, kept objects."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(box for column in self.columns for box in column.boxes)

    @property
    def under_way(self) -> bool:
        """Whether it shows a running teardown, not only a plan."""
        return any(box.state for box in self.boxes)

    @property
    def gone(self) -> tuple[int, int]:
        """The number of removed objects, and of all objects to remove."""
        going = [box for box in self.boxes if box.effort != Effort.LEAVE]
        return sum(box.removed for box in going), sum(box.objects for box in going)


def kind(name: str) -> str:
    """The kind in a name such as ClusterProfile/shop; empty if there is none."""
    return name.partition("/")[0] if "/" in name else ""


def of_plan(title: str, plan: Plan, *, subtitle: str = "", teardown: Teardown | None = None) -> Picture:
    """The picture of a plan, with the progress of its teardown if there is one."""
    states = {step.name: step for step in teardown.status.steps} if teardown else {}
    blocked: dict[str, str] = {}
    for blocker in teardown.status.blockers if teardown else ():
        blocked.setdefault(blocker.step, blocker.message)
    columns: dict[int, list[Box]] = {}
    for step in plan.steps:
        now = states.get(step.name)
        box = Box(
            name=step.name,
            effort=step.effort,
            objects=step.objects,
            removed=now.removed if now else 0,
            state=now.state if now else "",
            blocked=blocked.get(step.name, ""),
            details=(now.message,) if now and now.message and now.state == StepState.WAITING else (),
        )
        columns.setdefault(step.wave, []).append(box)
    return Picture(
        title=title,
        subtitle=subtitle,
        columns=tuple(Column(title=f"wave {wave}", boxes=tuple(columns[wave])) for wave in sorted(columns)),
        # A dependent step is removed before its dependency.
        edges=tuple((step.name, need) for step in plan.steps for need in step.needs),
        notes=plan.warnings,
    )


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
