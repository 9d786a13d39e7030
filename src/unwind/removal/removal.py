"""The removal of one step: deletes its objects on a member in order, until all are verified absent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.api.annotation_values import retained
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.names import TAKE_ALONG_ANNOTATION, Reason
from unwind.api.resources import BUILT_IN_GROUPS, NAMESPACES, STATEFUL_SETS
from unwind.api.unwind import BLOCKERS_SHOWN, INVENTORIES, EntryState, LedgerNote
from unwind.clock import SYSTEM
from unwind.concurrency import to_tell
from unwind.deleters.chain_attempt import Failed, Waiting, attempt
from unwind.deleters.deletion import Deletions, retry_until_done
from unwind.deleters.external_end import ExternalObjects
from unwind.deleters.kubernetes_end import propagation
from unwind.deleters.outcomes import Gone, Kept, Pace, Severity
from unwind.deleters.registry import EXTERNAL_SCOPE, DeleterRegistry
from unwind.errors import will_retry
from unwind.inventory.inventories import Notes, items
from unwind.kube.errors import UnreachableError
from unwind.kube.workqueue import JITTER
from unwind.members.contents import Content
from unwind.members.member import RECENT
from unwind.protection.deleter import ProtectedObject, ProtectionLink, labelled
from unwind.removal import empty_namespaces, foreign_content, outages, volume_claims
from unwind.removal.deletion_scope import ref_to
from unwind.removal.foreign_content import ForeignContent
from unwind.removal.helm_release_removal import has_a_say, last_first
from unwind.removal.object_order import Stage, order, stage
from unwind.removal.owner_mark_removal import unmark
from unwind.removal.step_reader import Served, StepSurvey
from unwind.removal.takeovers import keep_taken
from unwind.why.blocker_reader import what_blocks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.fields import Unknown
    from unwind.api.resources import Resource
    from unwind.api.unwind import Blocker, Inventory
    from unwind.clock import Clock
    from unwind.deleters.external_end import ExternalEnds
    from unwind.deleters.memo import Memo
    from unwind.deleters.registration import External, Registration
    from unwind.deleters.registry import Plugin
    from unwind.inventory.inventories import Inventories, Item
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import Releases

# The number of concurrent deletions is not limited: those that wait for a finalizer must not block the others, and the
# transport limits requests.

# In these stages dependents are verified absent, too: no event reports that.
_OWNING = (Stage.CUSTOM_RESOURCES, Stage.CLOUD, Stage.WORKLOADS)
T = TypeVar("T")


class RemovalProgress(msgspec.Struct):
    """The progress of a step's removal."""

    total: int = 0
    removed: int = 0
    left: int = 0
    """Left on purpose: kept by a policy, foreign, not ours."""
    waits: dict[ObjectRef, Waiting | Failed] = {}
    """What it waits for, by object."""
    over: bool = False
    """Whether every object is removed or left, and only the write is missing. Nothing waits for that write
    (docs/architecture.md, Events drive, timers insure)."""
    passed: bool = False
    """Whether the steps that come next may start: every object is removed or left, or is an empty Namespace that only
    waits for Kubernetes."""


