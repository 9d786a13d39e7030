"""The model of a timeline: a row for each step with its waits, blocks and end, and the critical path (pure)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.unwind import Effort, StepState, TimelineEntry, TimelineEvent
from unwind.planning.dependency_graph import graph, ordered_groups
from unwind.planning.timeline import course
from unwind.render.text import counted, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.unwind import Plan, StepStatus, Teardown

MOST_ROWS = 40
"""For a chart that fits on one or two screens."""
_OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


class TimelineBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object that blocked a step."""

    at: datetime
    until: datetime | None = None
    """None while it blocks."""
    object: str
    message: str = ""
    actor: str = ""
    """Who had to act."""


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step."""

    name: str
    wave: int = 0
    effort: str = ""
    state: str = ""
    started_at: datetime | None = None
    """None if it has not started: it waits for other steps."""
    ended_at: datetime | None = None
    """None if it has not ended."""
    after: tuple[str, ...] = ()
    """The steps that had to end first."""
    waited_for: str = ""
    """The one of them that ended last, or has not ended."""
    critical: bool = False
    """Whether it is on the critical path."""
    blocks: tuple[TimelineBlock, ...] = ()

    @property
    def skipped(self) -> bool:
        """Whether the step ended without having started."""
        return self.started_at is None and self.ended_at is not None

    def seconds(self, now: datetime) -> float | None:
        """How long the step has taken; None if it has not started."""
        if self.started_at is None:
            return None
        return max(0.0, ((self.ended_at or now) - self.started_at).total_seconds())


class TimelineChart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The course of a teardown, ready to render."""

    title: str
    phase: str
    began_at: datetime
    ends_at: datetime
    """The end of the axis: the end of the teardown, or now."""
    finished: bool = False
    rows: tuple[TimelineRow, ...] = ()
    critical_path: tuple[str, ...] = ()
    """The steps that decided when the teardown ended, in order."""
    released: str = ""
    """By whom, and why, if it was released before the removal was complete."""
    released_at: datetime | None = None
    entries: tuple[TimelineEntry, ...] = ()
    """All events, in order."""
    omitted: int = 0
    """The number of events that are not recorded any more."""

    @property
    def seconds(self) -> float:
        """The length of the axis."""
        return max(1.0, (self.ends_at - self.began_at).total_seconds())

    @property
    def summary(self) -> str:
        """The phase, the duration and the size, in one line."""
        took = duration((self.ends_at - self.began_at).total_seconds())
        waves = len({row.wave for row in self.rows if row.wave})
        parts = [f"{self.phase} after {took}" if self.finished else f"{self.phase} for {took} so far"]
        if self.rows:
            parts.append(f"{counted(len(self.rows), 'step')} in {counted(waves, 'wave')}")
        return ", ".join(parts)

    def place(self, at: datetime) -> float:
        """Where a time is on the axis, from 0 to 1."""
        return min(1.0, max(0.0, (at - self.began_at).total_seconds() / self.seconds))

    def blocks(self) -> list[tuple[TimelineRow, TimelineBlock]]:
        """All blocks with their steps, the longest first."""
        every = [(row, block) for row in self.rows for block in row.blocks]
        return sorted(every, key=lambda it: ((it[1].until or self.ends_at) - it[1].at, it[1].object), reverse=True)


def timeline_chart(teardown: Teardown, *, now: datetime, more: Iterable[TimelineEntry] = ()) -> TimelineChart:
    """The course of a teardown until now, or until its end. `more`: entries that its status has no longer."""
    entries = course(teardown, more)
    status = teardown.status
    steps = _rows(teardown, _blocks(teardown, entries))
    times = [
        *(at for row in steps for at in (row.started_at, row.ended_at) if at),
        *(at for entry in entries for at in (entry.at, entry.until) if at),
    ]
    began = teardown.spec.requested_at or status.started_at or teardown.metadata.creation_timestamp
    began = min([at for at in (began, status.started_at, *times) if at], default=now)
    end = status.finished_at if teardown.finished and status.finished_at else now
    # The clock of this machine may be behind the clock of the API server.
    end = max([end, began, *times])
    path = critical_path(steps)
    release = status.release
    return TimelineChart(
        title=teardown.spec.title,
        phase=str(teardown.phase),
        began_at=began,
        ends_at=end,
        finished=teardown.finished,
        rows=tuple(msgspec.structs.replace(row, critical=row.name in path) for row in steps),
        critical_path=path,
        released=f"released by {release.by} ({release.reason}): {release.message}" if release else "",
        released_at=release.at if release else None,
        entries=entries,
        omitted=max(0, status.timeline_omitted - max(0, len(entries) - len(status.timeline))),
    )


def timeline_document(chart: TimelineChart) -> dict[str, Any]:
    """The whole timeline as plain data for JSON and YAML, with the seconds that each step has taken."""
    told: dict[str, Any] = msgspec.to_builtins(chart)
    rows = [msgspec.to_builtins(row) | {"seconds": row.seconds(chart.ends_at)} for row in chart.rows]
    return told | {"rows": rows, "finished": chart.finished}


