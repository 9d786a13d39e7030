"""Withdrawals: remove the objects of a ClusterSummary or a Work from clusters that stay.

A withdrawal is one step, run by the same StepRunner as the steps of a teardown. A finalizer on the member can block it
for any time, so each runs in its own task. All state is in the inventories: if the process is killed, a withdrawal is
restarted and resumes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from unwind.api.names import Reason
from unwind.api.unwind import Effort, Step
from unwind.deleters.chain_attempt import Waiting
from unwind.errors import UnwindError
from unwind.inventory.inventories import items, ledgered
from unwind.kube import fencing
from unwind.kube.fencing import FencedError
from unwind.members.targets import ClusterTarget
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_runner import StepRunner
from unwind.teardown.step_sources import StepTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Inventory
    from unwind.removal.helm_release_removal import Releases
    from unwind.teardown.step_removers import RemovalDeps

_SHOWN = 5
_A_MOMENT = 0.1


class Manner(Enum):
    """What happens to deployed objects."""

    REMOVE = "remove"
    RELEASE = "release"
    """They stay, and Unwind's labels and annotations are removed."""
    FORGET = "forget"
    """They stay, and the cluster is not contacted: it is no longer managed."""
    ABANDON = "abandon"
    """A user or a deadline released their owner: what is not removed yet stays, and the ledger names it."""

    @property
    def effort(self) -> Effort:
        """The effort of the step."""
        return Effort.LEAVE if self in (Manner.RELEASE, Manner.FORGET) else Effort.ENFORCE


UNMANAGED = Reason.UNMANAGED, "the cluster is no longer managed"
"""Why objects on such a cluster are left, for the ledger."""


