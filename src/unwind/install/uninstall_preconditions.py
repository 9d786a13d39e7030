"""What happens before anything of Unwind is taken away: it is refused while data depends on it, and replicas stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS
from unwind.api.unwind import INVENTORIES, Effort, Inventory
from unwind.errors import UnwindError
from unwind.install.running_managers import running_managers
from unwind.inventory.inventories import items
from unwind.kube.errors import NotFoundError
from unwind.server.manager_names import MANAGER, is_ours

if TYPE_CHECKING:
    from unwind.kube.client import Client

Object = dict[str, Any]

# The Leases of replicas that were killed count for 30 s, and a Pod has 45 s to end.
_STOPPED_WITHIN = 180.0
_LOOK = 0.5
_SHOWN = 5


async def refuse_enforced(client: Client, namespace: str) -> None:
    """Raise UnwindError while objects are deployed that must be removed before their cluster is deleted."""
    try:
        await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{INVENTORIES.plural}.{INVENTORIES.group}")
    except NotFoundError:
        return
    owners: dict[str, str] = {}
    for obj in await client.list(INVENTORIES, namespace=namespace):
        chunk = msgspec.convert(obj, Inventory)
        # As for the gate: only an effort that the manager recorded proves that nothing is enforced.
        lenient = Effort.read(chunk.spec.effort) in (Effort.TRY, Effort.LEAVE)
        if not lenient and any(not item.done for item in items([chunk])):
            owners[chunk.spec.owner.uid] = f"{chunk.spec.owner} on {chunk.spec.member.object}"
    if owners:
        found = sorted(owners.values())
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UnwindError(
            "cannot uninstall: objects are deployed that must be removed before their cluster is deleted:"
            f" {', '.join(found[:_SHOWN])}{more}",
            remedy="delete the profiles or Works that deployed them and wait until they are gone, or use"
            " --leave-addons: then no cluster waits for the objects, and nothing removes them",
        )


async def manager_deployment(client: Client, namespace: str) -> Object | None:
    """The manager's Deployment, if it runs in the cluster."""
    try:
        found = await client.get(DEPLOYMENTS, MANAGER, namespace=namespace)
    except NotFoundError:
        return None
    return found if is_ours(found) else None


async def refuse_running_manager(client: Client, namespace: str) -> None:
    """A running manager would recreate what is deleted. One in the cluster is stopped by `stop`."""
    if await manager_deployment(client, namespace) is None and (alive := await running_managers(client, namespace)):
        raise UnwindError(
            f"cannot uninstall: a manager is running ({', '.join(alive)})",
            remedy="stop it, wait until its Leases expire (30s), and retry",
        )


async def stop(client: Client, namespace: str) -> bool:
    """Scale the Deployment to zero, and return when no replica holds a Lease. Returns whether there is one."""
    found = await manager_deployment(client, namespace)
    if found is None:
        return False
    if found["spec"].get("replicas") != 0:
        await client.patch(DEPLOYMENTS, MANAGER, {"spec": {"replicas": 0}}, namespace=namespace)
    alive: list[str] = []
    try:
        async with asyncio.timeout(_STOPPED_WITHIN):
            # Polled, not watched: a Lease expires without an event.
            while await _has_replicas(client, namespace) or (alive := await running_managers(client, namespace)):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        running = ", ".join(alive) or f"Deployment {namespace}/{MANAGER}"
        raise UnwindError(
            f"timed out after {_STOPPED_WITHIN:.0f}s waiting for managers to stop ({running})",
            remedy="stop them, and run the command again",
        ) from None
    return True


async def _has_replicas(client: Client, namespace: str) -> bool:
    found = await manager_deployment(client, namespace)
    return bool(found and (found.get("status") or {}).get("replicas"))