def critical_path(rows: Sequence[TimelineRow]) -> tuple[str, ...]:
    """The steps that decided when the last one ended, in order. While steps are running: the one that is blocked, or
    has been running for longest, with what it waited for."""
    known = {row.name: row for row in rows}
    running = [row for row in rows if row.started_at and row.ended_at is None]
    ended = [row for row in rows if row.ended_at and not row.skipped]
    if running:
        last = min(running, key=lambda row: (not _is_blocked(row), _stamp(row.started_at), row.name))
    elif ended:
        last = max(ended, key=lambda row: (_stamp(row.ended_at), _stamp(row.started_at), row.wave))
    else:
        return ()
    path = [last.name]
    while (before := known.get(known[path[-1]].waited_for)) and before.name not in path:
        path.append(before.name)
    return tuple(reversed(path))


def shortened(chart: TimelineChart, most: int = MOST_ROWS) -> tuple[tuple[TimelineRow, ...], int]:
    """At most `most` rows, in order, and the number of the others: the critical path, what is blocked, and the steps
    that took longest are shown."""
    if len(chart.rows) <= most:
        return chart.rows, 0

    def importance(row: TimelineRow) -> tuple[bool, bool, float]:
        return row.critical, bool(row.blocks), row.seconds(chart.ends_at) or 0.0

    kept = {row.name for row in sorted(chart.rows, key=importance, reverse=True)[:most]}
    return tuple(row for row in chart.rows if row.name in kept), len(chart.rows) - most


def ticks(seconds: float, most: int) -> list[int]:
    """At most `most` round numbers of seconds on an axis of this length, beginning with 0."""
    size = next((tick for tick in _TICKS if seconds / tick <= most), _TICKS[-1] * int(1 + seconds / _TICKS[-1] / most))
    return list(range(0, int(seconds) + 1, size))


def _rows(teardown: Teardown, blocks: Mapping[str, Sequence[TimelineBlock]]) -> list[TimelineRow]:
    plan, states = teardown.spec.plan, {step.name: step for step in teardown.status.steps}
    planned = {step.name: step for step in plan.steps} if plan else {}
    above = _above(plan) if plan else {}
    ends = {name: _ended(step) for name, step in states.items()}

    def last_of(names: tuple[str, ...]) -> str:
        # One that has not ended is waited for still.
        return max(names, key=lambda name: (ends.get(name) is None, _stamp(ends.get(name)), name), default="")

    rows = []
    for name in dict.fromkeys((*planned, *states)):
        step, now, after = planned.get(name), states.get(name), above.get(name, ())
        started = now.started_at if now else None
        ended = ends.get(name)
        rows.append(
            TimelineRow(
                name=name,
                wave=step.wave if step else 0,
                effort=step.effort if step else "",
                state=now.state if now else StepState.WAITING.value,
                started_at=min(started, ended) if started and ended else started,
                ended_at=ended,
                after=after,
                waited_for=last_of(after),
                blocks=tuple(blocks.get(name, ())),
            )
        )
    return sorted(rows, key=lambda row: (row.wave, row.started_at is None, _stamp(row.started_at), row.name))


def _above(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The steps that each step waits for. A step that is left waits for nothing, and passes the order on. Steps of a
    cycle do not wait for each other."""
    needs = graph(plan)
    left = {step.name for step in plan.steps if step.effort == Effort.LEAVE}
    direct: dict[str, list[str]] = {name: [] for name in needs}
    found: dict[str, tuple[str, ...]] = {}
    for group in ordered_groups(needs):
        for name in group:
            above = (first for item in direct[name] for first in (found[item] if item in left else (item,)))
            found[name] = tuple(dict.fromkeys(above))
        for name in group:
            for need in needs[name]:
                if need not in group:
                    direct[need].append(name)
    return {name: () if name in left else above for name, above in found.items()}


def _blocks(teardown: Teardown, entries: Iterable[TimelineEntry]) -> dict[str, list[TimelineBlock]]:
    found: dict[str, list[TimelineBlock]] = {}
    open_: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.event == TimelineEvent.BLOCKED and entry.at and entry.object:
            name = str(entry.object)
            if entry.until is None:
                open_.add((entry.step, name))
            found.setdefault(entry.step, []).append(
                TimelineBlock(
                    at=entry.at, until=entry.until, object=name, message=entry.message or entry.reason, actor=entry.by
                )
            )
    for blocker in () if teardown.finished else teardown.status.blockers:
        name = str(blocker.object)
        if blocker.since and (blocker.step, name) not in open_:
            message = blocker.message or blocker.reason
            found.setdefault(blocker.step, []).append(
                TimelineBlock(at=blocker.since, object=name, message=message, actor=blocker.actor)
            )
    return found


def _ended(step: StepStatus) -> datetime | None:
    return step.since if step.state in _OVER else None


def _is_blocked(row: TimelineRow) -> bool:
    return any(block.until is None for block in row.blocks)


def _stamp(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
