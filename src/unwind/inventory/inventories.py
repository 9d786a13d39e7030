"""Reads, seals, updates and deletes Inventory objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import FURTHER_LABEL, MEMBER_LABEL, OWNER_LABEL, REQUESTED_DRAIN, Finalizer
from unwind.api.resources import Resource
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, INVENTORIES, Effort, Entry, EntryState, Inventory
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


# One inventory entry and its position (values only).


class Item(msgspec.Struct, frozen=True):
    """One entry of an inventory, with its position."""

    chunk: str
    """The name of the Inventory."""
    key: str
    """The key of the entry."""
    entry: Entry

    @property
    def done(self) -> bool:
        """Whether the object is removed, or was left on purpose."""
        return self.entry.state == EntryState.REMOVED or self.entry.left

    @property
    def resource(self) -> Resource:
        ref = self.entry.object
        return Resource(ref.group, ref.version, self.entry.resource, ref.kind, namespaced=bool(ref.namespace))


_RETRY = Backoff(first=0.2, limit=30.0)
# Changes are batched: up to this number per Inventory, or for _SOON seconds. They only save a second check after a
# crash, and one write for each of hundreds of small Inventories would cost more than that.
_BATCH = 250
# A uid in a selector takes 40 characters, and the length of a request line is limited.
_OWNERS_AT_ONCE = 50
_SIDE_BY_SIDE = 8
_SOON = 30.0
_UNPROCESSABLE = 422
# Prefix of the memo keys of the removal itself. No deleter's name begins with it.
OWN = "/"


class Inventories:
    """The Inventory objects in Unwind's own namespace."""

    def __init__(self, client: Client, *, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._further: SingleFlight[list[Inventory]] = SingleFlight()

    async def of(self, owner: str) -> list[Inventory]:
        """All Inventories of the owner with this uid, read from the API server."""
        found = await self._list(f"{OWNER_LABEL}={owner}")
        # The label is only for the lookup: the owner is in the immutable part of the spec.
        return sorted((chunk for chunk in found if chunk.spec.owner.uid == owner), key=lambda chunk: chunk.spec.chunk)

    async def at_hand(self, owner: str) -> list[Inventory]:
        """The Inventories of an owner with consecutive numbers, read from the API server one by one.

        A list by label makes the API server filter all Inventories and wait for a consistent read; nearly every owner
        has one Inventory. A caller that needs all of them uses `of`, or seals them afterwards.
        """
        # The second one is nearly always absent: it is requested together with the first.
        first, next_one = await asyncio.gather(self.get(f"{owner}-0"), self.get(f"{owner}-1"))
        found = [first] if first else []
        while found and next_one:
            found.append(next_one)
            next_one = await self.get(f"{owner}-{len(found)}")
        return found

    async def on(self, member: str) -> list[Inventory]:
        """The Inventories of all owners on the cluster with this uid, read from the API server. Not those of requested
        drains, which are no part of the cluster's own teardown."""
        return [chunk for chunk in await self._all_on(member) if not _of_request(chunk)]

    async def of_requests_on(self, member: str) -> list[Inventory]:
        """The Inventories of requested drains on the cluster with this uid, read from the API server."""
        return [chunk for chunk in await self._all_on(member) if _of_request(chunk)]

    async def _all_on(self, member: str) -> list[Inventory]:
        found = await self._list(f"{MEMBER_LABEL}={member}")
        return [chunk for chunk in found if chunk.spec.member.object.uid == member]

    async def owned(self, owners: Iterable[str]) -> list[Inventory]:
        """The Inventories of several owners, read from the API server with one request for many owners."""
        wanted = sorted(owners)
        found: list[Inventory] = []
        for start in range(0, len(wanted), _OWNERS_AT_ONCE):
            some = ",".join(wanted[start : start + _OWNERS_AT_ONCE])
            found += await self._list(f"{OWNER_LABEL} in ({some})")
        return found

    async def by_owner(self, member: str) -> dict[str, list[Inventory]]:
        """All Inventories of the owners whose first one is on this cluster, with two requests for any number of
        owners."""
        return by_owner((*await self.on(member), *await self._further.ask("", self._all_further)))

    async def sealed(self, owner: str, teardown: str) -> list[Inventory]:
        """All Inventories of an owner, sealed, so that no deployment can add to them.

        A deployment writes by compare-and-swap and must read a sealed Inventory again. After it adds an Inventory, it
        checks whether the others are sealed: so either this finds the new one, or the deployment finds the seal.
        """
        first = await self._seal(f"{owner}-0", teardown)
        # One request for all concurrent callers: a cluster may have hundreds of owners.
        others = await (self._further.ask("", self._all_further) if first else self.of(owner))
        sealed = [await self._seal(item.metadata.name, teardown) for item in others if item.spec.owner.uid == owner]
        return sorted((item for item in (first, *sealed) if item), key=lambda chunk: chunk.spec.chunk)

    async def sealed_as_read(self, owner: str, chunks: Iterable[Inventory], teardown: str) -> bool:
        """Seal the Inventories of an owner if they are unchanged since they were read, and there are no new ones;
        return whether that is so. If it is, all objects of the owner were in what was read. Runs with low priority."""
        known = {chunk.metadata.name: chunk for chunk in chunks}
        try:
            for chunk in known.values():
                if not chunk.spec.sealed_for:
                    async with self.client.aside:
                        await self.client.revise(
                            INVENTORIES, write_guard(chunk), {"spec": {"sealedFor": teardown}}, metadata_only=True
                        )
        except (ConflictError, NotFoundError):
            return False
        others = await (self._further.ask("", self._all_further) if known else self.of(owner))
        return all(item.metadata.name in known for item in others if item.spec.owner.uid == owner)

    async def get(self, name: str) -> Inventory | None:
        """The Inventory of this name; None if there is none."""
        try:
            return await self.client.get(INVENTORIES, name, namespace=self.namespace, type=Inventory)
        except NotFoundError:
            return None

    async def _all_further(self) -> list[Inventory]:
        return await self._list(f"{FURTHER_LABEL}=true")

    async def _list(self, labels: str) -> list[Inventory]:
        return await self.client.list_of(INVENTORIES, Inventory, namespace=self.namespace, labels=labels)

    async def _seal(self, name: str, teardown: str) -> Inventory | None:
        """The Inventory of this name, sealed; None if there is none. A seal by another removal counts: a cluster may be
        deleted during a withdrawal from it."""
        while True:
            try:
                patch = {"spec": {"sealedFor": teardown}}
                found = await self.client.patch(INVENTORIES, name, patch, namespace=self.namespace)
                return msgspec.convert(found, Inventory)
            except NotFoundError:
                return None
            except ConflictError:
                continue  # concurrent writes
            except ApiError:
                # The seal is immutable: it may be sealed already.
                chunk = await self.get(name)
                if chunk is None or chunk.spec.sealed_for:
                    return chunk
                raise

    async def record_effort(self, owner: str, effort: Effort) -> None:
        """Write the effort into all Inventories of an owner that is not being removed."""
        first, further = await asyncio.gather(self.get(f"{owner}-0"), self._further.ask("", self._all_further))
        for chunk in (first, *(item for item in further if item.spec.owner.uid == owner)):
            found = chunk
            while found and found.spec.effort != effort and not found.spec.sealed_for:
                try:
                    await self.client.revise(
                        INVENTORIES, write_guard(found), {"spec": {"effort": effort.value}}, metadata_only=True
                    )
                    break
                except (ConflictError, NotFoundError):
                    found = await self.get(found.metadata.name)  # concurrent write

    async def write(self, chunk: Inventory, entries: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Merge changes into entries, and delete entries that are None. Other entries are not changed."""
        await self.patch(chunk.metadata.name, chunk.metadata.uid, entries)

    async def patch(self, name: str, uid: str, entries: Mapping[str, Mapping[str, Any] | None]) -> None:
        body: Object = {"metadata": {"uid": uid}, "spec": {"entries": entries}}
        await self.client.patch(INVENTORIES, name, body, namespace=self.namespace, metadata_only=True)

    async def amend(self, chunk: Inventory, notes: Mapping[str, Note]) -> None:
        """Write notes into the entries that still name the objects of the notes. Notes are written late: an entry that
        was confirmed for another object since then must not count as done."""
        name = chunk.metadata.name
        operations: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": chunk.metadata.uid}]
        for key, note in notes.items():
            operations += note.operations(key)
        try:
            await self.client.patch(INVENTORIES, name, operations, namespace=self.namespace, metadata_only=True)
        except ApiError as error:
            if error.code != _UNPROCESSABLE:
                raise
        else:
            return
        # At least one entry names another object. The other notes are still valid.
        while True:
            now = await self.get(name)
            if now is None or now.metadata.uid != chunk.metadata.uid:
                return
            entries = now.spec.entries
            left = {key: note.change for key, note in notes.items() if key in entries and note.is_about(entries[key])}
            if not left:
                return
            try:
                await self.client.revise(INVENTORIES, write_guard(now), {"spec": {"entries": left}}, metadata_only=True)
            except ConflictError:
                continue  # concurrent write
            return

    async def discard(self, inventory: Inventory) -> None:
        """Delete an Inventory that is not needed any more."""
        name, uid = inventory.metadata.name, inventory.metadata.uid
        await discard(
            self.client, INVENTORIES, name, uid=uid, namespace=self.namespace, finalizer=Finalizer.INVENTORY.value
        )

    async def discard_all(self, chunks: Iterable[Inventory]) -> None:
        """Delete Inventories that are not needed any more, with low priority."""

        async def one(chunk: Inventory) -> None:
            async with self.client.aside:
                await self.discard(chunk)

        await gather_limited((one(chunk) for chunk in chunks), limit=_SIDE_BY_SIDE)

    def memo(self, chunk: Inventory, key: str, entry: Entry) -> Memo:
        """The memo of an entry's deletion. It is stored in the Inventory, so it outlives the object."""

        async def save(values: Mapping[str, str | None]) -> None:
            await self.write(chunk, {key: {"memo": dict(values)}})

        return Memo({name: value for name, value in entry.memo.items() if not name.startswith(OWN)}, save)

    async def extend(self, like: Inventory, number: int) -> Inventory:
        """Another Inventory of the same owner and member, sealed like the others, for objects that are found during the
        removal. `number`: the first number that may be free; Inventories on other members are counted, too."""
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
            # An earlier attempt created it and was interrupted, or another process removes the same objects. An
            # Inventory of another member cannot hold these entries: they would be looked up there, and found absent.
            if found is None:
                continue
            ours = found.spec.member == spec.member and found.spec.owner.uid == spec.owner.uid
            if ours and len(found.spec.entries) < ENTRIES_IN_A_CHUNK and not found.metadata.terminating:
                return found
            number += 1


class Note(msgspec.Struct, frozen=True):
    """A change of one entry that is to be written."""

    object: ObjectRef
    """The object in the entry; without a uid if it was only intended."""
    change: dict[str, Any]

    def is_about(self, entry: Entry) -> bool:
        """Whether an entry still names this object."""
        return entry.object.uid == self.object.uid

    def operations(self, key: str) -> list[Object]:
        """The JSON patch operations of the change, which fail if the entry names another object."""
        path = f"/spec/entries/{key.replace('~', '~0').replace('/', '~1')}"
        named: Object = {"op": "test", "path": f"{path}/object", "value": msgspec.to_builtins(self.object)}
        # "add" replaces an existing field.
        adds = ({"op": "add", "path": f"{path}/{name}", "value": value} for name, value in self.change.items())
        return [named, *adds]


def write_guard(chunk: Inventory) -> Object:
    """The metadata of a write that fails if the Inventory changed since it was read."""
    meta = chunk.metadata
    fields = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": fields}


def _of_request(chunk: Inventory) -> bool:
    owner = chunk.spec.owner
    return (owner.group, owner.kind) == (INVENTORIES.group, REQUESTED_DRAIN)


def by_owner(chunks: Iterable[Inventory]) -> dict[str, list[Inventory]]:
    """These Inventories by the uids of their owners, without owners whose first one is not among them (pure)."""
    owners: dict[str, dict[str, Inventory]] = {}
    for chunk in chunks:
        owners.setdefault(chunk.spec.owner.uid, {})[chunk.metadata.name] = chunk
    return {
        owner: sorted(those.values(), key=lambda chunk: chunk.spec.chunk)
        for owner, those in owners.items()
        if f"{owner}-0" in those
    }


def ledgered(chunk: Inventory) -> bool:
    """Whether an Inventory has ledger entries, and so stays as a record."""
    return any(entry.left for entry in chunk.spec.entries.values())


def intended(chunks: Iterable[Inventory]) -> bool:
    """Whether there are intended entries: their objects may still be created, until the inventory is sealed."""
    return any(not item.done and item.entry.state == EntryState.INTENDED for item in items(chunks))


def items(chunks: Iterable[Inventory]) -> list[Item]:
    """The entries of all these Inventories."""
    return [Item(chunk.metadata.name, key, entry) for chunk in chunks for key, entry in chunk.spec.entries.items()]


class Notes:
    """Writes changes of entries in the background, in batches: thousands of changes cost a few writes.

    No deletion waits for a write: after a crash, the results are observed again (docs/architecture.md, Events drive,
    timers insure).
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
        """`chunks`: by name; more may be added. `troubled`: called when an Inventory cannot be written. `settled`:
        called when it was written, or need not be written any more."""
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
        """Inventories to write, even if the batch is small."""
        self._finishing = False

    def note(self, item: Item, change: dict[str, Any]) -> None:
        """Write a change of an entry, soon."""
        pending = self._pending.setdefault(item.chunk, {})
        before = pending.get(item.key)
        pending[item.key] = Note(item.entry.object, (before.change if before else {}) | change)
        if len(pending) >= _BATCH:
            self._wake.set()
        elif self._timer is None:
            self._timer = self._clock.call_later(_SOON, self._write_everything)

    async def run(self) -> None:
        """Write changes, until `finish` was called and everything is written."""
        try:
            while not self._finishing or self._pending:
                await self._wake.wait()
                self._wake.clear()
                await self._flush()
        finally:
            self._stop_timer()

    def finish(self, *, unwritten: bool = False) -> None:
        """End `run`. `unwritten`: drop the pending changes."""
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
        """Write the Inventories with full batches; all of them after a timeout, or at the end."""
        failures = 0
        while name := self._due():
            notes = self._pending.pop(name)
            self._overdue.discard(name)  # later changes are batched again
            try:
                await self._inventories.amend(self._chunks[name], notes)
                self._settled(name)
                failures = 0
            except (ApiError, UnreachableError) as error:
                self._troubled(name, error)
                if isinstance(error, NotFoundError | ConflictError) and await self._is_lost(self._chunks[name]):
                    # It is gone, or its name belongs to another Inventory: there is nothing to write.
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
        """Whether an Inventory is gone. A conflict alone does not prove it: there may be concurrent writes."""
        try:
            found = await self._inventories.client.get(
                INVENTORIES, chunk.metadata.name, namespace=self._inventories.namespace
            )
        except NotFoundError:
            return True
        except (ApiError, UnreachableError):
            return False  # unknown
        return bool(found["metadata"]["uid"] != chunk.metadata.uid)
