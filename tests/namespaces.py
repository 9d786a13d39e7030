"""The namespaces of tests on the management cluster.

They stay until the plane ends: to delete one, the namespace controller sends two requests for each kind that is served,
which was half of all requests of the tests. Only what controllers follow is deleted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.api import capi, karmada, sveltos
from unwind.api.unwind import INVENTORIES
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.testing.namespaces import delete_namespace

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

_FORBIDDEN, _NOT_SERVED = 403, 404
_FOLLOWED = (
    sveltos.PROFILES,
    sveltos.CLUSTER_SUMMARIES,
    sveltos.CLUSTER_CONFIGURATIONS,
    sveltos.SVELTOS_CLUSTERS,
    karmada.WORKS,
    INVENTORIES,
    capi.CLUSTERS,
)


async def leave_namespace(client: Client, name: str) -> None:
    """Leave a namespace to the end of the plane, without objects that the controllers of the next test would find."""
    try:
        for kind in _FOLLOWED:
            for obj in await _listed(client, kind, name):
                await drop(client, kind, obj)
    except ApiError as error:
        if error.code != _FORBIDDEN:
            raise
        # Policies let the namespace controller delete everything.
        await delete_namespace(client, name)


async def drop(client: Client, kind: Resource, obj: Object) -> None:
    """Delete an object that was just read, though it may have finalizers that no controller removes."""
    meta = obj["metadata"]
    name, namespace = meta["name"], meta.get("namespace")
    with suppress(NotFoundError, ConflictError):
        await client.delete(kind, name, uid=meta["uid"], namespace=namespace)
        if meta.get("finalizers"):
            free = {"metadata": {"uid": meta["uid"], "finalizers": None}}
            await client.patch(kind, name, free, namespace=namespace)


async def _listed(client: Client, kind: Resource, namespace: str) -> list[Object]:
    try:
        return await client.list(kind, namespace=namespace)
    except ApiError as error:
        if error.code != _NOT_SERVED:
            raise
        return []
