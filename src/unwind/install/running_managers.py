"""Finds the running replicas of the manager, by their Leases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from unwind.api.resources import LEASES

if TYPE_CHECKING:
    from unwind.kube.client import Client

Object = dict[str, Any]

LEASE_PREFIX = "unwind-"


def start_manager(namespace: str) -> str:
    """What to do if no manager is running: the next step of an error."""
    return (
        f"see why its Pods do not run with `kubectl -n {namespace} get deployments,pods`, or, if it runs outside of the"
        " cluster, start it with `unwind run`"
    )


async def running_managers(client: Client, namespace: str) -> list[str]:
    """The replicas with a current Lease. `namespace`: that of Unwind."""
    leases = await client.list(LEASES, namespace=namespace)
    now = datetime.now(UTC)
    return sorted(
        {
            lease["spec"]["holderIdentity"]
            for lease in leases
            if lease["metadata"]["name"].startswith(LEASE_PREFIX) and lease_held(lease, now=now)
        }
    )


def lease_held(lease: Object, *, now: datetime) -> bool:
    """Whether the Lease is held and renewed in time. A Lease without renewTime counts as held."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity"):
        return False
    if not spec.get("renewTime"):
        return True
    lasts = timedelta(seconds=spec.get("leaseDurationSeconds") or 15)
    # Twice the duration, because the clocks of holder and reader may differ.
    return bool(datetime.fromisoformat(spec["renewTime"]) + 2 * lasts > now)
