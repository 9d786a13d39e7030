"""Which of two resourceVersions is the later one, if that can be known."""

from __future__ import annotations

import pytest

from unwind.kube.resource_versions import is_newer


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("2", "1", True),
        ("1", "2", False),
        ("10", "9", True),
        ("1", "1", False),
        ("", "", False),
        ("a", "1", False),
        ("2", "", False),
        ("9" * 10_000, "9" * 9_999, True),
        ("٣", "1", False),
        ("-5", "1", False),
    ],
)
def test_versions_are_compared_only_if_they_are_numbers(one: str, other: str, newer: bool) -> None:
    assert is_newer(one, than=other) is newer
