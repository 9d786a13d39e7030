"""The fields of our own objects: who the API server believes to have set them (pure)."""

from __future__ import annotations

from typing import Any

from unwind.api.names import FIELD_MANAGER

Fields = list[dict[str, Any]]


def applied(managed: Fields) -> Fields | None:
    """managedFields in which all that we set counts as applied; None if it does already.

    What a create sets belongs to its manager by *Update*, and an apply by the same manager takes away only what an
    apply has set. So a key that is dropped from a ConfigMap's manifest would stay in the ConfigMap for ever.
    """
    set_by_create = [one for one in managed if _ours(one, "Update")]
    if not set_by_create:
        return None
    merged = next((one for one in managed if _ours(one, "Apply")), None)
    for one in set_by_create:
        if merged is None:
            merged = one | {"operation": "Apply"}
        else:
            merged = merged | {"fieldsV1": _union(merged.get("fieldsV1") or {}, one.get("fieldsV1") or {})}
    others = [one for one in managed if not _ours(one, "Update") and not _ours(one, "Apply")]
    return [*others, merged] if merged else others


def _ours(entry: dict[str, Any], operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == (FIELD_MANAGER, operation, None)


def _union(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return one | {key: _union(one.get(key) or {}, value) for key, value in other.items()}
