"""Removes a step by deleting its handle: the deployer deletes what it deployed, and Unwind verifies that it is gone.

That a handle is gone proves nothing: most deployers let go of it when their DELETEs are accepted, or on a timeout. So
Unwind's finalizer keeps the handle until every object of the snapshot is verified absent on the member.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.names import Finalizer, Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import Blocker, Effort
from unwind.companions.deployed_objects import LOOK_AGAIN, DeployedObjects
from unwind.companions.left_objects import keep_unmarked
from unwind.concurrency import unless
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Again, TransientError
from unwind.inventory.inventories import items
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import set_finalizer
from unwind.members.member import RECENT
from unwind.protection.deleter import ProtectionLink, labelled
from unwind.removal import outages
from unwind.teardown.step_removers import InventoryRemover, StepProgress, UnmarkedRemover, retry_forever
from unwind.teardown.verified_removal import own_blockers
from unwind.why.blocker_causes import actor_of
from unwind.why.blocker_reader import what_blocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Inventory
    from unwind.companions.companion import HandleCompanion, HandleEntry
    from unwind.companions.left_objects import OwnRemoval
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.protection.deleter import ProtectedObject
    from unwind.teardown.step_removers import StepContext, StepRemoval

T = TypeVar("T")


class HandlePlaces(NamedTuple):
    """The clusters of a handle."""

    member: Member
    """The cluster that it deployed on."""
    place: Member
    """The cluster that the handle itself is on."""


class HandleRemover(UnmarkedRemover):
    """Removes the steps of a deployer that cleans up when its handle is deleted."""

    def __init__(
        self,
        companion: HandleCompanion,
        *,
        connect: Callable[[StepContext, Sequence[Inventory]], AbstractAsyncContextManager[HandlePlaces]] | None = None,
        keeps: Callable[[ObjectRef], bool] = lambda _: True,
    ) -> None:
        """`connect`: connects to the clusters of a handle, if its step is not for the target's cluster. `keeps`:
        whether the step of a handle ends although something would create the handle again: then it stays, being
        deleted. Otherwise the step waits for that."""
        self._companion = companion
        self._connect = connect
        self._keeps = keeps

    def begin(self, context: StepContext) -> StepRemoval:
        return _HandleRemoval(self._companion, context, connect=self._connect, keeps=self._keeps)


class _HandleRemoval:
    """The removal of one handle, and the verification of what it deployed."""

    def __init__(
        self,
        companion: HandleCompanion,
        context: StepContext,
        *,
        connect: Callable[[StepContext, Sequence[Inventory]], AbstractAsyncContextManager[HandlePlaces]] | None,
        keeps: Callable[[ObjectRef], bool],
    ) -> None:
        self.progress: StepProgress | None = None
        self._waits: dict[ObjectRef, Waiting | Failed] = {}
        self._outage: dict[ObjectRef, Waiting | Failed] = {}
        """By the cluster that does not answer."""
        self._companion = companion
        self._connect = connect
        self._keeps = keeps
        self._context = context
        self._target = context.target
        self._handle = context.step.object
        self._chunks: dict[str, Inventory] = {chunk.metadata.name: chunk for chunk in context.chunks}
        self._reconnect = asyncio.Event()
        self._open: _OpenRemoval | None = None
        self._inner: StepRemoval | None = None
        """The removal of objects that the deployer left."""
        self._removed: set[str] = set()

    @property
    def target(self) -> ClusterTarget:
        return self._target

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        return {**self._waits, **(self._inner.waits if self._inner else {}), **self._outage}

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(self._removed).union(self._inner.removed if self._inner else ())

    def look_again(self) -> None:
        # Other than these, what it waits for is watched, and belongs to no other step.
        if self._inner:
            self._inner.look_again()

    def go_another_way(self, target: ClusterTarget) -> None:
        self._target = target
        self._reconnect.set()

    async def run(self) -> None:
        done = False
        while not done:
            self._reconnect.clear()
            done = await unless(self._reconnect, self.retry(self._target.ref, self._remove))
            self._waits.clear()

    async def _remove(self) -> None:
        async with self._places() as places:
            keeps = self._keeps(self._handle)
            self._open = _OpenRemoval(self, self._companion, self._context, self._chunks, places, keeps=keeps)
            member, clock = places.member, self._context.means.clock
            # Otherwise it would go on to report what it waited for when the watches broke.
            following = asyncio.create_task(
                outages.follow(member, lambda outage: self._report_outage(member.ref, outage), clock=clock)
            )
            try:
                await self._open.run()
            finally:
                following.cancel()
                self._outage.clear()
                self._open = None

    def _report_outage(self, member: ObjectRef, outage: Failed | None) -> None:
        before = dict(self._outage)
        self._outage = {member: outage} if outage else {}
        if self._outage != before:
            self._context.changed()

    @asynccontextmanager
    async def _places(self) -> AsyncIterator[HandlePlaces]:
        if self._connect:
            async with self._connect(self._context, list(self._chunks.values())) as places:
                yield places
            return
        members, target = self._context.means.members, self._target
        known = next((chunk.spec.member.system_uid for chunk in self._chunks.values()), "")
        async with members.management() as home, members.member(target, system_uid=known) as member:
            on_member = await self._companion.is_on_member(self._handle, home, member)
            yield HandlePlaces(member, member if on_member else home)

    # Reports

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        step, known, open_removal = self._context.step, list(before), self._open
        elsewhere = (self._handle, self._target.ref)
        inner = await self._inner.blockers(known, now) if self._inner else ()
        on_member = {ref: what for ref, what in self._waits.items() if ref not in elsewhere}
        found: tuple[Blocker, ...] = ()
        if open_removal and on_member:
            deployed = items(self._chunks.values())
            found = tuple(
                # Its deployer has let go of it, and will not act any more.
                msgspec.structs.replace(item, actor=self._owner) if item.reason == Reason.HELD else item
                for item in await what_blocks(
                    open_removal.member, on_member, deployed, step=step.name, before=known, now=now
                )
            )
        # The inner removal reports it itself.
        outage = {} if self._inner else self._outage
        outside = outage | {ref: what for ref, what in self._waits.items() if ref in elsewhere}
        own = own_blockers(outside, self._actor, step=step.name, before=known, now=now)
        return (*own, *inner, *found)

    def _actor(self, what: Waiting | Failed) -> str:
        if isinstance(what, Failed):
            return actor_of(str(what.reason))
        return self._companion.controller if what.code == Reason.DELETING else self._owner

    @property
    def _owner(self) -> str:
        return f"the owner of {self._handle}"

    def report(self, *, total: int, left: int, over: bool = False) -> None:
        """Report how many objects are removed or left."""
        self.progress = StepProgress(total=total, removed=len(self._removed), left=left, over=over)
        self._context.changed()

    def gone(self, uid: str) -> None:
        """Record that an object was verified absent."""
        self._removed.add(uid)

    async def retry(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, retried until it succeeds. Meanwhile `waits` says what it waits for."""
        return await retry_forever(
            work, waits=self._waits, about=about, clock=self._context.means.clock, changed=self._context.changed
        )

    async def remove_left(self, own: OwnRemoval, going: Mapping[str, ObjectRef]) -> None:
        """Remove what the deployer left, by the chain of deleters. `going`: these entries. The others stay."""
        context, before = self._context, self.progress
        link = keep_unmarked(self._companion, self._handle, going.values())
        means = msgspec.structs.replace(context.means, deleters=(*context.means.deleters, link))

        def follow() -> None:
            inner = self._inner.progress if self._inner else None
            if before and inner:
                # Claims of StatefulSets are found during the removal.
                total = before.total + max(0, inner.total - len(going))
                left = before.left + inner.left
                self.progress = StepProgress(total=total, removed=len(self.removed), left=left, over=False)
            context.changed()

        self._inner = InventoryRemover(own.releases).begin(
            msgspec.structs.replace(
                context,
                means=means,
                target=self._target,
                chunks=list(self._chunks.values()),
                only=frozenset(going),
                changed=follow,
            )
        )
        try:
            await self._inner.run()
        finally:
            self._removed.update(self._inner.removed)
            self._inner = None


