"""Step removers: how the objects of one step are removed. The default deletes what the step's Inventories name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.unwind import Effort, Inventory, Step
from unwind.clock import SYSTEM, Clock
from unwind.concurrency import to_tell, unless
from unwind.deleters.deletion import retry_until_done
from unwind.deleters.external_end import ExternalEnds
from unwind.deleters.registration import External, Registration
from unwind.deleters.registry import Plugin
from unwind.inventory.inventories import Inventories, items
from unwind.kube.workqueue import JITTER
from unwind.members.members import Members
from unwind.members.targets import ClusterTarget
from unwind.removal.inventory_clusters import by_place, member_of
from unwind.removal.owner_mark_removal import unmark_all
from unwind.removal.removal import Removal
from unwind.teardown.archive_controller import Archive
from unwind.why.blocker_reader import what_blocks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker
    from unwind.deleters.chain_attempt import Failed, Waiting
    from unwind.inventory.inventories import Item
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import Releases

T = TypeVar("T")

BEST_EFFORT = 60.0
"""Seconds for the removal of a best-effort step, which the cluster does not wait for."""


class RemovalDeps(msgspec.Struct, frozen=True, kw_only=True):
    """The dependencies of everything that deploys to members or removes from them. Shared by the controllers of a
    process."""

    members: Members
    inventories: Inventories
    deleters: tuple[Registration | External, ...]
    plugins: tuple[Plugin, ...] = ()
    external_ends: ExternalEnds | None = None
    best_effort: float = BEST_EFFORT
    clock: Clock = SYSTEM
    archive: Archive | None = None
    """Where finished Teardowns are recorded. They are not deleted before that."""


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """The step to remove, and what its remover needs."""

    step: Step
    target: ClusterTarget
    means: RemovalDeps
    teardown: str
    """The name of the Teardown."""
    chunks: Sequence[Inventory]
    """The Inventories of the step's owner."""
    only: frozenset[str] | None = None
    """The entries to remove. None: all of them."""
    prune: bool = False
    """Whether it is a prune: what it leaves is decided again by later ones."""
    take_along: bool
    """Whether Namespaces and CRDs are deleted with their foreign content."""
    volumes: Callable[[], VolumePolicy | Unknown]
    """The current volume policy of the owner, for the claims of StatefulSets."""
    going: Callable[[], Collection[str]]
    """The uids of owners whose objects are removed at the same time and do not wait for this step."""
    changed: Callable[[], None]
    """Must be called when `progress` or `waits` of the removal changed."""
    awaited: Callable[[], bool] = lambda: False
    """Whether another step starts when this one has passed."""


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects of a step are removed or left."""

    total: int
    removed: int
    left: int
    over: bool
    """Whether every object is gone or left, and only the write is missing."""
    passed: bool = False
    """Whether the steps that this one depends on may start, although empty Namespaces still wait for Kubernetes."""


class StepRemoval(Protocol):
    """The removal of one step, while it runs."""

    @property
    def progress(self) -> StepProgress | None:
        """None until the removal of an object has started."""

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        """What it waits for, by the object it waits for."""

    @property
    def removed(self) -> Collection[str]:
        """The uids of objects that were verified absent."""

    async def run(self) -> None:
        """Return when every object was verified absent or is in the ledger. Retries until then."""

    def look_again(self) -> None:
        """Another step has ended: check again what this one waits for."""

    def go_another_way(self, target: ClusterTarget) -> None:
        """The credentials or the address of the target changed: connect again."""

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        """What it waits for, each with the reason and who must act. `before`: the blockers in status."""


class StepRemover(Protocol):
    """Removes steps of one or more kinds."""

    def begin(self, context: StepContext) -> StepRemoval:
        """The removal of one step. It starts with `run`."""

    async def leave(self, member: Member, those: Sequence[Item], *, owner: str) -> None:
        """Remove Unwind's labels and annotations from objects that stay on this cluster."""


class UnmarkedRemover:
    """The base of removers whose objects carry no labels and annotations of Unwind."""

    async def leave(self, member: Member, those: Sequence[Item], *, owner: str) -> None:
        del member, those, owner  # there is nothing to remove from them


