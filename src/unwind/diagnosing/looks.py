"""One object and what has to do with it, at the moment somebody asks why (values only)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import Condition, ObjectRef, OwnerReference
from unwind.api.names import ConditionType
from unwind.api.unwind import Teardown
from unwind.diagnosing import facts
from unwind.diagnosing.answers import Thing
from unwind.diagnosing.facts import Seen, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOLD = 600


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody told of an object: in an Event, or in a condition that is false."""

    by: str
    message: str
    at: datetime | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The node of a Pod."""

    name: str
    there: bool
    ready: bool = False
    since: datetime | None = None
    """Since when it is, or is not."""


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the API whose server does not answer."""

    service: Thing
    """The APIService."""
    behind: str = ""
    """The Service that it stands for, as namespace/name."""
    workload: Workload | None = None
    """What runs behind that Service, if that is known."""
    message: str = ""
    since: datetime | None = None


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that could not be listed."""

    definition: Thing | None
    """Its CRD, if it has one."""
    kind: str
    error: str
    converts: str = ""
    """Where its objects are converted between versions, if by a webhook: Service namespace/name, or a URL."""
    workload: Workload | None = None
    """What runs behind that Service, if that is known."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """An object as the API server shows it, and what is around it as far as that has to do with its end."""

    thing: Thing
    seen: Seen
    grace: int = 0
    """How many seconds it was given to come to an end."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owners: tuple[OwnerReference, ...] = ()
    writers: dict[str, tuple[str, ...]] = {}
    """Who put each finalizer there: field managers, which are programs."""

    workloads: tuple[Workload, ...] = ()
    words: tuple[Said, ...] = ()
    """The last that its controllers told of it; only what went wrong."""
    dependents: tuple[Thing, ...] = ()
    """What it owns, and has to be gone before it."""
    contents: tuple[Thing, ...] = ()
    """What is in it: a namespace's objects, a CRD's resources. Those that are likely in the way come first."""
    silent: tuple[Silent, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()
    users: tuple[Thing, ...] = ()
    """The Pods that use a claim; the claim that has a volume."""
    node: Node | None = None
    """Of a Pod that was given to one."""
    controller: Thing | None = None
    """Of a Pod that somebody would make again: the outermost of its controllers."""
    teardowns: tuple[Teardown, ...] = ()
    """Unwind's records that are about it."""
    placed: tuple[ObjectRef, ...] = ()
    """What it put on a member and was not seen to be absent there: of a ClusterSummary, of a Work."""
    placed_on: ObjectRef | None = None
    """What stands for that member."""
    manager_runs: bool | None = None
    """Whether Unwind's manager does; None if it was not looked for."""

    @property
    def deleted_at(self) -> datetime | None:
        """When its deletion was asked for. A Pod's timestamp is the moment when its time is over."""
        ends = self.seen.deleted_at
        return ends - timedelta(seconds=self.grace) if ends else None


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] = ()


def look(thing: Thing, obj: Mapping[str, Any]) -> Look:
    """What the object itself says, of whatever kind."""
    metadata = msgspec.convert(obj.get("metadata") or {}, _Metadata)
    seen = facts.seen(obj)
    return Look(
        thing=msgspec.structs.replace(thing, uid=metadata.uid, name=metadata.name, namespace=metadata.namespace),
        seen=seen,
        grace=metadata.deletion_grace_period_seconds or 0,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        owners=metadata.owner_references,
        writers={one: writers(obj, one) for one in seen.finalizers},
        words=tuple(_complaints(seen.conditions)),
    )


def writers(obj: Mapping[str, Any], finalizer: str) -> tuple[str, ...]:
    """Who put a finalizer on an object: what the API server keeps of every field's writer."""
    found = []
    for one in (obj.get("metadata") or {}).get("managedFields") or ():
        held = ((one.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers") or {}
        if f'v:"{finalizer}"' in held:
            found.append(str(one.get("manager", "")))
    return tuple(dict.fromkeys(found))


def cut(text: str, longest: int = _TOLD) -> str:
    """A text of somebody else's, on one line and of a bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def _complaints(conditions: tuple[Condition, ...]) -> list[Said]:
    """The conditions by which controllers say that something is not as it should be. The API server's own of a
    Namespace or a CRD are read elsewhere, and are true where there is trouble."""
    return [
        Said(by=f"its condition {one.type}", message=cut(one.message), at=one.last_transition_time)
        for one in conditions
        if one.message
        and (
            (one.type in ("Ready", "Synced", "Available", "Healthy") and one.status == "False")
            or (one.type == ConditionType.BLOCKED and one.status == "True")
        )
    ]
