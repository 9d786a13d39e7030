"""One step of a teardown, carried out as its effort says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.addons import helm_removing
from unwind.api.names import Reason
from unwind.api.policies import retained
from unwind.api.unwind import Effort, EntryState, LedgerNote, Step, StepState
from unwind.chance import CHANCE
from unwind.clock import SYSTEM, Clock
from unwind.concurrency import side_by_side, to_tell, unless
from unwind.deleting.deletion import persist
from unwind.deleting.entering import Failed
from unwind.deleting.registering import External, Registration
from unwind.deleting.registry import Plugin
from unwind.fleet.fleet import Fleet
from unwind.removing.blocked import what_blocks
from unwind.removing.inventories import Inventories, intended, items
from unwind.removing.places import by_place, member_of
from unwind.removing.releases import Releases, last_first
from unwind.removing.removal import Removal, release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Sequence
    from datetime import datetime

    from unwind.api.fields import Unknown
    from unwind.api.meta import ObjectRef
    from unwind.api.policies import VolumePolicy
    from unwind.api.unwind import Blocker, Inventory
    from unwind.clock import Timer
    from unwind.deleting.entering import Waiting
    from unwind.fleet.member import Member
    from unwind.fleet.targets import Anchor

T = TypeVar("T")

BEST_EFFORT = 60.0
"""Seconds that the removal of a step may take whose cluster does not wait for it."""
REACH = 10.0
"""Seconds that a member may take to answer where nothing is to be removed from it, and nobody waits for it."""
_AT_ONCE = 16
OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """How the ledger says why something stayed, and who decided it."""

    left: str
    gave_up: str
    decided_by: Callable[[Step], str]


ADDONS = Wording(
    left="LeavePolicies: it stays as it is",
    gave_up="RemovePolicies: its time was over",
    decided_by=lambda step: f"clusterDeletionBehavior of {step.name}",
)


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What steps are carried out with."""

    fleet: Fleet
    inventories: Inventories
    deleters: tuple[Registration | External, ...]
    plugins: tuple[Plugin, ...] = ()
    releases: Releases | None = None
    best_effort: float = BEST_EFFORT
    clock: Clock = SYSTEM


