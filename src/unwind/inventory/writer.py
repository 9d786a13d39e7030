"""Writes the Inventories of one owner on one member by compare-and-swap, so that nothing is added to a sealed one
(docs/architecture.md, State in the API server)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import FURTHER_LABEL, MEMBER_LABEL, OWNER_LABEL, Finalizer
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, INVENTORIES, Effort, Entry, Inventory, InventorySpec, MemberRef
from unwind.errors import UnwindError
from unwind.inventory.inventories import items, write_guard
from unwind.kube.errors import AlreadyExistsError, AnotherClusterError, ConflictError, NotFoundError
from unwind.kube.updates import difference, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member

Change = dict[str, Any]
# Prefixes of `source` in the entries of manifests. Entries of charts are handled elsewhere.
MANIFEST_SOURCES = ("ConfigMap ", "Secret ", "Work ")
# Makes the API server forget who wrote which field of an Inventory, and not track it from then on: only Unwind writes
# Inventories, and tracking takes up to half of the time of each later write, most of all of the deletion.
_UNTRACKED: Change = {"metadata": {"managedFields": [{}]}}


class SealedError(UnwindError):
    """The inventory is sealed for removal: nothing more may be deployed."""


class NotTheFirstError(UnwindError):
    """The owner already has an inventory, although none was expected."""


class Records:
    """The Inventories of one owner on one member, as last read or written."""

    def __init__(
        self, inventories: Inventories, owner: ObjectRef, member: Member, *, effort: Effort | None = None
    ) -> None:
        """`effort`: recorded with the entries that `put` writes; None to keep what is recorded."""
        self._inventories = inventories
        self._effort = effort.value if effort else ""
        self._effort_written: set[str] = set()
        self._owner = owner
        self._member = _member_ref(member)
        self._chunks: dict[str, Inventory] = {}
        self._next = 0
        self._loaded = False

    async def load(self, *, exactly: bool = False) -> None:
        """Read them. Raises SealedError, or UnreachableError if another cluster answers at the recorded address.

        `exactly`: also read those after a gap in the numbers, which only a removal leaves.
        """
        self._loaded = True
        read = self._inventories.of if exactly else self._inventories.at_hand
        found = await read(self._owner.uid)
        for chunk in found:
            self._check(chunk)
            there = chunk.spec.member
            if there.object.uid == self._member.object.uid and there.system_uid != self._member.system_uid:
                raise AnotherClusterError(
                    f"the address of {there.object}", found=self._member.system_uid, expected=there.system_uid
                )
        self._chunks = {chunk.metadata.name: chunk for chunk in found if chunk.spec.member == self._member}
        # Inventories are numbered over all members of the owner, because they share its uid as name.
        self._next = 1 + max((chunk.spec.chunk for chunk in found), default=-1)

    def is_on(self, member: Member) -> bool:
        """Whether they are the Inventories for this member, and not for another cluster at its address."""
        return self._member == _member_ref(member)

    @property
    def chunks(self) -> list[Inventory]:
        return list(self._chunks.values())

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries, by key."""
        return {key: entry for chunk in self._chunks.values() for key, entry in chunk.spec.entries.items()}

    @property
    def places(self) -> dict[str, str]:
        """The name of each entry's Inventory, by key."""
        return {key: name for name, chunk in self._chunks.items() for key in chunk.spec.entries}

    async def put(self, entries: Mapping[str, Entry]) -> None:
        """Write these entries in place of existing ones. One write per Inventory, with the fields that change.

        When it returns, every Inventory that was loaded has the effort: it must not be lower than that of an object
        that is created next.
        """
        left = dict(entries)
        made: list[Inventory] = []
        while left:
            places = self._allotted(left)
            for name, keys in places.items():
                there = self._chunks[name].spec.entries
                if await self._patch(name, {key: _difference(there.get(key), left[key]) for key in keys}):
                    for key in keys:
                        del left[key]
            if not places and (chunk := await self._add(left)):
                made.append(chunk)
        for name in list(self._chunks):
            while self._lacks_effort(name) and not await self._patch(name, {}):
                pass  # it was read again
        if any(chunk.spec.chunk for chunk in made):
            await self._still_open(made)

    async def put_unless_sealed(self, entries: Mapping[str, Entry]) -> None:
        """Write these entries without reading first. Sealed Inventories stay as they are: a removal has started."""
        try:
            try:
                await self.put(entries)  # nearly always the first
            except NotTheFirstError:
                await self.load()
                await self.put(entries)
        except SealedError:
            return

    async def change(self, changes: Mapping[str, Change | None]) -> None:
        """Merge changes into entries, and delete entries that are None. One write per Inventory."""
        left = dict(changes)
        while left:
            places = self.places
            by_chunk: dict[str, dict[str, Change | None]] = {}
            for key in [key for key in left if key not in places]:
                del left[key]  # there is no such entry
            for key, one in left.items():
                by_chunk.setdefault(places[key], {})[key] = one
            for name, some in by_chunk.items():
                if await self._patch(name, some):
                    for key in some:
                        del left[key]

    def _allotted(self, entries: Iterable[str]) -> dict[str, list[str]]:
        """The entries for each Inventory, as far as there is room."""
        places: dict[str, list[str]] = {}
        room = {
            name: 0 if chunk.metadata.terminating else ENTRIES_IN_A_CHUNK - len(chunk.spec.entries)
            for name, chunk in self._chunks.items()
        }
        where = self.places
        for key in entries:
            name = where.get(key) or next((chunk for chunk, free in room.items() if free > 0), "")
            if not name:
                continue
            if key not in where:
                room[name] -= 1
            places.setdefault(name, []).append(key)
        return places

    async def _add(self, left: dict[str, Entry]) -> Inventory | None:
        """A new Inventory with as many of the entries as fit; None if one was created concurrently."""
        some = dict(list(left.items())[:ENTRIES_IN_A_CHUNK])
        meta = ObjectMeta(
            name=f"{self._owner.uid}-{self._next}",
            namespace=self._inventories.namespace,
            labels={OWNER_LABEL: self._owner.uid, MEMBER_LABEL: self._member.object.uid}
            | ({FURTHER_LABEL: "true"} if self._next else {}),
            finalizers=(Finalizer.INVENTORY.value,),
        )
        spec = InventorySpec(
            owner=self._owner, member=self._member, chunk=self._next, effort=self._effort, entries=some
        )
        body = manifest(INVENTORIES, Inventory(metadata=meta, spec=spec))
        try:
            chunk = msgspec.convert(await self._inventories.client.create(INVENTORIES, body), Inventory)
        except AlreadyExistsError:
            if not self._loaded:
                raise NotTheFirstError(f"{self._owner} already has an inventory") from None
            await self.load(exactly=True)
            return None
        self._chunks[chunk.metadata.name] = chunk
        self._next += 1
        for key in some:
            del left[key]
        return chunk

    async def _still_open(self, made: Iterable[Inventory]) -> None:
        """Raise SealedError if a removal sealed the others concurrently: it may not know the new ones. It lists them
        again after sealing: so either it finds the new ones, or this finds the seal."""
        try:
            await self.load(exactly=True)
        except SealedError:
            for chunk in made:
                await self._inventories.discard(chunk)  # nothing of it was deployed yet
            raise

    async def _patch(self, name: str, entries: Mapping[str, Change | None]) -> bool:
        """Whether it was written; if not, the Inventory has changed and was read again."""
        chunk = self._chunks[name]
        change: Change = {"entries": entries} if entries else {}
        if self._lacks_effort(name):
            change["effort"] = self._effort
        try:
            written = await self._inventories.client.revise(
                INVENTORIES, write_guard(chunk), _UNTRACKED | {"spec": change}, metadata_only=True
            )
        except ConflictError:
            found = await self._inventories.get(name)
        except NotFoundError:
            found = None
        else:
            # The precondition was the state that is known here, so the result is known, too.
            self._chunks[name] = Inventory(
                metadata=msgspec.convert(written["metadata"], ObjectMeta),
                spec=msgspec.convert(merged(msgspec.to_builtins(chunk.spec), change), InventorySpec),
            )
            self._effort_written.add(name)
            return True
        if found is None or found.metadata.uid != chunk.metadata.uid:
            raise SealedError(
                f"cannot deploy {self._owner}: its Inventory {name} was deleted meanwhile", remedy="will retry"
            )
        self._check(found)
        self._chunks[name] = found
        return False

    def _lacks_effort(self, name: str) -> bool:
        # Written once: an API server whose CRD lacks the field drops it.
        recorded = self._chunks[name].spec.effort
        return bool(self._effort) and recorded != self._effort and name not in self._effort_written

    def _check(self, chunk: Inventory) -> None:
        if chunk.spec.sealed_for:
            raise SealedError(
                f"cannot deploy {self._owner}: it is being removed by Teardown {chunk.spec.sealed_for}",
                remedy=f"wait until it is removed; see `kubectl get teardown {chunk.spec.sealed_for}`",
            )


