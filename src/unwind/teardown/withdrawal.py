"""Taking back what summaries, or Works, put on clusters that stay: each one's withdrawal, from its begin to its end.

They take as long as a finalizer on the member wants, so each has a task of its own. All they know is in the
inventories: killed at any instruction, a withdrawal is begun again and goes on from where it was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import retained
from unwind.api.names import Reason
from unwind.api.unwind import LedgerNote
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
    from unwind.api.unwind import Inventory
    from unwind.clock import Clock
    from unwind.deleters.registration import External, Registration
    from unwind.deleters.registry import Plugin
    from unwind.inventory.inventories import Inventories, Item
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.removal.releases import Releases

_SHOWN = 5
_A_MOMENT = 0.1


class Manner(Enum):
    """What becomes of what was deployed."""

    REMOVE = "remove"
    RELEASE = "release"
    """It stays, and our marks come off."""
    FORGET = "forget"
    """It stays, and nobody goes there: the cluster is managed no longer."""


# Why what is not removed is left, in the words of the ledger.
_WHY = {
    Manner.RELEASE: (Reason.KEPT_BY_POLICY, "stopMatchingBehavior is LeavePolicies"),
    Manner.FORGET: (Reason.UNMANAGED, "its cluster is managed no longer"),
}


class Withdrawal:
    """The withdrawal of one summary, or one Work."""

    def __init__(
        self,
        uid: str,
        cluster: Hashable,
        manner: Manner,
        *,
        why: tuple[Reason, str] | None = None,
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
    ) -> None:
        self.uid = uid
        self.volumes = volumes
        self.cluster = cluster
        self.manner = manner
        self.why = why or _WHY.get(manner)
        """For the ledger, where it stays."""
        self.removals: list[Removal] = []
        self.chunks: list[Inventory] = []
        """Its inventory, as it was when its removal began."""
        self.free = asyncio.Event()
        """Set when nothing on the cluster needs it any more. Until then all is made ready, and nothing is removed."""
        self.absent = False
        """Whether nothing of it is left to wait for: what it needed may go."""
        self.done = False
        """Whether that is written down, too: its owner may go."""
        self.ended = False
        """Whether that was let go."""
        self.told = ""
        """What it was last told to wait for."""
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it goes on by itself, and soon."""
        return self.free.is_set() and not (self.absent or self.error or self.waits)

    @property
    def waits(self) -> str:
        """What it waits for, for people; it says the same as long as that is the same."""
        waits = [
            what.reason if isinstance(what, Waiting) else what.message
            for removal in self.removals
            for what in removal.progress.waits.values()
        ]
        more = f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
        return "; ".join(waits[:_SHOWN]) + more


