"""The Ready condition of kinds that others defined."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Pace, Severity
from unwind.external.object_status import ReadyCondition, conditions_of, dropped_fields, not_ready, ready_condition_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
WAITS = ReadyCondition("Deleting", "it waits", Severity.INFO)


def test_it_is_said_since_when_and_nothing_else_is_touched() -> None:
    theirs: dict[str, Any] = {"type": "Synced", "status": "True", "anything": {"at": ["all"]}}
    first = not_ready([theirs], WAITS, generation=3, now=NOW)
    assert first == [
        theirs,
        {
            "type": "Ready",
            "status": "False",
            "severity": "Info",
            "reason": "Deleting",
            "message": "it waits",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ]
    assert not_ready(first, WAITS, generation=3, now=LATER) is first, "there is nothing to write"
    failed = not_ready(first, ReadyCondition("Failed", "it broke", Severity.ERROR), generation=3, now=LATER)
    assert failed[0] is theirs
    assert failed[1]["lastTransitionTime"] == "2026-01-01T00:00:00Z", "it has not been ready since"
    assert failed[1]["severity"] == "Error"


def test_what_somebody_else_said_of_ready_is_replaced_and_its_other_fields_stay() -> None:
    before = {"type": "Ready", "status": "True", "severity": "", "note": "theirs", "lastTransitionTime": "x"}
    [after] = not_ready([before], WAITS, generation=1, now=NOW)
    assert (after["status"], after["note"], after["lastTransitionTime"]) == ("False", "theirs", "2026-01-01T00:00:00Z")
    assert before["status"] == "True", "what was read is not changed"


def test_fields_that_a_schema_does_not_have_are_not_written_again_and_again() -> None:
    [wanted] = not_ready([], WAITS, generation=1, now=NOW)
    kept = {key: value for key, value in wanted.items() if key not in ("severity", "observedGeneration")}
    unknown = dropped_fields({"status": {"conditions": [kept]}}, wanted)
    assert unknown == {"severity", "observedGeneration"}
    before = [kept]
    assert not_ready(before, WAITS, generation=2, now=LATER, without=unknown) is before


@pytest.mark.parametrize("status", [None, {}, {"conditions": []}, {"conditions": [{"type": "Synced"}]}])
def test_a_schema_without_conditions_is_noticed(status: dict[str, Any] | None) -> None:
    [wanted] = not_ready([], WAITS, generation=1, now=NOW)
    assert dropped_fields({"status": status}, wanted) is None


@pytest.mark.parametrize("found", [{}, "text", ["text"]])
def test_what_is_no_list_of_conditions_is_left_alone(found: object) -> None:
    assert conditions_of({"status": {"conditions": found}}) is None


@pytest.mark.parametrize("reason", ["", "two words", "1st", "ends-with-dash-", "x" * 1025])
def test_a_reason_that_no_condition_takes_does_not_keep_the_message_out(reason: str) -> None:
    result = Failed("it broke", reason, Severity.WARNING, Pace.SLOW)
    assert ready_condition_of(result) == ReadyCondition("Failed", "it broke", Severity.WARNING)


def test_a_wait_is_information_and_a_failure_what_it_says() -> None:
    assert ready_condition_of(Waiting("it waits", after=1.0)) == WAITS
    assert ready_condition_of(Failed("no", "ScopeLocked", Severity.ERROR, Pace.VERY_SLOW)) == ReadyCondition(
        "ScopeLocked", "no", Severity.ERROR
    )
