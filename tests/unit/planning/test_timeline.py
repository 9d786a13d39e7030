"""The timeline of a teardown: what its status records of its course."""

from __future__ import annotations

import msgspec

from tests.unit.teardown.teardown_courses import at
from unwind.api.meta import ObjectRef
from unwind.api.unwind import (
    TIMELINE_SHOWN,
    Blocker,
    Cancellation,
    Phase,
    Plan,
    Release,
    Step,
    StepState,
    StepStatus,
    Teardown,
    TeardownStatus,
    TimelineEntry,
    TimelineEvent,
)
from unwind.planning import timeline
from unwind.testing.clock import START

PLAN = Plan(steps=(Step(name="top", needs=("base",), wave=1), Step(name="base", wave=2)), waves=2)


def blocker(name: str = "data", *, since: int = 0, reason: str = "Finalizer", step: str = "top") -> Blocker:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="room", name=name, uid=name)
    return Blocker(object=ref, step=step, reason=reason, message=f"{name} stays", actor="storage", since=at(since))


def states(top: StepState, base: StepState = StepState.WAITING) -> tuple[StepStatus, ...]:
    return (StepStatus(name="top", state=top.value), StepStatus(name="base", state=base.value))


def followed(before: TeardownStatus, now: int, *blockers: Blocker, **changes: object) -> TeardownStatus:
    after = msgspec.structs.replace(before, blockers=blockers, **changes)
    found = timeline.recorded(before, after, PLAN, blockers=blockers, now=at(now))
    return msgspec.structs.replace(after, timeline=found.entries, timeline_omitted=found.omitted)


def told(status: TeardownStatus) -> list[tuple[str, int, object]]:
    return [
        (entry.event, int((entry.at - START).total_seconds()) if entry.at else -1, entry.wave or entry.step)
        for entry in status.timeline
    ]


REMOVING = TeardownStatus(phase=Phase.REMOVING.value, steps=states(StepState.REMOVING))


def test_waves_ends_of_steps_and_the_end_are_recorded_once_and_in_order() -> None:
    status = followed(TeardownStatus(), 0, phase=Phase.REMOVING.value, steps=states(StepState.REMOVING))
    status = followed(status, 4, steps=states(StepState.REMOVED, StepState.REMOVING))
    status = followed(status, 5)
    ended = states(StepState.REMOVED, StepState.REMOVED)
    status = followed(status, 9, phase=Phase.COMPLETE.value, steps=ended, finished_at=at(9))
    assert told(status) == [
        ("WaveStarted", 0, 1),
        ("StepEnded", 4, "top"),
        ("WaveStarted", 4, 2),
        ("StepEnded", 9, "base"),
        ("Finished", 9, ""),
    ]


def test_what_held_the_teardown_is_recorded_at_once_and_closed_when_it_no_longer_blocks() -> None:
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    (entry,) = (entry for entry in held.timeline if entry.event == TimelineEvent.BLOCKED)
    assert (entry.at, entry.until, entry.step, entry.reason, entry.by) == (at(3), None, "top", "Finalizer", "storage")
    freed = followed(held, 60, phase=Phase.REMOVING.value)
    (entry,) = (entry for entry in freed.timeline if entry.event == TimelineEvent.BLOCKED)
    assert (entry.at, entry.until) == (at(3), at(60))


def test_another_reason_for_the_same_object_continues_its_entry() -> None:
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    held = followed(held, 30, blocker(since=29, reason="Unreachable"))
    (entry,) = (entry for entry in held.timeline if entry.event == TimelineEvent.BLOCKED)
    assert (entry.at, entry.until, entry.reason) == (at(3), None, "Unreachable")


def test_a_short_wait_is_not_recorded() -> None:
    held = followed(REMOVING, 2, blocker(since=1), phase=Phase.HELD.value)
    assert not [entry for entry in followed(held, 5).timeline if entry.event == TimelineEvent.BLOCKED]


def test_a_long_wait_is_recorded_although_the_teardown_was_not_held() -> None:
    waiting = followed(REMOVING, 2, blocker(since=1))
    assert not [entry for entry in waiting.timeline if entry.event == TimelineEvent.BLOCKED]
    (entry,) = (entry for entry in followed(waiting, 31).timeline if entry.event == TimelineEvent.BLOCKED)
    assert (entry.at, entry.until) == (at(1), at(31))


def test_a_release_is_recorded_with_the_person_and_closes_what_blocked() -> None:
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    release = Release(reason="Forced", message="the disk is lost", by="ann", at=at(90))
    status = followed(held, 91, blocker(since=3), phase=Phase.RELEASED.value, release=release, finished_at=at(91))
    assert [entry.until for entry in status.timeline if entry.event == TimelineEvent.BLOCKED] == [at(91)]
    (entry,) = (entry for entry in status.timeline if entry.event == TimelineEvent.RELEASED)
    assert (entry.at, entry.by, entry.reason, entry.message) == (at(90), "ann", "Forced", "the disk is lost")


def test_the_end_of_a_cancelled_deletion_is_recorded_with_the_reason_and_its_author() -> None:
    cancelled = Cancellation(kept=2, reason="the wrong namespace", by="ann")
    status = followed(REMOVING, 20, phase=Phase.CANCELLED.value, cancelled=cancelled, finished_at=at(20))
    (entry,) = (entry for entry in status.timeline if entry.event == TimelineEvent.FINISHED)
    assert (entry.reason, entry.by, entry.message) == ("Cancelled", "ann", "the wrong namespace")


def test_a_status_that_does_not_change_has_the_same_timeline() -> None:
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    assert followed(held, 50, blocker(since=3)) == held


def test_a_long_timeline_drops_ends_of_steps_first_and_keeps_waves_and_open_blocks() -> None:
    steps = tuple(StepStatus(name=f"s{index}", state=StepState.REMOVED.value) for index in range(80))
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    many = followed(held, 30, blocker(since=3), steps=(*states(StepState.REMOVING), *steps))
    assert len(many.timeline) == TIMELINE_SHOWN
    assert many.timeline_omitted == 80 + 2 - TIMELINE_SHOWN
    assert [entry.event for entry in many.timeline[:2]] == ["Blocked", "WaveStarted"]


def test_the_whole_course_has_the_ends_of_steps_that_status_dropped_and_what_was_kept_elsewhere() -> None:
    steps = tuple(
        StepStatus(name=f"s{index:02}", state=StepState.REMOVED.value, since=at(index)) for index in range(80)
    )
    status = followed(REMOVING, 90, steps=steps)
    kept = TimelineEntry(at=at(5), event=TimelineEvent.BLOCKED.value, step="s05", until=at(20))
    whole = timeline.course(Teardown(status=status), [kept])
    assert [entry.step for entry in whole if entry.event == TimelineEvent.STEP_ENDED] == [step.name for step in steps]
    assert kept in whole


def test_the_end_of_a_block_counts_more_than_its_beginning() -> None:
    held = followed(REMOVING, 20, blocker(since=3), phase=Phase.HELD.value)
    freed = followed(held, 60, phase=Phase.REMOVING.value)
    whole = timeline.course(Teardown(status=freed), held.timeline)
    assert [entry.until for entry in whole if entry.event == TimelineEvent.BLOCKED] == [at(60)]
