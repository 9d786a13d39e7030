"""The deadline of a teardown, by the policies of its cluster."""

from __future__ import annotations

from tests.unit.companions.test_policy_merge import policy
from unwind.companions import policy_deadline


def test_the_later_deadline_counts_and_no_deadline_is_the_latest() -> None:
    short, long = policy("a", deadline="30m", onDeadline="Release"), policy("b", deadline="2h", onDeadline="Release")
    found = policy_deadline.effective_deadline([short, long], {})
    assert (found.deadline, found.deadline_from) == ("2h", "TeardownPolicy b")
    assert (found.on_deadline, found.on_deadline_from) == ("Release", "TeardownPolicy a, TeardownPolicy b")
    forever = policy_deadline.effective_deadline([short, policy("c")], {})
    assert (forever.deadline, forever.deadline_from) == ("", "TeardownPolicy c")
    assert (forever.on_deadline, forever.on_deadline_from) == ("Hold", "TeardownPolicy c")


def test_annotations_can_only_make_a_deadline_stricter() -> None:
    found = [policy(deadline="2h", onDeadline="Release")]
    sooner = policy_deadline.effective_deadline(found, {"unwind.dev/deadline": "1m"})
    assert (sooner.deadline, sooner.deadline_from) == ("2h", "TeardownPolicy production")
    later = policy_deadline.effective_deadline(found, {"unwind.dev/deadline": "3h", "unwind.dev/on-deadline": "Hold"})
    assert (later.deadline, later.deadline_from) == ("3h", "annotation unwind.dev/deadline")
    assert (later.on_deadline, later.on_deadline_from) == ("Hold", "annotation unwind.dev/on-deadline")
    held = policy_deadline.effective_deadline([policy(deadline="2h")], {"unwind.dev/on-deadline": "Release"})
    assert (held.on_deadline, held.on_deadline_from) == ("Hold", "TeardownPolicy production")
