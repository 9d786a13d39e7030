"""Chains of deleters for Buckets: links, the ledger, Events, and managers that die."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.eventually import eventually
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.deleters.registration import Kinds, Registration
from unwind.inventory import ledger
from unwind.kube.client import Client
from unwind.kube.events import EVENTS
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plane.support.buckets import Buckets
    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Object
    from unwind.local.plane import Plane


async def remove_kind(client: Client, buckets: Buckets) -> None:
    for left in await client.list(buckets.resource, namespace=buckets.namespace):
        await buckets.patch(left["metadata"]["name"], {"metadata": {"finalizers": None}})
    name = f"buckets.{buckets.resource.group}"
    definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=definition["metadata"]["uid"])


def group_of(buckets: Buckets) -> str:
    return buckets.resource.group


def link(buckets: Buckets, delete: Any, *, name: str = "link") -> Registration:
    return Registration(name=name, kinds=(Kinds(f"{group_of(buckets)}/*", "Bucket"),), delete=delete)


async def written_down(buckets: Buckets, ref: ObjectRef) -> ledger.Line:
    """The line of the ledger about an object."""
    found = await buckets.client.get(INVENTORIES, f"kept-{ref.uid}", namespace=buckets.namespace, type=Inventory)
    assert (found.metadata.finalizers, found.metadata.owner_references) == ((), ()), "it outlasts the object"
    [entry] = found.spec.entries.values()
    line = ledger.line(entry)
    assert line
    assert found.spec.owner == ref
    return line


async def events(buckets: Buckets, ref: ObjectRef, count: int) -> list[str]:
    """The reasons of the Events on an object, in order, once there are so many."""

    async def enough() -> list[Object]:
        found = await buckets.client.list(EVENTS, namespace=buckets.namespace)
        ours = [item for item in found if item["regarding"]["uid"] == ref.uid]
        return ours if len(ours) >= count else []

    found = await eventually(enough, f"{count} Events", within=30)
    return [item["reason"] for item in sorted(found, key=lambda item: str(item["eventTime"]))]


class Dying(Client):
    """A client whose process dies before it takes a finalizer off."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.died = asyncio.Event()

    async def revise(self, resource: Any, read: Object, patch: Object, **more: Any) -> Object:
        if patch.get("metadata", {}).get("finalizers") == []:
            self.died.set()
            await asyncio.Event().wait()
        return await super().revise(resource, read, patch, **more)


@asynccontextmanager
async def dying(plane: Plane, namespace: str) -> AsyncIterator[Dying]:
    async with Dying(await manager_connection(plane.management.client, namespace)) as client:
        yield client