class Withdrawal:
    """The withdrawal of one ClusterSummary or Work."""

    def __init__(
        self, cluster: Hashable, manner: Manner, terms: Callable[[], StepTerms], before: Withdrawal | None
    ) -> None:
        self.cluster = cluster
        self.manner = manner
        self.terms = terms
        self.before = before.task if before else None
        """The task of a withdrawal that this one replaces."""
        self.runner: StepRunner
        self.chunks: list[Inventory] | None = None
        """Its inventory, read before the removal starts."""
        self.free = asyncio.Event()
        """Set when nothing on the cluster depends on it any more. Until then it prepares, and removes nothing."""
        self.absent = False
        """Whether all objects are gone or left."""
        self.passed = False
        """Whether its dependencies may be removed: all objects are gone or left, or are empty Namespaces that only wait
        for Kubernetes."""
        self.done = False
        """Whether that is written to the inventory, too: its owner may be deleted."""
        self.ended = False
        """Whether the finalizer of the owner was removed."""
        self.told = ""
        """The last reported value of `waits`."""
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def uid(self) -> str:
        """Of its owner."""
        return self.runner.step.object.uid

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of all objects, of those that are removed, and of those that are left."""
        return self.runner.total, self.runner.removed, self.runner.left

    @property
    def busy(self) -> bool:
        """Whether it makes progress without waiting for anything."""
        return self.free.is_set() and not (self.absent or self.error or self.runner.waits)

    @property
    def waits(self) -> str:
        """What it waits for, as a message. Equal for equal states."""
        waits = [what.reason if isinstance(what, Waiting) else what.message for what in self.runner.waits.values()]
        more = f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
        return "; ".join(waits[:_SHOWN]) + more


class Withdrawals:
    """All withdrawals in this process."""

    def __init__(self, deps: RemovalDeps, *, changed: Callable[[str], None], releases: Releases | None = None) -> None:
        """`changed`: called with the uid of an owner whose withdrawal made progress."""
        self._deps = deps
        self.tasks: asyncio.TaskGroup | None = None
        """Where they run. None until the controller runs; its events may come before."""
        self._changed = changed
        self._remover = InventoryRemover(releases)
        self._withdrawals: dict[str, Withdrawal] = {}
        self._calm: dict[Hashable, asyncio.Event] = {}
        """Set when no withdrawal of a cluster is busy."""

    def get(self, uid: str) -> Withdrawal | None:
        return self._withdrawals.get(uid)

    def begin(
        self,
        owner: ObjectRef,
        step: str,
        cluster: Hashable,
        target: ClusterTarget | None,
        manner: Manner,
        *,
        terms: Callable[[], StepTerms] = StepTerms,
        free: bool = True,
        awaited: Callable[[], bool] = lambda: False,
    ) -> Withdrawal:
        """The withdrawal of an owner; started if it does not run. Nothing is removed before it is `free`. `step`: the
        name of its step. `terms`: the current settings of the owner, also for the ledger, if objects stay. `awaited`:
        whether another withdrawal waits for this one."""
        there = self._withdrawals.get(owner.uid)
        if there is None or (there.manner is not manner and not there.done):
            self.give_up(owner.uid)
            before = there
            there = self._withdrawals[owner.uid] = Withdrawal(cluster, manner, terms, before)
            there.runner = StepRunner(
                Step(name=step, object=owner, effort=manner.effort.value, wave=1),
                target or ClusterTarget(ref=owner, secret=""),
                self._deps,
                teardown=owner.uid,
                remover=self._remover,
                terms=terms,
                awaited=awaited,
                going=lambda: self._going(cluster),
                changed=lambda it=there: self._progressed(it),  # type: ignore[misc]
                known=lambda it=there: it.chunks,  # type: ignore[misc]
                patient=True,
                gone=lambda: before.runner.gone if before is not None else frozenset(),
            )
            assert self.tasks  # noqa: S101 - reconciles begin when the controller runs
            there.task = self.tasks.create_task(self._run(there, target))
        if free and not there.free.is_set():
            there.free.set()
            self._look_again(cluster)
        return there

    def give_up(self, uid: str) -> None:
        """Cancel the withdrawal of an owner. A restart resumes from the inventory."""
        if (there := self._withdrawals.pop(uid, None)) and there.task:
            there.task.cancel()
            self._look_again(there.cluster)
            self._calm_down(there.cluster)

    async def _run(self, withdrawal: Withdrawal, target: ClusterTarget | None) -> None:
        try:
            async with fencing.scope():
                await self._withdraw(withdrawal, target)
            withdrawal.done = True
        except FencedError as error:
            withdrawal.error = UnwindError(str(error))  # restarted if this replica owns the shard again
        except Exception as error:  # noqa: BLE001 - reported on the owner and retried
            withdrawal.error = error
        self._changed(withdrawal.uid)
        self._calm_down(withdrawal.cluster)

    async def _withdraw(self, withdrawal: Withdrawal, target: ClusterTarget | None) -> None:
        runner, manner = withdrawal.runner, withdrawal.manner
        if withdrawal.before and not withdrawal.before.done():
            await asyncio.wait([withdrawal.before])  # its last deletions are answered
        if manner in (Manner.FORGET, Manner.ABANDON):
            terms = withdrawal.terms()
            await runner.abandon(terms.left_reason, terms.left, terms.decided_by, kept=manner is Manner.FORGET)
        else:
            await self._run_step(withdrawal, target)
        self._mark_absent(withdrawal)
        await self._until_calm(withdrawal.cluster)
        if manner is Manner.REMOVE:
            await runner.seal()
        # Inventories with ledger entries stay as a record.
        chunks = runner.inventory
        if chunks is None:
            chunks = await self._deps.inventories.of(withdrawal.uid)
        await self._deps.inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))

    async def _run_step(self, withdrawal: Withdrawal, target: ClusterTarget | None) -> None:
        """Run the step as soon as it is free. Until then, connect to the member and read the inventory."""
        connecting = asyncio.create_task(self._connect(target))
        try:
            if withdrawal.manner is Manner.REMOVE:
                with suppress(UnwindError):  # then the step reads it, and reports the error
                    withdrawal.chunks = await self._deps.inventories.at_hand(withdrawal.uid)
            if withdrawal.chunks is not None and all(item.done for item in items(withdrawal.chunks)):
                connecting.cancel()  # no cluster is contacted
            await withdrawal.free.wait()
            await withdrawal.runner.run()
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])

    async def _connect(self, target: ClusterTarget | None) -> None:
        """Connect to the member in advance. Errors are reported when the connection is used."""
        if target:
            with suppress(UnwindError):
                async with self._deps.members.member(target):
                    pass

    def _mark_absent(self, withdrawal: Withdrawal) -> None:
        """All objects are verified absent or left, whether that is written yet or not."""
        if not withdrawal.absent:
            withdrawal.absent = withdrawal.passed = True
            self._look_again(withdrawal.cluster)
            self._changed(withdrawal.uid)
            self._calm_down(withdrawal.cluster)

    async def _until_calm(self, cluster: Hashable) -> None:
        """Return when every removal from a cluster has ended or is blocked: deletions come before other writes."""
        while True:
            while self._is_busy(cluster):
                await self._calm.setdefault(cluster, asyncio.Event()).wait()
            # A removal that waited for the last one starts in a moment. Wall clock: nothing depends on it.
            await asyncio.sleep(_A_MOMENT)
            if not self._is_busy(cluster):
                return

    def _is_busy(self, cluster: Hashable) -> bool:
        return any(item.busy for item in self._withdrawals.values() if item.cluster == cluster)

    def _calm_down(self, cluster: Hashable) -> None:
        """Wake the removals from a cluster that wait for all others. Not at each end of another one: there may be
        hundreds, and each would look at all."""
        if cluster in self._calm and not self._is_busy(cluster):
            self._calm.pop(cluster).set()

    def _progressed(self, withdrawal: Withdrawal) -> None:
        if withdrawal.runner.over.is_set():
            self._mark_absent(withdrawal)
            return
        passed = withdrawal.runner.passed.is_set()
        if withdrawal.waits != withdrawal.told or withdrawal.passed < passed:
            withdrawal.passed |= passed
            withdrawal.told = withdrawal.waits
            self._changed(withdrawal.uid)
            self._calm_down(withdrawal.cluster)

    def _look_again(self, cluster: Hashable) -> None:
        """Make the other removals from a cluster check again what they wait for."""
        for other in self._withdrawals.values():
            if other.cluster == cluster:
                other.runner.look_again()

    def _going(self, cluster: Hashable) -> frozenset[str]:
        """The uids of owners whose objects are being removed from the same cluster."""
        return frozenset(
            item.uid
            for item in self._withdrawals.values()
            if item.cluster == cluster and item.manner is Manner.REMOVE and item.free.is_set() and not item.absent
        )