class _OpenRemoval:
    """The removal while the clusters are connected. It can be repeated from the start at any time."""

    def __init__(
        self,
        outer: _HandleRemoval,
        companion: HandleCompanion,
        context: StepContext,
        chunks: dict[str, Inventory],
        places: HandlePlaces,
        *,
        keeps: bool,
    ) -> None:
        self.member = member = places.member
        self._outer = outer
        self._companion = companion
        self._place = places.place
        self._keeps = keeps
        self._handle = context.step.object
        self._resource = companion.resource(self._handle)
        self._protection = ProtectionLink(keep=context.step.effort == Effort.TRY, cluster=places.place.ref)
        self._objects = DeployedObjects(companion, context, chunks, member, outer)

    async def run(self) -> None:
        objects, retry = self._objects, self._outer.retry
        await self.member.verify(within=RECENT)
        try:
            await objects.watch()
            protected = await retry(self._handle, self._delete)
            if protected:
                await objects.stay(protected)
                return
            await retry(self._handle, self._until_deployer_done)
            if own := await retry(self._handle, self._left_removal):
                await self._outer.remove_left(own, objects.going)
                await retry(self._handle, objects.read_again)
            await objects.until_absent()
        finally:
            objects.close()
        # Before a gate opens because of it: another cluster may answer at this address.
        await self.member.verify(within=RECENT)
        await retry(self._handle, objects.note)
        await retry(self._handle, self._let_go)
        objects.finished()

    async def _read(self) -> Object | None:
        """The handle; None if it is verified absent."""
        ref, client = self._handle, self._place.client
        try:
            found = await client.get(self._resource, ref.name, namespace=ref.namespace or None)
            if found["metadata"]["uid"] == ref.uid:
                return found
        except NotFoundError:
            pass  # which kind of 404 it was is checked below
        seen = await client.sighting(
            self._resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=self._place.system_uid
        )
        if not seen.absent:
            raise TransientError(f"cannot determine whether {ref} exists: {seen.why}", remedy="will retry")
        return None

    async def _delete(self) -> ProtectedObject | None:
        """Delete the handle, if it is not being deleted yet. Returns the object because of which it stays."""
        changes = await self._changes()
        try:
            handle = await self._read()
            if handle is None or handle["metadata"].get("deletionTimestamp"):
                return None
            why = self._companion.why_held(handle)
            if why and not await self._own_removal(handle):
                raise Again(f"{self._handle} {why}", until=changes, after=LOOK_AGAIN, code=Reason.HELD)
            await self._add_late(handle)
            if why:
                await self._own_removal(handle)  # also of late objects
            if protected := await self._protected(handle) or await self._objects.protected():
                return protected
            await self._send_delete(handle)
        except Again as again:
            again.until = again.until or changes
            if again.until is not changes:
                changes.close()
            raise
        except BaseException:
            changes.close()
            raise
        changes.close()
        return None

    async def _left_removal(self) -> OwnRemoval | None:
        """How Unwind removes what the deployer has left, now that it is done with the handle; None if it left nothing,
        or Unwind may not remove it."""
        handle = await self._read()
        return await self._own_removal(handle) if handle else None

    async def _own_removal(self, handle: Object) -> OwnRemoval | None:
        """How Unwind removes what the deployer leaves, if it may. Raises Again if something must be decided first."""
        target = self._outer.target
        return await self._companion.own_removal(handle, target, self.member, self._objects.existing)

    async def _protected(self, handle: Object) -> ProtectedObject | None:
        """The protection of the handle itself, if it is only tried. Raises Again if an enforced one must wait."""
        if not labelled(handle["metadata"].get("labels")):
            return None
        ref = self._handle
        return await self._protection.hold(self._place.watches, self._resource, ref, what=f"the deletion of {ref}")

    async def _send_delete(self, handle: Object) -> None:
        client, have = self._place.client, handle["metadata"].get("finalizers") or []
        patch: Object = dict(self._companion.before_delete(handle))
        if Finalizer.HANDLE not in have:
            patch["metadata"] = {**patch.get("metadata", {}), "finalizers": [*have, Finalizer.HANDLE.value]}
        try:
            meta = (await client.revise(self._resource, handle, patch) if patch else handle)["metadata"]
            # With the version that was decided on: a user may just have suspended it.
            version, namespace = meta["resourceVersion"], meta.get("namespace")
            await client.delete(self._resource, meta["name"], uid=meta["uid"], namespace=namespace, version=version)
        except (ConflictError, NotFoundError):
            raise Again(f"{self._handle} was changed concurrently; will retry", after=0) from None

    async def _changes(self) -> Any:
        return await self._changes_of(self._handle)

    async def _changes_of(self, ref: ObjectRef) -> Any:
        if not self._companion.owns(ref):
            return None
        resource = self._companion.resource(ref)
        return await self._place.watches.changes(resource, namespace=ref.namespace, name=ref.name)

    async def _add_late(self, handle: Object) -> None:
        """Record objects that are newer than the snapshot. Some deployers forget them when they have deleted them, so
        this is done before the handle is deleted, and again while the deployer works."""
        await self._objects.add(await self._companion.entries(handle, self.member))

    async def _until_deployer_done(self) -> None:
        """Return when the deployer has ended the deletion of the handle."""
        changes = await self._changes()
        try:
            handle = await self._read()
            if handle is None:
                await self._objects.add(await self._left())
                changes.close()
                return
            await self._add_late(handle)
            told = await self._companion.after_delete(handle, self.member)
        except BaseException:
            changes.close()
            raise
        if told.working:
            raise Again(told.working, until=changes, after=LOOK_AGAIN)
        changes.close()

    async def _left(self) -> Sequence[HandleEntry]:
        """What the snapshot may not name: the handle is gone, although it was to stay until the end."""
        return await self._companion.left_entries(self._handle, self._objects.recorded, self.member)

    async def _let_go(self) -> None:
        """Remove Unwind's finalizer from the handle, unless something would create the handle again."""
        handle = await self._read()
        if handle is None:
            return
        if above := (await self._companion.after_delete(handle, self.member)).recreated_by:
            if self._keeps:
                return
            message = (
                f"everything that {self._handle} deployed is gone, but {above} would create it again; suspend"
                f" {above}, or remove {self._handle} from its source"
            )
            raise Again(message, until=await self._changes_of(above), after=LOOK_AGAIN, code=Reason.HELD)
        meta = msgspec.convert(handle["metadata"], ObjectMeta)
        if self._place.ref.kind == NAMESPACES.kind:
            await self._companion.before_release(handle)
        await set_finalizer(self._place.client, self._resource, meta, Finalizer.HANDLE, wanted=False)