class InventoryRemover:
    """Removes steps by their Inventories, on every cluster that those name."""

    def __init__(self, releases: Releases | None = None) -> None:
        """`releases`: uninstalls objects that were deployed as a unit, such as Helm releases."""
        self._releases = releases

    def begin(self, context: StepContext) -> StepRemoval:
        return _InventoryRemoval(context, self._releases)

    async def leave(self, member: Member, those: Sequence[Item], *, owner: str) -> None:
        await unmark_all(member, those, owner=owner, releases=self._releases)


class _InventoryRemoval:
    """The removal of the objects in the Inventories of one step."""

    def __init__(self, context: StepContext, releases: Releases | None) -> None:
        self.progress: StepProgress | None = None
        self.waits: dict[ObjectRef, Waiting | Failed] = {}
        self._context = context
        self._releases = releases
        self._target = context.target
        self._reconnect = asyncio.Event()
        self._places = 0
        self._removals: list[tuple[Member, Removal, list[Inventory]]] = []

    @property
    def removed(self) -> Collection[str]:
        return frozenset().union(*(removal.removed for _, removal, _ in self._removals))

    async def run(self) -> None:
        chunks = self._context.chunks
        only = self._context.only
        if all(item.done or (only is not None and item.key not in only) for item in items(chunks)):
            return
        places = by_place(chunks)
        self._places = len(places)
        try:
            async with asyncio.TaskGroup() as group:
                for those in places:
                    group.create_task(self._remove_there(those))
        except ExceptionGroup as failures:
            raise to_tell(failures) from None

    def look_again(self) -> None:
        for _, removal, _ in self._removals:
            removal.look_again()

    def go_another_way(self, target: ClusterTarget) -> None:
        self._target = target
        self._reconnect.set()

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        step = self._context.step.name
        found: list[Blocker] = []
        for member, removal, chunks in list(self._removals):
            if waits := dict(removal.waits):
                found += await what_blocks(member, waits, items(chunks), step=step, before=before, now=now)
        return tuple(found)

    async def _remove_there(self, chunks: list[Inventory]) -> None:
        where, done = chunks[0].spec.member.object, False
        while not done:
            self._reconnect.clear()
            # Objects that were removed over the old connection are verified again over the new one.
            done = await unless(
                self._reconnect,
                retry_forever(
                    lambda: self._remove_from(chunks),
                    waits=self.waits,
                    about=where,
                    clock=self._context.means.clock,
                    changed=self._context.changed,
                ),
            )
            self.waits.pop(where, None)

    async def _remove_from(self, chunks: list[Inventory]) -> None:
        context, means = self._context, self._context.means
        # The progress of an earlier attempt in this place is dropped.
        self._removals = [removal for removal in self._removals if removal[2] is not chunks]
        async with member_of(means.members, chunks[0], self._target) as member:
            removal = Removal(
                member,
                means.inventories,
                chunks,
                deleters=means.deleters,
                plugins=means.plugins,
                external_ends=means.external_ends,
                teardown=context.teardown,
                take_along=context.take_along,
                volumes=context.volumes,
                only=context.only,
                prune=context.prune,
                # All Inventories are discarded when the removal has ended, but not those of a prune.
                discarded=context.only is None,
                # A step that is only tried never waits for a person.
                keep_protected=context.step.effort == Effort.TRY,
                awaited=context.awaited,
                going=context.going,
                releases=self._releases,
                changed=self._follow,
                clock=means.clock,
            )
            self._removals.append((member, removal, chunks))
            await removal.run()

    def _follow(self) -> None:
        progress = [removal.progress for _, removal, _ in self._removals]
        self.progress = StepProgress(
            total=sum(item.total for item in progress),
            removed=sum(item.removed for item in progress),
            left=sum(item.left for item in progress),
            over=len(progress) == self._places and all(item.over for item in progress),
            passed=len(progress) == self._places and all(item.over or item.passed for item in progress),
        )
        self.waits.clear()
        for _, removal, _ in self._removals:
            self.waits.update(removal.waits)
        self._context.changed()


async def retry_forever(
    work: Callable[[], Awaitable[T]],
    *,
    waits: dict[ObjectRef, Waiting | Failed],
    about: ObjectRef,
    clock: Clock,
    changed: Callable[[], None],
) -> T:
    """The result of `work`, retried until it succeeds. Meanwhile `waits[about]` is the last failure."""

    def say(what: Waiting | Failed) -> None:
        waits[about] = what
        changed()

    done = await retry_until_done(work, clock=clock, chance=JITTER, say=say)
    if waits.pop(about, None):
        changed()
    return done
