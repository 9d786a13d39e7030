"""Conditions keep their transition time, and change only if there is something to write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from unwind.api.meta import Condition, find, is_true, with_condition, without_condition

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
BEFORE = with_condition((), type="Blocked", status=True, reason="Finalizer", message="one", generation=1, now=NOW)


def test_a_new_condition_begins_now_in_whole_seconds() -> None:
    [condition] = BEFORE
    assert condition.last_transition_time == NOW.replace(microsecond=0)
    assert (condition.type, condition.status, condition.reason) == ("Blocked", "True", "Finalizer")


def test_the_time_moves_only_when_the_status_does() -> None:
    said = with_condition(BEFORE, type="Blocked", status=True, reason="Other", message="two", generation=2, now=LATER)
    [condition] = said
    assert condition.last_transition_time == NOW.replace(microsecond=0)
    assert (condition.reason, condition.message, condition.observed_generation) == ("Other", "two", 2)

    [turned] = with_condition(said, type="Blocked", status=None, reason="Other", now=LATER)
    assert turned.status == "Unknown"
    assert turned.last_transition_time == LATER.replace(microsecond=0)


def test_what_changes_nothing_gives_the_very_same_conditions() -> None:
    again = with_condition(
        BEFORE, type="Blocked", status=True, reason="Finalizer", message="one", generation=1, now=LATER
    )
    assert again is BEFORE
    assert without_condition(BEFORE, "Ready") is BEFORE


def test_other_conditions_stay_where_they_are() -> None:
    both = with_condition(BEFORE, type="Ready", status=False, reason="Blocked", now=NOW)
    changed = with_condition(both, type="Blocked", status=False, reason="Gone", now=LATER)
    assert [condition.type for condition in changed] == ["Blocked", "Ready"]
    assert changed[1] is both[1]
    assert not is_true(changed, "Blocked")
    assert without_condition(changed, "Blocked") == (both[1],)
    assert find(changed, "Planned") is None


def test_a_condition_is_written_with_everything_that_others_require_and_read_back_equal() -> None:
    [condition] = with_condition((), type="Ready", status=True, reason="AllGood", now=NOW)
    assert msgspec.to_builtins(condition) == {
        "type": "Ready",
        "status": "True",
        "reason": "AllGood",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    assert msgspec.json.decode(msgspec.json.encode(condition), type=Condition) == condition
