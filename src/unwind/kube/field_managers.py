"""Which field manager wrote a field, by the managedFields of an object (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import UNKNOWN_USER

if TYPE_CHECKING:
    from unwind.kube.client import Object

UNKNOWN = "unknown"


def who_set(obj: Object, annotation: str) -> str:
    """The field manager that set an annotation last: a program, not a user."""
    return who_wrote(obj, "metadata", "annotations", annotation)


def not_seen(field_manager: str) -> str:
    """The text for an unknown user, with the field manager as a hint."""
    return f"{UNKNOWN_USER} (field manager {field_manager})"


def who_wrote(obj: Object, *path: str) -> str:
    """The field manager that wrote a field last; UNKNOWN if the API server does not track it: it does not for an
    object that was created without any field."""
    writers = [
        (field.get("time", ""), field.get("manager", ""))
        for field in obj["metadata"].get("managedFields") or ()
        if _has(field.get("fieldsV1", {}), path)
    ]
    return max(writers)[1] if writers else UNKNOWN


def _has(fields: Object, path: tuple[str, ...]) -> bool:
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True
