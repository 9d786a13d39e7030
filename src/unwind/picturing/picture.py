"""What a picture shows: steps in columns, one for each wave, and what leads from one to another (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import StepState

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
