"""What is said on a Work: whether it is on its member, what is waited for, how its objects are there (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.addons.reports import first
from unwind.api.conditions import find, with_condition, without_condition
from unwind.api.karmada import WORKS, Identifier, ManifestStatus
from unwind.api.names import ConditionType, Reason
from unwind.controllers.members.works_health import health_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.addons.placing import Placed
    from unwind.api.karmada import Work, WorkStatus
    from unwind.kube.client import Object

# A status is no log: what is longer is cut where people stop reading.
_LONGEST = 4096
# A Work holds the statuses of all its objects, and has to fit into the API server's store itself.
_LARGEST = 16 * 1024
_SHOWN = 5
_OURS = (ConditionType.APPLIED, ConditionType.DISPATCHING, ConditionType.BLOCKED, ConditionType.UNREACHABLE)


def applied(
    status: WorkStatus, trouble: str, statuses: Iterable[ManifestStatus], *, generation: int, now: datetime
) -> WorkStatus:
    """The status of a Work that was put on its member; `trouble`: what of it was not, by name, empty for nothing."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.APPLIED,
        status=not trouble,
        reason=Reason.APPLIED_FAILED if trouble else Reason.APPLIED_SUCCESSFUL,
        message=trouble[:_LONGEST] or "all of it is on the member",
        generation=generation,
        now=now,
    )
    for answered in (ConditionType.DISPATCHING, ConditionType.UNREACHABLE):
        conditions = without_condition(conditions, answered)
    ordered = sorted(statuses, key=lambda one: (one.identifier.ordinal, one.identifier.kind, one.identifier.name))
    return msgspec.structs.replace(status, conditions=conditions, manifest_statuses=tuple(ordered))


def failed(status: WorkStatus, error: str, *, reached: bool, generation: int, now: datetime) -> WorkStatus:
    """The status of a Work that was not put on its member. `reached`: whether that answers."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.APPLIED,
        status=False,
        reason=Reason.APPLIED_FAILED,
        message=error[:_LONGEST],
        generation=generation,
        now=now,
    )
    return _reached(msgspec.structs.replace(status, conditions=conditions), error, reached=reached, now=now)


def suspended(status: WorkStatus, *, now: datetime) -> WorkStatus:
    """The status of a Work that is not to be put on its member for now."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.DISPATCHING,
        status=False,
        reason=Reason.SUSPENDED_DISPATCHING,
        message="spec.suspendDispatching: nothing is put on the member or changed there",
        now=now,
    )
    return msgspec.structs.replace(status, conditions=conditions)


def waits(
    status: WorkStatus, reason: Reason | None, message: str = "", *, reached: bool = True, now: datetime
) -> WorkStatus:
    """The status with what is waited for until something is gone; None for nothing. `reached`: whether the member
    answers."""
    if reason is None:
        conditions = without_condition(status.conditions, ConditionType.BLOCKED)
    else:
        conditions = with_condition(
            status.conditions,
            type=ConditionType.BLOCKED,
            status=True,
            reason=reason,
            message=message[:_LONGEST],
            now=now,
        )
    return _reached(msgspec.structs.replace(status, conditions=conditions), message, reached=reached, now=now)


def _reached(status: WorkStatus, message: str, *, reached: bool, now: datetime) -> WorkStatus:
    """Since when a member does not answer is said by a condition of its own: other waits begin at other times."""
    conditions = status.conditions
    if reached:
        conditions = without_condition(conditions, ConditionType.UNREACHABLE)
    else:
        before = find(conditions, ConditionType.UNREACHABLE)
        since = (before and before.last_transition_time) or now
        conditions = with_condition(
            conditions,
            type=ConditionType.UNREACHABLE,
            status=True,
            reason=Reason.UNREACHABLE,
            message=f"since {since:%Y-%m-%dT%H:%M:%SZ}: {message}"[:_LONGEST],
            now=now,
        )
    return msgspec.structs.replace(status, conditions=conditions)


def manifest_status(placed: Placed, ordinal: int, obj: Object) -> ManifestStatus:
    """What is said of one object as it is on the member."""
    said: dict[str, Any] = obj.get("status") or {}
    if len(msgspec.json.encode(said)) > _LARGEST:
        said = {}
    ref = placed.ref
    return ManifestStatus(
        identifier=Identifier(
            ordinal=ordinal,
            group=ref.group,
            version=ref.version,
            kind=ref.kind,
            resource=placed.resource.plural,
            namespace=ref.namespace,
            name=ref.name,
        ),
        status=said,
        health=health_of(obj).value,
    )


def written(work: Work, status: WorkStatus) -> Object:
    """What is applied to say so: our conditions, and no one else's."""
    meta = work.metadata
    ours = [one for one in status.conditions if one.type in _OURS]
    return {
        "apiVersion": WORKS.api_version,
        "kind": WORKS.kind,
        # With the uid: one that is gone, or whose name is another's, is not told anything.
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": msgspec.to_builtins(msgspec.structs.replace(status, conditions=tuple(ours))),
    }


def told(waits: Iterable[str]) -> str:
    """What is waited for, the first of it; the same words as long as it is the same."""
    return first(waits, shown=_SHOWN)
