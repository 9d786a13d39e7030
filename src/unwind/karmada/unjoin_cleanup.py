"""The end of an unjoin: deletes the Works and the execution namespace, unmarks the credentials, releases the Cluster.

It keeps no state: after a crash it starts again and finds what is left to do.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind import logs
from unwind.api.annotation_values import VolumePolicy
from unwind.api.karmada import CLUSTERS, WORKS, Work
from unwind.api.meta import ObjectMeta, ref_of
from unwind.api.names import Finalizer, Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import TEARDOWNS, Effort, Phase, Release, Step, Teardown
from unwind.concurrency import gather_limited, unless
from unwind.deleters.chain_attempt import attempt
from unwind.deleters.deletion import Deletions, retry_until_done
from unwind.deleters.memo import Memo
from unwind.deleters.registry import DeleterRegistry
from unwind.errors import UnwindError
from unwind.inventory.inventories import items, ledgered
from unwind.karmada import remove_strategy
from unwind.karmada.step_source import WorkSteps, delete_work
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import revise
from unwind.kube.workqueue import JITTER
from unwind.members import credentials
from unwind.protection.deleter import ProtectionLink
from unwind.removal.inventory_clusters import by_place, member_of
from unwind.removal.owner_mark_removal import unmark
from unwind.teardown.drafts import lost
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.step_runner import LEAVE_TIMEOUT, StepRunner
from unwind.why.blocker_reader import what_blocks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Blocker, Inventory
    from unwind.deleters.chain_attempt import Failed, Waiting
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import Lost
    from unwind.teardown.force_release import LetGo


log = logs.get(__name__)
T = TypeVar("T")

_AT_ONCE = 16
_SHOWN = 3


class UnjoinDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What the unjoins of all members share."""

    client: Client
    removal: RemovalDeps
    source: WorkSteps


