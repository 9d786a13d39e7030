"""Force-release and deadlines: when a target is released before everything is removed, and who decided it.

`user_patch` writes the annotations that name the user, in a review of the webhook of Clusters; `forced` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from unwind.api import annotation_values, meta
from unwind.api.admission import annotation_patch
from unwind.api.annotation_values import OnDeadline
from unwind.api.fields import Unknown
from unwind.api.names import (
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    FORCE_RELEASE_GROUPS_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.kube.updates import not_seen, who_set

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown, TeardownSpec
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget


class LetGo(NamedTuple):
    """Why a target is released before everything is removed, and who decided it."""

    reason: str
    message: str
    by: str


class MayRelease(Protocol):
    """Decides whether the user who requests a force-release may do that."""

    async def __call__(self, teardown: Teardown, annotations: Mapping[str, str], /) -> bool:
        """`annotations`: of the target, read from the API server: the request, its user and the groups of the user."""


def user_patch(
    old: Mapping[str, str], new: Mapping[str, str], *, by: str, groups: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The JSON patch that records which user force-releases a cluster, whatever the request itself claims (pure).

    The groups are recorded because rights are often granted to them: TeardownPolicies are released only by users who
    may update them.
    """
    said = new.get(FORCE_RELEASE_ANNOTATION)
    names = (FORCE_RELEASE_BY_ANNOTATION, FORCE_RELEASE_GROUPS_ANNOTATION)
    wanted: dict[str, str | None] = dict.fromkeys(names)
    if said is not None and said != old.get(FORCE_RELEASE_ANNOTATION):
        wanted = dict(zip(names, (by, "\n".join(groups) or None), strict=True))
    elif said is not None:
        wanted = {name: old.get(name) for name in names}
    return [operation for name, value in wanted.items() for operation in annotation_patch(new, name, value)]


async def forced(
    client: Client,
    resource: Resource,
    target: ClusterTarget,
    *,
    reviewed: bool = True,
    allowed: Callable[[Mapping[str, str]], Awaitable[bool]] | None = None,
) -> LetGo | None:
    """The force-release of the target; None if no user requested it. `reviewed`: whether a webhook of Unwind reviews
    the annotation on this kind, and records the user. `allowed`: whether the release counts, by the annotations of the
    target."""
    if FORCE_RELEASE_ANNOTATION not in target.annotations:
        return None
    # A release is never decided from a cache.
    obj = await client.get(resource, target.ref.name, namespace=target.ref.namespace)
    if obj["metadata"]["uid"] != target.ref.uid:
        return None
    annotations = obj["metadata"].get("annotations") or {}
    reason = annotations.get(FORCE_RELEASE_ANNOTATION)
    if reason is None or (allowed and not await allowed(annotations)):
        return None
    # The webhook records the user when the annotation is written. If no manager ran then, the user is unknown: a field
    # manager's name is chosen by the client.
    by = annotations.get(FORCE_RELEASE_BY_ANNOTATION) if reviewed else ""
    by = by or not_seen(who_set(obj, FORCE_RELEASE_ANNOTATION))
    return LetGo(Reason.FORCED, reason or "no reason given", by)


def ends_at(teardown: Teardown, *, now: datetime) -> datetime | None:
    """When the deadline of a teardown is; None if it has none.

    The deadline starts again when a paused Cluster is unpaused. Otherwise a Cluster
    that was paused for longer than its deadline would be released before the first deletion was tried.
    """
    spec = teardown.spec
    span = annotation_values.parse_duration(spec.deadline) if spec.deadline else None
    if span is None or isinstance(span, Unknown) or spec.requested_at is None:
        return None
    pause = meta.find(teardown.status.conditions, ConditionType.PAUSED)
    if pause is None:
        return spec.requested_at + span
    unpaused = pause.last_transition_time if pause.status == "False" else now
    return max(spec.requested_at, unpaused or now) + span


def remaining_seconds(teardown: Teardown, *, now: datetime) -> float | None:
    """The seconds until the deadline; 0 if it has passed, None if there is none."""
    ends = ends_at(teardown, now=now)
    return None if ends is None else max(0.0, (ends - now).total_seconds())


def overdue(teardown: Teardown, *, now: datetime) -> bool:
    return remaining_seconds(teardown, now=now) == 0


def expired(spec: TeardownSpec) -> LetGo | None:
    """The release after the deadline; None if the target is held."""
    if OnDeadline.read(spec.on_deadline) is not OnDeadline.RELEASE:
        return None
    return LetGo(Reason.DEADLINE, f"deadline of {spec.deadline} exceeded", f"{ON_DEADLINE_ANNOTATION}: Release")
