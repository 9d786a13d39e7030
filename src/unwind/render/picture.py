"""The model of a picture: steps as boxes, a column per wave, and edges between them (pure)."""

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
