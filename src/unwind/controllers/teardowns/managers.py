"""Who set a field: what the API server keeps of every field's writer (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unwind.kube.client import Object


def who_set(obj: Object, annotation: str) -> str:
    """The field manager that set an annotation last: a program, where the user was not seen."""
    writers = [
        (one.get("time", ""), one.get("manager", ""))
        for one in obj["metadata"].get("managedFields") or ()
        if f"f:{annotation}" in one.get("fieldsV1", {}).get("f:metadata", {}).get("f:annotations", {})
    ]
    return max(writers)[1] if writers else "unknown"
