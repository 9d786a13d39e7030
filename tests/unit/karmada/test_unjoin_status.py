"""What a Cluster says of its unjoining: as tables."""

from __future__ import annotations

import datetime as dt

import msgspec

from unwind.api.karmada import Cluster, ClusterSpec, ClusterStatus, Work
from unwind.api.meta import Condition, ObjectMeta, ObjectRef, find
from unwind.api.unwind import Blocker, Plan, Step, StepStatus, Teardown, TeardownSpec, TeardownStatus
from unwind.karmada.unjoin_status import SLOW, blockers_text, failing, looked_at_again, unjoin_conditions

AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
READY = Condition(type="Ready", status="True", reason="ClusterReady", last_transition_time=AT)
PLAN = Plan(steps=(Step(name="Work/a", effort="Enforce"), Step(name="Work/b", effort="Enforce")), waves=1)


def cluster(strategy: str = "Required", *said: Condition) -> Cluster:
    return Cluster(
        metadata=ObjectMeta(name="m1", uid="u-m1"),
        spec=ClusterSpec(remove_strategy=strategy),
        status=ClusterStatus(conditions=(READY, *said)),
    )


def blocker(name: str, reason: str = "Finalizer", step: str = "Work/a", message: str = "", **more: object) -> Blocker:
    ref = ObjectRef(version="v1", kind="ConfigMap", namespace="app", name=name, uid=f"u-{name}")
    return Blocker(object=ref, step=step, reason=reason, message=message or f"{ref} is held", since=AT, **more)  # type: ignore[arg-type]


def teardown(*blockers: Blocker, plan: Plan | None = PLAN, phase: str = "Removing", said: str = "") -> Teardown:
    unknown = (Condition(type="UnknownValue", status="True", reason="UnknownValue", message=said),) if said else ()
    return Teardown(
        spec=TeardownSpec(plan=plan),
        status=TeardownStatus(
            phase=phase,
            blockers=blockers,
            steps=(StepStatus(name="Work/a", state="Removing"), StepStatus(name="Work/b", state="Waiting")),
            conditions=unknown,
        ),
    )


def message(it: Cluster, condition: str, of: Teardown | None, *after: Blocker, now: dt.datetime = AT) -> str | None:
    found = find(unjoin_conditions(it, of, after, now=now), condition)
    return found.message if found else None


def test_the_words_of_the_proposal_are_said_beside_ready() -> None:
    said = unjoin_conditions(cluster(), None, now=AT)
    assert said[0] is READY
    assert [(item.type, item.status, item.reason, item.message) for item in said[1:]] == [
        ("Unjoining", "True", "UnjoinCluster", "Unjoining resources.")
    ]


def test_each_work_and_object_is_named_with_why_since_when_and_who_must_act() -> None:
    of = teardown(blocker("x", message="ConfigMap app/x has the finalizer f", actor="the controller of f"))
    assert message(cluster(), "UnjoinFailed", of) == (
        "Work a: ConfigMap app/x has the finalizer f (since 2026-01-01T12:00:00Z; must act: the controller of f); "
        "not removed yet: Work b"
    )


def test_what_is_in_the_way_of_many_works_is_said_once() -> None:
    ref = ObjectRef(kind="Cluster", name="m1", uid="u-m1")
    silent = [
        Blocker(object=ref, step=f"Work/{name}", reason="Unreachable", message="Cluster m1 does not answer", since=AT)
        for name in "ab"
    ]
    assert message(cluster(), "UnjoinFailed", teardown(*silent)) == (
        "Work a, Work b: Cluster m1 does not answer (since 2026-01-01T12:00:00Z)"
    )


