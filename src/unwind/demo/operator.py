"""A simulated database operator that handles the finalizers of deleted Databases."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from unwind.api.resources import DEPLOYMENTS
from unwind.demo.scenery import CLEANUP, DATABASES, HELD_IN, OPERATOR, Object
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from unwind.kube.client import Client

# The time that the cleanup of a database takes.
_CLEANING = 1.5
_RETRY = 0.3


async def operate(client: Client) -> None:
    """Reconcile the Databases of a cluster until cancelled."""
    async with asyncio.TaskGroup() as group:
        cleaning: set[str] = set()
        while True:
            try:
                async with aclosing(client.watch(DATABASES)) as events:
                    async for event in events:
                        metadata = event.object.get("metadata") or {}
                        doomed = "deletionTimestamp" in metadata and CLEANUP in metadata.get("finalizers", ())
                        if event.type in ("ADDED", "MODIFIED") and doomed and metadata["uid"] not in cleaning:
                            cleaning.add(metadata["uid"])
                            group.create_task(_clean(client, event.object))
            except (ApiError, UnreachableError):
                pass  # the CRD does not exist yet, or any more
            await asyncio.sleep(_RETRY)


async def _clean(client: Client, database: Object) -> None:
    metadata = database["metadata"]
    await asyncio.sleep(_CLEANING)
    while True:
        try:
            if await _runs(client):
                found = await client.get(DATABASES, metadata["name"], namespace=metadata["namespace"])
                left = [finalizer for finalizer in found["metadata"].get("finalizers", ()) if finalizer != CLEANUP]
                await client.revise(DATABASES, found, {"metadata": {"finalizers": left}})
                return
        except NotFoundError:
            return
        except (ConflictError, ApiError, UnreachableError):
            pass  # will retry
        await asyncio.sleep(_RETRY)


async def _runs(client: Client) -> bool:
    """Whether its Deployment has a Pod: an operator that was removed too early cannot clean up."""
    try:
        deployment = await client.get(DEPLOYMENTS, OPERATOR, namespace=HELD_IN)
    except NotFoundError:
        return False
    return bool((deployment.get("status") or {}).get("readyReplicas"))
