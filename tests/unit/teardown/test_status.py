"""What a teardown says of itself."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from unwind.api import meta
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import Blocker, Effort, Phase, Plan, Release, Step, StepState, Teardown, TeardownSpec
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Pace, Severity
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.status import (
    UNSEALED,
    StepReport,
    StepView,
    TeardownProgress,
    same_but_for_counts,
    status,
    step_reports,
)

if TYPE_CHECKING:
    from unwind.api.unwind import TeardownStatus

NOW = dt.datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
START = NOW.replace(microsecond=0)
LATER = START + dt.timedelta(minutes=5)


def step(name: str, *needs: str, wave: int = 1) -> Step:
    return Step(name=name, effort=Effort.ENFORCE.value, needs=needs, wave=wave)


PLAN = Plan(steps=(step("top", "base"), step("base", wave=2)), waves=2, warnings=("mind the gap",))
TEARDOWN = Teardown(metadata=ObjectMeta(name="u", generation=3), spec=TeardownSpec(plan=PLAN))


def ref(name: str) -> ObjectRef:
    return ObjectRef(version="v1", kind="ConfigMap", namespace="room", name=name, uid=name)


def failed(reason: str, message: str) -> Failed:
    return Failed(message, reason, Severity.WARNING, Pace.SLOW)


TOP = StepView(name="top", state=StepState.REMOVING, total=3)
BASE = StepView(name="base", state=StepState.WAITING, total=2, for_steps=("top",))
BLOCKED = msgspec.structs.replace(TOP, removed=1, waits={ref("b"): Waiting("b waits"), ref("a"): Waiting("a waits")})


def view(*steps: StepView, **more: Any) -> TeardownProgress:
    told: dict[str, Any] = {"steps": steps or (TOP, BASE), "wave": 1, "phase": Phase.REMOVING}
    return TeardownProgress(**(told | more))


def after(first: TeardownStatus) -> Teardown:
    return msgspec.structs.replace(TEARDOWN, status=first)


def word(told: TeardownStatus, type_: ConditionType) -> tuple[str, str] | None:
    found = meta.find(told.conditions, type_)
    return (found.status, found.reason) if found else None


def test_how_far_it_has_come_is_told_in_whole_seconds() -> None:
    told = status(TEARDOWN, view(msgspec.structs.replace(TOP, removed=1), BASE), now=NOW)
    assert (told.phase, told.wave, told.removed, told.observed_generation) == ("Removing", "1/2", "1/5", 3)
    assert (told.started_at, told.finished_at) == (START, None)
    assert [(item.name, item.state, item.removed, item.since) for item in told.steps] == [
        ("top", "Removing", 1, START),
        ("base", "Waiting", 0, START),
    ]
    assert told.steps[1].message == "waiting for top"
    assert word(told, ConditionType.PLANNED) == ("True", "Planned")
    assert word(told, ConditionType.COMPLETE) == ("False", "Removing")


def test_the_same_again_is_the_same_whenever_it_is_told() -> None:
    first = status(TEARDOWN, view(BLOCKED, BASE), now=NOW)
    assert status(after(first), view(BLOCKED, BASE), now=LATER) == first


def test_times_move_only_where_something_began() -> None:
    first = status(TEARDOWN, view(BLOCKED, BASE), now=NOW)
    more = msgspec.structs.replace(BLOCKED, waits={ref("b"): Waiting("b waits on"), ref("c"): Waiting("c waits")})
    base = StepView(name="base", state=StepState.REMOVING, total=2)
    told = status(after(first), view(more, base), now=LATER)
    assert {blocker.object.name: blocker.since for blocker in told.blockers} == {"b": START, "c": LATER}
    assert {item.name: item.since for item in told.steps} == {"top": START, "base": LATER}
    assert told.started_at == START


def test_blockers_come_in_one_order_whatever_was_found_first() -> None:
    turned = msgspec.structs.replace(BLOCKED, waits=dict(reversed(list(BLOCKED.waits.items()))))
    told = status(TEARDOWN, view(BLOCKED), now=NOW)
    assert [blocker.object.name for blocker in told.blockers] == ["a", "b"]
    assert told.blocked_by == "a waits and 1 more"
    assert status(TEARDOWN, view(turned), now=NOW) == told


def test_it_is_held_only_when_nothing_goes_on_by_itself() -> None:
    assert status(TEARDOWN, view(BLOCKED, BASE), now=NOW).phase == "Held"
    going = StepView(name="base", state=StepState.REMOVING, total=2)
    told = status(TEARDOWN, view(BLOCKED, going), now=NOW)
    assert told.phase == "Removing"
    assert word(told, ConditionType.BLOCKED) == ("True", "Deleting")


def test_a_step_whose_inventory_is_not_sealed_is_not_removed_and_keeps_nobody_from_saying_that_it_is_held() -> None:
    unsealed = msgspec.structs.replace(TOP, removed=3, unsealed=True)
    told = status(TEARDOWN, view(unsealed, msgspec.structs.replace(BLOCKED, name="base")), now=NOW)
    assert (told.steps[0].state, told.steps[0].message) == ("Removing", UNSEALED)
    assert told.phase == Phase.HELD


def test_what_was_found_out_is_told_instead_of_what_was_only_seen() -> None:
    known = Blocker(object=ref("a"), step="top", reason="Finalizer", message="x holds it", actor="x", since=START)
    told = status(TEARDOWN, view(BLOCKED, known={("top", ref("a"), "a waits"): known}), now=NOW)
    assert told.blockers[0] == known
    # It is about what was waited for then.
    stale = status(TEARDOWN, view(BLOCKED, known={("top", ref("a"), "something else"): known}), now=NOW)
    assert stale.blockers[0].actor == ""


def test_at_most_so_many_blockers_are_shown_and_all_are_counted() -> None:
    many = msgspec.structs.replace(TOP, waits={ref(f"o-{number:02}"): Waiting("it waits") for number in range(25)})
    told = status(TEARDOWN, view(many), now=NOW)
    assert len(told.blockers) == 20
    assert told.blocked_by == "it waits and 24 more"


def test_a_member_that_does_not_answer_has_a_condition_of_its_own() -> None:
    away = msgspec.structs.replace(TOP, waits={ref("m"): failed(Reason.UNREACHABLE, "m does not answer")})
    told = status(TEARDOWN, view(away), now=NOW)
    assert word(told, ConditionType.UNREACHABLE) == ("True", "Unreachable")
    back = status(after(told), view(TOP), now=LATER)
    assert word(back, ConditionType.UNREACHABLE) is None
    assert word(back, ConditionType.BLOCKED) is None
    assert back.phase == "Removing"


@pytest.mark.parametrize(
    ("phase", "complete"),
    [(Phase.COMPLETE, "True"), (Phase.RELEASED, "False"), (Phase.TARGET_GONE, "False")],
)
def test_an_end_is_an_end_and_stays_when_it_was(phase: Phase, complete: str) -> None:
    done = StepView(name="top", state=StepState.GIVEN_UP, total=3, removed=1, left=2)
    release = Release(reason="Forced", message="because", by="jane", at=START) if phase is Phase.RELEASED else None
    told = status(TEARDOWN, view(done, phase=phase, release=release), now=NOW)
    assert (told.phase, told.finished_at, told.left, told.release) == (phase.value, START, 2, release)
    found = meta.find(told.conditions, ConditionType.COMPLETE)
    assert found
    assert (found.status, found.reason) == (complete, phase.value)
    assert "2 objects were left" in found.message
    assert status(after(told), view(done, phase=phase, release=release), now=LATER) == told


def test_without_a_plan_it_says_why_there_is_none() -> None:
    bare = Teardown(metadata=ObjectMeta(name="u"), spec=TeardownSpec())
    said = tuple(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, word) for word in ("one", "two"))
    told = status(bare, TeardownProgress(steps=(), wave=0, phase=Phase.HELD, said=said), now=NOW)
    assert (told.phase, told.wave) == ("Held", "")
    assert word(told, ConditionType.PLANNED) == ("False", "UnknownValue")
    found = meta.find(told.conditions, ConditionType.UNKNOWN_VALUE)
    assert found
    assert found.message == "one; two"


def test_what_nobody_can_hold_and_what_took_too_long_are_said() -> None:
    late = Teardown(metadata=ObjectMeta(name="u"), spec=TeardownSpec(plan=PLAN, deadline="30m"))
    told = status(late, view(gated=False, overdue=True), now=NOW)
    assert word(told, ConditionType.GATE_NOT_AVAILABLE) == ("True", "NoClusterClass")
    found = meta.find(told.conditions, ConditionType.DEADLINE_EXCEEDED)
    assert found
    assert (
        found.message
        == "deadline of 30m exceeded; on-deadline is Hold, so it stays blocked: resolve what blocks it, or release it"
    )


def test_a_cycle_that_was_broken_is_named() -> None:
    circle = Plan(steps=(step("a", "b"), step("b", "a")), waves=1)
    told = status(Teardown(spec=TeardownSpec(plan=circle)), view(), now=NOW)
    found = meta.find(told.conditions, ConditionType.CYCLE_BROKEN)
    assert found
    assert found.message == "a → b → a"


def test_only_more_objects_gone_is_nothing_new() -> None:
    first = status(TEARDOWN, view(), now=NOW)
    second = status(after(first), view(msgspec.structs.replace(TOP, removed=2), BASE), now=LATER)
    assert second != first
    assert same_but_for_counts(first, second)
    third = status(after(first), view(BLOCKED, BASE), now=LATER)
    assert not same_but_for_counts(first, third)


def test_a_paused_target_is_held_and_says_since_when_it_is_not_paused_any_more() -> None:
    told = status(TEARDOWN, view(paused=True), now=NOW)
    assert told.phase == Phase.HELD
    assert [(blocker.reason, blocker.since) for blocker in told.blockers] == [("Paused", START)]
    assert word(told, ConditionType.BLOCKED) == ("True", "Paused")
    assert word(told, ConditionType.PAUSED) == ("True", "Paused")
    again = status(after(told), view(paused=True), now=LATER)
    assert again.blockers == told.blockers
    unpaused = status(after(told), view(), now=LATER)
    assert unpaused.phase == Phase.REMOVING
    assert not unpaused.blockers
    assert word(unpaused, ConditionType.BLOCKED) is None
    found = meta.find(unpaused.conditions, ConditionType.PAUSED)
    assert found
    assert (found.status, found.last_transition_time) == ("False", LATER)
    assert word(status(TEARDOWN, view(), now=NOW), ConditionType.PAUSED) is None


def test_a_step_that_left_objects_tells_why_also_after_a_restart() -> None:
    left = StepView(name="top", state=StepState.GIVEN_UP, reason="GaveUp", why_left="timed out; decided by x")
    first = status(TEARDOWN, view(left, BASE), now=NOW)
    assert (first.steps[0].reason, first.steps[0].message) == ("GaveUp", "timed out; decided by x")
    restarted = StepView(name="top", state=StepState.GIVEN_UP)
    assert status(after(first), view(restarted, BASE), now=LATER).steps[0] == first.steps[0]


def test_the_report_of_a_step_names_its_most_urgent_blocker_and_who_must_act() -> None:
    known = Blocker(object=ref("a"), step="top", reason="Finalizer", message="x holds it", actor="x", since=START)
    told = status(TEARDOWN, view(BLOCKED, BASE, known={("top", ref("a"), "a waits"): known}), now=NOW)
    assert step_reports(after(told)) == {
        "top": StepReport(state=StepState.REMOVING, reason="Finalizer", message="x holds it (must act: x)"),
        "base": StepReport(state=StepState.WAITING, reason="Waiting", message="waiting for top"),
    }


def test_the_report_of_a_step_that_is_over_names_no_blocker() -> None:
    gone = StepView(name="top", state=StepState.REMOVED, removed=3)
    left = StepView(name="base", state=StepState.LEFT, reason="KeptByPolicy", why_left="by policy")
    assert step_reports(after(status(TEARDOWN, view(gone, left), now=NOW))) == {
        "top": StepReport(state=StepState.REMOVED),
        "base": StepReport(state=StepState.LEFT, reason="KeptByPolicy", message="by policy"),
    }


def test_every_unfinished_step_of_a_paused_target_says_that_it_is_paused() -> None:
    waits = StepView(name="top", state=StepState.WAITING)
    reports = step_reports(after(status(TEARDOWN, view(waits, BASE, paused=True), now=NOW)))
    assert {report.reason for report in reports.values()} == {"Paused"}
    assert all("must act: the user who paused it" in report.message for report in reports.values())


def test_a_step_that_status_names_twice_has_no_report() -> None:
    told = status(TEARDOWN, view(TOP, TOP), now=NOW)
    assert step_reports(after(told)) == {}
