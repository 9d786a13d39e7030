"""Merge patches: what changes, and what an object is afterwards."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unwind.kube.updates import difference, merged

_LEAVES = st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2)
_OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from("abc"), _LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), _LEAVES | inner, max_size=3),
    max_leaves=8,
)


@given(_OBJECTS, _OBJECTS)
def test_the_difference_makes_one_object_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merged(before, difference(before, after)) == after


@given(_OBJECTS)
def test_objects_that_are_equal_do_not_differ(it: dict[str, Any]) -> None:
    assert difference(it, it) == {}


def test_only_the_fields_that_change_are_sent() -> None:
    before = {"object": {"kind": "ConfigMap", "name": "web"}, "state": "Intended", "memo": {"a": "1"}}
    after = {"object": {"kind": "ConfigMap", "name": "web", "uid": "u"}, "state": "Confirmed"}
    assert difference(before, after) == {"object": {"uid": "u"}, "state": "Confirmed", "memo": None}
