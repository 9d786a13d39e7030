"""The status of Works: conditions, the health of their objects and manifest statuses (pure), and the writer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from unwind.api.karmada import WORKS, Health, ManifestStatus, Work, identifier_of
from unwind.api.meta import find, with_condition, without_condition
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.deleters.chain_attempt import Failed
from unwind.deploy.reports import first
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError, UnreachableError
from unwind.kube.updates import set_finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from unwind.api.karmada import WorkStatus
    from unwind.clock import Clock
    from unwind.deleters.chain_attempt import Waiting
    from unwind.deploy.placements import PlacedObject
    from unwind.kube.client import Client, Object
    from unwind.kube.informers import Informer

# Maximum length of a message in the status.
_LONGEST = 4096
# A Work holds the statuses of all its objects, and the object size of the API server is limited.
_LARGEST = 16 * 1024
_SHOWN = 5
_OURS = (ConditionType.APPLIED, ConditionType.DISPATCHING, ConditionType.BLOCKED, ConditionType.UNREACHABLE)


def applied_status(
    status: WorkStatus, trouble: str, statuses: Iterable[ManifestStatus], *, generation: int, now: datetime
) -> WorkStatus:
    """The status of a Work that was applied; `trouble`: what of it failed, empty if nothing."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.APPLIED,
        status=not trouble,
        reason=Reason.APPLIED_FAILED if trouble else Reason.APPLIED_SUCCESSFUL,
        message=trouble[:_LONGEST] or "all manifests are applied",
        generation=generation,
        now=now,
    )
    for answered in (ConditionType.DISPATCHING, ConditionType.UNREACHABLE):
        conditions = without_condition(conditions, answered)
    ordered = sorted(statuses, key=lambda one: (one.identifier.ordinal, one.identifier.kind, one.identifier.name))
    return msgspec.structs.replace(status, conditions=conditions, manifest_statuses=tuple(ordered))


def failed(status: WorkStatus, error: str, *, reached: bool, generation: int, now: datetime) -> WorkStatus:
    """The status of a Work that was not applied. `reached`: whether the member responds."""
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
    """The status of a Work with dispatching suspended."""
    conditions = with_condition(
        status.conditions,
        type=ConditionType.DISPATCHING,
        status=False,
        reason=Reason.SUSPENDED_DISPATCHING,
        message="spec.suspendDispatching is true: nothing is applied to the member until it is set to false",
        now=now,
    )
    return msgspec.structs.replace(status, conditions=conditions)


def waiting_status(
    status: WorkStatus, reason: Reason | None, message: str = "", *, reached: bool = True, now: datetime
) -> WorkStatus:
    """The status of a Work whose removal waits; None if it does not. `reached`: whether the member responds."""
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
    """A condition of its own says since when a member does not respond: other waits start at other times."""
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


def manifest_status(placed: PlacedObject, ordinal: int, obj: Object) -> ManifestStatus:
    """The status of one object on the member."""
    said: dict[str, Any] = obj.get("status") or {}
    if len(msgspec.json.encode(said)) > _LARGEST:
        said = {}
    return ManifestStatus(
        identifier=identifier_of(ordinal, placed.resource, placed.ref),
        status=said,
        health=health_of(obj).value,
    )


def status_to_apply(work: Work, status: WorkStatus) -> Object:
    """The status body to apply: our conditions only."""
    meta = work.metadata
    ours = [condition for condition in status.conditions if condition.type in _OURS]
    return {
        "apiVersion": WORKS.api_version,
        "kind": WORKS.kind,
        # With the uid: a deleted or replaced Work is not written to.
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": msgspec.to_builtins(msgspec.structs.replace(status, conditions=tuple(ours))),
    }


def first_waits(waits: Iterable[str]) -> str:
    """The first waits, in stable words."""
    return first(waits, shown=_SHOWN)


# Writes to Works: status and our finalizer only.

_Change: TypeAlias = "Callable[[WorkStatus], WorkStatus]"


def key_of(work: Work) -> Key:
    return Key(work.metadata.namespace, work.metadata.name)


