"""What is to be done about an object, and what of it matters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from unwind.api.meta import ObjectMeta
from unwind.api.names import DELETE_POLICY_ANNOTATION, MEMO_ANNOTATION, Finalizer
from unwind.external.tracked_objects import Act, act, claimed, release_patch, relevant_fields

OURS = Finalizer.EXTERNAL.value
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("finalizers", "going", "expected"),
    [
        ((), False, Act.CLAIM),
        (("example.dev/theirs",), False, Act.CLAIM),
        ((OURS,), False, Act.NOTHING),
        ((OURS, "example.dev/theirs"), True, Act.DELETE),
        (("example.dev/theirs",), True, Act.NOTHING),
    ],
)
def test_what_is_done_follows_from_our_finalizer_and_whether_the_object_goes(
    finalizers: tuple[str, ...], going: bool, expected: Act
) -> None:
    assert act(ObjectMeta(finalizers=finalizers, deletion_timestamp=NOW if going else None)) is expected


@pytest.mark.parametrize(
    ("finalizers", "going", "expected"),
    [
        (("example.dev/operator",), True, Act.DELETE),
        (("example.dev/other",), True, Act.NOTHING),
        ((), True, Act.NOTHING),
        (("example.dev/operator",), False, Act.CLAIM),
    ],
)
def test_an_object_that_was_terminating_before_is_deleted_if_the_finalizer_of_its_operator_keeps_it(
    finalizers: tuple[str, ...], going: bool, expected: Act
) -> None:
    metadata = ObjectMeta(finalizers=finalizers, deletion_timestamp=NOW if going else None)
    assert act(metadata, ("example.dev/operator",)) is expected


def test_finalizers_of_the_operator_are_removed_only_if_they_are_named() -> None:
    obj = {"metadata": {"name": "a", "finalizers": ["x", OURS, "operator"]}}
    assert release_patch(obj, ("operator",)) == {"metadata": {"finalizers": ["x"]}}
    assert release_patch(obj) == {"metadata": {"finalizers": ["x", "operator"]}}
    assert release_patch({"metadata": {"name": "a", "finalizers": ["x"]}}, ("operator",)) is None


def test_finalizers_of_others_stay_when_ours_comes_and_goes() -> None:
    obj = {"metadata": {"name": "a", "finalizers": ["x", "y"]}}
    assert claimed(obj) == {"metadata": {"finalizers": ["x", "y", OURS]}}
    obj["metadata"]["finalizers"] = ["x", OURS, "y"]
    assert claimed(obj) is None
    assert release_patch(obj) == {"metadata": {"finalizers": ["x", "y"]}}
    assert release_patch({"metadata": {"name": "a"}}) is None


def test_no_finalizer_is_put_on_what_is_going() -> None:
    assert claimed({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}) is None


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"annotations": {f"{MEMO_ANNOTATION}empty.emptied": "true"}}, False),
        ({"resource_version": "2"}, False),
        ({"annotations": {DELETE_POLICY_ANNOTATION: "manage"}}, True),
        ({"labels": {"a": "b"}}, True),
        ({"generation": 2}, True),
        ({"deletion_timestamp": NOW}, True),
        ({"finalizers": (OURS,)}, True),
        ({"uid": "another"}, True),
    ],
)
def test_what_unwind_writes_while_it_deletes_does_not_matter_and_all_else_does(
    change: dict[str, Any], counts: bool
) -> None:
    before = ObjectMeta(name="a", uid="u", resource_version="1", generation=1)
    assert (relevant_fields(msgspec.structs.replace(before, **change)) != relevant_fields(before)) is counts
