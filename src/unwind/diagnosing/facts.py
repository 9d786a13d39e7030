"""Observed facts about objects that block a removal (values only)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import Condition, ObjectRef
from unwind.api.names import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a step waits for, as the removal reports it."""

    object: ObjectRef
    message: str
    step: str = ""
    failed: bool = False
    """The deletion failed and will be retried; otherwise it is only incomplete."""
    reason: str = Reason.DELETING
    """Why, as a CamelCase word."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of an object that a step waits for."""

    deleted_at: datetime | None = None
    """None if its deletion was not requested yet."""
    finalizers: tuple[str, ...] = ()
    """Including those in the spec of a Namespace."""
    conditions: tuple[Condition, ...] = ()
    """For a Namespace or CRD, where the API server reports what it waits for."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
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


def seen(obj: Mapping[str, Any]) -> Seen:
    """The relevant fields of an object of any kind."""
    metadata = msgspec.convert(obj.get("metadata") or {}, _Metadata)
    spec, status = obj.get("spec"), obj.get("status")
    inner = spec.get("finalizers") if isinstance(spec, dict) and obj.get("kind") == "Namespace" else None
    conditions = status.get("conditions") if isinstance(status, dict) else None
    try:
        read = msgspec.convert(conditions or (), tuple[Condition, ...])
    except msgspec.ValidationError:
        read = ()  # conditions that do not follow the Kubernetes convention
    return Seen(
        deleted_at=metadata.deletion_timestamp,
        finalizers=(*metadata.finalizers, *(one for one in inner or () if isinstance(one, str))),
        conditions=read,
    )


def workload(ref: ObjectRef, obj: Mapping[str, Any] | None, *, domains: tuple[str, ...] = ()) -> Workload:
    """The relevant fields of a workload; None for one that does not exist."""
    status = (obj or {}).get("status") or {}
    # Deployments and StatefulSets have readyReplicas, DaemonSets numberReady.
    running = bool(obj) and (status.get("readyReplicas") or status.get("numberReady") or 0) > 0
    wanted = ((obj or {}).get("spec") or {}).get("replicas")
    return Workload(object=ref, running=running, domains=domains, wanted=wanted)
