"""The memo of a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.deleters.memo import LIMIT, Memo, in_annotations, nowhere
from unwind.deleters.outcomes import PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Store:
    """Counts how often a memo is saved."""

    def __init__(self) -> None:
        self.written: list[Mapping[str, str | None]] = []
        self.broken = False

    async def save(self, values: Mapping[str, str | None]) -> None:
        if self.broken:
            raise ConnectionError("nobody there")
        self.written.append(values)


async def test_what_is_put_is_written_down_before_it_is_known() -> None:
    store = Store()
    memo = Memo({}, store.save, scope="alias")
    store.broken = True
    with pytest.raises(ConnectionError):
        await memo.put("cancelled")
    assert "cancelled" not in memo
    store.broken = False
    await memo.put("cancelled")
    assert memo["cancelled"] == "true"
    assert store.written == [{"alias.cancelled": "true"}]


async def test_what_is_known_already_is_not_written_again() -> None:
    store = Store()
    memo = Memo({"alias.cancelled": "true"}, store.save, scope="alias")
    await memo.put("cancelled")
    await memo.drop("never-there")
    assert store.written == []


async def test_a_nested_memo_is_stored_inside_the_scope_and_seen_by_its_owner_only() -> None:
    store = Store()
    outer = Memo({"outer.key": "1", "outer.inner.old": "2", "other.key": "3"}, store.save, scope="outer")
    inner = outer.nested().of("inner")
    assert inner.get("old") == "2"
    await inner.put("new", "4")
    await inner.drop("old")
    assert store.written == [{"outer.inner.new": "4"}, {"outer.inner.old": None}]
    assert outer.nested().of("inner").get("new") == "4", "the outer memo has it as well"
    assert outer.scopes() == {"outer", "other"}


async def test_each_deleter_sees_its_own_only() -> None:
    memo = nowhere()
    await memo.of("one").put("step", "1")
    await memo.of("two").put("step", "2")
    assert memo.of("one").get("step") == "1"
    assert list(memo.of("two")) == ["step"]
    assert memo.of("three").get("step") is None
    assert memo.scopes() == {"one", "two"}


async def test_what_is_dropped_is_taken_out_where_it_was_written() -> None:
    store = Store()
    memo = Memo({"arm.operation": "{}"}, store.save, scope="arm")
    await memo.drop("operation")
    assert store.written == [{"arm.operation": None}]
    assert "operation" not in memo


async def test_a_memo_is_small() -> None:
    memo = nowhere().of("one")
    await memo.put("most", "x" * (LIMIT - 1))
    with pytest.raises(PermanentError, match="memo too large"):
        await memo.put("more", "xx")
    await memo.put("most", "y" * LIMIT)


@pytest.mark.parametrize("key", ["", "Cancelled", "a.b", "a/b", "x" * 25, "-a"])
async def test_a_key_that_fits_no_annotation_is_refused(key: str) -> None:
    with pytest.raises(PermanentError, match="invalid memo key"):
        await nowhere().of("one").put(key)


def test_a_memo_is_found_among_other_annotations() -> None:
    annotations = {"unwind.dev/memo.alias.cancelled": "true", "unwind.dev/delete-policy": "manage", "a": "b"}
    assert in_annotations(annotations) == {"alias.cancelled": "true"}
