"""The time of an API server, from the Date headers of its responses."""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime

from unwind.clock import ServerClock, ServerTime
from unwind.testing.clock import StillClock

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)


def header(at: dt.datetime) -> bytes:
    return format_datetime(at, usegmt=True).encode()


def scene() -> tuple[StillClock, ServerTime]:
    clock = StillClock()
    return clock, ServerTime(clock)


def test_before_the_first_answer_nothing_is_known_and_the_local_clock_counts() -> None:
    clock, time = scene()
    assert time.now() is None
    assert ServerClock(time, clock).now() == clock.now()
    time.observe(header(NOON))
    assert ServerClock(time, clock).now() == NOON


def test_between_answers_a_monotonic_clock_counts() -> None:
    clock, time = scene()
    time.observe(header(NOON))
    clock.advance(90.5)
    assert time.now() == NOON + dt.timedelta(seconds=90.5)


def test_it_is_never_ahead_of_the_server_and_comes_closer_with_each_answer() -> None:
    clock, time = scene()
    clock.advance(0.9)  # the first response took 0.9 s, or its second was nearly over
    time.observe(header(NOON))
    clock.advance(0.2)
    time.observe(header(NOON + dt.timedelta(seconds=1)))
    found = time.now()
    assert found == NOON + dt.timedelta(seconds=1)
    clock.advance(5)
    time.observe(header(NOON + dt.timedelta(seconds=5)))  # this response was slow
    assert time.now() == NOON + dt.timedelta(seconds=6)


def test_a_single_answer_that_is_far_off_changes_nothing() -> None:
    clock, time = scene()
    time.observe(header(NOON))
    clock.advance(1)
    time.observe(header(NOON + dt.timedelta(days=365)))
    time.observe(header(NOON + dt.timedelta(days=365, seconds=1)))  # at the same moment
    clock.advance(1)
    time.observe(header(NOON + dt.timedelta(seconds=2)))
    assert time.now() == NOON + dt.timedelta(seconds=2)


def test_a_clock_that_was_set_is_followed_in_either_direction() -> None:
    for hours in (1, -1):
        clock, time = scene()
        time.observe(header(NOON))
        there = NOON + dt.timedelta(hours=hours)
        clock.advance(10)
        time.observe(header(there))
        clock.advance(2)
        time.observe(header(there + dt.timedelta(seconds=2)))
        assert time.now() == there + dt.timedelta(seconds=2)


def test_a_header_that_is_no_date_is_ignored() -> None:
    _, time = scene()
    for odd in (b"", b"soon", b"\xff", b"Mon, 99 Jan 2030 12:00:00 GMT"):
        time.observe(odd)
    assert time.now() is None