class Carrying:
    """A step, while it is carried out."""

    def __init__(
        self,
        step: Step,
        target: Anchor,
        means: Means,
        *,
        teardown: str,
        take_along: bool = False,
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
        going: Callable[[], Collection[str]] = frozenset,
        changed: Callable[[], None] = lambda: None,
        known: Callable[[], Sequence[Inventory] | None] = lambda: None,
        wording: Wording = ADDONS,
    ) -> None:
        """`known`: its inventory, where somebody has read it already."""
        self.step = step
        self.state = StepState.WAITING
        self.total = step.objects
        self.removed = 0
        self.left = 0
        self.waits: dict[ObjectRef, Waiting | Failed] = {}
        self._target = target
        self._means = means
        self._teardown = teardown
        self._take_along = take_along
        self._volumes = volumes
        self._going = going
        self._changed = changed
        self._known = known
        self._wording = wording
        self._out_of_time = asyncio.Event()
        """What is done for a while only is done for no longer."""
        self._reaching: Timer | None = None
        self._another_way = asyncio.Event()
        self._places = 0
        self.over = asyncio.Event()
        """Everything is gone or left, and only has to be written down."""
        self._removals: list[tuple[Member, Removal, list[Inventory]]] = []
        self._read: Sequence[Inventory] | None = None
        """The inventory by which everything is removed while it is open."""
        self._sealed = False
        self._gone: set[str] = set()
        """The uids of what was seen to be absent by removals that are over."""
        self._chance = CHANCE

    @property
    def unsealed(self) -> bool:
        """Whether all of it is removed, and the inventory is not sealed yet: `seal` comes next."""
        return self.over.is_set() and self.state is StepState.REMOVING

    @property
    def going(self) -> bool:
        """Whether objects of it may still be removed."""
        return self.state not in OVER and not self.over.is_set()

    async def run(self) -> None:
        """Carry it out. `state` says how it ended; an enforced step ends only with `seal`."""
        self.state = StepState.REMOVING
        self._changed()
        if self.step.effort == Effort.LEAVE:
            await self._within(self._leave(), Reason.KEPT_BY_POLICY, self._wording.left)
            self._end(StepState.LEFT)
        elif self.step.effort == Effort.TRY:
            done = await self._within(self._remove_sealed(), Reason.GAVE_UP, self._wording.gave_up)
            self._end(StepState.REMOVED if done else StepState.GIVEN_UP)
        else:
            await self._remove_open()
            self._end(StepState.REMOVING)

    def _end(self, state: StepState) -> None:
        self.state = state
        self.waits.clear()
        self._forget_removals()
        self.over.set()
        self._changed()

    def _forget_removals(self) -> None:
        """All that has to be known of them is what is gone; and they know this one, in a circle."""
        self._gone.update(*(removal.removed for _, removal, _ in self._removals))
        self._removals.clear()

    async def seal(self) -> None:
        """Seal the inventory, and only then report the step as removed. If the inventory changed since it was read, or
        names objects that could still be created, everything in it is removed, or seen to be absent, first."""
        if self.state in OVER:
            return
        if not await self.closed() or intended(self._read or ()):
            self.state = StepState.REMOVING
            self.over.clear()
            self._forget_removals()
            await self._remove_sealed()
        self._end(StepState.REMOVED)

    async def closed(self) -> bool:
        """Seal the inventory of a step that is over; whether what was removed is all that it names."""
        owner, read, inventories = self.step.object.uid, self._read, self._means.inventories
        if self._sealed:
            return True
        if read is None:
            await self._seal()
        else:
            self._sealed = await self._persist(
                self._target.ref, lambda: inventories.sealed_as_read(owner, read, self._teardown)
            )
        return self._sealed

    async def resume(self, removed: int, chunks: Sequence[Inventory]) -> None:
        """Take up a step that status reports as removed. `chunks`: its inventory as it is now. If that is not sealed,
        `Removed` was not true when it was written, and the step is carried out again."""
        self.removed, self.left = removed, _counted(chunks)[1]
        self._sealed = all(chunk.spec.sealed_for for chunk in chunks)
        if not self._sealed:
            self.state = StepState.REMOVING
            await self._remove_sealed()
        self._end(StepState.REMOVED)

    def go_another_way(self, target: Anchor) -> None:
        """The way to the member may be another than it was: what is under way by the old one may be shut out there."""
        self._target = target
        self._another_way.set()

    def look_again(self) -> None:
        """Another step has come to its end: what this one waits for may never come."""
        for _, removal, _ in self._removals:
            removal.look_again()

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        """What it waits for on its clusters, each with why and who must act."""
        found: list[Blocker] = []
        for member, removal, chunks in list(self._removals):
            if waits := dict(removal.progress.waits):
                found += await what_blocks(member, waits, items(chunks), step=self.step.name, before=before, now=now)
        return tuple(found)

    async def abandon(self, reason: str, message: str, by: str) -> int:
        """Write each object that is still there into the ledger; how many those are."""
        return await self._persist(self._target.ref, lambda: self._note_left(reason, message, by))

    async def _within(self, work: Awaitable[None], reason: str, message: str) -> bool:
        """Do the work while its time lasts; what is not done then goes into the ledger."""
        timer = self._means.clock.call_later(self._means.best_effort, self._out_of_time.set)
        try:
            done = await unless(self._out_of_time, work)
        finally:
            timer.cancel()
            self._reached()
        if not done:
            why = next((what.told for what in self.waits.values()), "")
            by = self._wording.decided_by(self.step)
            await self.abandon(reason, f"{message}; {why}" if why else message, by=by)
        return done

    def _reach(self) -> None:
        """The member has a while to answer: what is left on it anyway is not worth a longer wait."""
        if self._reaching is None:
            self._reaching = self._means.clock.call_later(REACH, self._out_of_time.set)

    def _reached(self) -> None:
        if self._reaching:
            self._reaching.cancel()
            self._reaching = None

    async def _remove_open(self) -> None:
        """All of it, however long it takes, while the inventory is open still. It is closed when nobody waits for that
        any more: a write for each step would come before the first object goes."""
        read = self._known()
        if read is None:
            owner, inventories = self.step.object.uid, self._means.inventories
            read = await self._persist(self._target.ref, lambda: inventories.at_hand(owner))
        self._read = read
        await self._remove(read)

    async def _remove_sealed(self) -> None:
        await self._remove(await self._seal())

    async def _remove(self, chunks: Sequence[Inventory]) -> None:
        if not any(not item.done for item in items(chunks)):
            self.removed, self.left = _counted(chunks)
            return
        places = by_place(chunks)
        self._places = len(places)
        try:
            async with asyncio.TaskGroup() as group:
                for those in places:
                    group.create_task(self._remove_there(those))
        except ExceptionGroup as failures:
            raise to_tell(failures) from None

    async def _remove_there(self, chunks: list[Inventory]) -> None:
        where, done = chunks[0].spec.member.object, False
        while not done:
            self._another_way.clear()
            # What was done by the way that is not taken any more is seen again.
            done = await unless(self._another_way, self._persist(where, lambda: self._remove_from(chunks)))
            self.waits.pop(where, None)

    async def _remove_from(self, chunks: list[Inventory]) -> None:
        means = self._means
        # What an earlier try said of this place counts no more.
        self._removals = [one for one in self._removals if one[2] is not chunks]
        async with member_of(means.fleet, chunks[0], self._target) as member:
            removal = Removal(
                member,
                means.inventories,
                chunks,
                deleters=means.deleters,
                plugins=means.plugins,
                teardown=self._teardown,
                take_along=self._take_along,
                volumes=self._volumes,
                # All of them go when the teardown has ended.
                discarded=True,
                going=self._going,
                releases=means.releases,
                changed=self._follow,
                clock=means.clock,
            )
            self._removals.append((member, removal, chunks))
            await removal.run()

    async def _leave(self) -> None:
        """Take our marks off, and leave the rest as it is; each object is named in the ledger."""
        for those in by_place(await self._seal()):
            self._reach()
            await self._persist(those[0].spec.member.object, lambda those=those: self._release(those))  # type: ignore[misc]
            self._reached()
        await self.abandon(Reason.KEPT_BY_POLICY, self._wording.left, by=self._wording.decided_by(self.step))

    async def _release(self, chunks: list[Inventory]) -> None:
        todo = [item for item in items(chunks) if not item.done]
        if not todo:
            return
        async with member_of(self._means.fleet, chunks[0], self._target) as member:
            self._reached()
            owner = self.step.object.uid
            await side_by_side((release(member, item, owner=owner) for item in todo), limit=_AT_ONCE)
            if releases := self._means.releases:
                for ref in last_first(releases, (item.entry for item in todo)):
                    await helm_removing.leave(member, namespace=ref.namespace, release=ref.name, owner=owner)

    async def _seal(self) -> list[Inventory]:
        """The inventory, closed for everybody else."""
        inventories, owner = self._means.inventories, self.step.object.uid
        chunks = await self._persist(self._target.ref, lambda: inventories.sealed(owner, self._teardown))
        self._sealed = True
        return chunks

    async def _note_left(self, reason: str, message: str, by: str) -> int:
        inventories, owner = self._means.inventories, self.step.object.uid
        chunks = await (inventories.of(owner) if self._sealed else inventories.sealed(owner, self._teardown))
        self._sealed = True
        note = LedgerNote(reason=reason, message=message, by=by, at=self._means.clock.now().replace(microsecond=0))
        # What was seen to be absent a moment ago may not be written down yet.
        gone = self._gone.union(*(removal.removed for _, removal, _ in self._removals))
        for chunk in chunks:
            notes = {
                item.key: {"state": EntryState.REMOVED.value}
                if item.entry.object.uid in gone
                else {"ledger": msgspec.to_builtins(note)}
                for item in items([chunk])
                if not item.done
            }
            if notes:
                await inventories.write(chunk, notes)
        chunks = await inventories.of(owner)
        self.removed, self.left = _counted(chunks)
        self.total = self.removed + self.left
        return self.left

    def _follow(self) -> None:
        progress = [removal.progress for _, removal, _ in self._removals]
        self.total = max(self.step.objects, sum(one.total for one in progress))
        self.removed = sum(one.removed for one in progress)
        self.left = sum(one.left for one in progress)
        self.waits = {ref: what for one in progress for ref, what in one.waits.items()}
        if len(progress) == self._places and all(one.over for one in progress):
            self.over.set()
        self._changed()

    async def _persist(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        def say(what: Waiting | Failed) -> None:
            self.waits[about] = what
            if self.step.effort == Effort.LEAVE and isinstance(what, Failed) and what.reason == Reason.UNREACHABLE:
                self._reach()
            self._changed()

        done = await persist(work, clock=self._means.clock, chance=self._chance, say=say)
        if self.waits.pop(about, None):
            self._changed()
        return done


def _counted(chunks: Iterable[Inventory]) -> tuple[int, int]:
    """How many objects are gone, and how many were left."""
    entries = [item.entry for item in items(chunks)]
    left = sum(entry.ledger is not None for entry in entries)
    return sum(entry.state == EntryState.REMOVED and entry.ledger is None for entry in entries), left
