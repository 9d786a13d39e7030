"""What a handle deployed on a member: recorded in its Inventory, watched, and verified absent.

The deployer deletes these objects, not Unwind. Unwind waits until each of them is absent, and until what they own is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from unwind.api.names import Reason
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS
from unwind.api.unwind import Effort, EntryState, LedgerNote
from unwind.companions import snapshots
from unwind.concurrency import gather_limited
from unwind.deleters.kubernetes_end import propagation
from unwind.deleters.outcomes import Again, TransientError
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item, items
from unwind.inventory.writer import Records
from unwind.kube.absence import Presence
from unwind.members.contents import Content
from unwind.protection.deleter import ProtectionLink, labelled
from unwind.removal import volume_claims
from unwind.removal.foreign_content import until_dependents_gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry, Inventory
    from unwind.companions.companion import HandleCompanion, HandleEntry
    from unwind.kube.decoding import Metadata
    from unwind.kube.watches import Absence
    from unwind.members.member import Member
    from unwind.protection.deleter import ProtectedObject
    from unwind.teardown.step_removers import StepContext

T = TypeVar("T")

LOOK_AGAIN = 60.0
"""Seconds. Only a safeguard: watches report changes of handles and objects."""
_AT_ONCE = 16


class RemovalReports(Protocol):
    """Where a removal reports its progress, and what it waits for."""

    def report(self, *, total: int, left: int, over: bool = False) -> None:
        """Report how many objects are removed or left."""

    def gone(self, uid: str) -> None:
        """Record that an object was verified absent."""

    async def retry(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, retried until it succeeds."""


