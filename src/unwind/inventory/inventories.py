"""The records of what was put where: reading them, sealing them, writing down what became of their entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import FURTHER_LABEL, MEMBER_LABEL, OWNER_LABEL, Finalizer
from unwind.api.resources import Resource
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, INVENTORIES, Entry, EntryState, Inventory
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight, gather_limited
from unwind.deleters.memo import Memo
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.kube.updates import discard
from unwind.kube.workqueue import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping

    from unwind.clock import Clock, Timer
    from unwind.kube.client import Client, Object


# One entry of an inventory, and where it is recorded (values only).


class Item(msgspec.Struct, frozen=True):
    """One object of a step: where it is written down, and what is."""

    chunk: str
    """The Inventory."""
    key: str
    """Its entry there."""
    entry: Entry

    @property
    def done(self) -> bool:
        """Whether nothing is to be done for it any more: it is gone, or was knowingly left."""
        return self.entry.state == EntryState.REMOVED or self.entry.ledger is not None

    @property
    def resource(self) -> Resource:
        it = self.entry.object
        return Resource(it.group, it.version, self.entry.resource, it.kind, namespaced=bool(it.namespace))


_RETRY = Backoff(first=0.2, limit=30.0)
# What is reported is gathered: until there is much of it for one chunk, or for so many seconds. It spares a second look
# after a crash, and a write for each of hundreds of small chunks would cost more than that.
_BATCH = 250
# A uid in a selector is 40 characters, and a request's line is not endless.
_OWNERS_AT_ONCE = 50
_SIDE_BY_SIDE = 8
_SOON = 30.0
_UNPROCESSABLE = 422
# What the removal itself remembers of an entry. The name of no deleter begins like this.
OWN = "/"


class Inventories:
    """The inventories in Unwind's own namespace."""

    def __init__(self, client: Client, *, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._further: SingleFlight[list[Inventory]] = SingleFlight()

    async def of(self, owner: str) -> list[Inventory]:
        """The chunks of an owner, by its uid, read from the server."""
        found = await self.client.list(INVENTORIES, namespace=self.namespace, labels=f"{OWNER_LABEL}={owner}")
        # A label is only a way to find them: whose they are is frozen in the spec.
        chunks = [
            inventory for inventory in msgspec.convert(found, list[Inventory]) if inventory.spec.owner.uid == owner
        ]
        return sorted(chunks, key=lambda one: one.spec.chunk)

    async def at_hand(self, owner: str) -> list[Inventory]:
        """The chunks of an owner as far as they are counted without a gap, read from the server one by one.

        A list by label makes the server look through all inventories there are, and wait until it knows of all that
        was written anywhere; nearly every owner has one chunk. Who relies on there being no more asks `of`, or closes
        them afterwards.
        """
        # The second is nearly always missing: it is asked for beside the first.
        first, next_one = await asyncio.gather(self.get(f"{owner}-0"), self.get(f"{owner}-1"))
        found = [first] if first else []
        while found and next_one:
            found.append(next_one)
            next_one = await self.get(f"{owner}-{len(found)}")
        return found

    async def on(self, member: str) -> list[Inventory]:
        """The chunks of all owners on a cluster, by the uid of what stands for it, read from the server."""
        found = await self.client.list(INVENTORIES, namespace=self.namespace, labels=f"{MEMBER_LABEL}={member}")
        return [
            inventory
            for inventory in msgspec.convert(found, list[Inventory])
            if inventory.spec.member.object.uid == member
        ]

    async def owned(self, owners: Iterable[str]) -> list[Inventory]:
        """The chunks of several owners, read from the server, with one question for many of them."""
        wanted = sorted(owners)
        found: list[Object] = []
        for start in range(0, len(wanted), _OWNERS_AT_ONCE):
            some = ",".join(wanted[start : start + _OWNERS_AT_ONCE])
            found += await self.client.list(INVENTORIES, namespace=self.namespace, labels=f"{OWNER_LABEL} in ({some})")
        return msgspec.convert(found, list[Inventory])

    async def by_owner(self, member: str) -> dict[str, list[Inventory]]:
        """All chunks of the owners whose first chunk is on this cluster, for two questions however many those are."""
        owners: dict[str, dict[str, Inventory]] = {}
        for chunk in (*await self.on(member), *await self._further.ask("", self._all_further)):
            owners.setdefault(chunk.spec.owner.uid, {})[chunk.metadata.name] = chunk
        return {
            owner: sorted(chunks.values(), key=lambda one: one.spec.chunk)
            for owner, chunks in owners.items()
            if f"{owner}-0" in chunks
        }

    async def sealed(self, owner: str, teardown: str) -> list[Inventory]:
        """All chunks of an owner, closed for whoever deploys.

        They write by compare-and-swap and have to read a chunk again that was sealed. Whoever adds one looks afterwards
        whether the others are sealed: so either this finds the new one, or they find this.
        """
        first = await self._seal(f"{owner}-0", teardown)
        # Asked once for all who seal at this moment: a cluster may have hundreds of owners on it.
        others = await (self._further.ask("", self._all_further) if first else self.of(owner))
        sealed = [await self._seal(item.metadata.name, teardown) for item in others if item.spec.owner.uid == owner]
        return sorted((item for item in (first, *sealed) if item), key=lambda one: one.spec.chunk)

    async def sealed_as_read(self, owner: str, chunks: Iterable[Inventory], teardown: str) -> bool:
        """Close the chunks of an owner if they are as they were read, and no more of them than then: whether that is
        so. Then whatever was removed by what they said is all that there was. It is done beside what has to be done."""
        known = {chunk.metadata.name: chunk for chunk in chunks}
        try:
            for chunk in known.values():
                if not chunk.spec.sealed_for:
                    async with self.client.aside:
                        await self.client.revise(INVENTORIES, guard(chunk), {"spec": {"sealedFor": teardown}})
        except (ConflictError, NotFoundError):
            return False
        others = await (self._further.ask("", self._all_further) if known else self.of(owner))
        return all(item.metadata.name in known for item in others if item.spec.owner.uid == owner)

    async def get(self, name: str) -> Inventory | None:
        """One chunk, by its name; None if there is none."""
        try:
            return await self.client.get(INVENTORIES, name, namespace=self.namespace, type=Inventory)
        except NotFoundError:
            return None

    async def _all_further(self) -> list[Inventory]:
        found = await self.client.list(INVENTORIES, namespace=self.namespace, labels=f"{FURTHER_LABEL}=true")
        return msgspec.convert(found, list[Inventory])

    async def _seal(self, name: str, teardown: str) -> Inventory | None:
        """The chunk of that name, sealed; None if there is none. One that another removal has sealed is closed as well:
        a cluster may be deleted while something is withdrawn from it."""
        while True:
            try:
                patch = {"spec": {"sealedFor": teardown}}
                found = await self.client.patch(INVENTORIES, name, patch, namespace=self.namespace)
                return msgspec.convert(found, Inventory)
            except NotFoundError:
                return None
            except ConflictError:
                continue  # many have written at once
            except ApiError:
                # Who has sealed it once does not change.
                chunk = await self.get(name)
                if chunk is None or chunk.spec.sealed_for:
                    return chunk
                raise

    async def write(self, chunk: Inventory, entries: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Merge something into entries, or take those out that are None. No other entry is touched."""
        await self.patch(chunk.metadata.name, chunk.metadata.uid, entries)

    async def patch(self, name: str, uid: str, entries: Mapping[str, Mapping[str, Any] | None]) -> None:
        body: Object = {"metadata": {"uid": uid}, "spec": {"entries": entries}}
        await self.client.patch(INVENTORIES, name, body, namespace=self.namespace)

    async def amend(self, chunk: Inventory, notes: Mapping[str, Note]) -> None:
        """Write notes into the entries that still name the objects that the notes are about. Notes come late: an entry
        that was confirmed for another object meanwhile must not be taken for done."""
        name = chunk.metadata.name
        operations: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": chunk.metadata.uid}]
        for key, note in notes.items():
            operations += note.operations(key)
        try:
            await self.client.patch(INVENTORIES, name, operations, namespace=self.namespace)
        except ApiError as error:
            if error.code != _UNPROCESSABLE:
                raise
        else:
            return
        # At least one entry is another than it was. The other notes are still true.
        while True:
            now = await self.get(name)
            if now is None or now.metadata.uid != chunk.metadata.uid:
                return
            entries = now.spec.entries
            left = {key: note.change for key, note in notes.items() if key in entries and note.is_about(entries[key])}
            if not left:
                return
            try:
                await self.client.revise(INVENTORIES, guard(now), {"spec": {"entries": left}})
            except ConflictError:
                continue  # it was written at the same moment
            return

    async def discard(self, inventory: Inventory) -> None:
        """Delete a chunk that is an account of nothing any more."""
        name, uid = inventory.metadata.name, inventory.metadata.uid
        await discard(
            self.client, INVENTORIES, name, uid=uid, namespace=self.namespace, finalizer=Finalizer.INVENTORY.value
        )

    async def discard_all(self, chunks: Iterable[Inventory]) -> None:
        """Delete chunks that are accounts of nothing any more, beside what has to be done: nobody waits for it."""

        async def one(chunk: Inventory) -> None:
            async with self.client.aside:
                await self.discard(chunk)

        await gather_limited((one(chunk) for chunk in chunks), limit=_SIDE_BY_SIDE)

    def memo(self, chunk: Inventory, key: str, entry: Entry) -> Memo:
        """What an entry's deletion remembers. It outlives the object, because the inventory does."""

        async def save(values: Mapping[str, str | None]) -> None:
            await self.write(chunk, {key: {"memo": dict(values)}})

        return Memo({name: value for name, value in entry.memo.items() if not name.startswith(OWN)}, save)

    async def extend(self, like: Inventory, number: int) -> Inventory:
        """One more chunk of the same owner on the same member, sealed as the others are, for what is found out during
        its removal. `number`: the first that may be free; the chunks of an owner on other members are counted, too."""
        spec, meta = like.spec, like.metadata
        while True:
            name = f"{spec.owner.uid}-{number}"
            made = Inventory(
                metadata=ObjectMeta(
                    name=name,
                    namespace=self.namespace,
                    labels=meta.labels | {FURTHER_LABEL: "true"},
                    finalizers=(Finalizer.INVENTORY,),
                ),
                spec=msgspec.structs.replace(spec, chunk=number, entries={}),
            )
            try:
                return msgspec.convert(await self.client.create(INVENTORIES, manifest(INVENTORIES, made)), Inventory)
            except AlreadyExistsError:
                found = await self.get(name)
            # We made it, and died before anything was written into it; or another process removes the same. One of
            # another member is not for these entries: they would be looked for there, and found to be absent.
            if found is None:
                continue
            ours = found.spec.member == spec.member and found.spec.owner.uid == spec.owner.uid
            if ours and len(found.spec.entries) < ENTRIES_IN_A_CHUNK and not found.metadata.terminating:
                return found
            number += 1


class Note(msgspec.Struct, frozen=True):
    """What became of one object, to be written into its entry."""

    object: ObjectRef
    """As the entry named it; without a uid if it was only intended."""
    change: dict[str, Any]

    def is_about(self, entry: Entry) -> bool:
        """Whether an entry still names this object."""
        return entry.object.uid == self.object.uid

    def operations(self, key: str) -> list[Object]:
        """The JSON patch that makes the change, and fails if the entry names another object."""
        path = f"/spec/entries/{key.replace('~', '~0').replace('/', '~1')}"
        named: Object = {"op": "test", "path": f"{path}/object", "value": msgspec.to_builtins(self.object)}
        # To add a field that is there replaces it.
        return [named, *({"op": "add", "path": f"{path}/{name}", "value": it} for name, it in self.change.items())]


def guard(chunk: Inventory) -> Object:
    """What a write says of a chunk that is to be as it was read."""
    meta = chunk.metadata
    fields = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": fields}


def ledgered(chunk: Inventory) -> bool:
    """Whether something of it was knowingly left, so that it stays as a record."""
    return any(entry.ledger is not None for entry in chunk.spec.entries.values())


def intended(chunks: Iterable[Inventory]) -> bool:
    """Whether there are entries whose objects may not be created yet: they may be, until the inventory is sealed."""
    return any(not item.done and item.entry.state == EntryState.INTENDED for item in items(chunks))


def items(chunks: Iterable[Inventory]) -> list[Item]:
    """The entries of all chunks."""
    return [Item(chunk.metadata.name, key, entry) for chunk in chunks for key, entry in chunk.spec.entries.items()]


class Notes:
    """What became of entries, written behind the back of who reports it: thousands of reports cost a few writes.

    No write stands between one object and the next: what was done is observed again after a crash
    (docs/architecture.md, Events drive, timers insure).
    """

    def __init__(
        self,
        inventories: Inventories,
        chunks: Mapping[str, Inventory],
        *,
        chance: random.Random,
        clock: Clock = SYSTEM,
        troubled: Callable[[str, Exception], None] = lambda *_: None,
        settled: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`chunks`: by name; more may come. `troubled` is told of a chunk that cannot be written, `settled` of one that
        could, or need not be any more."""
        self._inventories = inventories
        self._chunks = chunks
        self._clock = clock
        self._chance = chance
        self._troubled = troubled
        self._settled = settled
        self._pending: dict[str, dict[str, Note]] = {}
        self._wake = asyncio.Event()
        self._timer: Timer | None = None
        self._overdue: set[str] = set()
        """Chunks that are to be written however little there is to tell of them."""
        self._finishing = False

    def note(self, item: Item, change: dict[str, Any]) -> None:
        """Have a change to an entry written down, soon."""
        pending = self._pending.setdefault(item.chunk, {})
        before = pending.get(item.key)
        pending[item.key] = Note(item.entry.object, (before.change if before else {}) | change)
        if len(pending) >= _BATCH:
            self._wake.set()
        elif self._timer is None:
            self._timer = self._clock.call_later(_SOON, self._write_everything)

    async def run(self) -> None:
        """Write, until told to finish and everything is written down."""
        try:
            while not self._finishing or self._pending:
                await self._wake.wait()
                self._wake.clear()
                await self._flush()
        finally:
            self._stop_timer()

    def finish(self, *, unwritten: bool = False) -> None:
        """Nothing more comes. `unwritten`: what is still to be written need not be any more."""
        self._finishing = True
        if unwritten:
            self._pending.clear()
        self._write_everything()

    def _write_everything(self) -> None:
        self._stop_timer()
        self._overdue.update(self._pending)
        self._wake.set()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    async def _flush(self) -> None:
        """Write the chunks of which there is much to tell; all, if it is time, or the end."""
        failures = 0
        while name := self._due():
            notes = self._pending.pop(name)
            self._overdue.discard(name)  # what comes from now on is gathered again
            try:
                await self._inventories.amend(self._chunks[name], notes)
                self._settled(name)
                failures = 0
            except (ApiError, UnreachableError) as error:
                self._troubled(name, error)
                if isinstance(error, NotFoundError | ConflictError) and await self._is_lost(self._chunks[name]):
                    # It is gone, or its name belongs to another: there is nothing to be said of it any more.
                    self._settled(name)
                    continue
                newer = self._pending.setdefault(name, {})
                for key, note in notes.items():
                    newer[key] = Note(note.object, note.change | newer[key].change) if key in newer else note
                self._overdue.add(name)
                failures += 1
                await self._clock.sleep(_RETRY.after(failures, self._chance))

    def _due(self) -> str | None:
        return next((name for name, entries in self._pending.items() if self._is_due(name, entries)), None)

    def _is_due(self, name: str, entries: Mapping[str, object]) -> bool:
        return self._finishing or name in self._overdue or len(entries) >= _BATCH

    async def _is_lost(self, chunk: Inventory) -> bool:
        """Whether a chunk is not there any more. A conflict alone does not say so: many may write at once."""
        try:
            found = await self._inventories.client.get(
                INVENTORIES, chunk.metadata.name, namespace=self._inventories.namespace
            )
        except NotFoundError:
            return True
        except (ApiError, UnreachableError):
            return False  # nobody knows
        return bool(found["metadata"]["uid"] != chunk.metadata.uid)
