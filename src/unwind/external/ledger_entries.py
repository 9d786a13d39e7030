"""The ledger of external resources: Inventories in Unwind's namespace, one for each object.

`kept-UID`: the external resource stays. `released-UID`: Unwind removed the finalizers of an operator. They have neither
owner nor finalizer, because they must outlast the object.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES, Entry, EntryState, Inventory, InventorySpec, LedgerNote, MemberRef
from unwind.inventory import ledger
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.resources import Resource
    from unwind.deleters.external import ReleasedFinalizers
    from unwind.deleters.outcomes import Kept
    from unwind.kube.client import Client


def home(system_uid: str) -> ObjectRef:
    """Represents the management cluster, which has no Cluster object."""
    return ObjectRef(version=NAMESPACES.version, kind=NAMESPACES.kind, name="kube-system", uid=system_uid)


def kept_name(ref: ObjectRef) -> str:
    """The name of the entry of a kept resource: stable across retries, and unique to the object."""
    return f"kept-{ref.uid}"


def kept(ref: ObjectRef, outcome: Kept, *, resource: Resource, namespace: str, cluster: str, at: datetime) -> Inventory:
    """The entry of a kept resource of an object on the management cluster (pure)."""
    entry = ledger.entry(ledger.kept(ref, outcome, at=at), resource=resource.plural)
    return _inventory(kept_name(ref), namespace, entry, MemberRef(object=home(cluster), system_uid=cluster))


def released_name(ref: ObjectRef) -> str:
    """The name of the entry of removed finalizers."""
    return f"released-{ref.uid}"


def released(it: ReleasedFinalizers, *, namespace: str, at: datetime) -> Inventory:
    """The entry of removed finalizers (pure)."""
    note = LedgerNote(
        reason=Reason.FINALIZER_REMOVED,
        message=it.message,
        by=f"unwind ({it.external})",
        at=at.replace(microsecond=0),
    )
    entry = Entry(object=it.object, resource=it.resource.plural, state=EntryState.REMOVED.value, ledger=note)
    member = MemberRef(object=it.cluster, system_uid=it.system_uid)
    return _inventory(released_name(it.object), namespace, entry, member)


def _inventory(name: str, namespace: str, entry: Entry, member: MemberRef) -> Inventory:
    return Inventory(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=InventorySpec(owner=entry.object, member=member, entries={entry.object.uid: entry}),
    )


async def write(client: Client, wanted: Inventory) -> None:
    """Create an entry; an interrupted attempt may have created it already."""
    with suppress(AlreadyExistsError):
        await client.create(INVENTORIES, manifest(INVENTORIES, wanted))


async def withdraw(client: Client, name: str, *, namespace: str) -> None:
    """Delete an entry: what it records was not done after all."""
    with suppress(NotFoundError, ConflictError):
        found = await client.get(INVENTORIES, name, namespace=namespace)
        await client.delete(INVENTORIES, name, uid=found["metadata"]["uid"], namespace=namespace)
