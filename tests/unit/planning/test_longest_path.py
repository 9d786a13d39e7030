from __future__ import annotations

from tests.unit.planning.drafting import draft
from unwind.api.unwind import Effort, Plan
from unwind.planning.progress import critical_path
from unwind.planning.waves import plan


def test_the_longest_chain_wins_however_big_a_shorter_one_is() -> None:
    made = plan([draft("a", "b"), draft("b", "c"), draft("c"), draft("x", "y", objects=900), draft("y", objects=900)])
    assert critical_path(made) == ("a", "b", "c")


def test_of_two_as_long_the_one_with_more_objects_is_taken_then_the_first_by_name() -> None:
    assert critical_path(plan([draft("a", "b c"), draft("b"), draft("c", objects=2)])) == ("a", "c")
    assert critical_path(plan([draft("a", "b c"), draft("b"), draft("c")])) == ("a", "b")


def test_the_objects_of_the_whole_chain_count() -> None:
    made = plan([draft("a", "b c"), draft("b", "x", objects=2), draft("c", "y"), draft("x"), draft("y", objects=9)])
    assert critical_path(made) == ("a", "c", "y")


def test_what_is_left_is_passed_through() -> None:
    made = plan([draft("a", "b"), draft("b", "c", effort=Effort.LEAVE), draft("c")])
    assert critical_path(made) == ("a", "c")


def test_the_biggest_of_a_circle_stands_for_it() -> None:
    made = plan([draft("a", "x"), draft("x", "y"), draft("y", "x z", objects=5), draft("z")])
    assert critical_path(made) == ("a", "y", "z")


def test_where_nothing_goes_there_is_no_path() -> None:
    assert critical_path(Plan()) == ()
    assert critical_path(plan([draft("a", effort=Effort.LEAVE)])) == ()
