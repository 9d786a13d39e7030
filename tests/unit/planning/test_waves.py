from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.unit.planning.drafting import draft
from unwind.api.unwind import Effort
from unwind.planning.waves import circles, plan

if TYPE_CHECKING:
    from unwind.api.unwind import Plan
    from unwind.planning.waves import Draft


def waves(made: Plan) -> list[list[str]]:
    return [[step.name for step in made.steps if step.wave == wave] for wave in range(1, made.waves + 1)]


def test_if_a_depends_on_b_then_a_goes_before_b() -> None:
    assert waves(plan([draft("b"), draft("a", "b")])) == [["a"], ["b"]]


def test_a_diamond_goes_in_three_waves_with_its_sides_side_by_side() -> None:
    made = plan([draft("base"), draft("left", "base"), draft("right", "base"), draft("top", "right left")])
    assert waves(made) == [["top"], ["left", "right"], ["base"]]


def test_a_step_waits_for_the_longest_of_the_chains_above_it() -> None:
    made = plan([draft("a", "b z"), draft("b", "c"), draft("c", "z"), draft("z"), draft("alone")])
    assert waves(made) == [["a", "alone"], ["b"], ["c"], ["z"]]


def test_a_name_that_is_not_on_this_cluster_is_no_edge() -> None:
    made = plan([draft("a", "elsewhere b"), draft("b")])
    assert made.steps[0].needs == ("b",)
    assert made.warnings == ()


def test_a_name_means_a_profile_of_the_same_kind_and_namespace() -> None:
    made = plan(
        [
            draft("base", declared="base"),
            draft("p--base", kind="Profile", namespace="team", declared="base"),
            draft("other--base", kind="Profile", namespace="other", declared="base"),
            draft("app", "base", declared="app"),
            draft("p--app", "base", kind="Profile", namespace="team", declared="app"),
        ]
    )
    assert {step.name: step.needs for step in made.steps if step.needs} == {"app": ("base",), "p--app": ("p--base",)}


def test_a_last_step_goes_after_all_others_of_any_kind() -> None:
    made = plan(
        [
            draft("network", "app storage", last=True),
            draft("storage", last=True),
            draft("app", "base"),
            draft("base"),
            draft("p--app", kind="Profile", namespace="team", declared="app"),
        ]
    )
    assert waves(made) == [["app", "p--app"], ["base"], ["network"], ["storage"]]
    assert made.warnings == ()


def test_a_name_given_twice_is_one_edge() -> None:
    assert plan([draft("a", "b b"), draft("b")]) == plan([draft("a", "b"), draft("b")])


def test_a_step_keeps_what_stands_for_it_and_how_much_is_done_for_it() -> None:
    [step] = plan([draft("a", effort=Effort.TRY, objects=7)]).steps
    assert (step.object.uid, step.effort, step.objects) == ("uid-a", "Try", 7)


def test_what_is_left_is_not_among_what_goes() -> None:
    made = plan([draft("a", effort=Effort.LEAVE, objects=5), draft("b", objects=3)])
    assert made.objects == 3


def test_what_is_left_takes_no_wave_of_its_own() -> None:
    made = plan([draft("a", effort=Effort.LEAVE), draft("z", effort=Effort.LEAVE), draft("b"), draft("c", "b z")])
    assert waves(made) == [["a", "c", "z"], ["b"]]


def test_what_is_left_is_done_at_once_however_much_that_goes_needs_it() -> None:
    assert waves(plan([draft("a", "b"), draft("b", "z"), draft("z", effort=Effort.LEAVE)])) == [["a", "z"], ["b"]]


def test_a_circle_with_something_in_it_that_is_left_still_goes_before_what_it_needs() -> None:
    made = plan([draft("a", "b"), draft("b", "a c", effort=Effort.LEAVE), draft("c")])
    assert waves(made) == [["a", "b"], ["c"]]
    assert circles(made) == ("a → b → a",)


def test_order_passes_through_what_is_left() -> None:
    made = plan([draft("a", "b"), draft("b", "c", effort=Effort.LEAVE), draft("c")])
    assert waves(made) == [["a", "b"], ["c"]]


def test_what_is_left_and_needs_what_goes_is_warned_of() -> None:
    made = plan(
        [draft("app", "ingress kept", effort=Effort.LEAVE), draft("ingress"), draft("kept", effort=Effort.LEAVE)]
    )
    assert made.warnings == ("app is left in place, but this plan removes what it depends on: ingress",)
    assert waves(made) == [["app", "ingress", "kept"]]


def test_a_circle_goes_in_one_wave_between_what_needs_it_and_what_it_needs() -> None:
    made = plan([draft("c", "a"), draft("a", "b"), draft("b", "c under"), draft("over", "b"), draft("under")])
    assert waves(made) == [["over"], ["a", "b", "c"], ["under"]]
    assert circles(made) == ("a → b → c → a",)
    assert made.warnings == ("dependency cycle a → b → c → a: these 3 steps are removed in the same wave",)


def test_a_profile_that_depends_on_itself_goes_as_if_it_did_not() -> None:
    made = plan([draft("a", "a b"), draft("b")])
    assert waves(made) == [["a"], ["b"]]
    assert circles(made) == ("a → a",)
    assert made.warnings == ("dependency cycle a → a: the profile depends on itself, which has no effect",)


def test_circles_that_hang_together_are_all_named() -> None:
    made = plan([draft("a", "b"), draft("b", "a c"), draft("c", "b")])
    assert circles(made) == ("a → b → a", "b → c → b")


def test_a_big_tangle_is_named_by_some_of_its_circles_only() -> None:
    names = [f"p{number:03}" for number in range(300)]
    made = plan([draft(name, " ".join(names)) for name in names])
    assert made.waves == 1
    assert len(circles(made)) == 10
    assert "these 300 steps" in made.warnings[0]


def test_a_chain_longer_than_the_stack_is_planned_also_with_a_circle_at_its_top() -> None:
    names = [f"p{number:05}" for number in range(5_000)]
    made = plan(
        [draft(one, other) for one, other in pairwise(names)]
        + [draft(names[-1]), draft("top", f"top2 {names[0]}"), draft("top2", "top")]
    )
    assert made.waves == 5_001


def test_nothing_on_the_cluster_is_a_plan_without_waves() -> None:
    assert (plan([]).waves, plan([]).steps) == (0, ())


@pytest.mark.parametrize("second", [draft("a", declared="z"), draft("z", declared="a")])
def test_two_steps_that_cannot_be_told_apart_are_refused(second: Draft) -> None:
    with pytest.raises(ValueError, match=r"same name|duplicate"):
        plan([draft("a"), second])
