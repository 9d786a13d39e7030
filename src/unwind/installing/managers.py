"""Find running managers by their Leases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unwind.api.resources import LEASES
from unwind.installing import rivals

if TYPE_CHECKING:
    from unwind.kube.client import Client

LEASE_PREFIX = "unwind-"


async def alive(client: Client, namespace: str) -> list[str]:
    """The replicas with a current Lease. `namespace`: that of Unwind."""
    leases = await client.list(LEASES, namespace=namespace)
    now = datetime.now(UTC)
    return sorted(
        {
            lease["spec"]["holderIdentity"]
            for lease in leases
            if lease["metadata"]["name"].startswith(LEASE_PREFIX) and rivals.held(lease, now=now)
        }
    )
