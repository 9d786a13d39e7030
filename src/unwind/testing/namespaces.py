"""Namespaces of the management cluster for tests."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.kube.errors import ApiError, ForbiddenError, NotFoundError

if TYPE_CHECKING:
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


async def new_namespace(plane: Plane) -> str:
    """Create a namespace of the management cluster that no other test has."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await plane.management.create_namespace(name)
    return name


async def delete_namespace(client: Client, name: str) -> None:
    """Delete it with its ClusterSummaries first: the API server refuses to delete a namespace with gated Clusters."""
    uid = (await client.get(NAMESPACES, name))["metadata"]["uid"]
    summaries: list[Object] = []
    with suppress(ApiError):  # the CRD may not be installed
        summaries = await client.list(CLUSTER_SUMMARIES, namespace=name)
    for summary in summaries:
        meta = summary["metadata"]
        free = {"metadata": {"uid": meta["uid"], "finalizers": None}}
        with suppress(NotFoundError):  # it is already gone
            await client.patch(CLUSTER_SUMMARIES, meta["name"], free, namespace=name)
            if not meta.get("deletionTimestamp"):
                await client.delete(CLUSTER_SUMMARIES, meta["name"], uid=meta["uid"], namespace=name)
    async with asyncio.timeout(30):
        while True:
            try:
                await client.delete(NAMESPACES, name, uid=uid)
            except ForbiddenError:
                await asyncio.sleep(0.05)  # the policy does not see their absence yet
            else:
                return
