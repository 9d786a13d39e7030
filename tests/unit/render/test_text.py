"""How texts are made to fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.render.text import counted, shortened, span, width, wrapped

WORDS = st.text(alphabet="abc mWi.é漢", max_size=80)


@given(WORDS, st.floats(10, 400))
def test_what_is_shortened_fits(text: str, room: float) -> None:
    short = shortened(text, room, 12)
    assert short == text or short == "…" or width(short, 12) <= room


def test_a_name_keeps_both_ends() -> None:
    assert shortened("team-a-database-primary-7", 100, 12) == "team-a-…imary-7"


@given(WORDS, st.integers(1, 4))
def test_wrapped_lines_fit_and_are_no_more_than_wanted(text: str, most: int) -> None:
    lines = wrapped(text, 90, 12, most=most)
    assert len(lines) <= most
    assert all(width(line, 12) <= 90 for line in lines)


def test_what_is_not_all_ends_with_an_ellipsis() -> None:
    assert wrapped("one two three four", 40, 12, most=1) == ("one …",)


@pytest.mark.parametrize(("count", "said"), [(0, "0 steps"), (1, "1 step"), (1200, "1,200 steps")])
def test_one_is_not_several(count: int, said: str) -> None:
    assert counted(count, "step") == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0s"), (95, "95s"), (120, "2m"), (7300, "2h"), (3 * 86400, "3d"), (90000, "25h")]
)
def test_spans_are_written_as_kubectl_does(seconds: float, said: str) -> None:
    assert span(seconds) == said
