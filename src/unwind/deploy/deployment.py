"""Deploys sources to a member: intended objects are recorded before they are created, and confirmed afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import EntryState
from unwind.concurrency import gather_limited
from unwind.deploy import apply, preflight
from unwind.deploy.apply import Adoption, Contact
from unwind.deploy.placements import is_definition, stages
from unwind.deploy.reports import DeploymentReport, ObjectOutcome, ObjectResult, first
from unwind.errors import will_retry
from unwind.inventory.writer import MANIFEST_SOURCES, NotTheFirstError, Records, SealedError
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry
    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.owner_marks import DeploymentOwner, LiveMarks
    from unwind.deploy.placements import PlacedObject
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Object
    from unwind.members.member import Member

_AT_ONCE = 64


async def deploy(
    member: Member,
    inventories: Inventories,
    owner: DeploymentOwner,
    sources: Iterable[ManifestSource],
    *,
    within: str = "",
    sure: Collection[str] | None = None,
    first: bool = False,
    intended: Records | None = None,
    landed: Callable[[], None] = lambda: None,
    told: Callable[[PlacedObject, Object], None] = lambda *_: None,
) -> DeploymentReport:
    """Deploy the sources to a member; report the result of each object. Objects that are no longer in the sources stay:
    `prune.prune` removes them.

    `within`: the only namespace they may use, as for a Profile on the management cluster. `sure`: the keys of objects
    known to have no drift; all others are applied. None: objects whose manifest has not changed are not applied again.
    `first`: there is probably no inventory yet. `intended`: what `intend` recorded. `landed`: called when everything is
    on the member, before that is recorded. `told`: called with each object that was written, as the member returned it.
    A failure of one object does not stop the others. Raises SealedError if the owner is being removed,
    UnreachableError if the member does not answer.
    """
    return await _Deployment(
        member,
        inventories,
        owner,
        list(sources),
        within=within,
        sure=sure,
        first=first,
        intended=intended,
        landed=landed,
        told=told,
    ).run()


async def intend(
    member: Member, inventories: Inventories, owner: DeploymentOwner, sources: Iterable[ManifestSource]
) -> Records | None:
    """Record the objects of a first deployment before its turn has come, so that it begins with their creation.

    None if it is not known yet what they are: kinds or namespaces are missing, which a dependency may create.
    """
    return await _Deployment(member, inventories, owner, list(sources), first=True).intend()


class _Deployment:
    """One deployment to one member."""

    def __init__(
        self,
        member: Member,
        inventories: Inventories,
        owner: DeploymentOwner,
        sources: list[ManifestSource],
        *,
        within: str = "",
        sure: Collection[str] | None = None,
        first: bool,
        intended: Records | None = None,
        landed: Callable[[], None] = lambda: None,
        told: Callable[[PlacedObject, Object], None] = lambda *_: None,
    ) -> None:
        self._member = member
        self._inventories = inventories
        self._owner = owner
        self._sources = sources
        self._within = within
        self._sure = sure
        self._first = first
        self._landed = landed
        self._told = told
        self._intended = intended if intended and intended.is_on(member) else None
        self._records = self._intended or Records(inventories, owner.object, member, effort=owner.effort)
        self._known: dict[str, tuple[Entry, LiveMarks]] = {}
        self._settled: dict[str, Contact] = {}
        self._adoptions: dict[str, Adoption] = {}
        self._unwritten: set[str] = set()
        self._made: dict[str, str] = {}
        """The uids of objects that were created here and are not recorded yet."""

    async def intend(self) -> Records | None:
        wanted = await self._wanted()
        if not wanted.whole or any(placed.implied for placed in wanted.objects.values()):
            return None
        await self._intend(wanted.objects)
        return self._records

    async def run(self) -> DeploymentReport:
        if not self._first:
            await self._records.load()
        try:
            return await self._deploy()
        except NotTheFirstError:
            # An earlier attempt was interrupted. Nothing but reads has happened so far.
            await self._records.load(exactly=True)
            return await self._deploy()

    async def _wanted(self) -> preflight.Wanted:
        return await preflight.wanted_objects(
            self._member, self._sources, self._records.entries, home=self._inventories.namespace, within=self._within
        )

    async def _deploy(self) -> DeploymentReport:
        wanted = await self._wanted()
        charted = self._charted(wanted.objects)
        objects = {key: one for key, one in wanted.objects.items() if key not in charted}
        try:
            if self._intended:
                # A source may have changed since they were recorded. None of them was created.
                await self._records.change({key: None for key in self._records.entries if key not in objects})
            await self._intend(objects)
            for stage in stages(objects.values()):
                await self._deploy_stage(stage)
                if wanted.whole and not charted and all(self._is_there(key) for key in objects):
                    self._landed()
                await self._record(objects, all_of_it=False)
            await self._retry_failed(objects)
            await self._record(objects, all_of_it=True)
        except SealedError as sealed:
            if left := await self._undo(objects):
                raise SealedError(
                    f"{sealed.what}; cannot delete objects created during the removal: {first(left)}",
                    remedy="delete them with kubectl",
                ) from sealed
            raise
        results = [self._result(one) for key, one in objects.items() if not (one.implied and self._settled[key].lost)]
        return DeploymentReport(
            results=(*results, *charted.values(), *wanted.failed),
            faults=wanted.faults,
            wanted=frozenset(wanted.objects),
            whole=wanted.whole,
        )

    def _charted(self, objects: dict[str, PlacedObject]) -> dict[str, ObjectResult]:
        """The objects that a chart of the same profile deployed."""
        by_charts = {
            identity(entry.object): entry.source
            for entry in self._records.entries.values()
            if not entry.source.startswith(MANIFEST_SOURCES)
        }
        return {
            key: ObjectResult(
                object=one.ref,
                outcome=ObjectOutcome.CONFLICT,
                source=str(one.source),
                message=f"the object is already deployed by {by_charts[identity(one.ref)]} of the same profile; "
                f"remove it from {one.source}, or from the chart",
            )
            for key, one in objects.items()
            if identity(one.ref) in by_charts and not one.implied
        }

    async def _intend(self, objects: dict[str, PlacedObject]) -> None:
        """Record the objects that are about to be created, with one write per Inventory."""
        entries = self._records.entries
        there = await preflight.there(self._member, objects.values(), entries, self._owner.uid)
        intended: dict[str, Entry] = {}
        for key, one in objects.items():
            entry, seen = entries.get(key), there.get(key)
            if entry and seen and entry.state == EntryState.CONFIRMED and seen.uid == entry.object.uid:
                self._known[key] = entry, seen
            elif entry is None or entry.state != EntryState.INTENDED:
                intended[key] = one.entry(EntryState.INTENDED)
        await self._records.put(intended)

    async def _deploy_stage(self, stage: Iterable[PlacedObject]) -> None:
        """Deploy one stage concurrently; then its adoptions, which must be in the inventory first."""
        placed = {obj.key: obj for obj in stage}
        await gather_limited((self._one(item) for item in placed.values()), limit=_AT_ONCE)
        adopting = {key: placed[key] for key in self._adoptions if key in placed}
        if adopting:
            await self._records.put(
                {
                    key: one.entry(EntryState.INTENDED, uid=self._adoptions[key].uid, adopted=True)
                    for key, one in adopting.items()
                }
            )
            await gather_limited((self._one(item) for item in adopting.values()), limit=_AT_ONCE)
        fresh = [item for item in placed.values() if is_definition(item) and self._changed(item)]
        if fresh:
            await gather_limited((self._established(item) for item in fresh), limit=_AT_ONCE)

    async def _one(self, placed: PlacedObject) -> None:
        """Deploy one object. A failure does not stop the others."""
        try:
            settled = await self._contact(placed)
        except ApiError as error:
            message = will_retry(apply.error_text(placed, error))
            settled = Contact(outcome=ObjectOutcome.FAILED, message=message)
        except UnreachableError as error:
            # Either a webhook timed out for this object, or the member is unreachable: then `verify` raises.
            await self._member.verify()
            settled = Contact(outcome=ObjectOutcome.FAILED, message=f"no answer: {will_retry(error)}")
        if isinstance(settled, Adoption):
            self._adoptions[placed.key] = settled
            return
        if settled.live is not None:
            self._told(placed, settled.live)
            settled = msgspec.structs.replace(settled, live=None)  # to keep memory small
        self._settled[placed.key] = settled
        self._unwritten.add(placed.key)
        if settled.outcome is ObjectOutcome.CREATED:
            self._made[placed.key] = settled.uid

    async def _contact(self, placed: PlacedObject) -> Contact | Adoption:
        client, key = self._member.client, placed.key
        if adoption := self._adoptions.pop(key, None):
            return await apply.adopt(client, placed, self._owner, adoption)
        if key in self._known:
            entry, seen = self._known[key]
            anew = self._sure is not None and key not in self._sure
            return await apply.update(client, placed, self._owner, seen, adopted=entry.adopted, anew=anew)
        return await apply.create(client, placed, self._owner)

    async def _established(self, placed: PlacedObject) -> None:
        try:
            await apply.until_established(self._member, placed.ref.name)
        except ApiError as error:
            failed = Contact(
                outcome=ObjectOutcome.FAILED, message=apply.error_text(placed, error), uid=self._settled[placed.key].uid
            )
            self._settled[placed.key] = failed
        except apply.NotServedError as error:
            failed = Contact(outcome=ObjectOutcome.FAILED, message=error.what, uid=self._settled[placed.key].uid)
            self._settled[placed.key] = failed

    async def _retry_failed(self, objects: dict[str, PlacedObject]) -> None:
        """Retry failed objects: they may depend on objects that were created since, such as a Pod on a
        ServiceAccount."""
        failed = [one for key, one in objects.items() if self._settled[key].outcome is ObjectOutcome.FAILED]
        # Not objects with a known uid: their update failed, and what was read of them is stale.
        again = [item for item in failed if item.key not in self._known and not self._settled[item.key].uid]
        if again and any(item.outcome is ObjectOutcome.CREATED for item in self._settled.values()):
            await self._deploy_stage(again)

    # Inventory

    async def _record(self, objects: dict[str, PlacedObject], *, all_of_it: bool) -> None:
        """Record the results: each Inventory once, as soon as all of its objects are done; all of them at the end.

        Until then the owner label on each object has the same information.
        """
        ready = self._unwritten
        if not all_of_it:
            places = self._records.places
            waiting = {places.get(key) for key in objects if key not in self._settled}
            ready = {key for key in ready if places.get(key) not in waiting}
        entries = self._records.entries
        confirmed: dict[str, Entry] = {}
        gone: dict[str, None] = {}
        for key in ready:
            contact, entry = self._settled[key], entries.get(key)
            if contact.lost:
                gone[key] = None
            elif contact.uid:
                new = objects[key].entry(EntryState.CONFIRMED, uid=contact.uid, adopted=contact.adopted)
                if entry is None or new != msgspec.structs.replace(entry, memo={}):
                    confirmed[key] = new
        await self._records.put(confirmed)
        await self._records.change(gone)
        for key in ready:
            self._made.pop(key, None)
        self._unwritten -= ready

    async def _undo(self, objects: dict[str, PlacedObject]) -> list[str]:
        """Delete the objects that were just created: a removal has started and may have checked for them before.
        Returns those that could not be deleted, with the reasons."""
        left: list[str] = []
        for key, uid in self._made.items():
            ref, resource = objects[key].ref, objects[key].resource
            try:
                await self._member.client.delete(resource, ref.name, uid=uid, namespace=ref.namespace or None)
            except (NotFoundError, ConflictError):
                pass  # gone, or replaced by another object
            except (ApiError, UnreachableError) as error:
                left.append(f"{ref} ({error})")
        return left

    def _is_there(self, key: str) -> bool:
        settled = self._settled.get(key)
        return settled is not None and settled.outcome in (
            ObjectOutcome.CREATED,
            ObjectOutcome.UPDATED,
            ObjectOutcome.UNCHANGED,
        )

    def _changed(self, placed: PlacedObject) -> bool:
        settled = self._settled.get(placed.key)
        return settled is not None and settled.outcome in (ObjectOutcome.CREATED, ObjectOutcome.UPDATED)

    def _result(self, placed: PlacedObject) -> ObjectResult:
        settled = self._settled[placed.key]
        return ObjectResult(
            object=msgspec.structs.replace(placed.ref, uid=settled.uid),
            outcome=settled.outcome,
            source=str(placed.source),
            message=settled.message,
            taken_from=settled.taken_from,
        )


def identity(ref: ObjectRef) -> tuple[str, str, str, str]:
    """The identity of an object without version and uid."""
    return ref.group, ref.kind, ref.namespace, ref.name
