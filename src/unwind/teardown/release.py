"""A target that goes before everything is removed: because a person says so, or because its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unwind.api import durations, meta
from unwind.api.annotation_values import OnDeadline
from unwind.api.fields import Unknown
from unwind.api.names import (
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.kube.updates import not_seen, who_set

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown, TeardownSpec
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget


class LetGo(NamedTuple):
    """Why a target goes before everything is removed, and who said so."""

    reason: str
    message: str
    by: str


async def forced(client: Client, resource: Resource, target: ClusterTarget) -> LetGo | None:
    """That a person lets the target go, if one does."""
    if FORCE_RELEASE_ANNOTATION not in target.annotations:
        return None
    # A yes is never taken from a cache.
    obj = await client.get(resource, target.ref.name, namespace=target.ref.namespace)
    if obj["metadata"]["uid"] != target.ref.uid:
        return None
    annotations = obj["metadata"].get("annotations") or {}
    said = annotations.get(FORCE_RELEASE_ANNOTATION)
    if said is None:
        return None
    # Who it was is noted when it is written. Where no manager ran, it is not known: a field manager's name is chosen
    # by the client.
    by = annotations.get(FORCE_RELEASE_BY_ANNOTATION) or not_seen(who_set(obj, FORCE_RELEASE_ANNOTATION))
    return LetGo(Reason.FORCED, said or "no reason was given", by)


def ends_at(teardown: Teardown, *, now: datetime) -> datetime | None:
    """When the time of a teardown is over; None if it has all the time there is.

    The time does not run while the Cluster is paused: it starts again when the Cluster is unpaused. Otherwise a Cluster
    that was paused for longer than its deadline would be released before the first deletion was tried.
    """
    spec = teardown.spec
    span = durations.parse(spec.deadline) if spec.deadline else None
    if span is None or isinstance(span, Unknown) or spec.requested_at is None:
        return None
    pause = meta.find(teardown.status.conditions, ConditionType.PAUSED)
    if pause is None:
        return spec.requested_at + span
    unpaused = pause.last_transition_time if pause.status == "False" else now
    return max(spec.requested_at, unpaused or now) + span


def remaining(teardown: Teardown, *, now: datetime) -> float | None:
    """How many seconds are left until then; 0 if it is over."""
    ends = ends_at(teardown, now=now)
    return None if ends is None else max(0.0, (ends - now).total_seconds())


def overdue(teardown: Teardown, *, now: datetime) -> bool:
    return remaining(teardown, now=now) == 0


def expired(spec: TeardownSpec) -> LetGo | None:
    """What the deadline means for the target once it has passed."""
    if OnDeadline.read(spec.on_deadline) is not OnDeadline.RELEASE:
        return None
    return LetGo(Reason.DEADLINE, f"it took longer than {spec.deadline}", f"{ON_DEADLINE_ANNOTATION}: Release")
