"""One more chunk for what a removal finds out: of the same owner, and of the same member."""

from __future__ import annotations

import msgspec

from tests.unit.removal.making import item
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, INVENTORIES, Entry, Inventory, InventorySpec, MemberRef
from unwind.inventory.inventories import Inventories
from unwind.testing.objects import Objects

OWNER = ObjectRef(version="v1", kind="ClusterSummary", name="web", uid="owner")


def member(name: str) -> MemberRef:
    return MemberRef(object=ObjectRef(version="v1", kind="Cluster", name=name, uid=name), system_uid=f"system-{name}")


def made(number: int, on: str, entries: int = 0) -> Inventory:
    one: Entry = item("Secret").entry
    spec = InventorySpec(
        owner=OWNER,
        member=member(on),
        chunk=number,
        sealed_for="t",
        entries={f"e{place}": one for place in range(entries)},
    )
    return Inventory(metadata=ObjectMeta(name=f"owner-{number}", namespace="unwind"), spec=spec)


async def extended(*chunks: Inventory, like: int = 0, number: int = 1) -> Inventory:
    objects = Objects(*(manifest(INVENTORIES, inventory) for inventory in chunks), resources=[INVENTORIES])
    async with objects.client as client:
        return await Inventories(client, namespace="unwind").extend(chunks[like], number)


async def test_the_next_number_is_taken_where_it_is_free() -> None:
    chunk = await extended(made(0, "a"))
    assert (chunk.metadata.name, chunk.spec.member, chunk.spec.sealed_for) == ("owner-1", member("a"), "t")


async def test_a_chunk_of_another_member_is_passed_over() -> None:
    chunk = await extended(made(0, "a"), made(1, "b", 3), made(2, "b"))
    assert (chunk.metadata.name, chunk.spec.member) == ("owner-3", member("a"))
    assert chunk.spec.entries == {}


async def test_the_same_address_with_another_cluster_is_another_member() -> None:
    other = made(1, "a")
    spec = msgspec.structs.replace(other.spec, member=msgspec.structs.replace(other.spec.member, system_uid="another"))
    chunk = await extended(made(0, "a"), msgspec.structs.replace(other, spec=spec))
    assert chunk.metadata.name == "owner-2"


async def test_one_that_was_made_before_a_crash_is_used() -> None:
    chunk = await extended(made(0, "a"), made(1, "a", 2))
    assert (chunk.metadata.name, len(chunk.spec.entries)) == ("owner-1", 2)


async def test_one_that_is_full_is_passed_over() -> None:
    chunk = await extended(made(0, "a"), made(1, "a", ENTRIES_IN_A_CHUNK))
    assert chunk.metadata.name == "owner-2"
