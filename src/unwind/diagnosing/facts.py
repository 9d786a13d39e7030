"""What is known when something does not go away (values only)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import Condition, ObjectRef
from unwind.api.names import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a step waits for, in the words of who removes it."""

    object: ObjectRef
    message: str
    step: str = ""
    failed: bool = False
    """It did not work, and is tried again; if not, it is merely not finished."""
    reason: str = Reason.DELETING
    """Why, as one word."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is waited for, as the API server shows it."""

    deleted_at: datetime | None = None
    """None if nobody has asked for its deletion yet."""
    finalizers: tuple[str, ...] = ()
    """Those of a Namespace's spec, too."""
    conditions: tuple[Condition, ...] = ()
    """Of a Namespace or a CRD: there the API server says itself what it waits for."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that may serve finalizers."""

    object: ObjectRef
    running: bool
    """Whether one of its Pods is ready."""
    domains: tuple[str, ...] = ()
    """What it looks after, if that is known: the groups of its custom resources."""
    wanted: int | None = None
    """How many Pods it is to have; None where the number of nodes decides that."""


class _Metadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()


def seen(obj: Mapping[str, Any]) -> Seen:
    """What matters of an object as the API server shows it, of whatever kind."""
    metadata = msgspec.convert(obj.get("metadata") or {}, _Metadata)
    spec, status = obj.get("spec"), obj.get("status")
    inner = spec.get("finalizers") if isinstance(spec, dict) and obj.get("kind") == "Namespace" else None
    conditions = status.get("conditions") if isinstance(status, dict) else None
    try:
        read = msgspec.convert(conditions or (), tuple[Condition, ...])
    except msgspec.ValidationError:
        read = ()  # somebody's own idea of conditions
    return Seen(
        deleted_at=metadata.deletion_timestamp,
        finalizers=(*metadata.finalizers, *(one for one in inner or () if isinstance(one, str))),
        conditions=read,
    )


def workload(ref: ObjectRef, obj: Mapping[str, Any] | None, *, domains: tuple[str, ...] = ()) -> Workload:
    """What matters of a workload as the API server shows it; None if it is not there."""
    status = (obj or {}).get("status") or {}
    # In the words of Deployments and StatefulSets; of DaemonSets.
    running = bool(obj) and (status.get("readyReplicas") or status.get("numberReady") or 0) > 0
    wanted = ((obj or {}).get("spec") or {}).get("replicas")
    return Workload(object=ref, running=running, domains=domains, wanted=wanted)
