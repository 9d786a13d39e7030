from __future__ import annotations

import msgspec
import pytest

from tests.unit.planning.drafting import draft
from unwind.api.unwind import Effort, Plan, Step
from unwind.planning.progress import PlanProgress, ready
from unwind.planning.waves import plan

CHAIN = plan([draft("a", "b"), draft("b", "c", effort=Effort.TRY), draft("c")])


def test_a_step_waits_for_everything_that_depends_on_it() -> None:
    progress = PlanProgress(plan([draft("a", "z"), draft("b", "z"), draft("z")]))
    assert progress.ready == ("a", "b")
    assert progress.done("a") == ()
    assert progress.waits_for("z") == ("b",)
    assert progress.done("b") == ("z",)


def test_a_step_that_was_given_up_lets_what_it_depended_on_go_ahead() -> None:
    progress = PlanProgress(CHAIN, done=["a"])
    assert progress.ready == ("b",)
    assert progress.done("b") == ("c",)


def test_a_step_that_somebody_else_removed_lets_nothing_go_before_what_is_above_it() -> None:
    progress = PlanProgress(CHAIN)
    assert progress.done("b") == ()
    assert progress.waits_for("c") == ("a",)
    assert progress.done("a") == ("c",)


def test_nobody_waits_for_what_is_left_but_for_what_is_above_it() -> None:
    progress = PlanProgress(plan([draft("a", "b"), draft("b", "c", effort=Effort.LEAVE), draft("c")]))
    assert progress.ready == ("b", "a")
    assert progress.waits_for("c") == ("a",)
    assert progress.done("a") == ("c",)
    assert not progress.finished


def test_to_be_told_that_something_was_left_frees_nothing() -> None:
    progress = PlanProgress(plan([draft("a", "c"), draft("b", "c", effort=Effort.LEAVE), draft("c")]))
    assert progress.done("b") == ()
    assert progress.ready == ("a",)
    assert progress.wave == 1


def test_steps_in_a_circle_become_free_together_and_are_waited_for_together() -> None:
    progress = PlanProgress(plan([draft("over", "x"), draft("x", "y"), draft("y", "x under"), draft("under")]))
    assert progress.done("over") == ("x", "y")
    assert progress.done("y") == ()
    assert progress.waits_for("under") == ("x",)
    assert progress.done("x") == ("under",)


def test_a_step_in_a_circle_waits_for_what_is_above_the_circle_and_not_for_the_others_in_it() -> None:
    progress = PlanProgress(plan([draft("over", "x"), draft("x", "y"), draft("y", "x")]))
    assert progress.waits_for("y") == ("over",)


def test_a_manager_that_starts_again_goes_on_from_what_is_done() -> None:
    assert ready(CHAIN, ["b", "a"]) == ("c",)
    assert ready(CHAIN, ["a", "b", "c"]) == ()


def test_the_wave_under_way_is_the_first_that_is_not_over() -> None:
    progress = PlanProgress(CHAIN)
    assert progress.wave == 1
    progress.done("a")
    assert progress.wave == 2
    progress.done("b")
    progress.done("c")
    assert progress.wave == 3
    assert progress.finished


def test_a_step_whose_effort_is_not_known_keeps_its_place() -> None:
    unknown = msgspec.structs.replace(CHAIN.steps[2], effort="Obliterate")
    assert ready(msgspec.structs.replace(CHAIN, steps=(*CHAIN.steps[:2], unknown)), ["a"]) == ("b",)


def test_a_plan_that_names_steps_it_does_not_have_is_followed_all_the_same() -> None:
    steps = (Step(name="a", effort="Try", needs=("gone", "b", "b"), wave=1), Step(name="b", effort="Try", wave=2))
    progress = PlanProgress(Plan(steps=steps, waves=2))
    assert progress.done("a") == ("b",)


def test_a_step_that_is_not_in_the_plan_is_an_error() -> None:
    with pytest.raises(KeyError):
        PlanProgress(CHAIN).done("nobody")


def test_an_empty_plan_is_finished_from_the_beginning() -> None:
    assert PlanProgress(Plan()).finished
    assert PlanProgress(Plan()).wave == 0
