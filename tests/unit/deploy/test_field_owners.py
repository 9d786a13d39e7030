"""Who the API server believes to have set a field."""

from __future__ import annotations

from typing import Any

from unwind.deploy.owner_marks import applied_fields


def entry(manager: str, operation: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": fields, **more}


def test_what_a_create_has_set_counts_as_applied() -> None:
    theirs = entry("kubectl", "Update", {"f:spec": {}})
    status = entry("unwind", "Update", {"f:status": {}}, subresource="status")
    found = applied_fields([entry("unwind", "Update", {"f:data": {"f:a": {}}}), theirs, status])
    assert found == [theirs, status, entry("unwind", "Apply", {"f:data": {"f:a": {}}})]


def test_what_was_applied_already_is_joined_with_it() -> None:
    created = entry("unwind", "Update", {"f:data": {".": {}, "f:a": {}}, "f:x": {}})
    found = applied_fields([created, entry("unwind", "Apply", {"f:data": {"f:b": {}}}, time="t")])
    assert found == [entry("unwind", "Apply", {"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:x": {}}, time="t")]


def test_where_nothing_was_created_by_us_nothing_changes() -> None:
    assert applied_fields([]) is None
    assert applied_fields([entry("unwind", "Apply", {}), entry("kubectl", "Update", {})]) is None
