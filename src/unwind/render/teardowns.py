"""Text output of Teardowns: table, detail view, and changes as lines (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unwind.api.names import ConditionType
from unwind.api.unwind import Cause, Phase, StepState
from unwind.render.picture import of_plan
from unwind.render.terminal import bar, rendered
from unwind.render.text import counted, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from rich.console import RenderableType

    from unwind.api.unwind import Blocker, Teardown

_COLOURS = {
    Phase.PENDING: "bright_black",
    Phase.REMOVING: "green",
    Phase.HELD: "red",
    Phase.COMPLETE: "green",
    Phase.RELEASED: "yellow",
    Phase.TARGET_GONE: "yellow",
    Phase.MOVED: "yellow",
    Phase.REFUSED: "yellow",
    Phase.CANCELLED: "yellow",
}
CAUSES = {
    Cause.CLUSTER_DELETED.value: "deleted",
    Cause.UNJOINED.value: "unjoined",
    Cause.WITHDRAWN.value: "withdrawn",
    Cause.PRUNED.value: "pruned",
    Cause.REQUESTED.value: "requested",
    Cause.MOVED.value: "moved",
}
# Conditions that the phase, the plan and the blockers already show.
_KNOWN = {ConditionType.PLANNED, ConditionType.COMPLETE, ConditionType.BLOCKED}
_BAR = 12
_SHOWN = 3


def overview(teardowns: Sequence[Teardown], *, now: datetime, wide: bool = False) -> RenderableType:
    """A table of all Teardowns, followed by their blockers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("TARGET", "PHASE", "WAVE", "REMOVED", "", "LEFT", "AGE"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("LEFT", "AGE") else "left")
    if wide:
        for heading in ("CAUSE", "BY", "DEADLINE", "TEARDOWN"):
            table.add_column(heading, no_wrap=True)
    for item in ordered(teardowns):
        done, total = gone(item)
        cells: list[Text | str] = [
            item.spec.title,
            phase(item),
            item.status.wave,
            bar(_share(item), _BAR, blocked=item.phase is Phase.HELD),
            f"{done}/{total}",
            str(item.status.left or ""),
            elapsed(item, now=now),
        ]
        if wide:
            deadline = f"{item.spec.deadline} ({item.spec.on_deadline})" if item.spec.deadline else ""
            cells += [
                CAUSES.get(item.spec.cause, item.spec.cause),
                item.spec.requested_by,
                deadline,
                item.metadata.name,
            ]
        # Names are plain text, never markup.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    told = [Padding(_waits(item, now=now, most=_SHOWN), (1, 0, 0, 0)) for item in ordered(teardowns) if _held_up(item)]
    return Group(table, *told)


def detail(teardown: Teardown, *, now: datetime) -> RenderableType:
    """One Teardown in full: steps, blockers and required actions."""
    done, total = gone(teardown)
    status = teardown.status
    head = Text.assemble((teardown.spec.title, "bold"), "  ", phase(teardown), "  ", (elapsed(teardown, now=now), ""))
    progress = Text.assemble(bar(_share(teardown), 30, blocked=teardown.phase is Phase.HELD), f" {done}/{total} gone")
    if status.wave:
        progress.append(f", wave {status.wave}")
    if status.left:
        progress.append(f", {status.left} left behind", style="yellow")
    parts: list[RenderableType] = [head, progress]
    # Blockers are above the picture: in a low terminal, a live view is cut off at its end.
    if _held_up(teardown):
        parts += [Text(), _waits(teardown, now=now, most=len(status.blockers))]
    said = [Text.assemble(("! ", "yellow"), remark) for remark in remarks(teardown)]
    if said:
        parts += [Text(), *said]
    plan = teardown.spec.plan
    if plan and plan.steps:
        parts.append(rendered(of_plan("", plan, teardown=teardown)))
    return Group(*parts)


def teardown_line(teardown: Teardown) -> str:
    """One Teardown as a line for a pipe, without ages and other values that change by themselves."""
    done, total = gone(teardown)
    status = teardown.status
    parts = [str(teardown.phase)]
    if status.wave:
        parts.append(f"wave {status.wave}")
    parts.append(f"{done}/{total} gone")
    if status.left:
        parts.append(f"{status.left} left")
    return f"{teardown.spec.title}: {', '.join(parts)}"


