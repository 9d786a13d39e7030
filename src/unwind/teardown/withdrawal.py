"""Withdrawals: remove the objects of a ClusterSummary or a Work from clusters that stay.

A finalizer on the member can block a withdrawal for any time, so each runs in its own task. All state is in the
inventories: if the process is killed, a withdrawal is restarted and resumes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import retained
from unwind.api.names import Reason
from unwind.api.unwind import EntryState, LedgerNote
from unwind.concurrency import to_tell
from unwind.deleters.attempt import Waiting
from unwind.errors import UnwindError
from unwind.inventory.inventories import intended, items, ledgered
from unwind.kube import fencing
from unwind.kube.fencing import FencedError
from unwind.removal.places import by_place, member_of
from unwind.removal.removal import Removal, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.fields import Unknown
    from unwind.api.unwind import Entry, Inventory
    from unwind.inventory.inventories import Item
    from unwind.members.targets import ClusterTarget
    from unwind.removal.releases import Releases
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


# Why objects are left, for the ledger.
_WHY = {
    Manner.RELEASE: (Reason.KEPT_BY_POLICY, "stopMatchingBehavior is LeavePolicies"),
    Manner.FORGET: (Reason.UNMANAGED, "the cluster is no longer managed"),
}


class Withdrawal:
    """The withdrawal of one ClusterSummary or Work."""

    def __init__(
        self,
        uid: str,
        cluster: Hashable,
        manner: Manner,
        *,
        why: tuple[str, str] | None = None,
        by: str = "unwind",
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
        awaited: Callable[[], bool] = lambda: False,
        before: Withdrawal | None = None,
    ) -> None:
        self.uid = uid
        self.volumes = volumes
        self.awaited = awaited
        self.cluster = cluster
        self.manner = manner
        self.why = why or _WHY.get(manner)
        """For the ledger, if objects stay."""
        self.by = by
        """Who decided that."""
        self.before = before.task if before else None
        """The task of a withdrawal that this one replaces."""
        self.gone = before.gone_uids if before else frozenset()
        """The uids of objects that it verified absent."""
        self.removals: list[Removal] = []
        self.chunks: list[Inventory] = []
        """Its inventory when the removal started."""
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
    def counts(self) -> tuple[int, int, int]:
        """The numbers of all objects, of those that are removed, and of those that are left."""
        if self.removals:
            progress = [removal.progress for removal in self.removals]
            return (
                sum(item.total for item in progress),
                sum(item.removed for item in progress),
                sum(item.left for item in progress),
            )
        entries = [item.entry for item in items(self.chunks)]
        removed = sum(entry.state == EntryState.REMOVED or self.is_gone(entry) for entry in entries)
        return len(entries), removed, len(entries) - removed

    def is_gone(self, entry: Entry) -> bool:
        """Whether the withdrawal that this one replaces verified that an object is absent."""
        return bool(entry.object.uid) and entry.object.uid in self.gone

    @property
    def gone_uids(self) -> frozenset[str]:
        """The uids of objects that were verified absent."""
        return self.gone.union(*(removal.removed for removal in self.removals))

    @property
    def busy(self) -> bool:
        """Whether it makes progress without waiting for anything."""
        return self.free.is_set() and not (self.absent or self.error or self.waits)

    @property
    def waits(self) -> str:
        """What it waits for, as a message. Equal for equal states."""
        waits = [
            what.reason if isinstance(what, Waiting) else what.message
            for removal in self.removals
            for what in removal.progress.waits.values()
        ]
        more = f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
        return "; ".join(waits[:_SHOWN]) + more


class Withdrawals:
    """All withdrawals in this process."""

    def __init__(
        self,
        deps: RemovalDeps,
        *,
        changed: Callable[[str], None],
        releases: Releases | None = None,
    ) -> None:
        """`changed`: called with the uid of an owner whose withdrawal made progress."""
        self._deps = deps
        self.tasks: asyncio.TaskGroup | None = None
        """Where they run. None until the controller runs; its events may come before."""
        self._changed = changed
        self._releases = releases
        self._withdrawals: dict[str, Withdrawal] = {}
        self._calm: dict[Hashable, asyncio.Event] = {}
        """Set when no withdrawal of a cluster is busy."""

    def get(self, uid: str) -> Withdrawal | None:
        return self._withdrawals.get(uid)

    def begin(
        self,
        uid: str,
        cluster: Hashable,
        target: ClusterTarget | None,
        manner: Manner,
        *,
        free: bool = True,
        awaited: Callable[[], bool] = lambda: False,
        take_along: bool = False,
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
        why: tuple[str, str] | None = None,
        by: str = "unwind",
    ) -> Withdrawal:
        """The withdrawal of an owner; started if it does not run. Nothing is removed before it is `free`. `awaited`:
        whether another withdrawal waits for this one. `why`, `by`: for the ledger, if objects stay."""
        there = self._withdrawals.get(uid)
        if there is None or (there.manner is not manner and not there.done):
            self.give_up(uid)
            there = self._withdrawals[uid] = Withdrawal(
                uid, cluster, manner, why=why, by=by, volumes=volumes, awaited=awaited, before=there
            )
            assert self.tasks  # noqa: S101 - reconciles begin when the controller runs
            there.task = self.tasks.create_task(self._run(there, target, take_along=take_along))
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

    async def _run(self, withdrawal: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        try:
            async with fencing.scope():
                await self._withdraw(withdrawal, target, take_along=take_along)
            withdrawal.done = True
        except FencedError as error:
            withdrawal.error = UnwindError(str(error))  # restarted if this replica owns the shard again
        except Exception as error:  # noqa: BLE001 - reported on the owner and retried
            withdrawal.error = error
        self._changed(withdrawal.uid)
        self._calm_down(withdrawal.cluster)

    async def _withdraw(self, withdrawal: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        if withdrawal.manner is Manner.FORGET:
            withdrawal.chunks = await self._deps.inventories.of(withdrawal.uid)
            await self._note_all(withdrawal, withdrawal.chunks)
        elif withdrawal.manner is Manner.ABANDON:
            await self._abandon(withdrawal)
        else:
            await self._take_back(withdrawal, target, take_along=take_along)
        self._mark_absent(withdrawal)
        await self._until_calm(withdrawal.cluster)
        if withdrawal.manner is Manner.REMOVE:
            await self._close(withdrawal, target, take_along=take_along)

    async def _abandon(self, withdrawal: Withdrawal) -> None:
        if withdrawal.before:
            await asyncio.wait([withdrawal.before])  # its last deletions are answered
        withdrawal.chunks = await self._sealed(withdrawal)
        await self._note_all(withdrawal, withdrawal.chunks)
        chunks = await self._deps.inventories.of(withdrawal.uid)
        await self._deps.inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))

    def _mark_absent(self, withdrawal: Withdrawal) -> None:
        """All objects are verified absent, whether that is written yet or not."""
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
        if calm := self._calm.pop(cluster, None):
            calm.set()

    def _progressed(self, withdrawal: Withdrawal, members: int) -> None:
        progress = [removal.progress for removal in withdrawal.removals]
        if len(progress) == members and all(item.over for item in progress):
            self._mark_absent(withdrawal)
            return
        passed = len(progress) == members and all(item.over or item.passed for item in progress)
        if withdrawal.waits != withdrawal.told or withdrawal.passed < passed:
            withdrawal.passed |= passed
            withdrawal.told = withdrawal.waits
            self._changed(withdrawal.uid)
            self._calm_down(withdrawal.cluster)

    def _look_again(self, cluster: Hashable) -> None:
        """Make the other removals from a cluster check again what they wait for."""
        for other in self._withdrawals.values():
            if other.cluster == cluster:
                for removal in other.removals:
                    removal.look_again()

    async def _take_back(self, withdrawal: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        """Remove or release the objects on each cluster: the member, and the management cluster for Local objects."""
        try:
            async with asyncio.TaskGroup() as group:
                connecting = group.create_task(self._connect(target))
                # Objects are removed while the inventory is not sealed; objects that stay are listed in the sealed one.
                open_still = withdrawal.manner is Manner.REMOVE and not withdrawal.absent
                withdrawal.chunks = await (
                    self._deps.inventories.at_hand(withdrawal.uid) if open_still else self._sealed(withdrawal)
                )
                if all(item.done for item in items(withdrawal.chunks)):
                    connecting.cancel()  # no cluster is contacted
                    return
                members = by_place(withdrawal.chunks)
                for those in members:
                    group.create_task(self._take_from(withdrawal, those, target, len(members), take_along=take_along))
        except ExceptionGroup as failures:
            raise to_tell(failures) from None

    async def _connect(self, target: ClusterTarget | None) -> None:
        """Connect to the member in advance. Errors are reported when the connection is used."""
        if target:
            with suppress(UnwindError):
                async with self._deps.members.member(target):
                    pass

    async def _take_from(
        self,
        withdrawal: Withdrawal,
        chunks: list[Inventory],
        target: ClusterTarget | None,
        members: int,
        *,
        take_along: bool,
    ) -> None:
        async with member_of(self._deps.members, chunks[0], target) as member:
            if withdrawal.manner is Manner.RELEASE:
                todo = [item for item in items(chunks) if not item.done]
                await leave(member, todo, owner=withdrawal.uid, releases=self._releases)
                await self._note_all(withdrawal, chunks)
                return
            removal = Removal(
                member,
                self._deps.inventories,
                chunks,
                deleters=self._deps.deleters,
                plugins=self._deps.plugins,
                external_ends=self._deps.external_ends,
                releases=self._releases,
                take_along=take_along,
                volumes=withdrawal.volumes,
                discarded=True,
                awaited=withdrawal.awaited,
                going=lambda: self._going(withdrawal.cluster),
                changed=lambda: self._progressed(withdrawal, members),
                clock=self._deps.clock,
            )
            await withdrawal.free.wait()
            withdrawal.removals.append(removal)
            await removal.run()

    def _going(self, cluster: Hashable) -> frozenset[str]:
        """The uids of owners whose objects are being removed from the same cluster."""
        return frozenset(
            item.uid
            for item in self._withdrawals.values()
            if item.cluster == cluster and item.manner is Manner.REMOVE and item.free.is_set() and not item.absent
        )

    async def _note_all(self, withdrawal: Withdrawal, chunks: Iterable[Inventory]) -> None:
        """Write all remaining objects into the ledger."""
        assert withdrawal.why  # noqa: S101 - leaving objects requires a reason
        reason, message = withdrawal.why
        at = self._deps.clock.now().replace(microsecond=0)
        note: Any = msgspec.to_builtins(LedgerNote(reason=reason, message=message, by=withdrawal.by, at=at))
        left: dict[str, Any] = {"ledger": note}
        if withdrawal.manner is not Manner.ABANDON:
            left["kept"] = True  # on purpose
        # Objects that were just verified absent may not be recorded as removed yet.
        removed = {"state": EntryState.REMOVED.value}
        for chunk in chunks:
            todo: list[Item] = [item for item in items([chunk]) if not item.done]
            if todo:
                notes = {item.key: removed if withdrawal.is_gone(item.entry) else left for item in todo}
                await self._deps.inventories.write(chunk, notes)

    async def _close(self, withdrawal: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        """Seal the inventory, and delete it, except Inventories with ledger entries, which stay as a record."""
        if not await self._deps.inventories.sealed_as_read(
            withdrawal.uid, withdrawal.chunks, _sealed_for(withdrawal)
        ) or intended(withdrawal.chunks):
            # Objects were, or may have been, deployed during the removal, or an entry was written: check all again.
            withdrawal.removals.clear()
            await self._take_back(withdrawal, target, take_along=take_along)
            withdrawal.chunks = await self._deps.inventories.of(withdrawal.uid)
        await self._deps.inventories.discard_all(chunk for chunk in withdrawal.chunks if not ledgered(chunk))

    async def _sealed(self, withdrawal: Withdrawal) -> list[Inventory]:
        return await self._deps.inventories.sealed(withdrawal.uid, _sealed_for(withdrawal))


def _sealed_for(withdrawal: Withdrawal) -> str:
    return f"withdraw-{withdrawal.uid}"
