"""The timeline of a teardown: what is recorded when its status changes, and what a reader gets (pure).

The status of a Teardown is written when a step, a blocker or the phase changes. The entries are computed from the
status before and after such a write, so that the timeline costs no write of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.unwind import BLOCKERS_SHOWN, TIMELINE_SHOWN, Phase, StepState, TimelineEntry, TimelineEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Plan, StepStatus, Teardown, TeardownStatus

WORTH_RECORDING = timedelta(seconds=10)
"""How long an object must have blocked its step to be recorded. Every deletion waits for its objects for a moment."""
_OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)
# What is dropped first if there are too many entries: the ends of steps are also in `status.steps`.
_DROPPED_FIRST = (TimelineEvent.STEP_ENDED, TimelineEvent.BLOCKED)


class Recorded(NamedTuple):
    """The timeline for the status of a Teardown."""

    entries: tuple[TimelineEntry, ...]
    omitted: int
    """How many entries were dropped since the teardown began."""


def recorded(
    before: TeardownStatus, after: TeardownStatus, plan: Plan, *, blockers: Sequence[Blocker], now: datetime
) -> Recorded:
    """The timeline of a status that follows another one. `blockers`: all of them; status shows the first ones."""
    entries = _blocked(before, after, blockers, now)
    entries += _waves(before, after, plan, now)
    entries += _ended_steps(before, after, now)
    entries += _end(before, after, now)
    entries.sort(key=_order)
    kept = _shortened(entries)
    return Recorded(tuple(kept), before.timeline_omitted + len(entries) - len(kept))


def course(teardown: Teardown, more: Iterable[TimelineEntry] = ()) -> tuple[TimelineEntry, ...]:
    """The whole course of a teardown, in order: the entries in status, the ends of all steps, and `more` entries that
    status had before."""
    found: dict[tuple[object, ...], TimelineEntry] = {}
    ends = (_step_ended(step, step.since) for step in teardown.status.steps if step.state in _OVER)
    # Later ones replace earlier ones: the end of a block is known later than its beginning.
    for entry in (*ends, *more, *teardown.status.timeline):
        found[identity(entry)] = entry
    return tuple(sorted(found.values(), key=_order))


def identity(entry: TimelineEntry) -> tuple[object, ...]:
    """What makes two entries the same event. The end of a block may not be known yet in one of them."""
    if entry.event == TimelineEvent.BLOCKED:
        return entry.event, entry.step, entry.object, entry.at
    return entry.event, entry.step, entry.wave


def _blocked(
    before: TeardownStatus, after: TeardownStatus, blockers: Sequence[Blocker], now: datetime
) -> list[TimelineEntry]:
    """The recorded entries; those of objects that block no longer are closed, and new blocks are added."""
    finished = _finished(after)
    current = {} if finished else {_place(blocker.object, blocker.step): blocker for blocker in blockers}
    entries: list[TimelineEntry] = []
    known: set[tuple[str, str]] = set()
    for entry in before.timeline:
        if entry.event == TimelineEvent.BLOCKED and entry.until is None and entry.object:
            place = _place(entry.object, entry.step)
            known.add(place)
            if blocker := current.get(place):
                entries.append(_block(blocker, entry.at))
            elif entry.at is None or now - entry.at >= WORTH_RECORDING:
                entries.append(msgspec.structs.replace(entry, until=now))
        else:
            entries.append(entry)
    for blocker in before.blockers:
        place = _place(blocker.object, blocker.step)
        since = blocker.since
        if place not in current and place not in known and since and now - since >= WORTH_RECORDING:
            known.add(place)
            entries.append(msgspec.structs.replace(_block(blocker, since), until=now))
    if after.phase == Phase.HELD:
        for blocker in blockers[:BLOCKERS_SHOWN]:
            place = _place(blocker.object, blocker.step)
            if place not in known:
                known.add(place)
                entries.append(_block(blocker, blocker.since or now))
    return entries


def _block(blocker: Blocker, at: datetime | None) -> TimelineEntry:
    return TimelineEntry(
        at=at,
        event=TimelineEvent.BLOCKED.value,
        step=blocker.step,
        object=blocker.object,
        reason=blocker.reason,
        message=blocker.message,
        by=blocker.actor,
    )


def _place(ref: ObjectRef, step: str) -> tuple[str, str]:
    """An object may be named with and without its uid, or block for another reason than before."""
    return str(ref), step


def _waves(before: TeardownStatus, after: TeardownStatus, plan: Plan, now: datetime) -> list[TimelineEntry]:
    begun = {step.name for step in after.steps if step.state != StepState.WAITING}
    last = max((entry.wave for entry in before.timeline), default=0)
    started = sorted({step.wave for step in plan.steps if step.name in begun and step.wave > last})
    return [TimelineEntry(at=now, event=TimelineEvent.WAVE_STARTED.value, wave=wave) for wave in started]


def _ended_steps(before: TeardownStatus, after: TeardownStatus, now: datetime) -> list[TimelineEntry]:
    over = {step.name for step in before.steps if step.state in _OVER}
    return [_step_ended(step, now) for step in after.steps if step.state in _OVER and step.name not in over]


def _step_ended(step: StepStatus, at: datetime | None) -> TimelineEntry:
    return TimelineEntry(
        at=at, event=TimelineEvent.STEP_ENDED.value, step=step.name, reason=step.state, message=step.message
    )


def _end(before: TeardownStatus, after: TeardownStatus, now: datetime) -> list[TimelineEntry]:
    entries = []
    if after.release and not before.release:
        entries.append(
            TimelineEntry(
                at=after.release.at or now,
                event=TimelineEvent.RELEASED.value,
                reason=after.release.reason,
                message=after.release.message,
                by=after.release.by,
            )
        )
    if _finished(after) and not _finished(before):
        cancelled = after.cancelled
        entries.append(
            TimelineEntry(
                at=after.finished_at or now,
                event=TimelineEvent.FINISHED.value,
                reason=after.phase,
                message=cancelled.reason if cancelled else "",
                by=cancelled.by if cancelled else "",
            )
        )
    return entries


def _finished(status: TeardownStatus) -> bool:
    phase = Phase.read(status.phase)
    return isinstance(phase, Phase) and phase.finished


def _shortened(entries: list[TimelineEntry]) -> list[TimelineEntry]:
    """The entries without those that are too many: the oldest ends of steps, then the oldest blocks that are over, then
    the oldest others."""
    surplus = len(entries) - TIMELINE_SHOWN
    if surplus <= 0:
        return entries
    droppable = [
        index
        for event in _DROPPED_FIRST
        for index, entry in enumerate(entries)
        if entry.event == event and (event != TimelineEvent.BLOCKED or entry.until)
    ]
    rest = sorted(set(range(len(entries))) - set(droppable))
    dropped = set((droppable + rest)[:surplus])
    return [entry for index, entry in enumerate(entries) if index not in dropped]


_SEQUENCE = (
    TimelineEvent.STEP_ENDED,
    TimelineEvent.WAVE_STARTED,
    TimelineEvent.BLOCKED,
    TimelineEvent.RELEASED,
    TimelineEvent.FINISHED,
)


def _order(entry: TimelineEntry) -> tuple[float, int, int, str]:
    """By time; within a second, what ended comes before what it made room for."""
    place = _SEQUENCE.index(TimelineEvent(entry.event)) if entry.event in _SEQUENCE else len(_SEQUENCE)
    return entry.at.timestamp() if entry.at else 0.0, place, entry.wave, entry.step