class Removal:
    """Removes the objects that an owner (a ClusterSummary, a Work) deployed on a member."""

    def __init__(
        self,
        member: Member,
        inventories: Inventories,
        chunks: Iterable[Inventory],
        *,
        deleters: Iterable[Registration | External],
        plugins: Iterable[Plugin] = (),
        external_ends: ExternalEnds | None = None,
        only: Collection[str] | None = None,
        prune: bool = False,
        teardown: str = "",
        take_along: bool = False,
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
        discarded: bool = False,
        keep_protected: bool = False,
        releases: Releases | None = None,
        awaited: Callable[[], bool] = lambda: False,
        going: Callable[[], Collection[str]] = frozenset,
        changed: Callable[[], None] = lambda: None,
        troubled: Callable[[Exception], None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`chunks`: the sealed inventory of the owner. `only`: the keys of the entries to remove, if not all; then the
        inventory need not be sealed. `prune`: what it leaves is decided again by later prunes. `discarded`: the caller
        deletes the inventory if nothing was left, so removed objects need not be written into it. `keep_protected`:
        leave objects that are protected by their label, and write them into the ledger; otherwise the removal waits
        until they are not protected any more. `awaited`: whether another step waits for this one. `going`: the owners
        whose objects are removed at the same time. The removal waits for them, so no owner that waits for this one may
        be among them. `changed`: called whenever `progress` changes. `releases`: uninstalls objects that were deployed
        as a unit, such as Helm releases.
        `external_ends`: deletes external resources of objects on members; without it, these objects are held.
        `volumes`: the policy for claims of StatefulSets; while it is unknown, nothing is deleted."""
        self.progress = RemovalProgress()
        self._member = member
        self._inventories = inventories
        self._chunks = {chunk.metadata.name: chunk for chunk in chunks}
        self._owner = next((chunk.spec.owner.uid for chunk in self._chunks.values()), "")
        self._only = only
        self._prune = prune
        self._take_along = take_along
        self._volumes = volumes
        self._discarded = discarded
        self._changed = changed
        self._troubled = troubled
        self._clock = clock
        self._releases = releases
        self._awaited = awaited
        self._empty: set[ObjectRef] = set()
        """Empty Namespaces that only wait for Kubernetes."""
        self._all_empty = False
        """Whether all Namespaces are removed, left or empty."""
        self._removed: dict[str, ObjectRef] = {}
        self._sets_left: set[tuple[str, str]] = set()
        """The StatefulSets that stay, by namespace and name."""
        self._jitter = JITTER
        self._notes = Notes(
            inventories,
            self._chunks,
            chance=self._jitter,
            clock=clock,
            troubled=self._write_failed,
            settled=self._settled,
        )
        self._served = Served(member)
        self._survey = StepSurvey(member, inventories, self._chunks, self._served, releases)
        own = {self._owner}
        self._foreign_content = ForeignContent(
            member.discovery,
            removed=self._removed,
            # Objects that this removal keeps itself are not waited for.
            going=lambda: frozenset(going()) - own,
            take_along=take_along,
        )
        self._doubts: dict[ObjectRef, asyncio.Event] = {}
        self._outage: Failed | None = None
        """Why the member does not answer at the moment."""
        # Not `member.ref`: objects that lead to the same cluster share one connection.
        cluster = next((chunk.spec.member.object for chunk in self._chunks.values()), member.ref)
        self._protection = ProtectionLink(keep=keep_protected, cluster=cluster, contents=take_along)
        links = (keep_taken(own), self._protection.registration(), self._foreign_content.registration())
        self._deletions = Deletions(
            DeleterRegistry([*deleters, *links], plugins=plugins),
            member.watches,
            member.resolver,
            clock=clock,
            teardown=teardown,
            say=self._set_wait,
            external=ExternalObjects(external_ends, cluster),
        )

    @property
    def removed(self) -> frozenset[str]:
        """The uids of objects that were verified absent."""
        return frozenset(self._removed)

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        """What it waits for, by object: also for the member itself while that does not answer."""
        waits = self.progress.waits
        return {**waits, self._member.ref: self._outage} if self._outage else waits

    async def blockers(self, *, step: str, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        """What it waits for, each with the reason and who must act. `before`: the blockers in status."""
        if not (waits := dict(self.waits)):
            return ()
        return await what_blocks(self._member, waits, items(self._chunks.values()), step=step, before=before, now=now)

    def look_again(self) -> None:
        """Must be called when `going` changes: checks again what this waits for, because it may never come."""
        self._foreign_content.look_again()

    async def run(self) -> None:
        """Return when every object is gone or left, and that is written to the inventory. Errors are reported in
        `progress` and retried."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._notes.run())
                following = group.create_task(outages.follow(self._member, self._set_outage, clock=self._clock))
                await self._remove_all()
                following.cancel()
                self._outage = None
                self.progress.over = True
                self._changed()
                # If the process is killed before the inventory is deleted, absence is verified again.
                self._notes.finish(unwritten=self._discarded and not self.progress.left)
        except ExceptionGroup as failures:
            raise to_tell(failures) from None
        finally:
            # Breaks reference cycles, so that they are freed at once.
            del self._notes, self._deletions

    def _set_outage(self, outage: Failed | None) -> None:
        if outage != self._outage:
            self._outage = outage
            self._changed()

    async def _remove_all(self) -> None:
        everything = [item for item in items(self._chunks.values()) if self._only is None or item.key in self._only]
        self.progress.total = len(everything)
        # Before any read is trusted or any write is sent: another cluster may answer at this address.
        await self._retry(self._member.ref, lambda: self._member.verify(within=RECENT))
        for item in everything:
            if item.done:
                self._done(item, left=item.entry.left)
        policy = await self._retry(self._owned_by(), self._volume_policy)
        adopted = [item for item in everything if item.entry.adopted and not item.done]
        # An object that cannot be released, because an admission webhook denies it, must not block the others.
        async with asyncio.TaskGroup() as group:
            for item in adopted:
                group.create_task(self._release(item))
            await self._remove_ours(everything, policy)
        # Verified again before a gate opens because of it. A recent check is enough, shared by all callers.
        await self._retry(self._member.ref, lambda: self._member.verify(within=RECENT))

    async def _volume_policy(self) -> VolumePolicy:
        return volume_claims.known(self._volumes())

    def _owned_by(self) -> ObjectRef:
        return next((chunk.spec.owner for chunk in self._chunks.values()), self._member.ref)

    async def _remove_ours(self, everything: list[Item], policy: VolumePolicy) -> None:
        done = [item for item in everything if item.done]
        left = [item for item in everything if not item.done and not item.entry.adopted]
        left = await self._without_staying(left)
        later = [item for item in left if self._releases and self._releases.afterwards(item.entry)]
        todo = await self._settle([item for item in left if item not in later])
        found = self._add(await self._retry(self._member.ref, lambda: self._survey.claims(todo, policy)))
        todo += self._without_kept(found, todo)
        facts = await self._retry(self._member.ref, lambda: self._survey.facts(todo, everything))
        for now in Stage:
            if now is Stage.CALLERS:
                found = await self._uninstall([*todo, *later], done, later)
                todo += found
                # They may be of kinds of an earlier stage.
                for together in order([item for item in found if stage(item, facts) < now], facts):
                    await self._remove_together(together, note=True)
            if now is Stage.CLAIMS:
                more = self._add(await self._retry(self._member.ref, self._survey.more_claims))
                todo += self._without_kept(more, todo)
            of_stage = [item for item in todo if stage(item, facts) is now]
            if now is Stage.CLAIMS:
                of_stage = self._without_used(of_stage)
            if now is Stage.NAMESPACES:
                await self._remove_namespaces(order(of_stage, facts))
                continue
            for together in order(of_stage, facts):
                await self._remove_together(together, note=now not in _OWNING)
            if now in _OWNING:
                await self._until_alone(of_stage)

    async def _without_staying(self, left: list[Item]) -> list[Item]:
        """The objects without those of releases that stay: another profile has taken the release over, or one of its
        objects is protected. All other releases are reserved, so that they cannot be taken over from now on."""
        if self._releases is None:
            return left
        releases = self._releases
        taken: dict[ObjectRef, str] = {}
        protected: dict[ObjectRef, ProtectedObject] = {}
        for release in last_first(releases, (item.entry for item in left)):
            found = await self._retry(release, lambda release=release: self._reserve(release, left))  # type: ignore[misc]
            if isinstance(found, ProtectedObject):
                protected[release] = found
            elif found:
                chunks = await self._retry(self._member.ref, lambda owner=found: self._inventories.of(owner))  # type: ignore[misc]
                taken[release] = str(chunks[0].spec.owner) if chunks else found
        staying: list[Item] = []
        for item in left:
            of = releases.release_of(item.entry)
            if of in protected:
                it = protected[of]
                why = it.why if it.object == item.entry.object else f"part of {of}, which stays: {it.message}"
                self._leave(item, it.reason, why, it.decided_by, kept=self._stays(item))
            elif of not in taken:
                staying.append(item)
            elif item.entry.state == EntryState.INTENDED or releases.afterwards(item.entry):
                self._nothing(item)
            elif await self._retry(self._member.ref, lambda item=item: self._survey.marked(item)):  # type: ignore[misc]
                self._leave(item, Reason.NOT_OURS, f"{of} taken over by {taken[of]}, so it is left in place", "unwind")
            else:
                staying.append(item)
        return staying

    async def _reserve(self, release: ObjectRef, left: list[Item]) -> str | ProtectedObject:
        """Reserve a release that is about to be removed. Returns the uid of its new owner if it was taken over, or the
        object because of which the whole release stays; else an empty string. Raises Again while it has to wait for
        a protected object: before that, nothing of the release is changed."""
        assert self._releases  # noqa: S101 - for the type checker
        member, owner = self._member, self._owner
        suspects = await self._labelled(
            item for item in left if self._releases.release_of(item.entry) == release and item.entry.object.uid
        )
        if suspects and (taken_by := await self._releases.taken_by(member, release, owner=owner)):
            return taken_by
        for resource, ref in suspects:
            if not self._protection.keep:
                await self._protection.hold(member.watches, resource, ref, what=str(release))
            elif found := await self._protection.look(member.client, resource, ref):
                return found
        return await self._releases.reserve(member, release, owner=owner)

    async def _labelled(self, some: Iterable[Item]) -> list[tuple[Resource, ObjectRef]]:
        """Those of these objects that have the protection label, by the watches of the removal."""
        found: list[tuple[Resource, ObjectRef]] = []
        for item in some:
            ref = item.entry.object
            if (resource := await self._served.resource(item)) is None:
                continue
            watches = self._member.watches
            try:
                absence = await watches.absence(resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)
            except UnreachableError:
                # Its CRD may have been deleted since the kinds of the member were read.
                if await self._served.resource(item, anew=True) is not None:
                    raise
                continue
            if absence.seen and labelled(absence.seen.labels):
                found.append((resource, ref))
            absence.close()
        return found

    async def _uninstall(self, todo: list[Item], done: list[Item], later: list[Item]) -> list[Item]:
        """Uninstall releases, after the objects that need their workloads are gone. Returns the objects that the
        uninstall left, to be deleted like all others."""
        if self._releases is None:
            return []
        releases = self._releases
        # Also what is kept, and so not removed here: the uninstall leaves it, too.
        kept = [item for item in items(self._chunks.values()) if item.entry.kept]
        entries = [item.entry for item in (*kept, *done, *todo)]
        for release in last_first(releases, (item.entry for item in todo)):
            self._set_wait(release, Waiting(f"uninstalling {release}"))
            await self._retry(
                release,
                lambda release=release: releases.uninstall(  # type: ignore[misc]
                    self._member,
                    release,
                    owner=self._owner,
                    entries=entries,
                    has_a_say=lambda resource, obj, release=release: self._has_a_say(release, resource, obj),  # type: ignore[misc]
                ),
            )
        return await self._settle(later)

    async def _has_a_say(self, release: ObjectRef, resource: Resource, obj: Object) -> bool:
        """Whether a deleter handles this object of a release. Raises Again if the release has to wait for it: it was
        protected after the removal has started."""
        if labelled(obj["metadata"].get("labels")) and not self._protection.keep:
            ref = ref_of(resource, msgspec.convert(obj["metadata"], ObjectMeta))
            await self._protection.hold(self._member.watches, resource, ref, what=str(release))
        return await has_a_say(self._deletions, resource, obj)

    async def _remove_together(self, together: list[Item], *, note: bool) -> None:
        volumes: dict[str, volume_claims.Volume] = {}
        if any(item.entry.object.kind == "PersistentVolumeClaim" for item in together):
            volumes = await self._retry(self._member.ref, lambda: self._survey.volumes(together))
        async with asyncio.TaskGroup() as group:
            for item in together:
                group.create_task(self._remove(item, volumes.get(item.entry.object.uid), note=note))

    async def _remove_namespaces(self, groups: list[list[Item]]) -> None:
        """Remove Namespaces. Each group starts when those of the group before are gone, kept or empty."""
        async with asyncio.TaskGroup() as group:
            for number, together in enumerate(groups, start=1):
                # Without anything that waits for them, their content is not listed.
                awaited = number < len(groups) or self._awaited()
                for passed in [self._remove_namespace(group, item, awaited=awaited) for item in together]:
                    await passed.wait()
            self._all_empty = True
            self._check_passed()

    def _remove_namespace(self, group: asyncio.TaskGroup, item: Item, *, awaited: bool) -> asyncio.Event:
        """Start the removal of a Namespace. The event is set when it is gone, kept or empty."""
        passed = asyncio.Event()
        removing = group.create_task(self._remove(item, None, note=True))
        removing.add_done_callback(lambda _: passed.set())
        if awaited:
            following = group.create_task(self._follow_namespace(item.entry.object, passed))
            removing.add_done_callback(lambda _: following.cancel())
        return passed

    async def _follow_namespace(self, ref: ObjectRef, passed: asyncio.Event) -> None:
        """Report when a Namespace is empty, and name objects that appear in it later. Runs until cancelled."""
        member, late = self._member, list[Content]()
        await self._retry_silently(lambda: empty_namespaces.until_empty(member, ref))
        self._empty.add(ref)
        self._set_wait(ref, Waiting(f"{ref} is empty and waits for Kubernetes to finalize it"))
        passed.set()
        self._check_passed()
        try:
            while True:
                found = await self._retry_silently(lambda late=late: empty_namespaces.until_refilled(member, ref, late))  # type: ignore[misc]
                self._forget_waits(late)
                late = found
                for content in late[:BLOCKERS_SHOWN]:
                    self._set_wait(
                        ref_to(content),
                        Waiting(
                            f"{content} was created after the deletion of {ref} began and is not deleted yet; see"
                            " `unwind why`"
                        ),
                    )
        finally:
            self._forget_waits(late)

    async def _remove(self, item: Item, volume: volume_claims.Volume | None, *, note: bool) -> None:
        """Remove one object, until it is verified absent or kept."""
        member, ref = self._member, item.entry.object
        outcome = await self._delete(item)
        if isinstance(outcome, Kept):
            self._leave(item, outcome.reason, outcome.message, outcome.by or "unwind", kept=self._stays(item))
            return
        if volume:
            await self._retry(ref, lambda: volume_claims.until_volume_gone(member, volume))
        if note:
            self._notes.note(item, {"state": EntryState.REMOVED.value})
        self._done(item)

    async def _delete(self, item: Item) -> Gone | Kept:
        ref = item.entry.object
        memo = self._inventories.memo(self._chunks[item.chunk], item.key, item.entry)
        resource = await self._retry(ref, lambda: self._served.resource(item))
        if resource is None and EXTERNAL_SCOPE in memo.scopes():
            resource = item.resource  # whether its external resource is gone is not known
        if resource is None:
            return Gone("its CRD is gone")
        if ref.group in BUILT_IN_GROUPS:
            return await self._deletions.delete(resource, ref, memo)
        # Its CRD may be deleted at any moment, and the objects with it: then the server cannot answer for them.
        doubt = self._doubts[ref] = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            deleting = group.create_task(self._deletions.delete(resource, ref, memo))
            doubting = group.create_task(self._until_kind_gone(item, memo, doubt))
            await asyncio.wait([deleting, doubting], return_when=asyncio.FIRST_COMPLETED)
            kind_gone = doubting.done()
            doubting.cancel()
            deleting.cancel()
        del self._doubts[ref]
        return Gone("its CRD is gone") if kind_gone else deleting.result()

    async def _until_kind_gone(self, item: Item, memo: Memo, doubt: asyncio.Event) -> None:
        while True:
            await doubt.wait()
            doubt.clear()
            result = await attempt(self._served.resource(item, anew=True))
            if result is None and EXTERNAL_SCOPE not in memo.scopes():
                return
            # The CRD exists, or that is unknown: the deletion itself reports the error and retries.

    async def _until_alone(self, owners: list[Item]) -> None:
        """Return when all dependents of these are gone, too. Only then they are recorded as removed: if the process is
        killed before, dependents are checked again."""
        gone = [item for item in owners if item.entry.object.uid in self._removed]
        # Services and Pods have no dependents: their namespaces need not be listed.
        able = [item.entry.object for item in gone if propagation(item.resource) == "Foreground"]
        if able:
            uids, namespaces = {ref.uid for ref in able}, {ref.namespace for ref in able}
            await self._retry(
                self._member.ref, lambda: foreign_content.until_dependents_gone(self._member, uids, namespaces)
            )
        for item in gone:
            self._notes.note(item, {"state": EntryState.REMOVED.value})

    async def _settle(self, todo: list[Item]) -> list[Item]:
        """The objects to delete."""
        self._without_kept(todo, todo)
        intended = [item for item in todo if not item.entry.kept and item.entry.state == EntryState.INTENDED]
        ours = await self._retry(self._member.ref, lambda: self._survey.confirm(intended))
        found = {(item.chunk, item.key) for item in ours}
        for item in intended:
            if (item.chunk, item.key) not in found:
                self._nothing(item)
        return [item for item in todo if not item.entry.kept and item.entry.state != EntryState.INTENDED] + ours

    def _without_kept(self, found: list[Item], todo: list[Item]) -> list[Item]:
        """The objects that are not kept; the others go into the ledger."""
        namespaces = {item.entry.object.name for item in todo if item.entry.object.kind == NAMESPACES.kind}
        for item in [item for item in found if item.entry.kept]:
            why = self._releases.why_kept(item.entry) if self._releases else ""
            why = why or "its inventory entry is marked as kept"
            if volume_claims.is_retained(item.entry):
                why = volume_claims.why_retained(item.entry)
                if self._take_along and item.entry.object.namespace in namespaces:
                    why = f"deleted with Namespace {item.entry.object.namespace} ({TAKE_ALONG_ANNOTATION})"
            self._leave(item, Reason.KEPT_BY_POLICY, why, "unwind", kept=True)
        return [item for item in found if not item.entry.kept]

    def _without_used(self, claims: list[Item]) -> list[Item]:
        """The claims without those of StatefulSets that stay: they hold its data."""
        going: list[Item] = []
        for item in claims:
            ref, source = item.entry.object, item.entry.source
            name = source.removeprefix(volume_claims.SOURCE) if source.startswith(volume_claims.SOURCE) else ""
            if (ref.namespace, name) in self._sets_left:
                self._leave(item, Reason.KEPT_BY_POLICY, f"{source} stays and uses it", "unwind", kept=True)
            else:
                going.append(item)
        return going

    async def _release(self, item: Item) -> None:
        await self._retry(item.entry.object, lambda: unmark(self._member, item, owner=self._owner))
        self._leave(item, Reason.NOT_OURS, "it existed before and was released, so it is left in place", "unwind")

    # Results

    def _leave(self, item: Item, reason: str, message: str, by: str, *, kept: bool = False) -> None:
        note = LedgerNote(reason=reason, message=message, by=by, at=self._clock.now().replace(microsecond=0))
        self._notes.note(item, {"ledger": msgspec.to_builtins(note)} | ({"kept": True} if kept else {}))
        self._done(item, left=True)

    def _stays(self, item: Item) -> bool:
        """Whether an object that a deleter kept stays for good. A prune may be killed right after this is written: only
        what the inventory keeps anyway, and claims, must not be decided again by the next one."""
        return not self._prune or item.entry.source.startswith(volume_claims.SOURCE)

    def _nothing(self, item: Item) -> None:
        """Count an object that was never created, or is foreign."""
        # It may still be created until the inventory is sealed; `intended` makes it checked again then.
        if self._only is not None or self._chunks[item.chunk].spec.sealed_for:
            self._notes.note(item, {"state": EntryState.REMOVED.value})
        self._done(item)

    def _done(self, item: Item, *, left: bool = False) -> None:
        ref = item.entry.object
        self.progress.waits.pop(ref, None)
        self._empty.discard(ref)
        if left:
            self.progress.left += 1
            if (ref.group, ref.kind) == (STATEFUL_SETS.group, STATEFUL_SETS.kind):
                self._sets_left.add((ref.namespace, ref.name))
        else:
            self.progress.removed += 1
            if ref.uid:
                self._removed[ref.uid] = ref
        self._check_passed()
        self._changed()

    def _check_passed(self) -> None:
        it = self.progress
        if self._all_empty and not it.passed and it.removed + it.left + len(self._empty) == it.total:
            it.passed = True
            self._changed()

    def _add(self, found: list[Item]) -> list[Item]:
        self.progress.total += len(found)
        return found

    def _set_wait(self, ref: ObjectRef, what: Waiting | Failed) -> None:
        self.progress.waits[ref] = what
        if ref in self._doubts and isinstance(what, Failed):
            self._doubts[ref].set()
        self._changed()

    def _forget_waits(self, those: Iterable[Content]) -> None:
        for content in those:
            self.progress.waits.pop(ref_to(content), None)
        self._changed()

    def _write_failed(self, chunk: str, error: Exception) -> None:
        self._troubled(error)
        self._set_wait(
            self._chunk(chunk), Failed(will_retry(error), Reason.FAILED, Severity.WARNING, Pace.FAST, error=error)
        )

    def _settled(self, chunk: str) -> None:
        if self.progress.waits.pop(self._chunk(chunk), None):
            self._changed()

    def _chunk(self, name: str) -> ObjectRef:
        return ref_of(INVENTORIES, self._chunks[name].metadata)

    async def _retry(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        done = await retry_until_done(
            work, clock=self._clock, chance=self._jitter, say=lambda what: self._set_wait(about, what)
        )
        if self.progress.waits.pop(about, None):
            self._changed()
        return done

    async def _retry_silently(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_until_done(work, clock=self._clock, chance=self._jitter, say=lambda _: None)
