"""What holds of the gate whatever the state: it opens only for what is done, and says the same of the same."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.capi.asked import UID, teardown, without_plan
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Blocker, Effort, Phase, StepState, StepStatus, Teardown
from unwind.teardown.deletion_gate import GateClosed, GateHolder, GateOpen, Verdict, of_summaries, of_teardown

KNOWN = {word.value for words in (Effort, Phase, StepState) for word in words}
unknown = st.text(max_size=12).filter(lambda text: text not in KNOWN)
names = st.sampled_from([f"p-{number}" for number in range(8)])
efforts = st.sampled_from([effort.value for effort in Effort])
states = st.sampled_from(["", *(state.value for state in StepState)])
going = st.sampled_from([phase.value for phase in Phase if not phase.finished])
DONE = {"Removed"}


@st.composite
def teardowns(draw: st.DrawFn, *, effort: st.SearchStrategy[str] = efforts) -> Teardown:
    """Any teardown that has not ended."""
    steps = draw(st.lists(st.tuples(names, effort, states | unknown), unique_by=lambda step: step[0], max_size=8))
    waves = tuple(draw(st.integers(1, 12)) for _ in steps)
    it = teardown(*steps, waves=waves, phase=draw(going | unknown), objects=draw(st.integers(0, 200_000)))
    counted = tuple(msgspec.structs.replace(step, removed=draw(st.integers(0, 300_000))) for step in it.status.steps)
    others = tuple(StepStatus(name=name, state=state) for name, state in draw(st.lists(st.tuples(names, states))))
    blockers = tuple(
        Blocker(object=ObjectRef(kind="Pod", name=name), step=name, reason="Finalizer", message=message, actor=message)
        for name, message in draw(st.lists(st.tuples(names, st.text(max_size=3000)), max_size=3))
    )
    status = msgspec.structs.replace(it.status, steps=draw(st.permutations((*counted, *others))), blockers=blockers)
    return msgspec.structs.replace(it, status=status)


def states_of(it: Teardown) -> defaultdict[str, list[str]]:
    """Every state that status gives for each step."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    for step in it.status.steps:
        said[step.name].append(step.state)
    return said


def within_bounds(verdict: Verdict) -> None:
    if isinstance(verdict, GateClosed):
        assert 1 <= verdict.seconds <= 10
        assert verdict.message.startswith("waiting for add-on cleanup: ")
        assert len(verdict.message) < 5000


@given(teardowns())
def test_it_never_opens_while_an_enforced_step_is_not_done(it: Teardown) -> None:
    assert it.spec.plan
    said = states_of(it)
    # A step that status names twice is not done, even if both entries agree.
    done = all(
        len(said[step.name]) == 1 and said[step.name][0] in DONE
        for step in it.spec.plan.steps
        if step.effort == "Enforce"
    )
    verdict = of_teardown(UID, it)
    assert isinstance(verdict, GateOpen) == done
    within_bounds(verdict)


@given(teardowns(effort=st.sampled_from(["Leave", "Try"])))
def test_what_is_left_or_only_tried_never_keeps_it(it: Teardown) -> None:
    assert of_teardown(UID, it) == GateOpen()


@given(teardowns(effort=unknown | st.just("Leave")), unknown)
def test_a_word_that_is_not_known_never_opens_it(it: Teardown, word: str) -> None:
    assert it.spec.plan
    doubtful = [step.name for step in it.spec.plan.steps if step.effort != "Leave"]
    said = states_of(it)
    assert isinstance(of_teardown(UID, it), GateOpen) == all(said[name] == ["Removed"] for name in doubtful)
    ended = msgspec.structs.replace(it, status=msgspec.structs.replace(it.status, phase=word))
    assert of_teardown(UID, without_plan(ended)) != GateOpen()


@pytest.mark.parametrize("effort", ["Enforce", "", "enforce"])
@pytest.mark.parametrize("other", ["Left", "Removed", "GivenUp", "Removing", ""])
def test_a_step_that_status_names_twice_is_not_done(effort: str, other: str) -> None:
    it = teardown(("p-0", effort, "Removed"))
    assert of_teardown(UID, it) == GateOpen()
    for steps in ((*it.status.steps, StepStatus(name="p-0", state=other)), (*it.status.steps, *it.status.steps)):
        twice = msgspec.structs.replace(it, status=msgspec.structs.replace(it.status, steps=steps))
        assert isinstance(of_teardown(UID, twice), GateClosed)


@given(
    st.lists(
        st.tuples(names, st.sampled_from(ClusterDeletionBehavior) | st.builds(Unknown, st.text(max_size=5))), max_size=8
    ),
    st.lists(names, max_size=3),
)
def test_without_a_teardown_only_what_is_enforced_not_known_or_lost_keeps_it(
    found: list[tuple[str, ClusterDeletionBehavior | Unknown]], lost: list[str]
) -> None:
    standing = [GateHolder(name, behaviour) for name, behaviour in found]
    harmless = all(item.behaviour in ("LeavePolicies", "RemovePolicies") for item in standing)
    verdict = of_summaries(UID, standing, lost)
    assert isinstance(verdict, GateOpen) == (harmless and not lost)
    within_bounds(verdict)


@given(teardowns())
def test_the_same_state_in_another_order_is_told_in_the_same_words(it: Teardown) -> None:
    assert it.spec.plan
    plan = msgspec.structs.replace(it.spec.plan, steps=tuple(reversed(it.spec.plan.steps)))
    status = msgspec.structs.replace(it.status, steps=tuple(reversed(it.status.steps)))
    turned = msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, plan=plan), status=status)
    before, after = of_teardown(UID, it), of_teardown(UID, turned)
    assert isinstance(before, GateOpen) == isinstance(after, GateOpen)
    if isinstance(before, GateClosed) and isinstance(after, GateClosed):
        assert before.message == after.message
