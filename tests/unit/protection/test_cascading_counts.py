"""What a field of an object says about how much depends on it."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.protection.cascading_counts import Count, Form


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        (Form.NUMBER, 3, 3),
        (Form.NUMBER, -1, -1),
        (Form.ITEMS, [1, 2], 2),
        (Form.BOUND, "Bound", 1),
        (Form.BOUND, "Released", 0),
        (Form.NUMBER, None, 7),
    ],
)
def test_a_count_is_what_the_field_says_or_what_the_api_would_put_there(form: Form, value: Any, expected: int) -> None:
    count = Count(path=("status", "it"), form=form, what="things", default=7)
    assert count.of({"status": {"it": value}}) == expected
    assert count.of({"status": {}}) == count.of({}) == 7


@pytest.mark.parametrize(("form", "value"), [(Form.NUMBER, "3"), (Form.NUMBER, True), (Form.ITEMS, 3), (Form.BOUND, 1)])
def test_a_field_that_says_something_else_is_no_count(form: Form, value: Any) -> None:
    with pytest.raises(ValueError, match=r"status\.it is"):
        Count(path=("status", "it"), form=form, what="things").of({"status": {"it": value}})
