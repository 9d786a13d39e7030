"""The gate: what keeps a cluster, what does not, what it says and when it wants to be asked again."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tests.unit.capi.asked import UID, teardown, without_plan
from unwind.api.fields import Unknown
from unwind.api.meta import Condition, ObjectRef
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Blocker, StepStatus, Teardown
from unwind.teardown.deletion_gate import GateClosed, GateHolder, GateOpen, of_summaries, of_teardown

ENFORCE, REMOVE, LEAVE = (
    GateHolder(name, behaviour)
    for name, behaviour in (
        ("ClusterProfile/enforced", ClusterDeletionBehavior.ENFORCE),
        ("ClusterProfile/removed", ClusterDeletionBehavior.REMOVE),
        ("ClusterProfile/left", ClusterDeletionBehavior.LEAVE),
    )
)


def told(it: Teardown) -> str:
    verdict = of_teardown(UID, it)
    assert isinstance(verdict, GateClosed)
    return verdict.message


def seconds(it: Teardown) -> int:
    verdict = of_teardown(UID, it)
    assert isinstance(verdict, GateClosed)
    return verdict.seconds


def with_status(it: Teardown, **status: object) -> Teardown:
    return msgspec.structs.replace(it, status=msgspec.structs.replace(it.status, **status))


# Without a Teardown


def test_only_what_is_enforced_keeps_a_cluster_whose_teardown_has_not_begun() -> None:
    assert of_summaries(UID, []) == GateOpen()
    assert of_summaries(UID, [REMOVE, LEAVE]) == GateOpen()
    assert of_summaries(UID, [LEAVE, ENFORCE, REMOVE]) == GateClosed(
        "waiting for add-on cleanup: ClusterProfile/enforced", 1
    )


def test_a_behaviour_that_is_not_known_keeps_the_cluster_and_is_named() -> None:
    verdict = of_summaries(UID, [GateHolder("ClusterProfile/typo", Unknown("EnforceRemovePolicy"))])
    assert verdict == GateClosed(
        "waiting for add-on cleanup: ClusterProfile/typo ('EnforceRemovePolicy' is not known)", 1
    )


def test_objects_whose_summary_is_gone_keep_the_cluster() -> None:
    verdict = of_summaries(UID, [REMOVE], ["ClusterSummary/lost/uid"])
    assert isinstance(verdict, GateClosed)
    assert "ClusterSummary/lost/uid (deleted, but its objects remain)" in verdict.message


def test_a_cluster_without_a_uid_is_kept() -> None:
    assert isinstance(of_summaries("", []), GateClosed)
    assert isinstance(of_teardown("", teardown(uid="")), GateClosed)


# With one


@pytest.mark.parametrize("phase", ["Complete", "Released", "TargetGone"])
def test_a_teardown_that_has_ended_opens_it(phase: str) -> None:
    assert of_teardown(UID, teardown(("a", "Enforce", "Removing"), phase=phase)) == GateOpen()


def test_the_teardown_of_another_cluster_opens_nothing() -> None:
    assert isinstance(of_teardown(UID, teardown(uid="another", phase="Complete")), GateClosed)


def test_it_opens_as_soon_as_every_enforced_step_is_removed_whatever_else_goes_on() -> None:
    steps = (("a", "Enforce", "Removed"), ("b", "Try", "Removing"), ("c", "Leave", ""))
    assert of_teardown(UID, teardown(*steps)) == GateOpen()


@pytest.mark.parametrize("state", ["", "Waiting", "Removing", "Left", "GivenUp", "Removd"])
def test_an_enforced_step_that_is_not_seen_absent_keeps_it(state: str) -> None:
    assert told(teardown(("a", "Enforce", state), ("b", "Try", "Removed"))) == "waiting for add-on cleanup: a"


@pytest.mark.parametrize("state", ["", "Removing", "Left", "GivenUp"])
def test_a_step_of_which_nobody_knows_how_much_is_done_for_it_keeps_it_until_it_is_absent(state: str) -> None:
    assert told(teardown(("a", "Enforced", state))) == "waiting for add-on cleanup: a"
    assert of_teardown(UID, teardown(("a", "Enforced", "Removed"))) == GateOpen()


def test_a_phase_that_is_not_known_is_not_the_end() -> None:
    assert isinstance(of_teardown(UID, teardown(("a", "Enforce", "Removing"), phase="Completed")), GateClosed)


def test_a_step_that_is_told_of_twice_is_done_only_if_both_say_so() -> None:
    it = teardown(("a", "Enforce", "Removed"))
    twice = with_status(it, steps=(*it.status.steps, StepStatus(name="a", state="Removing")))
    assert isinstance(of_teardown(UID, twice), GateClosed)


def test_without_a_plan_it_is_kept_and_says_why() -> None:
    it = without_plan(teardown(phase="Held"))
    assert told(it) == "waiting for add-on cleanup: there is no plan yet"
    conditions = (
        Condition(type="Planned", status="False", message="no plan: a value that it depends on is unknown"),
        Condition(type="UnknownValue", status="True", message="clusterDeletionBehavior of p: 'x' is not known"),
    )
    assert told(with_status(it, conditions=conditions)) == (
        "waiting for add-on cleanup: there is no plan: clusterDeletionBehavior of p: 'x' is not known; "
        "no plan: a value that it depends on is unknown"
    )


# What it says


def test_what_is_left_is_named_in_order_and_not_without_bound() -> None:
    steps = [(f"p-{number}", "Enforce", "Waiting") for number in (3, 1, 2, 7, 6, 5, 4)]
    assert told(teardown(*steps)) == "waiting for add-on cleanup: p-1, p-2, p-3, p-4, p-5 and 2 more"


def blocker(step: str, reason: str, message: str, actor: str = "") -> Blocker:
    ref = ObjectRef(kind="ConfigMap", namespace="n", name=message.split(maxsplit=1)[0])
    return Blocker(object=ref, step=step, reason=reason, message=message, actor=actor, since=datetime.now(UTC))


def test_what_blocks_is_told_with_who_must_act() -> None:
    it = teardown(("a", "Enforce", "Removing"), ("b", "Try", "Removing"), phase="Held")
    it = with_status(
        it,
        blockers=(
            blocker("b", "Finalizer", "b-1 is held", "nobody asks"),
            blocker("a", "Deleting", "a-0 is being stopped", "the kubelet"),
            blocker("a", "Finalizer", "a-1 has the finalizer x", "the controller of x"),
        ),
    )
    assert told(it) == "waiting for add-on cleanup: a; a-1 has the finalizer x (must act: the controller of x)"


def test_what_is_on_its_way_is_not_told_while_it_goes_well() -> None:
    it = with_status(
        teardown(("a", "Enforce", "Removing")), blockers=(blocker("a", "Deleting", "a-0 is being stopped"),)
    )
    assert told(it) == "waiting for add-on cleanup: a"
    assert told(with_status(it, phase="Held")) == "waiting for add-on cleanup: a; a-0 is being stopped"


def test_a_long_story_is_cut() -> None:
    it = with_status(teardown(("a", "Enforce", "Removing")), blockers=(blocker("a", "Failed", "x " * 5000),))
    assert len(told(it)) < 1000


# When it wants to be asked again


def test_one_wave_however_wide_is_asked_for_every_second() -> None:
    wide = teardown(*[(f"p-{number}", "Enforce", "Removing") for number in range(50)], objects=100_000)
    assert seconds(wide) == 1


def test_what_only_waits_for_somebody_is_asked_for_every_second() -> None:
    steps = [(f"p-{number}", "Enforce", "Waiting") for number in range(40)]
    assert seconds(teardown(*steps, waves=tuple(range(1, 41)), objects=10_000, phase="Held")) == 1


def test_much_that_is_left_is_asked_for_less_often_and_never_after_more_than_ten_seconds() -> None:
    def left(waves: int, objects: int) -> int:
        steps = [(f"p-{number}", "Enforce", "Waiting") for number in range(waves)]
        return seconds(teardown(*steps, waves=tuple(range(1, waves + 1)), objects=objects))

    assert left(2, 20) == 1, "two quick waves are over before anybody could have asked twice"
    assert 1 < left(10, 20) < left(40, 20)
    assert 1 < left(2, 5_000) < left(2, 15_000)
    assert left(200, 100_000) == 10


def test_what_is_gone_already_does_not_count() -> None:
    it = teardown(("a", "Enforce", "Removing"), ("b", "Enforce", "Waiting"), waves=(1, 2), objects=20_000)
    assert seconds(it) > seconds(with_status(it, steps=(StepStatus(name="a", state="Removing", removed=19_000),)))