class Withdrawals:
    """All withdrawals that this process carries out."""

    def __init__(
        self,
        fleet: Members,
        inventories: Inventories,
        tasks: asyncio.TaskGroup,
        *,
        changed: Callable[[str], None],
        deleters: Iterable[Registration | External],
        plugins: Iterable[Plugin] = (),
        releases: Releases | None = None,
        clock: Clock,
    ) -> None:
        """`changed` is told the uid of an owner whose withdrawal has come further."""
        self._fleet = fleet
        self._inventories = inventories
        self._tasks = tasks
        self._changed = changed
        self._deleters = tuple(deleters)
        self._plugins = tuple(plugins)
        self._releases = releases
        self._clock = clock
        self._under_way: dict[str, Withdrawal] = {}
        self._calm: dict[Hashable, asyncio.Event] = {}
        """For those who wait until nothing more is being removed from a cluster."""

    def get(self, uid: str) -> Withdrawal | None:
        return self._under_way.get(uid)

    def begin(
        self,
        uid: str,
        cluster: Hashable,
        target: ClusterTarget | None,
        manner: Manner,
        *,
        free: bool = True,
        take_along: bool = False,
        volumes: Callable[[], VolumePolicy | Unknown] = retained,
        why: tuple[Reason, str] | None = None,
    ) -> Withdrawal:
        """The withdrawal of an owner; it is begun if it is not under way. Nothing is removed before it is `free`."""
        there = self._under_way.get(uid)
        if there is None or there.manner is not manner:
            self.give_up(uid)
            there = self._under_way[uid] = Withdrawal(uid, cluster, manner, why=why, volumes=volumes)
            there.task = self._tasks.create_task(self._run(there, target, take_along=take_along))
        if free and not there.free.is_set():
            there.free.set()
            self._look_again(cluster)
        return there

    def give_up(self, uid: str) -> None:
        """Have nothing more done for an owner; what was done is seen when it is begun again."""
        if (there := self._under_way.pop(uid, None)) and there.task:
            there.task.cancel()
            self._look_again(there.cluster)
            self._calm_down(there.cluster)

    async def _run(self, it: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        try:
            async with fencing.scope():
                await self._withdraw(it, target, take_along=take_along)
            it.done = True
        except FencedError as error:
            it.error = UnwindError(str(error))  # if the shard is ours again, it is begun again
        except Exception as error:  # noqa: BLE001 - it is told on the owner, and tried again
            it.error = error
        self._changed(it.uid)
        self._calm_down(it.cluster)

    async def _withdraw(self, it: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        if it.manner is Manner.FORGET:
            chunks = await self._inventories.of(it.uid)
            await self._note_all(it, chunks)
        else:
            await self._take_back(it, target, take_along=take_along)
        self._went(it)
        await self._until_calm(it.cluster)
        if it.manner is Manner.REMOVE:
            await self._close(it, target, take_along=take_along)

    def _went(self, it: Withdrawal) -> None:
        """All of it is seen to be absent, whether that is written down yet or not."""
        if not it.absent:
            it.absent = True
            self._look_again(it.cluster)
            self._changed(it.uid)
            self._calm_down(it.cluster)

    async def _until_calm(self, cluster: Hashable) -> None:
        """Return when what is being removed from a cluster is gone or waits for somebody: until then it comes first."""
        while True:
            while self._is_busy(cluster):
                await self._calm.setdefault(cluster, asyncio.Event()).wait()
            # What waited for the last of them begins in a moment. By the clock of the wall: nothing depends on it.
            await asyncio.sleep(_A_MOMENT)
            if not self._is_busy(cluster):
                return

    def _is_busy(self, cluster: Hashable) -> bool:
        return any(item.busy for item in self._under_way.values() if item.cluster == cluster)

    def _calm_down(self, cluster: Hashable) -> None:
        if calm := self._calm.pop(cluster, None):
            calm.set()

    def _further(self, it: Withdrawal, members: int) -> None:
        if len(it.removals) == members and all(removal.progress.over for removal in it.removals):
            self._went(it)
        elif it.waits != it.told:
            it.told = it.waits
            self._changed(it.uid)
            self._calm_down(it.cluster)

    def _look_again(self, cluster: Hashable) -> None:
        """What is removed beside the others has changed, and with it what they wait for."""
        for other in self._under_way.values():
            if other.cluster == cluster:
                for removal in other.removals:
                    removal.look_again()

    async def _take_back(self, it: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        """From each cluster that it was put on: its member, and for what is Local the management cluster."""
        try:
            async with asyncio.TaskGroup() as group:
                approaching = group.create_task(self._approach(target))
                # What goes is removed while the inventory is open still, and what stays is as it says there.
                open_still = it.manner is Manner.REMOVE and not it.absent
                it.chunks = await (self._inventories.at_hand(it.uid) if open_still else self._sealed(it))
                if all(item.done for item in items(it.chunks)):
                    approaching.cancel()  # nobody need be asked
                    return
                members = by_place(it.chunks)
                for those in members:
                    group.create_task(self._take_from(it, those, target, len(members), take_along=take_along))
        except ExceptionGroup as failures:
            raise to_tell(failures) from None

    async def _approach(self, target: ClusterTarget | None) -> None:
        """Find the way to the member meanwhile. What is wrong with it is told when it is needed."""
        if target:
            with suppress(UnwindError):
                async with self._fleet.member(target):
                    pass

    async def _take_from(
        self, it: Withdrawal, chunks: list[Inventory], target: ClusterTarget | None, members: int, *, take_along: bool
    ) -> None:
        async with member_of(self._fleet, chunks[0], target) as member:
            if it.manner is Manner.RELEASE:
                todo = [item for item in items(chunks) if not item.done]
                await leave(member, todo, owner=it.uid, releases=self._releases)
                await self._note_all(it, chunks)
                return
            removal = Removal(
                member,
                self._inventories,
                chunks,
                deleters=self._deleters,
                plugins=self._plugins,
                releases=self._releases,
                take_along=take_along,
                volumes=it.volumes,
                discarded=True,
                going=lambda: self._going(it.cluster),
                changed=lambda: self._further(it, members),
                clock=self._clock,
            )
            await it.free.wait()
            it.removals.append(removal)
            await removal.run()

    def _going(self, cluster: Hashable) -> frozenset[str]:
        """The owners whose objects are being removed from the same cluster."""
        return frozenset(
            item.uid
            for item in self._under_way.values()
            if item.cluster == cluster and item.manner is Manner.REMOVE and item.free.is_set() and not item.absent
        )

    async def _note_all(self, it: Withdrawal, chunks: Iterable[Inventory]) -> None:
        """Write into the ledger all that is there still."""
        assert it.why  # noqa: S101 - whoever leaves something says why
        reason, message = it.why
        at = self._clock.now().replace(microsecond=0)
        note: Any = msgspec.to_builtins(LedgerNote(reason=reason, message=message, by="unwind", at=at))
        for chunk in chunks:
            left: list[Item] = [item for item in items([chunk]) if not item.done]
            if left:
                await self._inventories.write(chunk, {item.key: {"kept": True, "ledger": note} for item in left})

    async def _close(self, it: Withdrawal, target: ClusterTarget | None, *, take_along: bool) -> None:
        """Close the inventory of what is gone, and discard what is an account of nothing any more; a chunk with
        something in the ledger stays as a record."""
        if not await self._inventories.sealed_as_read(it.uid, it.chunks, _sealed_for(it)) or intended(it.chunks):
            # Somebody has deployed meanwhile, or might have, or something was written down: all is looked at once more.
            it.removals.clear()
            await self._take_back(it, target, take_along=take_along)
            it.chunks = await self._inventories.of(it.uid)
        await self._inventories.discard_all(chunk for chunk in it.chunks if not ledgered(chunk))

    async def _sealed(self, it: Withdrawal) -> list[Inventory]:
        return await self._inventories.sealed(it.uid, _sealed_for(it))


def _sealed_for(it: Withdrawal) -> str:
    return f"withdraw-{it.uid}"
