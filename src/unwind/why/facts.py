"""Observed facts about objects that block a removal (values only)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import Condition, ObjectRef, OwnerReference
from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import Teardown
from unwind.why.answers import Thing
from unwind.why.deployer_states import deployer_states

if TYPE_CHECKING:
    from collections.abc import Mapping


class StepWait(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a step waits for, as the removal reports it."""

    object: ObjectRef
    message: str
    step: str = ""
    failed: bool = False
    """The deletion failed and will be retried; otherwise it is only incomplete."""
    reason: str = Reason.DELETING
    """Why, as a CamelCase word."""


class ObjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of an object that a step waits for."""

    deleted_at: datetime | None = None
    """None if its deletion was not requested yet."""
    finalizers: tuple[str, ...] = ()
    """Including those in the spec of a Namespace."""
    conditions: tuple[Condition, ...] = ()
    """For a Namespace or CRD, where the API server reports what it waits for."""


class ControllerWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that may be the controller of finalizers."""

    object: ObjectRef
    running: bool
    """Whether one of its Pods is ready."""
    domains: tuple[str, ...] = ()
    """The API groups of its custom resources, if known."""
    wanted: int | None = None
    """Desired number of Pods; None for a DaemonSet."""


class _Metadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()


def object_facts(obj: Mapping[str, Any]) -> ObjectFacts:
    """The relevant fields of an object of any kind."""
    metadata = msgspec.convert(obj.get("metadata") or {}, _Metadata)
    spec, status = obj.get("spec"), obj.get("status")
    inner = spec.get("finalizers") if isinstance(spec, dict) and obj.get("kind") == "Namespace" else None
    conditions = status.get("conditions") if isinstance(status, dict) else None
    try:
        read = msgspec.convert(conditions or (), tuple[Condition, ...])
    except msgspec.ValidationError:
        read = ()  # conditions that do not follow the Kubernetes convention
    return ObjectFacts(
        deleted_at=metadata.deletion_timestamp,
        finalizers=(*metadata.finalizers, *(item for item in inner or () if isinstance(item, str))),
        conditions=read,
    )


def workload(ref: ObjectRef, obj: Mapping[str, Any] | None, *, domains: tuple[str, ...] = ()) -> ControllerWorkload:
    """The relevant fields of a workload; None for one that does not exist."""
    status = (obj or {}).get("status") or {}
    # Deployments and StatefulSets have readyReplicas, DaemonSets numberReady.
    running = bool(obj) and (status.get("readyReplicas") or status.get("numberReady") or 0) > 0
    wanted = ((obj or {}).get("spec") or {}).get("replicas")
    return ControllerWorkload(object=ref, running=running, domains=domains, wanted=wanted)


# An object and its surroundings, as read for one diagnosis (values only).

_TOLD = 600
NOT_ALLOWED = "you are not allowed to list them"
GET_THE_RIGHT = "ask an administrator for the right, or use another user"


class ObjectReport(msgspec.Struct, frozen=True, kw_only=True):
    """A complaint about an object, from an Event or from a condition that is false."""

    by: str
    message: str
    at: datetime | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The node of a Pod."""

    name: str
    there: bool
    ready: bool = False
    since: datetime | None = None
    """When its readiness last changed."""


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """An APIService whose server does not answer."""

    service: Thing
    """The APIService."""
    behind: str = ""
    """Its Service, as namespace/name."""
    workload: ControllerWorkload | None = None
    """The workload behind the Service, if known."""
    message: str = ""
    since: datetime | None = None


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that could not be listed."""

    definition: Thing | None
    """Its CRD, if it has one."""
    kind: str
    error: str
    converts: str = ""
    """Its conversion webhook, if it has one: Service namespace/name, or a URL."""
    workload: ControllerWorkload | None = None
    """The workload behind the Service, if known."""


class ObjectSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An object as the API server returns it, and the objects that matter for its deletion."""

    thing: Thing
    seen: ObjectFacts
    grace: int = 0
    """The grace period in seconds."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owners: tuple[OwnerReference, ...] = ()
    writers: dict[str, tuple[str, ...]] = {}
    """The field managers that set each finalizer."""

    workloads: tuple[ControllerWorkload, ...] = ()
    words: tuple[ObjectReport, ...] = ()
    """The latest complaints of its controllers."""
    dependents: tuple[Thing, ...] = ()
    """Dependents that must be deleted before it."""
    contents: tuple[Thing, ...] = ()
    """Its contents: objects of a Namespace, resources of a CRD. Likely blockers come first."""
    silent: tuple[Silent, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()
    users: tuple[Thing, ...] = ()
    """The Pods that use a claim; the claim that is bound to a volume."""
    node: Node | None = None
    """The node of a Pod, if one is assigned."""
    controller: Thing | None = None
    """The outermost controller that would recreate a Pod."""
    teardowns: tuple[Teardown, ...] = ()
    """Teardowns that are about it."""
    placed: tuple[ObjectRef, ...] = ()
    """Objects of a ClusterSummary or Work on a member that are not verified absent."""
    placed_on: ObjectRef | None = None
    """The object that represents the member."""
    manager_runs: bool | None = None
    """Whether Unwind's manager is running; None if that was not checked."""
    states: tuple[str, ...] = ()
    """What its fields say about how a known deployer or operator treats its deletion."""

    @property
    def deleted_at(self) -> datetime | None:
        """When deletion was requested. The deletionTimestamp of a Pod is the end of its grace period."""
        ends = self.seen.deleted_at
        return ends - timedelta(seconds=self.grace) if ends else None


class _ObjectMetadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] = ()


def facts_of(thing: Thing, obj: Mapping[str, Any]) -> ObjectSnapshot:
    """The facts that an object of any kind carries itself."""
    metadata = msgspec.convert(obj.get("metadata") or {}, _ObjectMetadata)
    seen = object_facts(obj)
    return ObjectSnapshot(
        thing=msgspec.structs.replace(thing, uid=metadata.uid, name=metadata.name, namespace=metadata.namespace),
        seen=seen,
        grace=metadata.deletion_grace_period_seconds or 0,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        owners=metadata.owner_references,
        writers={finalizer: writers(obj, finalizer) for finalizer in seen.finalizers},
        words=tuple(_complaints(seen.conditions)),
        states=deployer_states(thing.resource.group, obj),
    )


def writers(obj: Mapping[str, Any], finalizer: str) -> tuple[str, ...]:
    """The field managers that set a finalizer, from managedFields."""
    found = []
    for field in (obj.get("metadata") or {}).get("managedFields") or ():
        held = ((field.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers") or {}
        if f'v:"{finalizer}"' in held:
            found.append(str(field.get("manager", "")))
    return tuple(dict.fromkeys(found))


def cut(text: str, longest: int = _TOLD) -> str:
    """Text from another system, on one line and shortened."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def _complaints(conditions: tuple[Condition, ...]) -> list[ObjectReport]:
    """Conditions in which controllers report a problem. Those of a Namespace or CRD are read elsewhere; there, True
    means a problem."""
    return [
        ObjectReport(
            by=f"condition {condition.type}", message=cut(condition.message), at=condition.last_transition_time
        )
        for condition in conditions
        if condition.message
        and (
            (condition.type in ("Ready", "Synced", "Available", "Healthy") and condition.status == "False")
            or (condition.type == ConditionType.BLOCKED and condition.status == "True")
        )
    ]
