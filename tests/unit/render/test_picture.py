"""What becomes of pictures with too much in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings

from tests.unit.render.pictures import P, any_picture, box, chain, huge, picture, wide
from unwind.render.picture import MOST_BOXES, MOST_COLUMNS, collapsed, direct

if TYPE_CHECKING:
    from unwind.render.picture import Picture


def test_what_can_be_looked_at_stays_as_it_is() -> None:
    assert collapsed(wide()) == wide()


def test_every_step_of_thousands_is_in_exactly_one_box() -> None:
    shown = collapsed(huge())
    names = [name for item in shown.boxes for name in item.stands_for or (item.name,)]
    assert sorted(names) == sorted(item.name for item in huge().boxes)
    assert sum(item.objects for item in shown.boxes) == sum(item.objects for item in huge().boxes)
    assert all(len(column.boxes) <= MOST_BOXES for column in shown.columns)


def test_what_differs_in_effort_or_state_is_not_one_box() -> None:
    many = [box(f"{P}{number}", ("Enforce", "Try")[number % 2], state="Waiting") for number in range(100)]
    shown = collapsed(picture(many))
    assert [(item.effort, item.steps, item.objects) for item in shown.boxes] == [("Enforce", 50, 200), ("Try", 50, 200)]


def test_what_is_blocked_is_seen_by_itself_as_far_as_there_is_room() -> None:
    many = [box(f"{P}{number}", blocked=f"stuck {number}" if number < 20 else "") for number in range(100)]
    shown = collapsed(picture(many))
    assert [item.blocked for item in shown.boxes if item.steps == 1] == [f"stuck {number}" for number in range(12)]
    assert [item.blocked for item in shown.boxes if item.steps > 1] == ["8 more are blocked: stuck 12", ""]


def test_names_that_begin_with_anything_make_no_hundred_groups() -> None:
    shown = collapsed(picture([box(f"{number}/x") for number in range(100)]))
    assert [item.steps for item in shown.boxes] == [100]


def test_arrows_lead_from_group_to_group_and_not_into_themselves() -> None:
    first, second = ([box(f"{P}{wave}-{number}") for number in range(100)] for wave in "ab")
    edges = [(one.name, other.name) for one, other in zip(first, second, strict=True)]
    shown = collapsed(picture(first, second, edges=(*edges, (first[0].name, first[1].name))))
    assert len(shown.edges) == 1


def test_many_waves_become_few_columns() -> None:
    shown = collapsed(chain(100))
    assert len(shown.columns) <= MOST_COLUMNS
    assert shown.columns[1].title == "wave 8 to 14"


@given(any_picture())
@settings(max_examples=30, deadline=None)
def test_leaving_implied_arrows_out_changes_no_order(drawn: Picture) -> None:
    place = {item.name: number for number, column in enumerate(drawn.columns) for item in column.boxes}

    def order(edges: tuple[tuple[str, str], ...]) -> set[tuple[str, str]]:
        """Who goes before whom, by way of however many."""
        known = {edge for edge in edges if place[edge[0]] < place[edge[1]]}
        while more := {(a, d) for a, b in known for c, d in known if b == c} - known:
            known |= more
        return known

    assert order(direct(drawn)) == order(drawn.edges)
