"""What the tests of removals are made of, where no server is needed."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef, OwnerReference
from unwind.api.resources import Resource
from unwind.api.unwind import Entry, Inventory, InventorySpec
from unwind.inventory.inventories import Item
from unwind.kube.decoding import Metadata
from unwind.members.contents import Content


def item(kind: str, name: str = "one", *, group: str = "", order: int = 0, **entry: Any) -> Item:
    """An entry of an inventory; its uid is its name."""
    ref = ObjectRef(group=group, version="v1", kind=kind, namespace="room", name=name, uid=name)
    given: dict[str, Any] = {"state": "Confirmed", "resource": f"{kind.lower()}s"} | entry
    return Item("chunk", name, Entry(object=ref, order=order, **given))


def chunk(name: str = "chunk", *items: Item) -> Inventory:
    entries = {one.key: one.entry for one in items}
    return Inventory(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=InventorySpec(entries=entries))


def content(
    kind: str, name: str, *owners: str, group: str = "", owner_kind: str = "apps/v1/ReplicaSet", **metadata: Any
) -> Content:
    """Something in a namespace; its uid is its name."""
    api_version, _, kind_of_owner = owner_kind.rpartition("/")
    references = tuple(OwnerReference(api_version=api_version, kind=kind_of_owner, uid=uid) for uid in owners)
    it = Metadata(name=name, uid=name, resource_version="1", namespace="room", owner_references=references)
    return Content(Resource(group, "v1", f"{kind.lower()}s", kind), msgspec.structs.replace(it, **metadata))


def ref(kind: str, name: str, *, group: str = "") -> ObjectRef:
    return ObjectRef(group=group, version="v1", kind=kind, namespace="room", name=name, uid=name)
