"""A teardown, while it is carried out: steps start when what depends on them is done, and status follows."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.names import Reason
from unwind.api.unwind import TEARDOWNS, Effort, Phase, Plan, Release, StepState, Teardown
from unwind.deleters.deletion import retry_until_done
from unwind.errors import UnwindError
from unwind.jitter import JITTER
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import WORTH_TELLING
from unwind.planning.progress import PlanProgress
from unwind.teardown import release
from unwind.teardown import status as teardown_status
from unwind.teardown.status import StepView, TeardownProgress
from unwind.teardown.step_runner import OVER, StepRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Inventory, Step, TeardownStatus
    from unwind.clock import Timer
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import TeardownNotice
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import Sources

log = logs.get(__name__)

# How often at most it is told that there is nothing new but more objects that are gone.
_COUNTS_EVERY = 0.5
# How many times as long as it takes to tell it is not told again, and how many seconds at most.
_SHARE = 4
_SLOWEST = 5.0
# From how many steps on their inventories are read together.
_MANY = 8
# How long seals wait, by the clock of the wall, before they look whether every deletion waits for something.
_CALM = 1.0
# A timer may fire this many seconds before a deadline.
_EARLY = 0.5


class TeardownRunner:
    """Carries a teardown out to its end; can be begun again at any moment from what the API server holds."""

    def __init__(
        self,
        teardown: Teardown,
        target: ClusterTarget,
        means: RemovalDeps,
        client: Client,
        *,
        sources: Sources,
        said: tuple[TeardownNotice, ...] = (),
        paused: bool = False,
        owns: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sources`: of the steps. `said`: conditions of the Teardown.

        `paused`: start no step and no deadline; only a release or the end of the target ends it. `owns`: whether this
        replica may still act for the target.
        """
        assert teardown.spec.plan is not None  # noqa: S101 - nothing is carried out without a plan
        self.teardown = teardown
        self.target = target
        self._plan: Plan = teardown.spec.plan
        self._means = means
        self._client = client
        self._sources = sources
        self._said = said
        self.paused = paused
        self._owns = owns
        self._phase = Phase.REMOVING
        self._release: Release | None = None
        self._overdue = False
        self._ends: datetime | None = None
        self._ending = asyncio.Event()
        self._dirty = asyncio.Event()
        self._counts_due = False
        self._timer: Timer | None = None
        self._due: Timer | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: set[str] = set()
        """Steps that have begun, and whose end is not reported."""
        self._deleting: set[str] = set()
        """Enforced steps whose objects are being deleted. Inventories are sealed when there are none."""
        self._calm = asyncio.Event()
        self._known: dict[tuple[str, ObjectRef, str], Blocker] = {}
        self._below = _below(self._plan)
        self._at_hand: dict[str, list[Inventory]] = {}
        """Inventories that were read for many steps together, by their owners."""
        self._chance = JITTER
        self._over = over = {
            name: step for name, step in teardown.status.unambiguous_steps.items() if step.state in OVER
        }
        self._progress = PlanProgress(self._plan, [step.name for step in self._plan.steps if step.name in over])
        self._steps = {
            step.name: StepRunner(
                step,
                target,
                means,
                teardown=teardown.metadata.name,
                remover=sources.of(step).remover,
                terms=lambda step=step: sources.terms(step, self.target),  # type: ignore[misc]
                going=lambda step=step: self._going(step),  # type: ignore[misc]
                changed=self._dirty.set,
                known=lambda uid=step.object.uid: self._at_hand.pop(uid, None),  # type: ignore[misc]
            )
            for step in self._plan.steps
        }
        for name, step in over.items():
            if name in self._steps:
                self._steps[name].state = StepState(step.state)
        for step in teardown.status.steps if paused else ():
            if step.name in self._steps:
                self._steps[step.name].removed = step.removed

    # What others may tell

    def release(self, reason: str, message: str, by: str) -> None:
        """Let the target go now; each object that is left goes into the ledger."""
        if self._phase is Phase.REMOVING:
            self._phase = Phase.RELEASED
            at = self._means.clock.now().replace(microsecond=0)
            self._release = Release(reason=reason, message=message, by=by, at=at)
            self._ending.set()

    def target_gone(self) -> None:
        """The target has vanished: what could not be verified goes into the ledger."""
        if self._phase is Phase.REMOVING:
            self._phase = Phase.TARGET_GONE
            self._ending.set()

    def go_another_way(self, target: ClusterTarget) -> None:
        """The way to the member may be another than it was: what is under way is begun anew by that."""
        self.target = target
        self._means.fleet.look_again(target)
        for carrying in self._steps.values():
            carrying.go_another_way(target)

    # What it does

    async def run(self) -> None:
        """Carry it out, and return when its end is written down."""
        self._due = self._deadline()
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                beginning = group.create_task(self._stay_paused() if self.paused else self._begin(group))
                await self._ending.wait()
                for task in (beginning, *self._tasks.values()):
                    task.cancel()
                await asyncio.gather(beginning, *self._tasks.values(), return_exceptions=True)
                await self._close_the_books()
                writer.cancel()
        finally:
            for timer in (self._due, self._timer):
                if timer:
                    timer.cancel()
        await self._put_down(self._phase)
        self._steps.clear()  # they know this one: in a circle they would stay until somebody looks for such
        log.info("teardown ended", cluster=str(self.target.ref), teardown=self.teardown.metadata.name, end=self._phase)

    async def _stay_paused(self) -> None:
        """Report the pause. The controller replaces this execution when the Cluster is unpaused."""
        self._dirty.set()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        resumed = [self._steps[name] for name in self._over if name in self._steps and self._is_removed(name)]
        self._open.update(carrying.step.name for carrying in resumed)
        if len(self._progress.ready) > _MANY:
            with suppress(UnwindError):  # then each step reads its own, and says what is the matter
                self._at_hand = await self._means.inventories.by_owner(self.target.ref.uid)
        for name in self._progress.ready:
            self._start(group, name)
        if resumed:
            await self._resume(resumed)
        if self._progress.finished and not self._open:
            self._finish()

    def _is_removed(self, name: str) -> bool:
        """Whether status reports an enforced step as removed, which another process has written."""
        return self._over[name].state == StepState.REMOVED and _enforced(self._steps[name].step)

    async def _resume(self, before: list[StepRunner]) -> None:
        """Confirm that steps that status reports as removed are sealed."""
        found = await retry_until_done(
            lambda: self._means.inventories.owned(carrying.step.object.uid for carrying in before),
            clock=self._means.clock,
            chance=self._chance,
            say=lambda what: log.warning("cannot read inventories, will retry", why=what.told),
        )
        async with asyncio.TaskGroup() as group:
            for carrying in before:
                chunks = [item for item in found if item.spec.owner.uid == carrying.step.object.uid]
                group.create_task(carrying.resume(self._over[carrying.step.name].removed, chunks))
        self._open.difference_update(carrying.step.name for carrying in before)

    def _start(self, group: asyncio.TaskGroup, name: str) -> None:
        carrying = self._steps[name]
        self._open.add(name)
        if _enforced(carrying.step):
            self._deleting.add(name)
            self._calm.clear()
        self._tasks[name] = group.create_task(self._carry(group, carrying))

    async def _carry(self, group: asyncio.TaskGroup, carrying: StepRunner) -> None:
        name = carrying.step.name
        self._tell_source(carrying.step, StepState.REMOVING)
        async with asyncio.TaskGroup() as inner:
            inner.create_task(carrying.run())
            await carrying.over.wait()
            # The next steps start from this event and wait for no write (docs/architecture.md, Events drive, timers
            # insure).
            for free in self._progress.done(name):
                self._start(group, free)
            self._deleting.discard(name)
            if not self._deleting:
                self._calm.set()
            self._dirty.set()
        self._tell_others()
        if carrying.unsealed:
            # A seal for each of hundreds of steps must not come before, or between, their deletions.
            await self._until_calm()
            await carrying.seal()
            self._tell_others()  # what was deployed meanwhile is gone as well
        self._tell_source(carrying.step, carrying.state)
        self._open.discard(name)
        self._dirty.set()
        if self._progress.finished and not self._open:
            self._finish()

    def _tell_source(self, step: Step, state: StepState) -> None:
        self._sources.of(step).step_changed(step, state, self.target)

    def _tell_others(self) -> None:
        """A step is over: what others wait for may never come."""
        for other in self._steps.values():
            if other.waits:
                other.look_again()

    async def _until_calm(self) -> None:
        """Return when no enforced step is being deleted, or all that are wait for something, such as a finalizer."""
        while not self._calm.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CALM):
                    await self._calm.wait()
            if all(self._steps[name].waits for name in self._deleting):
                return

    def _finish(self) -> None:
        if self._phase is Phase.REMOVING:
            self._phase = Phase.COMPLETE
            self._ending.set()

    async def _close_the_books(self) -> None:
        """Name in the ledger what is left of steps that did not come to their end."""
        if self._phase is Phase.COMPLETE:
            return
        reason, message, by = self._why_left()
        for carrying in self._steps.values():
            if carrying.going or not await carrying.closed():
                await carrying.abandon(reason, message, by)
                carrying.state = StepState.GIVEN_UP if carrying.left else StepState.REMOVED
            elif carrying.unsealed:
                carrying.state = StepState.REMOVED
            else:
                continue
            self._tell_source(carrying.step, carrying.state)

    def _why_left(self) -> tuple[str, str, str]:
        if self._release:
            return self._release.reason, self._release.message, self._release.by
        return Reason.TARGET_GONE, "the cluster vanished before its removal was verified", "unwind"

    def _going(self, step: Step) -> set[str]:
        """The owners whose objects are being removed beside a step's: it may wait for them.

        Not for what it needs itself: that waits for this step.
        """
        return {
            carrying.step.object.uid
            for name, carrying in self._steps.items()
            if carrying.going and carrying.step.effort != Effort.LEAVE and name not in self._below[step.name]
        }

    # Deadlines

    def _deadline(self) -> Timer | None:
        # Once: the status that says since when the Cluster is not paused any more may be written later than this.
        self._ends = None if self.paused else release.ends_at(self.teardown, now=self._means.clock.now())
        return None if self._ends is None else self._means.clock.call_later(self._left(self._ends), self._pass_deadline)

    def _left(self, ends: datetime) -> float:
        return max(0.0, (ends - self._means.clock.now()).total_seconds())

    def _pass_deadline(self) -> None:
        left = self._left(self._ends) if self._ends else 0.0
        if left > _EARLY:  # timers go by another clock than deadlines
            self._due = self._means.clock.call_later(left, self._pass_deadline)
            return
        self._overdue = True
        if let_go := release.expired(self.teardown.spec):
            self.release(*let_go)
        self._dirty.set()

    # What it says

    def view(self) -> TeardownProgress:
        """How far it has come."""
        return TeardownProgress(
            steps=tuple(
                StepView(
                    name=name,
                    state=carrying.state,
                    total=carrying.total,
                    removed=carrying.removed,
                    left=carrying.left,
                    waits=dict(carrying.waits),
                    unsealed=carrying.unsealed,
                    for_steps=() if carrying.state is not StepState.WAITING else self._progress.waits_for(name),
                )
                for name, carrying in self._steps.items()
            ),
            wave=self._progress.wave,
            phase=self._phase,
            said=self._said,
            release=self._release,
            overdue=self._overdue,
            paused=self.paused and self._phase is Phase.REMOVING,
            gated=self.target.gated,
            known=self._known,
        )

    async def _write(self) -> None:
        """Write the status whenever there is something new, until cancelled."""
        pace = WORTH_TELLING
        while True:
            await self._dirty.wait()
            # Steps that go quickly need not be told of one by one. By the clock of the wall: nothing depends on it.
            await asyncio.sleep(pace)
            self._dirty.clear()
            status = self._status(Phase.REMOVING)
            if status == self.teardown.status:
                continue
            if teardown_status.same_but_for_counts(status, self.teardown.status) and not self._counts_due:
                self._timer = self._timer or self._means.clock.call_later(_COUNTS_EVERY, self._count)
                continue
            # Beside what has to be done; what there is to tell by then is what is written.
            async with self._client.aside:
                self._counts_due = False
                began = time.monotonic()
                await self._put_down(Phase.REMOVING)
            # Of hundreds of steps it costs the server as much as a hundred deletions.
            pace = min(max(WORTH_TELLING, _SHARE * (time.monotonic() - began)), _SLOWEST)
            if await self._find_out():
                self._dirty.set()

    async def _find_out(self) -> bool:
        """Why what is waited for is still there; whether there is something new. It takes a while, and so comes after
        what was said at once."""
        found: dict[tuple[str, ObjectRef, str], Blocker] = {}
        for name, carrying in self._steps.items():
            waits = {(name, ref, what.told): ref for ref, what in carrying.waits.items()}
            if not waits:
                continue
            if waits.keys() <= self._known.keys():
                found |= {key: self._known[key] for key in waits}
                continue
            blockers = await carrying.blockers(self.teardown.status.blockers, self._means.clock.now())
            by_ref = {blocker.object: blocker for blocker in blockers}
            found |= {key: by_ref[ref] for key, ref in waits.items() if ref in by_ref}
        if found == self._known:
            return False
        self._known = found
        return True

    def _count(self) -> None:
        self._timer = None
        self._counts_due = True
        self._dirty.set()

    async def _put_down(self, phase: Phase) -> None:
        await retry_until_done(
            lambda: self._put(self._status(phase)),
            clock=self._means.clock,
            chance=self._chance,
            say=lambda what: log.warning("the status of a teardown is not written yet", why=what.told),
        )

    def _status(self, phase: Phase) -> TeardownStatus:
        view = msgspec.structs.replace(self.view(), phase=phase)
        return teardown_status.status(self.teardown, view, now=self._means.clock.now())

    async def _put(self, status: TeardownStatus) -> None:
        # Applied, so that what is not said any more disappears. With the uid: a record that somebody deleted is not
        # made again, and the removal goes on without it.
        while True:
            meta = self.teardown.metadata
            body = {
                "apiVersion": TEARDOWNS.api_version,
                "kind": TEARDOWNS.kind,
                "metadata": teardown_status.guarded(self.teardown),
                "status": msgspec.to_builtins(status),
            }
            try:
                written = await self._client.apply(TEARDOWNS, body, subresource="status")
                meta = msgspec.convert(written, Teardown).metadata
            except NotFoundError:
                pass
            except ConflictError:
                if now := await self._read_again():
                    if not self._owns():
                        raise UnwindError(f"Teardown {meta.name} belongs to another replica by now") from None
                    self.teardown = msgspec.structs.replace(self.teardown, metadata=now.metadata)
                    continue
            self.teardown = msgspec.structs.replace(self.teardown, metadata=meta, status=status)
            return

    async def _read_again(self) -> Teardown | None:
        """The record as it is now; None if it is gone."""
        meta = self.teardown.metadata
        try:
            now = await self._client.get(TEARDOWNS, meta.name, type=Teardown)
        except NotFoundError:
            return None
        return now if now.metadata.uid == meta.uid else None


async def ended_without_target(
    teardown: Teardown, target: ClusterTarget, means: RemovalDeps, client: Client, *, sources: Sources
) -> Teardown:
    """The record of a teardown whose target is gone, brought to its end: the ledger has what could not be verified."""
    ending = TeardownRunner(teardown, target, means, client, sources=sources)
    ending.target_gone()
    await ending.run()
    return ending.teardown


def _enforced(step: Step) -> bool:
    """Whether the target waits for a step. One whose effort is unknown holds, too."""
    return step.effort not in (Effort.LEAVE, Effort.TRY)


def _below(plan: Plan) -> dict[str, set[str]]:
    """For each step those that it needs, also by way of others."""
    needs = {step.name: set(step.needs) for step in plan.steps}
    below: dict[str, set[str]] = {}
    for name in needs:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for need in needs.get(waiting.pop(), ()):
                if need not in found:
                    found.add(need)
                    waiting.append(need)
        below[name] = found
    return below
