"""Notes: thousands of reports cost a few writes, and a write that fails loses none of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tests.unit.removal.making import chunk, item
from unwind.inventory.inventories import Inventories, Note, Notes
from unwind.kube.errors import ApiError, APIStatus, ConflictError, NotFoundError, UnreachableError
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.unwind import Inventory
    from unwind.inventory.inventories import Item
    from unwind.kube.client import Client


class Server:
    """A stand-in for the server that the inventories are on."""

    namespace = "unwind-system"

    def __init__(self) -> None:
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[Exception] = []
        self.uids: dict[str, str] = {}
        self.client = self

    async def amend(self, chunk: Inventory, notes: Mapping[str, Note]) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append((chunk.metadata.name, {key: note.change for key, note in notes.items()}))

    async def get(self, _: object, name: str, *, namespace: str) -> dict[str, Any]:
        assert namespace == self.namespace
        if name not in self.uids:
            raise NotFoundError(APIStatus(code=404, reason="NotFound"), request="GET")
        return {"metadata": {"uid": self.uids[name]}}

    def told(self) -> dict[str, Any]:
        """All that was written, by entry."""
        said: dict[str, Any] = {}
        for _, entries in self.writes:
            for key, change in entries.items():
                said[key] = said.get(key, {}) | change
        return said


class Book:
    """Notes, and what became of them."""

    def __init__(self, *chunks: str) -> None:
        self.server = Server()
        self.clock = StillClock()
        self.troubles: list[tuple[str, Exception]] = []
        self.settled: list[str] = []
        made = {name: chunk(name) for name in chunks or ("chunk",)}
        self.server.uids = {name: one.metadata.uid for name, one in made.items()}
        self.notes = Notes(
            cast("Inventories", self.server),
            made,
            chance=random.Random(1),
            clock=self.clock,
            troubled=lambda *what: self.troubles.append(what),
            settled=self.settled.append,
        )

    def note(self, count: int, where: str = "chunk") -> list[Item]:
        made = [item("ConfigMap", f"{where}-{number}") for number in range(count)]
        for one in made:
            self.notes.note(type(one)(where, one.key, one.entry), {"state": "Removed"})
        return made


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_thousands_of_notes_cost_a_few_writes() -> None:
    names = [f"chunk-{number}" for number in range(4)]
    book = Book(*names)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(book.notes.run())
        for _ in range(5):
            for name in names:
                book.note(500, name)
                await asyncio.sleep(0)
        book.notes.finish()
    assert len(book.server.told()) == 2000
    assert len(book.server.writes) < 30


async def test_a_few_notes_wait_for_others_or_for_a_while() -> None:
    book = Book()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(book.notes.run())
        book.note(3)
        await settle()
        assert book.server.writes == []
        book.clock.advance(30)
        await settle()
        assert len(book.server.told()) == 3
        book.notes.finish()
    assert len(book.server.writes) == 1


async def test_the_end_waits_until_everything_is_written_also_while_the_clock_stands_still() -> None:
    book = Book()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(book.notes.run())
        book.note(3)
        book.notes.finish()
        await settle()
        assert writing.done()
    assert len(book.server.told()) == 3


async def test_a_write_that_fails_loses_nothing_and_is_told() -> None:
    book = Book()
    book.server.failures = [UnreachableError("away"), UnreachableError("still away")]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(book.notes.run())
        one, *_ = book.note(2)
        book.notes.finish()
        await settle()
        assert [name for name, _ in book.troubles] == ["chunk"]
        # What is said meanwhile is newer.
        book.notes.note(one, {"state": "Confirmed", "kept": True})
        for _ in range(3):
            book.clock.advance(30)
            await settle()
    assert len(book.troubles) == 2
    assert book.settled == ["chunk"]
    assert book.server.told() == {
        "chunk-0": {"state": "Confirmed", "kept": True},
        "chunk-1": {"state": "Removed"},
    }


async def test_a_conflict_with_another_writer_loses_nothing() -> None:
    book = Book()
    book.server.failures = [ConflictError(APIStatus(code=409, reason="Conflict"), request="PATCH")]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(book.notes.run())
        book.note(1)
        book.notes.finish()
        await settle()
        book.clock.advance(30)
    assert len(book.server.told()) == 1


async def test_a_chunk_that_is_gone_holds_nobody_up() -> None:
    for uids in ({}, {"chunk": "another"}):
        book = Book()
        book.server.uids = uids
        book.server.failures = [ConflictError(APIStatus(code=409, reason="Conflict"), request="PATCH")]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(book.notes.run())
            book.note(1)
            book.notes.finish()
        assert book.server.writes == []
        assert len(book.troubles) == 1
        assert book.settled == ["chunk"]


async def test_what_the_removal_remembers_itself_is_no_deleters_memo() -> None:
    one = item("PersistentVolumeClaim", memo={"/volume": "v/u", "purge.joined": "true"})
    inventories = Inventories(cast("Client", None), namespace="unwind-system")
    assert inventories.memo(chunk(), one.key, one.entry).scopes() == {"purge"}


class Chunk:
    """A stand-in for the server with one chunk on it, whose entries may change at any moment."""

    def __init__(self, *items: Item) -> None:
        self.chunk = chunk("chunk", *items)
        self.patches: list[Any] = []
        self.conflicts = 0

    async def patch(self, _: object, name: str, patch: Any, **_more: object) -> dict[str, Any]:
        self.patches.append(patch)
        there: dict[str, Any] = msgspec.to_builtins(self.chunk)
        for one in patch:
            *where, last = one["path"].strip("/").split("/")
            inner = there
            for step in where:
                inner = inner[step]
            if one["op"] == "test" and inner.get(last) != one["value"]:
                raise ApiError(APIStatus(code=422, reason="Invalid"), request="PATCH")
            inner[last] = one["value"]
        self.chunk = msgspec.convert(there, type(self.chunk))
        return there

    async def get(self, *_: object, **__: object) -> Inventory:
        return self.chunk

    async def revise(self, _: object, read: dict[str, Any], patch: dict[str, Any], **_more: object) -> dict[str, Any]:
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError(APIStatus(code=409, reason="Conflict"), request="PATCH")
        assert read["metadata"]["uid"] == self.chunk.metadata.uid
        self.patches.append(patch)
        there: dict[str, Any] = msgspec.to_builtins(self.chunk)
        for key, change in patch["spec"]["entries"].items():
            there["spec"]["entries"][key] |= change
        self.chunk = msgspec.convert(there, type(self.chunk))
        return there

    @property
    def states(self) -> dict[str, str]:
        return {key: entry.state for key, entry in self.chunk.spec.entries.items()}


def replaced(it: Chunk, key: str, uid: str) -> None:
    """Have an entry confirmed for another object."""
    entries = dict(it.chunk.spec.entries)
    ref = msgspec.structs.replace(entries[key].object, uid=uid)
    entries[key] = msgspec.structs.replace(entries[key], object=ref, state="Confirmed")
    it.chunk = msgspec.structs.replace(it.chunk, spec=msgspec.structs.replace(it.chunk.spec, entries=entries))


def removed(*items: Item) -> dict[str, Note]:
    return {one.key: Note(one.entry.object, {"state": "Removed"}) for one in items}


async def test_a_note_is_written_only_for_the_object_that_it_is_about() -> None:
    one, two = item("ConfigMap", "one"), item("ConfigMap", "two")
    server = Chunk(one, two)
    inventories, before = Inventories(cast("Client", server), namespace="unwind-system"), server.chunk
    replaced(server, one.key, "another")
    server.conflicts = 1
    await inventories.amend(before, removed(one, two))
    assert server.states == {one.key: "Confirmed", two.key: "Removed"}


async def test_notes_of_entries_that_are_as_they_were_cost_one_request() -> None:
    one, two = item("ConfigMap", "one"), item("ConfigMap", "two")
    server = Chunk(one, two)
    await Inventories(cast("Client", server), namespace="unwind-system").amend(server.chunk, removed(one, two))
    assert server.states == {one.key: "Removed", two.key: "Removed"}
    assert len(server.patches) == 1


async def test_no_note_is_written_into_another_chunk_of_the_same_name() -> None:
    one = item("ConfigMap", "one")
    server = Chunk(one)
    before = server.chunk
    server.chunk = msgspec.structs.replace(
        before, metadata=msgspec.structs.replace(before.metadata, uid="another chunk")
    )
    await Inventories(cast("Client", server), namespace="unwind-system").amend(before, removed(one))
    assert server.states == {one.key: one.entry.state}
