"""Who set a field, as the API server keeps account of it."""

from __future__ import annotations

from typing import Any

from unwind.kube.updates import who_set, who_wrote


def written(manager: str, at: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"manager": manager, "time": at, "fieldsV1": fields}


OBJECT = {
    "metadata": {
        "managedFields": [
            written("kubectl", "2026-01-01T00:00:01Z", {"f:spec": {"f:removeStrategy": {}}}),
            written("jane", "2026-01-01T00:00:02Z", {"f:spec": {"f:removeStrategy": {}}}),
            written("joe", "2026-01-01T00:00:03Z", {"f:metadata": {"f:annotations": {".": {}, "f:a/b": {}}}}),
        ]
    }
}


def test_the_last_writer_of_a_field_is_named() -> None:
    assert who_wrote(OBJECT, "spec", "removeStrategy") == "jane"
    assert who_set(OBJECT, "a/b") == "joe"


def test_nobody_is_named_where_nobody_is_known() -> None:
    assert who_wrote(OBJECT, "spec", "other") == "unknown"
    assert who_set({"metadata": {}}, "a/b") == "unknown"