class WorkWriter:
    """Writes the status and finalizer of Works. The cache has each write at once, without waiting for the watch."""

    def __init__(self, client: Client, works: Informer[Work], *, clock: Clock) -> None:
        self._client = client
        self._works = works
        self._clock = clock
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """A lock exists as long as it is held or awaited."""

    async def write(self, work: Work, change: _Change) -> None:
        """Apply a change to the status; no write if it is equal."""
        # Concurrent writes could leave an old state.
        lock = self._writing.setdefault(key_of(work), asyncio.Lock())
        async with lock:
            before = self._latest(work).status
            after = change(before)
            if after == before:
                return
            try:
                # Server-side apply: conditions that we no longer set disappear, those of others stay.
                written = await self._client.apply(WORKS, status_to_apply(work, after), subresource="status")
            except (NotFoundError, ConflictError):
                return  # deleted or replaced
            self._works.take(msgspec.convert(written, Work))

    async def wait(self, work: Work, waits: Iterable[Waiting | Failed | Exception]) -> None:
        """Report what the removal waits for; nothing clears it."""
        waits = list(waits)
        told = first_waits(wait.told if not isinstance(wait, Exception) else str(wait) for wait in waits)
        reason = Reason.DELETING if waits else None
        reached = not any(_unreached(wait) for wait in waits)
        await self.write(work, lambda it: waiting_status(it, reason, told, reached=reached, now=self._clock.now()))

    async def wait_for(self, work: Work, others: str) -> None:
        """Report which dependents come first."""
        await self.write(work, lambda it: waiting_status(it, Reason.WAITING, others, now=self._clock.now()))

    async def set_finalizer(self, work: Work, *, wanted: bool) -> None:
        """Add or remove our finalizer."""
        meta = self._latest(work).metadata
        written = await set_finalizer(self._client, WORKS, meta, Finalizer.WORK, wanted=wanted)
        if written and wanted:
            self._works.take(msgspec.convert(written, Work))

    def _latest(self, work: Work) -> Work:
        there = self._works.cache.get(key_of(work))
        return there if there and there.metadata.uid == work.metadata.uid else work


def _unreached(what: Waiting | Failed | Exception) -> bool:
    if isinstance(what, Failed):
        return what.reason == Reason.UNREACHABLE
    return isinstance(what, UnreachableError)


def health_of(obj: Object) -> Health:
    """Healthy, Unhealthy, or Unknown for kinds whose status has no known meaning."""
    group = obj["apiVersion"].rpartition("/")[0]
    rule = _RULES.get((group, obj["kind"]))
    if rule is None:
        return Health.UNKNOWN
    return Health.HEALTHY if rule(obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]) else Health.UNHEALTHY


def _replicated(spec: Object, status: Object, metadata: Object) -> bool:
    # The API server defaults it to 1.
    wanted = spec.get("replicas", 1)
    return _current(status, metadata) and status.get("readyReplicas", 0) >= wanted


def _rolled_out(spec: Object, status: Object, metadata: Object) -> bool:
    wanted = spec.get("replicas", 1)
    return _replicated(spec, status, metadata) and status.get("updatedReplicas", 0) >= wanted


def _on_all_nodes(spec: Object, status: Object, metadata: Object) -> bool:
    wanted = status.get("desiredNumberScheduled", 0)
    ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
    return _current(status, metadata) and ready >= wanted


def _running(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Succeeded" or (status.get("phase") == "Running" and _says(status, "Ready"))


def _not_failed(spec: Object, status: Object, metadata: Object) -> bool:
    return not _says(status, "Failed")


def _bound(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Bound"


def _has_address(spec: Object, status: Object, metadata: Object) -> bool:
    """Whether a Service of type LoadBalancer has an address."""
    return spec.get("type") != "LoadBalancer" or bool((status.get("loadBalancer") or {}).get("ingress"))


def _addressed(spec: Object, status: Object, metadata: Object) -> bool:
    return bool((status.get("loadBalancer") or {}).get("ingress"))


def _established(spec: Object, status: Object, metadata: Object) -> bool:
    return _says(status, "Established")


def _active(spec: Object, status: Object, metadata: Object) -> bool:
    return status.get("phase") == "Active"


def _current(status: Object, metadata: Object) -> bool:
    """Whether the status is about the current generation."""
    said: int = status.get("observedGeneration", 0)
    return bool(said >= metadata.get("generation", 0))


def _says(status: Object, condition: str) -> bool:
    found: list[Any] = status.get("conditions") or []
    return any(item.get("type") == condition and item.get("status") == "True" for item in found)


_RULES: dict[tuple[str, str], Callable[[Object, Object, Object], bool]] = {
    ("apps", "Deployment"): _rolled_out,
    ("apps", "StatefulSet"): _rolled_out,
    ("apps", "ReplicaSet"): _replicated,
    ("apps", "DaemonSet"): _on_all_nodes,
    ("batch", "Job"): _not_failed,
    ("", "Pod"): _running,
    ("", "PersistentVolumeClaim"): _bound,
    ("", "Service"): _has_address,
    ("", "Namespace"): _active,
    ("networking.k8s.io", "Ingress"): _addressed,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _established,
}
