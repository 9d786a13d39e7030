"""The ledger of finalizers of operators that Unwind removed: Inventories `released-UID` in Unwind's namespace."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES, Entry, EntryState, Inventory, InventorySpec, LedgerNote, MemberRef
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.deleters.external import ReleasedFinalizers
    from unwind.kube.client import Client


def name_of(ref: ObjectRef) -> str:
    """The name of the ledger entry of an object."""
    return f"released-{ref.uid}"


def home(system_uid: str) -> ObjectRef:
    """Represents the management cluster, which has no Cluster object."""
    return ObjectRef(version=NAMESPACES.version, kind=NAMESPACES.kind, name="kube-system", uid=system_uid)


def inventory(released: ReleasedFinalizers, *, namespace: str, at: datetime) -> Inventory:
    """The ledger entry (pure). It has neither owner nor finalizer, because it must outlast the object."""
    ref = released.object
    note = LedgerNote(
        reason=Reason.FINALIZER_REMOVED,
        message=released.message,
        by=f"unwind ({released.external})",
        at=at.replace(microsecond=0),
    )
    entry = Entry(object=ref, resource=released.resource.plural, state=EntryState.REMOVED.value, ledger=note)
    return Inventory(
        metadata=ObjectMeta(name=name_of(ref), namespace=namespace),
        spec=InventorySpec(
            owner=ref,
            member=MemberRef(object=released.cluster, system_uid=released.system_uid),
            entries={ref.uid: entry},
        ),
    )


async def write(client: Client, wanted: Inventory) -> None:
    """Create the ledger entry; an interrupted attempt may have created it already."""
    with suppress(AlreadyExistsError):
        await client.create(INVENTORIES, manifest(INVENTORIES, wanted))


async def withdraw(client: Client, ref: ObjectRef, *, namespace: str) -> None:
    """Delete the ledger entry: the finalizers were not removed, because the operator is running again."""
    with suppress(NotFoundError, ConflictError):
        found = await client.get(INVENTORIES, name_of(ref), namespace=namespace)
        await client.delete(INVENTORIES, name_of(ref), uid=found["metadata"]["uid"], namespace=namespace)
