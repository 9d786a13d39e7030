"""Whose credentials are let go after a teardown."""

from __future__ import annotations

import datetime as dt

from unwind.api.capi import Cluster
from unwind.api.meta import ObjectMeta
from unwind.capi.cluster_cleanup import is_successors

BORN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SUCCESSOR = Cluster(metadata=ObjectMeta(name="prod", uid="new", creation_timestamp=BORN))


def secret(created: str, *owners: str, **more: str) -> dict[str, object]:
    references = [{"uid": uid} for uid in owners]
    return {"metadata": {"creationTimestamp": created, "ownerReferences": references, **more}}


def test_a_secret_from_before_the_successor_is_not_its_own() -> None:
    assert not is_successors(secret("2026-01-01T11:59:59Z", "old"), SUCCESSOR)


def test_a_secret_from_the_successors_days_is_its_own() -> None:
    assert is_successors(secret("2026-01-01T12:00:00Z", "somebody"), SUCCESSOR)


def test_a_secret_that_was_taken_over_is_the_successors() -> None:
    assert is_successors(secret("2026-01-01T11:00:00Z", "new"), SUCCESSOR)


def test_a_secret_that_is_being_deleted_stands_in_the_way_of_the_successors() -> None:
    assert not is_successors(secret("2026-01-01T12:30:00Z", "new", deletionTimestamp="2026-01-01T13:00:00Z"), SUCCESSOR)


def test_a_secret_without_an_owner_is_the_successors_however_old_it_is() -> None:
    assert is_successors(secret("2026-01-01T11:00:00Z"), SUCCESSOR)
