"""What is said of a member, and how a Cluster tells it (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.karmada import Cluster, ClusterSyncMode
from unwind.api.meta import Condition, with_condition
from unwind.api.names import KARMADA_NOT_READY_TAINT, ConditionType, Finalizer, Reason

if TYPE_CHECKING:
    from datetime import datetime

Object = dict[str, Any]

_NO_SCHEDULE = "NoSchedule"


class MemberHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a member is."""

    ready: bool | None
    """None where nobody can tell from here."""
    reason: Reason
    message: str
    version: str = ""
    """Its Kubernetes version, where it said."""
    identity: str = ""
    """What it is known by, where it said."""


def unlooked(cluster: Cluster) -> MemberHealth | None:
    """What is said of a member that nobody looks at from here; None where we do."""
    mode = ClusterSyncMode.read(cluster.spec.sync_mode)
    if mode is ClusterSyncMode.PUSH:
        return None
    if mode is ClusterSyncMode.PULL:
        return MemberHealth(
            ready=None,
            reason=Reason.PULL_MODE,
            message="the member is in pull mode: an agent in it looks after it, and Unwind leaves it alone",
        )
    return MemberHealth(
        ready=None,
        reason=Reason.UNKNOWN_VALUE,
        message=f"spec.syncMode is {cluster.spec.sync_mode!r}, which is not known: nothing is done with the member",
    )


def stranger(cluster: Cluster, found: str) -> MemberHealth | None:
    """What is said of a member at whose address this cluster has answered; None if it is the right one."""
    known = cluster.spec.id
    if not known or known == found:
        return None
    where = cluster.spec.api_endpoint
    return MemberHealth(
        ready=False,
        reason=Reason.ANOTHER_CLUSTER,
        message=f"another cluster answers at {where} ({found}, not {known}): nothing is written there",
    )


def held(read: Object) -> Object | None:
    """The patch that has a Cluster wait for us before it goes; None if it does, or goes already."""
    metadata = read["metadata"]
    finalizers: list[str] = metadata.get("finalizers") or []
    if metadata.get("deletionTimestamp") or Finalizer.MEMBER in finalizers:
        return None
    return {"metadata": {"finalizers": [*finalizers, Finalizer.MEMBER.value]}}


def told(read: Object, standing: MemberHealth, now: datetime) -> Object | None:
    """The patch of a Cluster's status that says it; None if it says so already."""
    status = read.get("status") or {}
    before = msgspec.convert(status.get("conditions") or [], tuple[Condition, ...])
    after = with_condition(
        before,
        type=ConditionType.READY,
        status=standing.ready,
        reason=standing.reason,
        message=standing.message,
        now=now,
    )
    patch: Object = {}
    if after is not before:
        patch["conditions"] = msgspec.to_builtins(after)
    # What was last known stays while it does not answer.
    if standing.version and standing.version != status.get("kubernetesVersion"):
        patch["kubernetesVersion"] = standing.version
    return {"status": patch} if patch else None


def marked(read: Object, standing: MemberHealth) -> Object | None:
    """The patch of a Cluster's spec that keeps workloads away, or no longer does, and that says who the member is."""
    spec = read.get("spec") or {}
    taints: list[Object] = spec.get("taints") or []
    wanted = taints
    if standing.ready:
        wanted = [obj for obj in taints if not _not_ready(obj)]
    elif standing.ready is False and not any(map(_not_ready, taints)):
        wanted = [*taints, {"key": KARMADA_NOT_READY_TAINT, "effect": _NO_SCHEDULE}]
    patch: Object = {}
    if wanted != taints:
        patch["taints"] = wanted
    if standing.identity and not spec.get("id"):
        patch["id"] = standing.identity
    return {"spec": patch} if patch else None


def _not_ready(taint: Object) -> bool:
    return (taint.get("key"), taint.get("effect")) == (KARMADA_NOT_READY_TAINT, _NO_SCHEDULE)
