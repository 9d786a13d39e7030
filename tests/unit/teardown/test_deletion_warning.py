"""The warning for a user who deletes a cluster."""

from __future__ import annotations

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import Effort
from unwind.planning.waves import Draft
from unwind.teardown.deletion_warning import deletion_warning_text
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.step_sources import SourceStep

FOLLOW = "; follow with: unwind status prod"
UNKNOWN = TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, "clusterDeletionBehavior of a: unknown")
SERVED = TeardownNotice(ConditionType.FIELD_NOT_SERVED, Reason.FIELD_NOT_SERVED, "the field is not served")


def steps(*efforts: Effort, said: tuple[TeardownNotice, ...] = ()) -> list[SourceStep]:
    return [
        SourceStep(
            draft=Draft(name=str(number), object=ObjectRef(), kind="Profile", declared=str(number), effort=effort),
            said=said,
        )
        for number, effort in enumerate(efforts)
    ]


E, T, L = Effort.ENFORCE, Effort.TRY, Effort.LEAVE


@pytest.mark.parametrize(
    ("efforts", "expected"),
    [
        ((E,), "1 add-on will be removed first"),
        ((E, E, E), "3 add-ons will be removed first"),
        ((T,), "1 add-on will be removed if possible, without blocking the deletion"),
        ((L, L), "2 add-ons will be left in place"),
        ((L, E, E), "2 add-ons will be removed first, 1 add-on will be left in place"),
    ],
)
def test_it_counts_the_steps_by_what_happens_to_them(efforts: tuple[Effort, ...], expected: str) -> None:
    assert deletion_warning_text(steps(*efforts), subject="{}", noun="add-on", status="prod") == expected + FOLLOW


def test_there_is_none_without_steps() -> None:
    assert deletion_warning_text([], subject="{}", noun="add-on", status="prod", paused=True) == ""


def test_it_says_if_the_deletion_does_not_wait() -> None:
    told = deletion_warning_text(
        steps(E, T, L), subject="{}", noun="add-on", status="prod", not_awaited="no hook is called"
    )
    assert told == f"2 add-ons will be removed, but no hook is called, 1 add-on will be left in place{FOLLOW}"


def test_it_says_if_the_cluster_is_paused() -> None:
    told = deletion_warning_text(steps(E), subject="{}", noun="add-on", status="prod", paused=True)
    until = "paused, so nothing is removed until it is unpaused; then"
    assert told == f"{until} 1 add-on will be removed first{FOLLOW}"


def test_an_unknown_value_blocks_everything() -> None:
    found = steps(E, said=(SERVED, UNKNOWN))
    expected = f"blocked, and nothing is removed: {UNKNOWN.message}{FOLLOW}"
    assert deletion_warning_text(found, subject="{}", noun="add-on", status="prod") == expected
    assert deletion_warning_text(steps(E), subject="{}", noun="Work", status="prod", said=(UNKNOWN,)) == expected
