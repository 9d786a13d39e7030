"""Runs one step according to its effort: enforce, try or leave. A step of a teardown, a withdrawal or a prune."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind.api.names import Reason
from unwind.api.unwind import Effort, EntryState, LedgerNote, StepState
from unwind.concurrency import unless
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.inventory.inventories import intended, items
from unwind.removal.inventory_clusters import by_place, member_of
from unwind.teardown.status import StepView
from unwind.teardown.step_removers import StepContext, retry_forever

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Inventory, Step
    from unwind.clock import Timer
    from unwind.inventory.inventories import Item
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.status import KnownBlockers
    from unwind.teardown.step_removers import RemovalDeps, StepRemoval, StepRemover
    from unwind.teardown.step_sources import StepTerms

T = TypeVar("T")

LEAVE_TIMEOUT = 10.0
"""Seconds that a member may take to answer if nothing is removed from it and the target does not wait for it."""
OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class StepRunner:
    """Runs one step."""

    def __init__(
        self,
        step: Step,
        target: ClusterTarget,
        means: RemovalDeps,
        *,
        teardown: str,
        remover: StepRemover,
        terms: Callable[[], StepTerms],
        awaited: Callable[[], bool] = lambda: False,
        going: Callable[[], Collection[str]] = frozenset,
        changed: Callable[[], None] = lambda: None,
        known: Callable[[], Sequence[Inventory] | None] = lambda: None,
        only: frozenset[str] | None = None,
        patient: bool = False,
        gone: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`terms`: the current settings of the step's owner. `awaited`: whether another step starts when this one has
        passed. `known`: its inventory, if it was read already. `only`: the entries to remove, for a prune: the
        others stay, and the inventory is never sealed. `patient`: the cluster stays, so objects that are left
        are unmarked, however long that takes. `gone`: the uids of objects that an earlier runner verified absent."""
        self.step = step
        self.state = StepState.WAITING
        self.total = step.objects
        self.removed = 0
        self.left = 0
        self.reason = ""
        """Why objects were left, as a CamelCase word."""
        self.why_left = ""
        """The same in one sentence, with the decision maker."""
        self._waits: dict[ObjectRef, Waiting | Failed] = {}
        """What it waits for outside the removal."""
        self._target = target
        self._deps = means
        self._teardown = teardown
        self._remover = remover
        self._terms = terms
        self._first_terms = terms()
        self._awaited = awaited
        self._going = going
        self._changed = changed
        self._known = known
        self._only = only
        self._patient = patient
        self._out_of_time = asyncio.Event()
        """Set when the time for best-effort work is over."""
        self._pause = asyncio.Event()
        """Set while the owner of an enforced step is paused."""
        self._rechecked = asyncio.Event()
        """Set when the owner may have been paused for another reason, or unpaused."""
        self._reaching: Timer | None = None
        self.over = asyncio.Event()
        """Set when every object is gone or left, and only the write is missing."""
        self.passed = asyncio.Event()
        """Set when the steps that this one depends on may start: it is over, or only empty Namespaces wait for
        Kubernetes. Not recorded: after a restart, the Namespaces are checked again."""
        self._removal: StepRemoval | None = None
        self._read: Sequence[Inventory] | None = None
        """The inventory that the removal uses, read before it is sealed."""
        self._sealed = False
        self._places = {target.ref.uid, step.object.uid}
        """The uids of what waits are about that are about a whole cluster, and not about one object on it."""
        self._gone_before = gone
        self._gone: set[str] = set()
        """The uids of objects that earlier removals verified absent."""

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        """What it waits for, by the object it waits for."""
        if self._removal is None or not self._removal.waits:
            return self._waits
        return {**self._waits, **self._removal.waits} if self._waits else self._removal.waits

    @property
    def gone(self) -> frozenset[str]:
        """The uids of objects that were verified absent."""
        return frozenset(self._gone).union(self._gone_before(), self._removal.removed if self._removal else ())

    @property
    def inventory(self) -> Sequence[Inventory] | None:
        """Its inventory, if that has not changed since it was read."""
        return self._read

    @property
    def unsealed(self) -> bool:
        """Whether everything is removed but the inventory is not sealed yet: `seal` comes next."""
        return self.over.is_set() and self.state is StepState.REMOVING

    @property
    def going(self) -> bool:
        """Whether objects of this step may still be removed."""
        return self.state not in OVER and not self.over.is_set()

    async def run(self) -> None:
        """Run the step. `state` is its end state; an enforced step ends only with `seal`."""
        self.recheck()
        await self._until_unpaused()
        self.state = StepState.REMOVING
        self._changed()
        if self.step.effort == Effort.LEAVE:
            if self._patient:
                await self._leave()
            else:
                await self._within(self._leave, self._first_terms.left_reason, self._first_terms.left)
            self._end(StepState.LEFT)
        elif self.step.effort == Effort.TRY:
            done = await self._within(self._remove_sealed, Reason.GAVE_UP, self._first_terms.gave_up)
            paused = self.reason in (Reason.PAUSED, Reason.POLICY_CONFLICT)
            self._end(StepState.REMOVED if done else StepState.LEFT if paused else StepState.GIVEN_UP)
        else:
            await self._remove_open()
            self._end(StepState.REMOVING)

    def _end(self, state: StepState) -> None:
        self.state = state
        self._waits.clear()
        self._forget_removal()
        self.over.set()
        self.passed.set()
        self._changed()

    def _forget_removal(self) -> None:
        """Keep only the uids that it removed. This also breaks a reference cycle."""
        if self._removal:
            self._gone.update(self._removal.removed)
            self._removal = None

    async def seal(self) -> None:
        """Seal the inventory, and only then report the step as removed. If the inventory changed since it was read, or
        names objects that could still be created, everything in it is removed, or verified absent, first."""
        if self.state in OVER:
            return
        if not await self.closed() or intended(self._read or ()):
            self.state = StepState.REMOVING
            self.over.clear()
            self._forget_removal()
            self._read = None
            await self._remove_sealed()
        self._end(StepState.REMOVED)

    async def closed(self) -> bool:
        """Seal the inventory of a step that is over; return whether everything that it names was removed."""
        owner, read, inventories = self.step.object.uid, self._read, self._deps.inventories
        if self._sealed:
            return True
        if read is None:
            await self._seal()
        else:
            self._sealed = await self._retry(
                self._target.ref, lambda: inventories.sealed_as_read(owner, read, self._teardown)
            )
        return self._sealed

    async def resume(self, removed: int, chunks: Sequence[Inventory]) -> None:
        """Resume a step that status reports as removed. `chunks`: its current inventory. If that is not sealed,
        `Removed` was not true when it was written, and the step runs again."""
        self.removed, self.left = removed, _counted(items(chunks))[1]
        self._sealed = all(chunk.spec.sealed_for for chunk in chunks)
        if not self._sealed:
            self.state = StepState.REMOVING
            await self._remove_sealed()
        self._end(StepState.REMOVED)

    def go_another_way(self, target: ClusterTarget) -> None:
        """The credentials or the address of the member may have changed: running requests may be rejected."""
        self._target = target
        if self._removal:
            self._removal.go_another_way(target)

    def recheck(self) -> None:
        """The owner may have been paused or unpaused: stop the removal, or continue it."""
        if (pause := self._terms().paused) is None:
            self._pause.clear()
        elif self._enforced or pause.passing:
            self._pause.set()
        else:
            self._out_of_time.set()  # nothing waits for it, so its objects are left
        self._rechecked.set()

    @property
    def _enforced(self) -> bool:
        return self.step.effort not in (Effort.LEAVE, Effort.TRY)

    def look_again(self) -> None:
        """Another step has ended: check again what this one waits for, because it may never come."""
        if self._removal:
            self._removal.look_again()

    def view(self, for_steps: tuple[str, ...] = ()) -> StepView:
        """Its progress. `for_steps`: the steps that it waits for."""
        return StepView(
            name=self.step.name,
            state=self.state,
            total=self.total,
            removed=self.removed,
            left=self.left,
            waits=dict(self.waits),
            unsealed=self.unsealed,
            reason=self.reason,
            why_left=self.why_left,
            for_steps=for_steps,
        )

    async def blockers(self, known: KnownBlockers, before: Iterable[Blocker], now: datetime) -> KnownBlockers:
        """Why each object that it waits for still exists, and who must act. Slow, unless all of it is `known`.
        `before`: the blockers in status."""
        waits = {(self.step.name, ref, what.told): ref for ref, what in self.waits.items()}
        still = {key: known[key] for key in waits if key in known}
        unreachable = {ref.uid for ref, what in self.waits.items() if _is_unreachable(what)}
        # What was found out stays while the member does not answer: it could not be found out again.
        if len(still) == len(waits) or not unreachable.isdisjoint(self._places):
            return still
        found = await self._removal.blockers(before, now) if self._removal else ()
        by_ref = {blocker.object: blocker for blocker in found}
        new = {key: by_ref[ref] for key, ref in waits.items() if ref in by_ref}
        # An object that cannot be read may be the first sign that the member does not answer.
        return new | still if unreachable else new

    async def abandon(self, reason: str, message: str, by: str, *, kept: bool = False) -> int:
        """Write each remaining object into the ledger; return how many there are. `kept`: they stay on purpose."""
        self.reason, self.why_left = reason, f"{message}; decided by {by}"
        return await self._retry(self._target.ref, lambda: self._note_left(reason, message, by, kept=kept))

    async def _within(self, work: Callable[[], Awaitable[None]], reason: str, message: str) -> bool:
        """Do the work within the best-effort time, else write the rest into the ledger; return whether it was done."""
        within = self._deps.best_effort + self._first_terms.more_time
        timer = self._deps.clock.call_later(within, self._out_of_time.set)
        try:
            done = not self._out_of_time.is_set() and await unless(self._out_of_time, work())
        finally:
            timer.cancel()
            self._reached()
        if not done and (pause := self._terms().paused):
            await self.abandon(pause.reason, pause.ledger, by=pause.by)
        elif not done:
            why = next((what.told for what in self.waits.values()), "")
            await self.abandon(reason, f"{message}; {why}" if why else message, by=self._first_terms.decided_by)
        return done

    def _reach(self) -> None:
        """Limit the time for the member to answer: objects that stay there anyway are not worth a longer wait."""
        if self._reaching is None and not self._patient:
            self._reaching = self._deps.clock.call_later(LEAVE_TIMEOUT, self._out_of_time.set)

    def _reached(self) -> None:
        if self._reaching:
            self._reaching.cancel()
            self._reaching = None

    async def _remove_open(self) -> None:
        """Remove everything while the inventory is not sealed. It is sealed after the deletions: one write per step
        would delay the first deletion."""
        read = self._known()
        if read is None:
            owner, inventories = self.step.object.uid, self._deps.inventories
            read = await self._retry(self._target.ref, lambda: inventories.at_hand(owner))
        self._read = read
        await self._remove(read)

    async def _remove_sealed(self) -> None:
        await self._remove(await self._seal())

    async def _remove(self, chunks: Sequence[Inventory]) -> None:
        while True:
            await self._until_unpaused()
            if not self._enforced:
                await self._remove_all(chunks)
                return
            if await unless(self._pause, self._remove_all(chunks)):
                return
            self._forget_removal()  # paused: the next removal verifies its objects again

    async def _until_unpaused(self) -> None:
        """Return when the owner of an enforced step is not paused. Until then the step waits."""
        while (pause := self._terms().paused) and (self._enforced or pause.passing):
            self.state = StepState.WAITING
            self._waits[pause.object] = Waiting(pause.message, code=pause.reason)
            self._changed()
            self._rechecked.clear()
            await self._rechecked.wait()
            self._waits.pop(pause.object, None)
            self.state = StepState.REMOVING
            self._changed()

    async def _remove_all(self, chunks: Sequence[Inventory]) -> None:
        self._places.update(chunk.spec.member.object.uid for chunk in chunks)
        self._removal = removal = self._remover.begin(
            StepContext(
                step=self.step,
                target=self._target,
                means=self._deps,
                teardown=self._teardown,
                chunks=chunks,
                only=self._only,
                prune=self._only is not None,
                take_along=self._first_terms.take_along,
                volumes=lambda: self._terms().volumes,
                going=self._going,
                changed=self._follow,
                awaited=self._awaited,
            )
        )
        await removal.run()
        if removal.progress is None:
            self.removed, self.left = _counted(self._concerned(chunks))
            self.total = max(self.total, self.removed + self.left)

    async def _leave(self) -> None:
        """Remove Unwind's labels and annotations, leave the objects, and name each in the ledger."""
        for those in by_place(await self._seal()):
            self._reach()
            await self._retry(those[0].spec.member.object, lambda those=those: self._release(those))  # type: ignore[misc]
            self._reached()
        terms = self._first_terms
        await self.abandon(terms.left_reason, terms.left, by=terms.decided_by, kept=self._patient)

    async def _release(self, chunks: list[Inventory]) -> None:
        todo = [item for item in items(chunks) if not item.done]
        if not todo:
            return
        async with member_of(self._deps.members, chunks[0], self._target) as member:
            self._reached()
            await self._remover.leave(member, todo, owner=self.step.object.uid)

    async def _seal(self) -> list[Inventory]:
        """The sealed inventory: no other writer can add to it."""
        inventories, owner = self._deps.inventories, self.step.object.uid
        chunks = await self._retry(self._target.ref, lambda: inventories.sealed(owner, self._teardown))
        self._sealed = True
        return chunks

    async def _note_left(self, reason: str, message: str, by: str, *, kept: bool) -> int:
        inventories, owner = self._deps.inventories, self.step.object.uid
        if self._sealed or self._only is not None:
            chunks = await inventories.of(owner)
        else:
            chunks = await inventories.sealed(owner, self._teardown)
            self._sealed = True
        note = LedgerNote(reason=reason, message=message, by=by, at=self._deps.clock.now().replace(microsecond=0))
        # A merge patch: the note of a prune must not stay provisional.
        left: dict[str, Any] = {"ledger": msgspec.to_builtins(note) | {"provisional": None}}
        if kept:
            left["kept"] = True
        # Objects that were just verified absent may not be recorded as removed yet.
        gone = self.gone
        for chunk in chunks:
            notes = {
                item.key: {"state": EntryState.REMOVED.value} if item.entry.object.uid in gone else left
                for item in self._concerned([chunk])
                if not item.done
            }
            if notes:
                await inventories.write(chunk, notes)
        chunks = await inventories.of(owner)
        self.removed, self.left = _counted(self._concerned(chunks))
        self.total = self.removed + self.left
        return self.left

    def _concerned(self, chunks: Iterable[Inventory]) -> list[Item]:
        """The entries that this step removes."""
        return [item for item in items(chunks) if self._only is None or item.key in self._only]

    def _follow(self) -> None:
        if self._removal and (progress := self._removal.progress):
            self.total = max(self.step.objects, progress.total)
            self.removed = progress.removed
            self.left = progress.left
            if progress.over:
                self.over.set()
            if progress.over or progress.passed:
                self.passed.set()
        self._changed()

    async def _retry(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        def changed() -> None:
            what = self._waits.get(about)
            if self.step.effort == Effort.LEAVE and _is_unreachable(what):
                self._reach()
            self._changed()

        return await retry_forever(work, waits=self._waits, about=about, clock=self._deps.clock, changed=changed)


def _is_unreachable(what: Waiting | Failed | None) -> bool:
    return isinstance(what, Failed) and what.reason == Reason.UNREACHABLE


def _counted(some: Iterable[Item]) -> tuple[int, int]:
    """The numbers of objects that were removed and that were left."""
    entries = [item.entry for item in some]
    left = sum(entry.left for entry in entries)
    return sum(entry.state == EntryState.REMOVED and not entry.left for entry in entries), left
