"""Conditions in the status of kinds that others defined: one is set, all else stays as it was read (pure)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import ConditionType, Reason
from unwind.deleting.entering import Failed, Waiting
from unwind.deleting.outcomes import Severity

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from unwind.kube.client import Object

# The bounds of metav1.Condition.
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LONGEST_WORD = 1024
_LONGEST_MESSAGE = 32768


class Said(msgspec.Struct, frozen=True):
    """What is said of an object that is not gone yet."""

    reason: str
    message: str
    severity: Severity


def said(result: Waiting | Failed) -> Said:
    """What is said of an entry into the chain that did not come to the end."""
    if isinstance(result, Waiting):
        return Said(Reason.DELETING, result.reason, Severity.INFO)
    # The word comes from whoever wrote the deleter; one that no condition takes must not keep the message out.
    fits = _WORD.fullmatch(result.reason) and len(result.reason) <= _LONGEST_WORD
    return Said(result.reason if fits else Reason.FAILED, result.message, result.severity)


def not_ready(
    conditions: list[Object], said: Said, *, generation: int, now: datetime, without: Collection[str] = ()
) -> list[Object]:
    """The conditions with Ready set to False; the very same list where that changes nothing.

    `without`: the fields that the kind's schema does not have.
    """
    before = next((one for one in conditions if one.get("type") == ConditionType.READY), None)
    ours: Object = {
        "type": ConditionType.READY.value,
        "status": "False",
        "severity": said.severity.value,
        "reason": str(said.reason),
        "message": said.message[:_LONGEST_MESSAGE],
        "observedGeneration": generation,
    }
    after = (before or {}) | {key: value for key, value in ours.items() if key not in without}
    # It answers "since when", and a message in other words does not begin anything.
    if before is None or before.get("status") != "False":
        after["lastTransitionTime"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    if after == before:
        return conditions
    if before is None:
        return [*conditions, after]
    return [after if one is before else one for one in conditions]


def listed(obj: Object) -> list[Object] | None:
    """An object's conditions; None if what stands there is something else."""
    status = obj.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    if found is None:
        return []
    fits = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    return found if fits else None


def dropped(obj: Object, wanted: Object) -> set[str] | None:
    """The fields of a condition that the server did not keep; None if it kept nothing of it."""
    kept = next((one for one in listed(obj) or () if one.get("type") == wanted["type"]), None)
    if kept is None or kept.get("message") != wanted["message"]:
        return None
    return {key for key in wanted if key not in kept}
