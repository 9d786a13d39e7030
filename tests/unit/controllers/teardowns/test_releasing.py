"""When the time of a teardown is over, and what that means."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.api.unwind import TeardownSpec
from unwind.controllers.teardowns.releasing import expired, overdue, remaining

BEGAN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SPEC = TeardownSpec(requested_at=BEGAN, deadline="30m", on_deadline="Release")


@pytest.mark.parametrize(("minutes", "left"), [(0, 1800.0), (29, 60.0), (30, 0.0), (31, 0.0)])
def test_a_deadline_counts_from_the_deletion(minutes: int, left: float) -> None:
    now = BEGAN + dt.timedelta(minutes=minutes)
    assert remaining(SPEC, now=now) == left
    assert overdue(SPEC, now=now) is (left == 0)


@pytest.mark.parametrize(
    "spec",
    [
        TeardownSpec(requested_at=BEGAN),
        TeardownSpec(requested_at=BEGAN, deadline="soon"),
        TeardownSpec(deadline="30m"),
    ],
    ids=["no deadline", "no span of time", "no deletion"],
)
def test_what_has_no_deadline_has_all_the_time_there_is(spec: TeardownSpec) -> None:
    assert remaining(spec, now=BEGAN + dt.timedelta(days=400)) is None
    assert not overdue(spec, now=BEGAN + dt.timedelta(days=400))


@pytest.mark.parametrize("word", ["Hold", "release", ""])
def test_nothing_but_the_very_word_releases(word: str) -> None:
    assert expired(TeardownSpec(requested_at=BEGAN, deadline="30m", on_deadline=word)) is None
    assert expired(SPEC) == ("Deadline", "it took longer than 30m", "unwind.dev/on-deadline: Release")
