"""One step of a teardown, carried out as its effort says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.api.names import Reason
from unwind.api.unwind import Effort, EntryState, LedgerNote, StepState
from unwind.concurrency import unless
from unwind.deleters.attempt import Failed
from unwind.inventory.inventories import intended, items
from unwind.removal.places import by_place, member_of
from unwind.teardown.step_removers import StepContext, retry_forever

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Inventory, Step
    from unwind.clock import Timer
    from unwind.deleters.attempt import Waiting
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps, StepRemoval, StepRemover
    from unwind.teardown.step_sources import StepTerms

T = TypeVar("T")

REACH = 10.0
"""Seconds that a member may take to answer where nothing is to be removed from it, and nobody waits for it."""
OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class StepRunner:
    """A step, while it is carried out."""

    def __init__(
        self,
        step: Step,
        target: ClusterTarget,
        means: RemovalDeps,
        *,
        teardown: str,
        remover: StepRemover,
        terms: Callable[[], StepTerms],
        going: Callable[[], Collection[str]] = frozenset,
        changed: Callable[[], None] = lambda: None,
        known: Callable[[], Sequence[Inventory] | None] = lambda: None,
    ) -> None:
        """`terms`: what the owner of the step says now. `known`: its inventory, where somebody has read it already."""
        self.step = step
        self.state = StepState.WAITING
        self.total = step.objects
        self.removed = 0
        self.left = 0
        self._waits: dict[ObjectRef, Waiting | Failed] = {}
        """What is waited for besides the removal."""
        self._target = target
        self._means = means
        self._teardown = teardown
        self._remover = remover
        self._terms = terms
        self._first_terms = terms()
        self._going = going
        self._changed = changed
        self._known = known
        self._out_of_time = asyncio.Event()
        """What is done for a while only is done for no longer."""
        self._reaching: Timer | None = None
        self.over = asyncio.Event()
        """Everything is gone or left, and only has to be written down."""
        self._removal: StepRemoval | None = None
        self._read: Sequence[Inventory] | None = None
        """The inventory by which everything is removed while it is open."""
        self._sealed = False
        self._gone: set[str] = set()
        """The uids of what was seen to be absent by removals that are over."""

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        """What it waits for, by the object it waits for."""
        if self._removal is None or not self._removal.waits:
            return self._waits
        return {**self._waits, **self._removal.waits} if self._waits else self._removal.waits

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
            await self._within(self._leave(), Reason.KEPT_BY_POLICY, self._first_terms.left)
            self._end(StepState.LEFT)
        elif self.step.effort == Effort.TRY:
            done = await self._within(self._remove_sealed(), Reason.GAVE_UP, self._first_terms.gave_up)
            self._end(StepState.REMOVED if done else StepState.GIVEN_UP)
        else:
            await self._remove_open()
            self._end(StepState.REMOVING)

    def _end(self, state: StepState) -> None:
        self.state = state
        self._waits.clear()
        self._forget_removal()
        self.over.set()
        self._changed()

    def _forget_removal(self) -> None:
        """All that has to be known of it is what is gone; and it knows this one, in a circle."""
        if self._removal:
            self._gone.update(self._removal.removed)
            self._removal = None

    async def seal(self) -> None:
        """Seal the inventory, and only then report the step as removed. If the inventory changed since it was read, or
        names objects that could still be created, everything in it is removed, or seen to be absent, first."""
        if self.state in OVER:
            return
        if not await self.closed() or intended(self._read or ()):
            self.state = StepState.REMOVING
            self.over.clear()
            self._forget_removal()
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

    def go_another_way(self, target: ClusterTarget) -> None:
        """The way to the member may be another than it was: what is under way by the old one may be shut out there."""
        self._target = target
        if self._removal:
            self._removal.go_another_way(target)

    def look_again(self) -> None:
        """Another step has come to its end: what this one waits for may never come."""
        if self._removal:
            self._removal.look_again()

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        """What it waits for on its clusters, each with why and who must act."""
        return await self._removal.blockers(before, now) if self._removal else ()

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
            await self.abandon(reason, f"{message}; {why}" if why else message, by=self._first_terms.decided_by)
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
        self._removal = removal = self._remover.begin(
            StepContext(
                step=self.step,
                target=self._target,
                means=self._means,
                teardown=self._teardown,
                chunks=chunks,
                take_along=self._first_terms.take_along,
                volumes=lambda: self._terms().volumes,
                going=self._going,
                changed=self._follow,
            )
        )
        await removal.run()
        if removal.progress is None:
            self.removed, self.left = _counted(chunks)

    async def _leave(self) -> None:
        """Take our marks off, and leave the rest as it is; each object is named in the ledger."""
        for those in by_place(await self._seal()):
            self._reach()
            await self._persist(those[0].spec.member.object, lambda those=those: self._release(those))  # type: ignore[misc]
            self._reached()
        await self.abandon(Reason.KEPT_BY_POLICY, self._first_terms.left, by=self._first_terms.decided_by)

    async def _release(self, chunks: list[Inventory]) -> None:
        todo = [item for item in items(chunks) if not item.done]
        if not todo:
            return
        async with member_of(self._means.fleet, chunks[0], self._target) as member:
            self._reached()
            await self._remover.leave(member, todo, owner=self.step.object.uid)

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
        gone = self._gone.union(self._removal.removed if self._removal else ())
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
        if self._removal and (progress := self._removal.progress):
            self.total = max(self.step.objects, progress.total)
            self.removed = progress.removed
            self.left = progress.left
            if progress.over:
                self.over.set()
        self._changed()

    async def _persist(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        def changed() -> None:
            what = self._waits.get(about)
            if self.step.effort == Effort.LEAVE and isinstance(what, Failed) and what.reason == Reason.UNREACHABLE:
                self._reach()
            self._changed()

        return await retry_forever(work, waits=self._waits, about=about, clock=self._means.clock, changed=changed)


def _counted(chunks: Iterable[Inventory]) -> tuple[int, int]:
    """How many objects are gone, and how many were left."""
    entries = [item.entry for item in items(chunks)]
    left = sum(entry.ledger is not None for entry in entries)
    return sum(entry.state == EntryState.REMOVED and entry.ledger is None for entry in entries), left