class DeployedObjects:
    """The objects of one handle, while its member is connected."""

    def __init__(
        self,
        companion: HandleCompanion,
        context: StepContext,
        chunks: dict[str, Inventory],
        member: Member,
        reports: RemovalReports,
    ) -> None:
        """`chunks`: the Inventories of the handle, by name. They are replaced when they are written."""
        self._companion = companion
        self._context = context
        self._chunks = chunks
        self._member = member
        self._reports = reports
        self._handle = context.step.object
        self._protection = ProtectionLink(keep=context.step.effort == Effort.TRY, cluster=context.target.ref)
        self._objects = snapshots.MemberObjects(member)
        found = items(chunks.values())
        self._todo = {item.key: item for item in found if not item.done}
        """What must be verified, or is kept, by entry key."""
        self._total = len(found)
        self._left = sum(item.entry.left for item in found)
        self._seen: dict[str, Absence] = {}
        """By entry key. Opened before the handle is deleted, so that no event is missed."""
        self._resources: dict[str, Resource | None] = {}
        """By entry key. None: the CRD is gone."""

    @property
    def recorded(self) -> list[ObjectRef]:
        """All objects in the Inventories of the handle."""
        return [item.entry.object for item in items(self._chunks.values())]

    @property
    def existing(self) -> list[Content]:
        """Those that exist, by the watches, and that the deployer does not keep."""
        found: list[Content] = []
        for item in self._going:
            absence, resource = self._seen.get(item.key), self._resources.get(item.key)
            if resource and absence and not absence.happened and absence.seen:
                found.append(Content(resource, absence.seen))
        return found

    @property
    def _going(self) -> list[Item]:
        return [item for item in self._todo.values() if not item.entry.kept]

    @property
    def going(self) -> dict[str, ObjectRef]:
        """Those that must be verified absent, by entry key."""
        return {item.key: item.entry.object for item in self._going}

    async def read_again(self) -> None:
        """Read what was recorded meanwhile: what is removed or left is not waited for any more."""
        await self._reload()
        found = items(self._chunks.values())
        self._todo = {item.key: item for item in found if not item.done}
        self._total, self._left = len(found), sum(item.entry.left for item in found)
        self._reports.report(total=self._total, left=self._left)

    def close(self) -> None:
        """End the watches."""
        for absence in self._seen.values():
            absence.close()
        self._seen.clear()

    async def watch(self) -> None:
        """Watch all of them. Must be called before the handle is deleted."""
        for entry in (item.entry for item in items(self._chunks.values())):
            if entry.state == EntryState.REMOVED and not entry.left:
                self._reports.gone(entry.object.uid)  # by an earlier pass
        self._reports.report(total=self._total, left=self._left)

        async def one(item: Item) -> None:
            ref = item.entry.object
            resource = self._resources[item.key] = await self._reports.retry(ref, lambda: self._objects.resource(ref))
            if resource and ref.uid:
                self._seen[item.key] = await self._reports.retry(ref, lambda: self._absence(resource, ref))

        await gather_limited((one(item) for item in self._going), limit=_AT_ONCE)

    async def _absence(self, resource: Resource, ref: ObjectRef) -> Absence:
        return await self._member.watches.absence(resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)

    async def protected(self) -> ProtectedObject | None:
        """The object because of which a handle that is only tried stays. Raises Again if an enforced one must wait."""
        for item in self._todo.values():
            absence, resource, ref = self._seen.get(item.key), self._resources.get(item.key), item.entry.object
            if resource is None or absence is None or absence.seen is None or not labelled(absence.seen.labels):
                continue
            if found := await self._protection.hold(self._member.watches, resource, ref, what=str(self._handle)):
                return found
        return None

    # Objects that are newer than the snapshot

    async def add(self, late: Iterable[HandleEntry]) -> None:
        """Record objects that the deployer created after the snapshot, and objects that were created again."""
        known = {item.key for item in items(self._chunks.values())}
        added: dict[str, Entry] = {}
        for entry in late:
            key = snapshots.entry_key(entry.object)
            if key in known:
                continue
            resource = self._resources[key] = await self._objects.resource(entry.object)
            there = await self._read(resource, entry.object) if resource else None
            if resource and there and (entry.kept or self._companion.is_marked(self._handle, there)):
                kept = entry.kept or self._companion.why_kept(self._handle, resource.kind, there)
                source = snapshots.source_of(self._handle, kept)
                added[key] = snapshots.entry_of(entry.object, resource, there, source=source, kept=bool(kept))
        for item in list(self._todo.values()):
            # An object that was absent when the removal began may have been created again under the same name.
            resource, absence = self._resources.get(item.key), self._seen.get(item.key)
            absence = None if absence and absence.lost else absence
            if item.entry.kept or resource is None or (absence and absence.seen):
                continue
            # From the watch: there may be thousands of them.
            there = absence.namesake if absence else await self._read(resource, item.entry.object)
            if there and there.uid != item.entry.object.uid and self._companion.is_marked(self._handle, there):
                await self._watch_also(await self._renewed(item, there.uid))
        added |= await self._staying_claims()
        for item in await self._recorded(added):
            await self._watch_also(item)

    async def _staying_claims(self) -> dict[str, Entry]:
        """The claims of StatefulSets that stay and are not recorded yet, also by no other step: a drain may delete
        them. They are known only while the StatefulSets exist."""
        found = await snapshots.staying_claims(self._member, [item.entry for item in self._todo.values()])
        if not found:
            return {}
        there = [*self._chunks.values(), *await self._context.means.inventories.on(self._context.target.ref.uid)]
        known = {item.entry.object.uid for item in items(there)}
        return {key: entry for key, entry in found.items() if entry.object.uid not in known}

    async def _is_gone(self, item: Item) -> bool:
        """Whether a claim that was to stay has been deleted."""
        if not volume_claims.is_retained(item.entry):
            return False
        there = await self._read(PERSISTENT_VOLUME_CLAIMS, item.entry.object)
        return there is None or there.uid != item.entry.object.uid

    async def _read(self, resource: Resource, ref: ObjectRef) -> Metadata | None:
        return await snapshots.read_metadata(self._member.client, resource, ref)

    async def _watch_also(self, item: Item) -> None:
        self._todo[item.key] = item
        resource, ref = self._resources.get(item.key), item.entry.object
        if before := self._seen.pop(item.key, None):
            before.close()
        if resource and not item.entry.kept:
            self._seen[item.key] = await self._absence(resource, ref)

    async def _renewed(self, item: Item, uid: str) -> Item:
        """The entry with the uid of the object that has its name now."""
        change = {"object": {"uid": uid}, "state": EntryState.CONFIRMED.value}
        await self._context.means.inventories.write(self._chunks[item.chunk], {item.key: change})
        ref = msgspec.structs.replace(item.entry.object, uid=uid)
        entry = msgspec.structs.replace(item.entry, object=ref, state=EntryState.CONFIRMED.value)
        return Item(item.chunk, item.key, entry)

    async def _recorded(self, added: dict[str, Entry]) -> list[Item]:
        """New entries, written into an Inventory of the handle, so that the ledger can name them."""
        if not added:
            return []
        inventories = self._context.means.inventories
        if self._chunks:
            like = next(iter(self._chunks.values()))
            chunk = await inventories.extend(like, 1 + max(item.spec.chunk for item in self._chunks.values()))
            await inventories.write(chunk, {key: msgspec.to_builtins(entry) for key, entry in added.items()})
        else:
            effort = Effort.read(self._context.step.effort)
            known = effort if isinstance(effort, Effort) else Effort.ENFORCE
            records = Records(inventories, self._handle, self._member, effort=known)
            await records.load()
            await records.put(added)
        await self._reload()
        return [item for item in items(self._chunks.values()) if item.key in added]

    # Absence

    async def until_absent(self) -> None:
        """Return when all of them are verified absent, and what they own, except for what the deployer keeps."""
        going = self._going
        async with asyncio.TaskGroup() as group:
            for item in going:
                group.create_task(self._until_absent(item))
        # Most deployers delete in the background.
        owners = [
            item.entry.object
            for item in going
            if (resource := self._resources.get(item.key)) and propagation(resource) == "Foreground"
        ]
        uids, namespaces = {ref.uid for ref in owners if ref.uid}, {ref.namespace for ref in owners if ref.uid}
        if uids:
            await self._reports.retry(self._handle, lambda: until_dependents_gone(self._member, uids, namespaces))

    async def _until_absent(self, item: Item) -> None:
        ref = item.entry.object
        if ref.uid:
            await self._reports.retry(ref, lambda: self._absent(item))
        self._reports.gone(ref.uid)
        self._reports.report(total=self._total, left=self._left)

    async def _absent(self, item: Item) -> None:
        """Return if an object is absent; raise Again while it is not."""
        ref, resource = item.entry.object, self._resources.get(item.key)
        if resource is None or ((before := self._seen.get(item.key)) and before.happened):
            return
        try:
            absence = await self._absence(resource, ref)
            try:
                if await self._is_absent(resource, ref, absence):
                    absence.close()
                    return
            except BaseException:
                absence.close()
                raise
        except UnwindError:
            # Its CRD may be gone by now, and with it the object: then no request about it succeeds.
            self._resources[item.key] = await snapshots.served_resource(self._member, ref, anew=True)
            if self._resources[item.key] is None:
                return
            raise
        seen = absence.seen
        if seen and not seen.deletion_timestamp:
            by = self._companion.controller
            message = f"{ref} still exists: {by} did not delete it; see its log, or delete it with kubectl"
            raise Again(message, until=absence, after=LOOK_AGAIN, code=Reason.HELD)
        finalizers = ", ".join(seen.finalizers) if seen else ""
        message = f"{ref} waits for finalizers {finalizers}" if finalizers else f"{ref} is being deleted"
        raise Again(message, until=absence, after=LOOK_AGAIN)

    async def _is_absent(self, resource: Resource, ref: ObjectRef, absence: Absence) -> bool:
        if absence.happened or absence.seen is not None:
            return absence.happened
        # Only the server knows: it may have been gone before the watch began.
        sighting = await self._member.client.sighting(
            resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=self._member.system_uid
        )
        if sighting.presence is Presence.UNKNOWN:
            raise TransientError(f"cannot determine whether {ref} still exists: {sighting.why}", remedy="will retry")
        return sighting.absent

    # The Inventory

    async def note(self) -> None:
        """Record what is gone, and put what the deployer keeps into the ledger. If it keeps nothing, the Inventory is
        deleted next, and a write would only make it be sealed in another pass."""
        todo = self._todo.values()
        if not any(item.entry.kept for item in todo):
            return
        gone = {item.key for item in todo if not item.entry.kept or await self._is_gone(item)}
        await self._write(
            {
                item.key: {"state": EntryState.REMOVED.value}
                if item.key in gone
                else self._ledger(
                    Reason.KEPT_BY_POLICY,
                    snapshots.why_kept(item.entry),
                    "unwind" if volume_claims.is_retained(item.entry) else self._companion.controller,
                )
                for item in todo
            }
        )

    async def stay(self, protected: ProtectedObject) -> None:
        """Put all of them into the ledger: the deployer would delete an object that is protected."""
        why = f"part of {self._handle}, which stays: {protected.message}"
        notes = {key: self._ledger(protected.reason, why, protected.decided_by) for key in self._todo}
        await self._reports.retry(self._handle, lambda: self._write(notes))
        self._reports.report(total=len(notes), left=len(notes), over=True)

    def finished(self) -> None:
        """Report the end."""
        found = items(self._chunks.values())
        self._reports.report(total=len(found), left=sum(item.entry.left for item in found), over=True)

    def _ledger(self, reason: str, message: str, by: str) -> dict[str, Any]:
        at = self._context.means.clock.now().replace(microsecond=0)
        note = LedgerNote(reason=reason, message=message, by=by, at=at)
        return {"ledger": msgspec.to_builtins(note), "kept": True}

    async def _write(self, notes: dict[str, dict[str, Any]]) -> None:
        for chunk in list(self._chunks.values()):
            mine = {key: notes[key] for key in chunk.spec.entries if key in notes}
            if mine:
                await self._context.means.inventories.write(chunk, mine)
        await self._reload()

    async def _reload(self) -> None:
        for chunk in await self._context.means.inventories.of(self._handle.uid):
            self._chunks[chunk.metadata.name] = chunk
