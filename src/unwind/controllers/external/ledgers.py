"""The ledger of what was kept when its object went, as Inventories in Unwind's own namespace."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES, Inventory, InventorySpec, MemberRef
from unwind.deleting import ledger
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.resources import Resource
    from unwind.deleting.outcomes import Kept
    from unwind.kube.client import Client


def name_of(ref: ObjectRef) -> str:
    """What an object's ledger is called: the same at every try, and never that of another object."""
    return f"kept-{ref.uid}"


def inventory(
    ref: ObjectRef, outcome: Kept, *, resource: Resource, namespace: str, cluster: str, at: datetime
) -> Inventory:
    """The ledger of one object that was kept (pure).

    It has no owner to go with and no finalizer: it is there to outlast the object.
    """
    line = ledger.kept(ref, outcome, at=at)
    # What stands for the cluster that we are on ourselves: there is no Cluster object of it.
    here = ObjectRef(version=NAMESPACES.version, kind=NAMESPACES.kind, name="kube-system", uid=cluster)
    return Inventory(
        metadata=ObjectMeta(name=name_of(ref), namespace=namespace),
        spec=InventorySpec(
            owner=ref,
            member=MemberRef(object=here, system_uid=cluster),
            entries={ref.uid: ledger.entry(line, resource=resource.plural)},
        ),
    )


async def write(client: Client, wanted: Inventory) -> None:
    """Have it written down; it may have been, by a try that was cut off."""
    with suppress(AlreadyExistsError):
        await client.create(INVENTORIES, manifest(INVENTORIES, wanted))


async def withdraw(client: Client, ref: ObjectRef, *, namespace: str) -> None:
    """Take it back: the object was not kept after all, because somebody changed their mind in the last moment."""
    with suppress(NotFoundError, ConflictError):
        found = await client.get(INVENTORIES, name_of(ref), namespace=namespace)
        uid = found["metadata"]["uid"]
        await client.delete(INVENTORIES, name_of(ref), uid=uid, namespace=namespace)
