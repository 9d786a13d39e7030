"""What a picture shows: steps in columns, one for each wave, and what leads from one to another (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import Effort, StepState

if TYPE_CHECKING:
    from unwind.api.unwind import Plan, Teardown


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One step."""

    name: str
    effort: str
    """An Effort: what it is coloured by."""
    objects: int = 0
    removed: int = 0
    state: str = ""
    """A StepState; empty while it is only a plan."""
    blocked: str = ""
    """What it waits for, or why it would refuse; empty if nothing is in its way."""
    details: tuple[str, ...] = ()
    """Lines of small print: what is in it."""
    stands_for: tuple[str, ...] = ()
    """The names of the steps that are drawn as this one box, where there are too many; empty if it is one step."""

    @property
    def steps(self) -> int:
        return len(self.stands_for) or 1

    @property
    def done(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state in (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A wave: boxes that go side by side."""

    title: str
    boxes: tuple[Box, ...]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    title: str
    subtitle: str = ""
    columns: tuple[Column, ...]
    edges: tuple[tuple[str, str], ...] = ()
    """From a box that goes first to one that waits for it, by name."""
    notes: tuple[str, ...] = ()
    """What a person should know: warnings, what stays."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(box for column in self.columns for box in column.boxes)

    @property
    def under_way(self) -> bool:
        """Whether it shows how far something has come, and not only a plan."""
        return any(box.state for box in self.boxes)

    @property
    def gone(self) -> tuple[int, int]:
        """Objects seen to be absent, of how many that have to go."""
        going = [box for box in self.boxes if box.effort != Effort.LEAVE]
        return sum(box.removed for box in going), sum(box.objects for box in going)


def kind(name: str) -> str:
    """What a name begins with, as ClusterProfile/shop does; empty if it is only a name."""
    return name.partition("/")[0] if "/" in name else ""


def of_plan(title: str, plan: Plan, *, subtitle: str = "", teardown: Teardown | None = None) -> Picture:
    """A plan; with how far it has come, if it is being carried out."""
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
        # What depends on another goes before it.
        edges=tuple((step.name, need) for step in plan.steps for need in step.needs),
        notes=plan.warnings,
    )