def test_a_member_that_went_silent_is_in_the_way_of_what_is_being_removed_from_it() -> None:
    silent = Condition(
        type="Ready", status="False", reason="ClusterNotReachable", message="no", last_transition_time=AT
    )
    it = msgspec.structs.replace(cluster(), status=ClusterStatus(conditions=(silent,)))
    of = teardown(blocker("x"))
    found = find(unjoin_conditions(it, of, now=AT), "UnjoinFailed")
    assert found
    assert found.reason == "Unreachable"
    assert found.message.startswith(
        "Work a: Cluster m1: member unreachable: no (since 2026-01-01T12:00:00Z); Work a: ConfigMap app/x"
    )
    left = Plan(steps=(Step(name="Work/a", effort="Leave"),), waves=1)
    assert message(it, "UnjoinFailed", teardown(plan=left)) is None


def test_an_object_is_named_where_its_message_does_not() -> None:
    assert blockers_text((blocker("x", message="no"),), teardown()).startswith("Work a: ConfigMap app/x: no (")


def test_the_text_has_an_end_however_much_is_in_the_way() -> None:
    many = tuple(blocker(f"x{number:04}", message="y" * 1000) for number in range(500))
    text = blockers_text(many, teardown())
    assert len(text) < 9000
    assert text == blockers_text(many, teardown())


def test_what_comes_right_by_itself_is_no_failure_for_a_while() -> None:
    usual = (blocker("x", "Deleting"), blocker("y", "OwnsOthers"))
    assert failing(usual, now=AT) == ()
    assert failing(usual, now=AT + SLOW) == usual
    assert looked_at_again(usual, now=AT) == SLOW.total_seconds()
    assert looked_at_again(usual, now=AT + SLOW) is None
    assert message(cluster(), "UnjoinFailed", teardown(*usual)) is None
    assert message(cluster(), "UnjoinFailed", teardown(*usual), now=AT + SLOW)


def test_a_failure_that_is_over_is_not_said_any_more() -> None:
    before = cluster("Required", Condition(type="UnjoinFailed", status="True", reason="Finalizer"))
    assert message(before, "UnjoinFailed", teardown()) is None


def test_what_is_waited_for_after_the_teardown_is_said_too() -> None:
    of = teardown(phase="Complete")
    namespace = Blocker(object=ObjectRef(kind="Namespace", name="karmada-es-m1"), reason="Finalizer", message="stuck")
    assert message(cluster(), "UnjoinFailed", of, namespace) == "Namespace karmada-es-m1: stuck"


def test_a_plan_that_is_held_is_a_failure_with_the_word_that_is_not_known() -> None:
    of = teardown(plan=None, phase="Held", said="removeStrategy: 'x' is not known")
    assert message(cluster("x"), "UnknownValue", of) == "removeStrategy: 'x' is not known"
    assert message(cluster("x"), "UnjoinFailed", of) == "removeStrategy: 'x' is not known"


def test_a_word_that_is_not_known_does_not_change_what_has_begun() -> None:
    assert "continues as planned" in (message(cluster("x"), "UnknownValue", teardown()) or "")
    assert message(cluster("x"), "UnjoinFailed", teardown()) is None


def test_it_is_said_that_a_frozen_plan_cannot_be_tightened() -> None:
    work = Work(metadata=ObjectMeta(name="a", uid="u-a"))
    left = teardown(plan=Plan(steps=(Step(name="Work/a", object=ObjectRef(uid="u-a"), effort="Leave"),), waves=1))
    found = find(unjoin_conditions(cluster("Required"), left, (), [work], now=AT), "PlanFrozen")
    assert found
    assert "so the objects on the member stay: a later change has no effect" in found.message
    assert find(unjoin_conditions(cluster("Needless"), left, (), [work], now=AT), "PlanFrozen") is None


def test_nothing_is_written_where_it_is_said_already() -> None:
    of = teardown(blocker("x"))
    once = msgspec.structs.replace(cluster(), status=ClusterStatus(conditions=unjoin_conditions(cluster(), of, now=AT)))
    assert unjoin_conditions(once, of, now=AT + dt.timedelta(seconds=5)) is once.status.conditions
