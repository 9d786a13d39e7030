"""The order in which the Inventories of an owner are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.unwind import INVENTORIES, Effort, Entry, EntryState, Inventory, InventorySpec, MemberRef
from unwind.inventory import writer
from unwind.inventory.inventories import Inventories
from unwind.inventory.writer import Records
from unwind.kube.errors import UnreachableError
from unwind.members.member import Member
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.kube.transport import ServerAnswer

OWNER = ObjectRef(kind="ClusterSummary", namespace="shop", name="web", uid="owner")
PROD = ObjectRef(kind="Cluster", namespace="shop", name="prod", uid="prod")
ROOM = 2
"""Entries in an Inventory of these tests."""


def entry(name: str) -> Entry:
    ref = ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name=name)
    return Entry(object=ref, resource="configmaps", state=EntryState.INTENDED.value)


def chunk(number: int, entries: int) -> Inventory:
    """An Inventory that was written when the step was to be left."""
    spec = InventorySpec(
        owner=OWNER,
        member=MemberRef(object=PROD, system_uid="standin"),
        chunk=number,
        effort=Effort.LEAVE.value,
        entries={f"old-{number}-{place}": entry(f"old-{number}-{place}") for place in range(entries)},
    )
    return Inventory(metadata=ObjectMeta(name=f"owner-{number}", namespace="home"), spec=spec)


class FailingObjects(Objects):
    """An API server that does not answer the write with this number, and remembers the Inventories after each."""

    def __init__(self, *chunks: Inventory, fails_at: int = 0) -> None:
        super().__init__(*(manifest(INVENTORIES, one) for one in chunks), resources=[INVENTORIES])
        self.writes = 0
        self.states: list[dict[str, tuple[str, set[str]]]] = []
        """The effort and the entries of each Inventory, after each write."""
        self._fails_at = fails_at

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        self.writes += method != "GET"
        if method != "GET" and self.writes == self._fails_at:
            raise UnreachableError("no answer")
        answer = await super().request(method, target, body=body, headers=headers, within=within)
        if method != "GET":
            self.states.append(self.state)
        return answer

    @property
    def state(self) -> dict[str, tuple[str, set[str]]]:
        return {
            one["metadata"]["name"]: (one["spec"]["effort"], set(one["spec"]["entries"]))
            for one in self.all(INVENTORIES)
        }

    async def record(self, *names: str) -> None:
        """Record objects that are created next, of a step that must be removed now."""
        inventories = Inventories(self.client, namespace="home")
        member = Member(PROD, self.client, system_uid="standin")
        records = Records(inventories, OWNER, member, effort=Effort.ENFORCE)
        await records.load()
        await records.put({name: entry(name) for name in names})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ENTRIES_IN_A_CHUNK", ROOM)


# An object in an Inventory with room, in a new one, and both.
NEW = [(1, ("a",)), (ROOM, ("a",)), (1, ("a", "b", "c"))]


@pytest.mark.parametrize(("last", "names"), NEW)
async def test_every_inventory_has_the_effort_before_an_object_is_created_and_no_entry_is_without_it(
    last: int, names: tuple[str, ...]
) -> None:
    objects = FailingObjects(chunk(0, ROOM), chunk(1, ROOM), chunk(2, last))
    await objects.record(*names)
    assert {effort for effort, _ in objects.state.values()} == {Effort.ENFORCE}
    assert set(names) <= set().union(*(entries for _, entries in objects.state.values()))
    for state in objects.states:
        assert {effort for effort, entries in state.values() if entries.intersection(names)} <= {Effort.ENFORCE}


@pytest.mark.parametrize(("last", "names"), NEW)
async def test_nothing_is_created_if_the_effort_of_one_inventory_cannot_be_written(
    last: int, names: tuple[str, ...]
) -> None:
    chunks = (chunk(0, ROOM), chunk(1, ROOM), chunk(2, last))
    whole = FailingObjects(*chunks)
    await whole.record(*names)
    assert whole.writes >= len(chunks)
    for number in range(1, whole.writes + 1):
        with pytest.raises(UnreachableError):
            await FailingObjects(*chunks, fails_at=number).record(*names)


async def test_an_inventory_that_changed_meanwhile_gets_the_effort_all_the_same() -> None:
    objects = FailingObjects(chunk(0, ROOM), chunk(1, 1))
    records = Records(
        Inventories(objects.client, namespace="home"),
        OWNER,
        Member(PROD, objects.client, system_uid="standin"),
        effort=Effort.ENFORCE,
    )
    await records.load()
    objects.change(INVENTORIES, "owner-0", {"metadata": {"labels": {"seen": "true"}}}, namespace="home")
    await records.put({"a": entry("a")})
    assert {effort for effort, _ in objects.state.values()} == {Effort.ENFORCE}
