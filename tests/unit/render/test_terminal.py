"""Pictures in a terminal, and in a pipe."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.render.pictures import BLOCKED, P, any_picture, chain, huge, planned, under_way
from unwind.render.picture import Picture
from unwind.render.terminal import bar, rendered


def printed(picture: Picture, width: int, *, terminal: bool = True, colour: bool = False) -> list[str]:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        color_system="truecolor" if colour else None,
        highlight=False,
        legacy_windows=False,
    )
    console.print(rendered(picture), soft_wrap=not terminal)
    return file.getvalue().splitlines()


def test_waves_stand_side_by_side_where_they_fit() -> None:
    lines = printed(planned(), 120)
    heads = next(line for line in lines if "wave 1" in line)
    assert heads.index("wave 1") < heads.index("→") < heads.index("wave 2") < heads.index("wave 3")


def test_they_stand_below_each_other_where_they_do_not() -> None:
    lines = printed(planned(), 50)
    waves = [line for line in lines if line.startswith("wave ")]
    assert waves == ["wave 1 3 steps", "wave 2 2 steps", "wave 3 1 step"]


@given(any_picture(), st.integers(30, 160))
@settings(max_examples=25, deadline=None)
def test_no_line_is_wider_than_the_window(drawn: Picture, width: int) -> None:
    bare = Picture(title=drawn.title, columns=drawn.columns, edges=drawn.edges)
    assert all(len(line) <= width for line in printed(bare, width) if line.isascii())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_step_can_be_seen_and_what_holds_it_up(width: int) -> None:
    told = "\n".join(printed(under_way(), width))
    for box in under_way().boxes:
        assert box.name.removeprefix(P) in told
    assert "✗ ingress" in told
    assert "Service ingress/nginx" in told


def test_in_a_pipe_every_step_is_one_whole_line() -> None:
    lines = printed(under_way(), 80, terminal=False)
    assert f"  {P}ingress  Enforce  11/18 objects  Removing  after {P}monitoring  blocked: {BLOCKED}" in lines
    assert f"  {P}defaults  Leave  3 objects  Left" in lines


def test_thousands_of_steps_fit_on_a_screen_or_two_of_a_terminal_and_none_is_missing_in_a_pipe() -> None:
    assert len(printed(huge(), 200)) < 300
    assert sum(P in line for line in printed(huge(), 80, terminal=False)) >= 2000
    assert len(printed(chain(2000), 80)) < 120


def test_it_can_be_read_without_colours() -> None:
    plain, coloured = printed(under_way(), 100), printed(under_way(), 100, colour=True)
    assert not [line for line in plain if "\x1b" in line]
    assert [line for line in coloured if "\x1b" in line]


def test_a_bar_shows_that_something_was_done_and_that_not_all_is() -> None:
    assert [bar(share, 10).plain.count("━") for share in (0, 0.001, 0.5, 0.999, 1, 7)] == [0, 1, 5, 9, 10, 10]