class UnjoinCleanup:
    """The cleanup after a member's teardown."""

    def __init__(
        self,
        teardown: Teardown,
        target: ClusterTarget,
        deps: UnjoinDeps,
        *,
        namespace: str,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`namespace`: the execution namespace. `changed`: called when `blockers` changes."""
        self.blockers: tuple[Blocker, ...] = ()
        self._teardown = teardown
        self._target = target
        self._means = deps.removal
        self._client = deps.client
        self._source = deps.source
        self._namespace = namespace
        self._changed = changed
        plan = teardown.spec.plan
        self._planned = {step.object.uid for step in plan.steps} if plan else set()
        # Released objects, and those that stay by their strategy, block nothing (docs/architecture.md, Fresh reads open
        # gates).
        self._enforced = teardown.phase is Phase.COMPLETE and remove_strategy.is_enforced(plan)
        self._let_go: LetGo | None = None
        self._released = asyncio.Event()
        self._waits: dict[ObjectRef, Waiting | Failed] = {}
        self._news = asyncio.Event()
        self._chance = JITTER

    @property
    def _strict(self) -> bool:
        """Whether the member waits for the cleanup."""
        return self._enforced and self._let_go is None

    def release(self, let_go: LetGo) -> None:
        """Do not wait for the cleanup any more; late objects are recorded in the ledger."""
        if self._strict:
            self._let_go = let_go
            self._released.set()

    async def run(self) -> None:
        """Return when our finalizer is removed from the Cluster."""
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._diagnose())
            await self._persist(self._target.ref, self._confirm)
            if self._teardown.phase is Phase.TARGET_GONE:
                await self._persist(self._target.ref, self._account_for_late_objects)
                await self._persist(self._target.ref, self._remove_finalizers)
            else:
                await self._take_away()
            await self._persist(self._target.ref, self._clean_up)
            await self._persist(
                self._target.ref, lambda: remove_finalizer(self._client, CLUSTERS, self._target.ref, Finalizer.MEMBER)
            )
            telling.cancel()

    async def _confirm(self) -> None:
        """Confirm the end of the teardown by a fresh read (docs/architecture.md, Fresh reads open gates)."""
        try:
            found = await self._client.get(TEARDOWNS, self._teardown.metadata.name, type=Teardown)
        except NotFoundError:
            return  # the record was deleted after its end was read from the server
        if found.metadata.uid == self._teardown.metadata.uid and not found.finished:
            raise UnwindError(
                f"cannot complete the unjoin: Teardown {found.metadata.name} is not finished", remedy="will retry"
            )

    async def _take_away(self) -> None:
        here = self._target.ref
        await self._do(lambda: self._persist(here, self._release_marks))
        await self._do(lambda: self._persist(here, self._account_for_late_objects))
        await self._do(lambda: self._persist(here, self._delete_works))
        await self._do(self._delete_namespace)
        if self._let_go:
            await self._persist(here, self._write_release)

    async def _do(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run the work without a timeout; with one if nothing may block the member, or once it is released."""
        if self._strict and await unless(self._released, work()):
            return
        over = asyncio.Event()
        timer = self._means.clock.call_later(LEAVE_TIMEOUT, over.set)
        try:
            if not await unless(over, work()):
                why = "; ".join(what.told for what in self._waits.values()) or "timed out"
                remedy = "see `unwind ledger` for what is left on it"
                log.warning(
                    "unjoin cleanup incomplete, member released", cluster=str(self._target), why=why, remedy=remedy
                )
        finally:
            timer.cancel()
            self._waits.clear()
            self._news.set()

    async def _write_release(self) -> None:
        """Record the release in the Teardown, which was complete before."""
        assert self._let_go  # noqa: S101 - for the type checker
        reason, message, by = self._let_go
        at = self._means.clock.now().replace(microsecond=0)
        released = Release(reason=reason, message=message, by=by, at=at)
        meta = self._teardown.metadata
        body = {"metadata": {"uid": meta.uid}, "status": {"release": msgspec.to_builtins(released)}}
        with suppress(NotFoundError):
            await self._client.patch(TEARDOWNS, meta.name, body, subresource="status")

    # On the member

    async def _release_marks(self) -> None:
        """After a change from Required to Needless: remove our labels from the objects that stay."""
        decided = self._teardown.status.release
        if decided is None or decided.reason != Reason.STRATEGY_CHANGED:
            return
        chunks = [chunk for chunk in await self._means.inventories.owned(self._planned) if ledgered(chunk)]
        for those in by_place(chunks):
            left = [item for item in items(those) if item.entry.ledger and item.entry.ledger.reason == decided.reason]
            owners = {chunk.metadata.name: chunk.spec.owner.uid for chunk in those}
            async with member_of(self._means.members, those[0], self._target) as member:
                await gather_limited(
                    (unmark(member, item, owner=owners[item.chunk]) for item in left if item.entry.object.uid),
                    limit=_AT_ONCE,
                )

    async def _account_for_late_objects(self) -> None:
        """Account for objects that a Work created while the plan was made, or after its step was done. They are removed
        or stay like the others."""
        async with asyncio.TaskGroup() as group:
            for item in await self._late():
                group.create_task(self._carry(item))

    async def _late(self) -> list[Lost]:
        chunks = await self._means.inventories.on(self._target.ref.uid)
        return lost(
            frozenset(),
            [chunk for chunk in chunks if chunk.spec.owner.uid not in self._planned or not chunk.spec.sealed_for],
        )

    async def _carry(self, one: Lost) -> None:
        effort = Effort.ENFORCE if self._strict and not self._source.preserves(one) else Effort.LEAVE
        step = Step(name=one.step, object=one.owner, effort=effort.value, wave=1, objects=one.objects)

        told: set[ObjectRef] = set()

        def follow() -> None:
            for ref in told - carrying.waits.keys():
                self._waits.pop(ref, None)
            told.clear()
            told.update(carrying.waits)
            self._waits.update(carrying.waits)
            self._news.set()

        carrying = StepRunner(
            step,
            self._target,
            self._means,
            teardown=self._teardown.metadata.name,
            remover=self._source.remover,
            # As recorded in the ledger. Its foreign content and PersistentVolumeClaims are in no plan.
            terms=lambda: msgspec.structs.replace(
                self._source.terms(step, self._target), take_along=False, volumes=VolumePolicy.RETAIN
            ),
            changed=follow,
        )
        if self._teardown.phase is Phase.COMPLETE and self._let_go is None:
            await carrying.run()
            await carrying.seal()
        else:
            left = self._teardown.status.release
            why = self._let_go or (
                (left.reason, left.message, left.by)
                if left
                else (Reason.TARGET_GONE, "the member Cluster was deleted before its objects were removed", "unwind")
            )
            await carrying.abandon(*why)
        inventories = self._means.inventories
        await inventories.discard_all(chunk for chunk in await inventories.of(one.owner.uid) if not ledgered(chunk))

    # On the management cluster

    async def _delete_works(self) -> None:
        works = msgspec.convert(await self._client.list(WORKS, namespace=self._namespace), list[Work])
        unaccounted = {item.owner.uid for item in await self._late()}
        if again := [str(ref_of(WORKS, work.metadata)) for work in works if work.metadata.uid in unaccounted]:
            raise UnwindError(
                f"cannot delete {', '.join(sorted(again)[:3])}: new objects on the member are not yet removed or "
                "recorded in the ledger",
                remedy="will retry",
            )
        failures: list[Failed | Waiting] = []

        async def let_go(work: Work) -> None:
            # A Work that cannot be released, because an admission webhook denies it, must not block the others.
            result = await attempt(delete_work(self._client, ref_of(WORKS, work.metadata)))
            if result is not None:
                failures.append(result)

        await gather_limited((let_go(work) for work in works), limit=_AT_ONCE)
        if failures:
            raise UnwindError("; ".join(sorted(failed.told for failed in failures)[:_SHOWN]))

    async def _remove_finalizers(self) -> None:
        """Remove our finalizers from the Works without deleting them: the Cluster is gone, and a new one of its name
        may need them."""
        for work in msgspec.convert(await self._client.list(WORKS, namespace=self._namespace), list[Work]):
            if work.metadata.uid in self._planned:
                await remove_finalizer(self._client, WORKS, ref_of(WORKS, work.metadata), Finalizer.WORK)

    async def _delete_namespace(self) -> None:
        """Delete the execution namespace, by uid, and verify its absence."""

        async def look() -> ObjectMeta | None:
            try:
                found = await self._client.get(NAMESPACES, self._namespace)
            except NotFoundError:
                return None
            return msgspec.convert(found["metadata"], ObjectMeta)

        meta = await self._persist(self._target.ref, look)
        if meta is None:
            return
        ref = ref_of(NAMESPACES, meta)
        async with self._means.members.management() as home:
            links = (*self._means.deleters, ProtectionLink(cluster=home.ref, contents=True).registration())
            registry = DeleterRegistry(links, plugins=self._means.plugins)
            deletions = Deletions(registry, home.watches, home.resolver, clock=self._means.clock, say=self._say)
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow(home, ref.name))
                await deletions.delete(NAMESPACES, ref, Memo({}, _forget))
                following.cancel()
        if self._waits.pop(ref, None):
            self._news.set()

    async def _follow(self, home: Member, name: str) -> None:
        """Diagnose again whenever the namespace changes, until cancelled."""
        while True:
            changes = await home.watches.changes(NAMESPACES, name=name)
            try:
                self._news.set()
                await changes.wait()
            finally:
                changes.close()

    async def _clean_up(self) -> None:
        """Delete empty Inventories and unmark the credentials: the member is not needed any more."""
        inventories, uid = self._means.inventories, self._target.ref.uid
        chunks = {chunk.metadata.name: chunk for chunk in await inventories.on(uid)}
        chunks |= {chunk.metadata.name: chunk for chunk in await inventories.owned(self._planned)}
        await inventories.discard_all(chunk for chunk in chunks.values() if self._is_over(chunk))
        if self._target.secret:
            await credentials.let_go(self._client, self._target)

    def _is_over(self, chunk: Inventory) -> bool:
        accounted = chunk.spec.owner.uid in self._planned or all(item.done for item in items([chunk]))
        return accounted and not ledgered(chunk)

    # Status

    def _say(self, ref: ObjectRef, what: Waiting | Failed) -> None:
        self._waits[ref] = what
        self._news.set()

    async def _diagnose(self) -> None:
        """Diagnose what the cleanup waits for, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            found = await self._why(dict(self._waits))
            if found != self.blockers:
                self.blockers = found
                self._changed()

    async def _why(self, waits: Mapping[ObjectRef, Waiting | Failed]) -> tuple[Blocker, ...]:
        if not waits:
            return ()
        with suppress(UnwindError):  # the cause stays unknown; the waiter reports the error
            async with self._means.members.management() as home:
                return await what_blocks(home, waits, (), before=self.blockers, now=self._means.clock.now())
        return self.blockers

    async def _persist(self, about: ObjectRef, work: Callable[[], Awaitable[T]]) -> T:
        done = await retry_until_done(
            work, clock=self._means.clock, chance=self._chance, say=lambda what: self._say(about, what)
        )
        if self._waits.pop(about, None):
            self._news.set()
        return done


async def remove_finalizer(client: Client, resource: Resource, ref: ObjectRef, finalizer: Finalizer) -> None:
    """Remove a finalizer of ours from an object, if its uid matches."""
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return
    if found["metadata"]["uid"] != ref.uid:
        return

    def without(now: Object) -> Object | None:
        have = now["metadata"].get("finalizers") or []
        left = [item for item in have if item != finalizer]
        return {"metadata": {"finalizers": left}} if left != have else None

    await revise(client, resource, found, without)


async def _forget(_: Mapping[str, str | None]) -> None:
    """A namespace deletion needs no state: it is observed again."""