def changes(old: Teardown | None, new: Teardown) -> Iterator[str]:
    """The changes since the previous state, as lines; everything if there is no previous state."""
    title = new.spec.title
    if old is None or teardown_line(old) != teardown_line(new):
        yield teardown_line(new)
    before = {step.name: step.state for step in old.status.steps} if old else {}
    for step in new.status.steps:
        known = before.get(step.name)
        # The plan already shows that all steps wait.
        if known != step.state and not (known is None and step.state == StepState.WAITING):
            yield f"{title}: {step.name} is {step.state}"
    known_blockers = {_named(blocker): blocker for blocker in old.status.blockers} if old else {}
    for blocker in new.status.blockers:
        if _named(blocker) not in known_blockers:
            yield f"{title}: blocked: {_blocked(blocker)}"
    for item in set(known_blockers) - {_named(blocker) for blocker in new.status.blockers}:
        yield f"{title}: no longer blocked by {known_blockers[item].object}"
    known_remarks = set(remarks(old)) if old else set()
    for remark in remarks(new):
        if remark not in known_remarks:
            yield f"{title}: {remark}"


def remarks(teardown: Teardown) -> list[str]:
    """Additional remarks: unusual conditions, and the user who force-released it."""
    said = []
    release = teardown.status.release
    if release:
        said.append(f"released by {release.by} ({release.reason}): {release.message}")
    said += [
        f"{condition.type}: {condition.message}"
        for condition in teardown.status.conditions
        if condition.status == "True" and condition.type not in _KNOWN and condition.message
    ]
    return said


def ordered(teardowns: Iterable[Teardown]) -> list[Teardown]:
    """Blocked Teardowns first, then running ones, then finished ones, the latest first."""

    def rank(one: Teardown) -> tuple[int, float, str]:
        place = 2 if one.finished else 0 if one.phase is Phase.HELD else 1
        began = _began(one)
        return place, -(began.timestamp() if began else 0.0), one.spec.title

    return sorted(teardowns, key=rank)


def gone(teardown: Teardown) -> tuple[int, int]:
    """The number of removed objects, and of all."""
    plan = teardown.spec.plan
    done, _, total = teardown.status.removed.partition("/")
    if done.isdigit() and total.isdigit():
        return int(done), int(total)
    return 0, plan.objects if plan else 0


def phase(teardown: Teardown) -> Text:
    """The phase in its colour. An unknown phase is shown as it is."""
    now = teardown.phase
    return Text(str(now), style=_COLOURS.get(now, "magenta") if isinstance(now, Phase) else "magenta")


def elapsed(teardown: Teardown, *, now: datetime) -> str:
    """The duration until now, or until it finished."""
    began = _began(teardown)
    if began is None:
        return ""
    until = teardown.status.finished_at if teardown.finished else None
    return span(((until or now) - began).total_seconds())


def _began(teardown: Teardown) -> datetime | None:
    return teardown.spec.requested_at or teardown.status.started_at or teardown.metadata.creation_timestamp


def _share(teardown: Teardown) -> float:
    if teardown.phase is Phase.COMPLETE:
        return 1.0
    done, total = gone(teardown)
    return done / total if total else 0.0


def _held_up(teardown: Teardown) -> bool:
    return bool(teardown.status.blockers) and not teardown.finished


def _waits(teardown: Teardown, *, now: datetime, most: int) -> RenderableType:
    """The blockers, since when, and who must act."""
    blockers = teardown.status.blockers
    lines: list[RenderableType] = [Text.assemble((teardown.spec.title, "bold"), " is blocked:")]
    for blocker in blockers[:most]:
        lines.append(Padding(Text(_told(blocker), style="red"), (0, 0, 0, 2)))
        since = f"since {span((now - blocker.since).total_seconds())}" if blocker.since else ""
        actor = f"must act: {blocker.actor}" if blocker.actor else ""
        more = " · ".join(filter(None, (actor, since, blocker.step and f"step {blocker.step}")))
        if more:
            lines.append(Padding(Text(more, style="bright_black"), (0, 0, 0, 4)))
    if len(blockers) > most:
        lines.append(Padding(Text(f"and {counted(len(blockers) - most, 'more object')}"), (0, 0, 0, 2)))
    return Group(*lines)


def _named(blocker: Blocker) -> tuple[str, str, str]:
    return blocker.object.uid or str(blocker.object), blocker.step, blocker.reason


def _told(blocker: Blocker) -> str:
    """The object and message of a blocker; the message may already name the object."""
    name = str(blocker.object)
    message = blocker.message or blocker.reason
    return message if name in message else f"{name}: {message}"


def _blocked(blocker: Blocker) -> str:
    return f"{_told(blocker)} (must act: {blocker.actor})" if blocker.actor else _told(blocker)
