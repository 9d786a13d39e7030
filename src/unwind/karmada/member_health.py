"""The health of a member, and the patches that report it on its Cluster (pure)."""

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
    """The health of a member."""

    ready: bool | None
    """None if it cannot be determined from here."""
    reason: Reason
    message: str
    version: str = ""
    """Its Kubernetes version, if known."""
    identity: str = ""
    """The uid of its kube-system namespace, if known."""


def unlooked(cluster: Cluster) -> MemberHealth | None:
    """The health of a member that Unwind does not probe; None if it does."""
    mode = ClusterSyncMode.read(cluster.spec.sync_mode)
    if mode is ClusterSyncMode.PUSH:
        return None
    if mode is ClusterSyncMode.PULL:
        return MemberHealth(
            ready=None,
            reason=Reason.PULL_MODE,
            message="the member is in pull mode: its Karmada agent manages it, and Unwind does nothing",
        )
    return MemberHealth(
        ready=None,
        reason=Reason.UNKNOWN_VALUE,
        message=f"unknown spec.syncMode {cluster.spec.sync_mode!r}, so Unwind does nothing with the member; "
        f"set it to {ClusterSyncMode.PUSH}",
    )


def stranger(cluster: Cluster, found: str) -> MemberHealth | None:
    """The health of a member at whose address another cluster answers; None if it is the right one."""
    known = cluster.spec.id
    if not known or known == found:
        return None
    where = cluster.spec.api_endpoint
    return MemberHealth(
        ready=False,
        reason=Reason.ANOTHER_CLUSTER,
        message=f"another cluster answers at {where} ({found}, not {known}), so nothing is written to it; "
        "correct spec.apiEndpoint, or unjoin the member and join it again",
    )


def finalizer_patch(read: Object) -> Object | None:
    """The patch that adds our finalizer; None if it is present, or the Cluster is terminating."""
    metadata = read["metadata"]
    finalizers: list[str] = metadata.get("finalizers") or []
    if metadata.get("deletionTimestamp") or Finalizer.MEMBER in finalizers:
        return None
    return {"metadata": {"finalizers": [*finalizers, Finalizer.MEMBER.value]}}


def health_patch(read: Object, standing: MemberHealth, now: datetime) -> Object | None:
    """The status patch that reports the health; None if nothing changes."""
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
    # Keep the last known values while it does not respond.
    if standing.version and standing.version != status.get("kubernetesVersion"):
        patch["kubernetesVersion"] = standing.version
    return {"status": patch} if patch else None


def taint_patch(read: Object, standing: MemberHealth) -> Object | None:
    """The spec patch that sets the id, and adds or removes the taint that keeps workloads away."""
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
