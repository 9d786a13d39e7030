"""Runs one teardown: starts each step when the steps that depend on it have ended, and writes the status."""

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
from unwind.inventory.inventories import by_owner
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import WORTH_TELLING
from unwind.kube.workqueue import JITTER
from unwind.planning.dependency_graph import dependencies
from unwind.planning.progress import PlanProgress
from unwind.teardown import force_release
from unwind.teardown import status as teardown_status
from unwind.teardown.status import TeardownProgress
from unwind.teardown.step_runner import OVER, StepRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Inventory, Step, TeardownStatus
    from unwind.clock import Timer
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import TeardownNotice
    from unwind.teardown.status import StepReport
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import Sources

log = logs.get(__name__)

# Seconds between writes of the status if only object counts have changed.
_COUNTS_EVERY = 0.5
# The pause between status writes is this many times the duration of the last write, up to _SLOWEST seconds: they take
# at most a tenth of the time from the deletions that they tell of.
_SHARE = 9
_SLOWEST = 5.0
# If more steps than this are ready, their inventories are read in one request.
_MANY = 8
# Wall-clock seconds that sealing waits before it checks whether every deletion is blocked.
_CALM = 1.0
# A timer may fire this many seconds before a deadline.
_EARLY = 0.5


class TeardownRunner:
    """Runs a teardown to its end. It can be restarted at any moment from the state in the API server."""

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
        read: Iterable[Inventory] = (),
    ) -> None:
        """`sources`: the sources of the steps. `said`: notices for the conditions of the Teardown.

        `paused`: start no step and no deadline; only a release or the deletion of the target ends it. `owns`: whether
        this replica may still act for the target. `read`: Inventories of the steps that were read a moment ago, to
        spare a second read. A step that finds them changed when it is sealed removes its objects again.
        """
        assert teardown.spec.plan is not None  # noqa: S101 - no step runs without a plan
        self.teardown = teardown
        self.target = target
        self._plan: Plan = teardown.spec.plan
        self._deps = means
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
        """Steps that have started, and whose end is not reported yet."""
        self._deleting: set[str] = set()
        """Enforced steps whose objects are being deleted. Inventories are sealed when there are none."""
        self._calm = asyncio.Event()
        self._known: dict[tuple[str, ObjectRef, str], Blocker] = {}
        self._reported: dict[str, StepReport] = {}
        """What the sources were told last, by step."""
        self._below = dependencies(self._plan)
        self._at_hand = by_owner(read)
        """Inventories that were read for many steps together, by their owners."""
        self._jitter = JITTER
        self._over = over = {
            name: step for name, step in teardown.status.unambiguous_steps.items() if step.state in OVER
        }
        self._progress = PlanProgress(self._plan, [step.name for step in self._plan.steps if step.name in over])
        removed = {step.name for step in self._plan.steps if step.effort != Effort.LEAVE} - over.keys()
        self._steps = {
            step.name: StepRunner(
                step,
                target,
                means,
                teardown=teardown.metadata.name,
                remover=sources.of(step).remover,
                terms=lambda step=step: sources.terms(step, self.target),  # type: ignore[misc]
                awaited=lambda name=step.name: self._is_awaited(name, removed),  # type: ignore[misc]
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

    # Signals from the controller

    def release(self, reason: str, message: str, by: str) -> None:
        """Release the target now; each remaining object goes into the ledger."""
        if self._phase is Phase.REMOVING:
            self._phase = Phase.RELEASED
            at = self._deps.clock.now().replace(microsecond=0)
            self._release = Release(reason=reason, message=message, by=by, at=at)
            self._ending.set()

    def target_gone(self) -> None:
        """The target is gone: each object that was not verified absent goes into the ledger."""
        if self._phase is Phase.REMOVING:
            self._phase = Phase.TARGET_GONE
            self._ending.set()

    def moved(self) -> None:
        """The target is in another management cluster now: nothing more is removed, and the ledger says so."""
        if self._phase is Phase.REMOVING:
            self._phase = Phase.MOVED
            self._ending.set()

    def go_another_way(self, target: ClusterTarget) -> None:
        """The credentials or the address of the member may have changed: restart running removals with them."""
        self.target = target
        self._deps.members.reread(target.ref.uid)
        for runner in self._steps.values():
            runner.go_another_way(target)

    def recheck(self) -> None:
        """The owner of a step may have been paused or unpaused."""
        for runner in self._steps.values():
            if runner.going:
                runner.recheck()

    # Execution

    async def run(self) -> None:
        """Run the teardown, and return when its end is written to status."""
        self._due = self._deadline()
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                beginning = group.create_task(self._stay_paused() if self.paused else self._begin(group))
                await self._ending.wait()
                for task in (beginning, *self._tasks.values()):
                    task.cancel()
                await asyncio.gather(beginning, *self._tasks.values(), return_exceptions=True)
                await self._write_ledger()
                writer.cancel()
        finally:
            for timer in (self._due, self._timer):
                if timer:
                    timer.cancel()
        await self._write_status(self._phase)
        self._steps.clear()  # breaks a reference cycle, so that they are freed at once
        log.info("teardown ended", target=str(self.target.ref), teardown=self.teardown.metadata.name, end=self._phase)

    async def _stay_paused(self) -> None:
        """Report the pause. The controller replaces this runner when the Cluster is unpaused."""
        self._dirty.set()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        resumed = [self._steps[name] for name in self._over if name in self._steps and self._is_removed(name)]
        self._open.update(runner.step.name for runner in resumed)
        if len(self._progress.ready) > _MANY and not self._at_hand:
            with suppress(UnwindError):  # then each step reads its own, and reports the error
                self._at_hand = await self._deps.inventories.by_owner(self.target.ref.uid)
        for name in self._progress.ready:
            self._start(group, name)
            # The first of hundreds of steps deletes its objects while the others start.
            await asyncio.sleep(0)
        if resumed:
            await self._resume(resumed)
        if self._progress.finished and not self._open:
            self._finish()

    def _is_removed(self, name: str) -> bool:
        """Whether status reports an enforced step as removed: another process wrote that."""
        return self._over[name].state == StepState.REMOVED and _enforced(self._steps[name].step)

    async def _resume(self, before: list[StepRunner]) -> None:
        """Confirm that steps that status reports as removed are sealed."""
        found = await retry_until_done(
            lambda: self._deps.inventories.owned(runner.step.object.uid for runner in before),
            clock=self._deps.clock,
            chance=self._jitter,
            say=lambda what: log.warning("cannot read inventories, will retry", why=what.told),
        )
        async with asyncio.TaskGroup() as group:
            for runner in before:
                chunks = [item for item in found if item.spec.owner.uid == runner.step.object.uid]
                group.create_task(runner.resume(self._over[runner.step.name].removed, chunks))
        self._open.difference_update(runner.step.name for runner in before)

    def _start(self, group: asyncio.TaskGroup, name: str) -> None:
        runner = self._steps[name]
        self._open.add(name)
        if _enforced(runner.step):
            self._deleting.add(name)
            self._calm.clear()
        self._tasks[name] = group.create_task(self._run_step(group, runner))

    async def _run_step(self, group: asyncio.TaskGroup, runner: StepRunner) -> None:
        name = runner.step.name
        self._notify_source(runner.step, StepState.REMOVING)
        async with asyncio.TaskGroup() as inner:
            inner.create_task(runner.run())
            await runner.passed.wait()
            # The next steps start from this event and do not wait for a write (docs/architecture.md, Events drive,
            # timers insure).
            for free in self._progress.done(name):
                self._start(group, free)
            self._deleting.discard(name)
            if not self._deleting:
                self._calm.set()
            self._dirty.set()
            await runner.over.wait()
            self._dirty.set()
        self._recheck_waiting()
        if runner.unsealed:
            # Sealing the inventories of hundreds of steps must not delay their deletions.
            await self._until_calm()
            await runner.seal()
            self._recheck_waiting()  # objects that were deployed during the removal are gone, too
        self._notify_source(runner.step, runner.state)
        self._open.discard(name)
        self._dirty.set()
        if self._progress.finished and not self._open:
            self._finish()

    def _notify_source(self, step: Step, state: StepState) -> None:
        self._sources.of(step).step_changed(step, state, self.target)

    def _recheck_waiting(self) -> None:
        """A step has ended: other steps check again what they wait for, because it may never come."""
        for other in self._steps.values():
            if other.waits:
                other.look_again()

    async def _until_calm(self) -> None:
        """Return when no enforced step deletes objects, or all that do are blocked, for example by a finalizer."""
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

    async def _write_ledger(self) -> None:
        """Write the remaining objects of unfinished steps into the ledger."""
        if self._phase is Phase.COMPLETE:
            return
        reason, message, by = self._why_left()
        for runner in self._steps.values():
            if runner.going or not await runner.closed():
                await runner.abandon(reason, message, by)
                left = StepState.LEFT if self._phase is Phase.MOVED else StepState.GIVEN_UP
                runner.state = left if runner.left else StepState.REMOVED
            elif runner.unsealed:
                runner.state = StepState.REMOVED
            else:
                continue
            self._notify_source(runner.step, runner.state)

    def _why_left(self) -> tuple[str, str, str]:
        if self._release:
            return self._release.reason, self._release.message, self._release.by
        if self._phase is Phase.MOVED:
            return Reason.MOVED, "the cluster was moved to another management cluster", "clusterctl move"
        return (
            Reason.TARGET_GONE,
            "the target was gone before the removal was verified; delete it if it still exists",
            "unwind",
        )

    def _going(self, step: Step) -> set[str]:
        """The owners whose objects are removed at the same time as a step's: the step may wait for them.

        Not the steps that it depends on: those wait for this step.
        """
        return {
            runner.step.object.uid
            for name, runner in self._steps.items()
            if runner.going and runner.step.effort != Effort.LEAVE and name not in self._below[step.name]
        }

    def _is_awaited(self, name: str, removed: Collection[str]) -> bool:
        """Whether one of the removed steps starts after this one. Steps of a cycle are removed together."""
        return any(below in removed and name not in self._below[below] for below in self._below[name])

    # Deadlines

    def _deadline(self) -> Timer | None:
        # Computed once: the status that tells when the Cluster was unpaused may be written later than this.
        self._ends = None if self.paused else force_release.ends_at(self.teardown, now=self._deps.clock.now())
        return None if self._ends is None else self._deps.clock.call_later(self._left(self._ends), self._pass_deadline)

    def _left(self, ends: datetime) -> float:
        return max(0.0, (ends - self._deps.clock.now()).total_seconds())

    def _pass_deadline(self) -> None:
        left = self._left(self._ends) if self._ends else 0.0
        if left > _EARLY:  # timers use another clock than deadlines
            self._due = self._deps.clock.call_later(left, self._pass_deadline)
            return
        self._overdue = True
        if let_go := force_release.expired(self.teardown.spec):
            self.release(*let_go)
        self._dirty.set()

    # Status

    def view(self) -> TeardownProgress:
        """The progress of the teardown."""
        return TeardownProgress(
            steps=tuple(
                runner.view(() if runner.state is not StepState.WAITING else self._progress.waits_for(name))
                for name, runner in self._steps.items()
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
        """Write the status whenever it changes, until cancelled."""
        pace = WORTH_TELLING
        while True:
            await self._dirty.wait()
            # Combines the changes of quick steps into one write. Wall clock: nothing depends on it.
            await asyncio.sleep(pace)
            self._dirty.clear()
            status = self._status(Phase.REMOVING)
            if status == self.teardown.status:
                continue
            if teardown_status.same_but_for_counts(status, self.teardown.status) and not self._counts_due:
                self._timer = self._timer or self._deps.clock.call_later(_COUNTS_EVERY, self._count)
                continue
            # With low priority; the write contains the status at that time.
            async with self._client.aside:
                self._counts_due = False
                began = time.monotonic()
                await self._write_status(Phase.REMOVING)
            # The status of hundreds of steps costs the server as much as a hundred deletions.
            pace = min(max(WORTH_TELLING, _SHARE * (time.monotonic() - began)), _SLOWEST)
            if await self._update_blockers():
                self._dirty.set()

    async def _update_blockers(self) -> bool:
        """Find the blockers of objects that are waited for; return whether they changed. This is slow, so it comes
        after the first write."""
        found: dict[tuple[str, ObjectRef, str], Blocker] = {}
        for runner in self._steps.values():
            if runner.waits:
                before = self.teardown.status.blockers
                found.update(await runner.blockers(self._known, before, self._deps.clock.now()))
        if found == self._known:
            return False
        self._known = found
        return True

    def _count(self) -> None:
        self._timer = None
        self._counts_due = True
        self._dirty.set()

    async def _write_status(self, phase: Phase) -> None:
        await retry_until_done(
            lambda: self._put(self._status(phase)),
            clock=self._deps.clock,
            chance=self._jitter,
            say=lambda what: log.warning(
                "status write failed, will retry", teardown=self.teardown.metadata.name, why=what.told
            ),
        )
        self._sources.report(self.teardown, self.target, self._reported)

    def _status(self, phase: Phase) -> TeardownStatus:
        view = msgspec.structs.replace(self.view(), phase=phase)
        return teardown_status.status(self.teardown, view, now=self._deps.clock.now())

    async def _put(self, status: TeardownStatus) -> None:
        # Applied, so that fields that are no longer set are removed. With the uid: a Teardown that was deleted is not
        # created again, and the removal continues without it.
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
                        raise UnwindError(
                            f"cannot write the status of Teardown {meta.name}: another replica owns its shard and "
                            "continues it"
                        ) from None
                    self.teardown = msgspec.structs.replace(self.teardown, metadata=now.metadata)
                    continue
            self.teardown = msgspec.structs.replace(self.teardown, metadata=meta, status=status)
            return

    async def _read_again(self) -> Teardown | None:
        """The Teardown, read from the API server; None if it is gone."""
        meta = self.teardown.metadata
        try:
            now = await self._client.get(TEARDOWNS, meta.name, type=Teardown)
        except NotFoundError:
            return None
        return now if now.metadata.uid == meta.uid else None


async def ended_without_target(
    teardown: Teardown,
    target: ClusterTarget,
    means: RemovalDeps,
    client: Client,
    *,
    sources: Sources,
    moved: bool = False,
) -> Teardown:
    """The Teardown of a target that is gone, finished: objects that were not verified absent are in the ledger.
    `moved`: it is in another management cluster."""
    runner = TeardownRunner(teardown, target, means, client, sources=sources)
    if moved:
        runner.moved()
    else:
        runner.target_gone()
    await runner.run()
    return runner.teardown


def _enforced(step: Step) -> bool:
    """Whether the target waits for a step. A step with unknown effort holds it, too."""
    return step.effort not in (Effort.LEAVE, Effort.TRY)