def _member_ref(member: Member) -> MemberRef:
    return MemberRef(object=member.ref, system_uid=member.system_uid)


async def add_found(inventories: Inventories, chunks: list[Inventory], entries: Mapping[str, Entry]) -> None:
    """Add objects that a removal found to its Inventories, which may be sealed: those that are not recorded yet, or
    that were created again. `chunks`: all Inventories of the owner, at least one."""
    known = {item.key: item for item in items(chunks)}
    changes: dict[str, dict[str, Change]] = {}
    rooms = {chunk.metadata.name: ENTRIES_IN_A_CHUNK - len(chunk.spec.entries) for chunk in chunks}
    for key, entry in entries.items():
        old = known.get(key)
        if old and entry.object.uid in ("", old.entry.object.uid):
            continue
        name = old.chunk if old else next((name for name, room in rooms.items() if room > 0), "")
        if not name:
            made = await inventories.extend(chunks[0], 1 + max(chunk.spec.chunk for chunk in chunks))
            name = made.metadata.name
            chunks.append(made)
            rooms[name] = ENTRIES_IN_A_CHUNK - len(made.spec.entries)
        if not old:
            rooms[name] -= 1
        changes.setdefault(name, {})[key] = msgspec.to_builtins(entry) | ({"ledger": None} if old else {})
    by_name = {chunk.metadata.name: chunk for chunk in chunks}
    for name, some in changes.items():
        await inventories.write(by_name[name], some)


def _difference(before: Entry | None, after: Entry) -> Change:
    """The merge patch that replaces an entry, with the fields that change: whole entries cost the API server more."""
    return difference(msgspec.to_builtins(before) if before else {}, msgspec.to_builtins(after))
