"""Removes the steps of a drain: each object by uid, through the chain of deleters, until the cleanup is proved."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.names import Reason
from unwind.api.resources import VOLUME_ATTACHMENTS
from unwind.api.unwind import Effort, LedgerNote
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Again, Gone, Kept, TransientError
from unwind.deleters.registration import FIRST, Kinds, Registration
from unwind.drain import objects, rules
from unwind.inventory.inventories import OWN, items
from unwind.inventory.writer import Records, add_found
from unwind.removal.volume_claims import REMEMBERED, Volume
from unwind.teardown.step_removers import InventoryRemover, UnmarkedRemover
from unwind.teardown.verified_removal import VerifiedRemoval, reason_of
from unwind.why.blocker_causes import actor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry, Inventory
    from unwind.companions.policy_reader import ClusterPolicies
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.drain.objects import DrainedObject
    from unwind.drain.rules import DrainDecision
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import StepContext, StepRemoval

_NAME = "drain"
_FINALIZER = "finalizer"
_BEGUN = "begun"
# The memo key of the time at which everything was gone, in the first entry of a step.
_GONE_AT = f"{OWN}drained-at"
_LOOK_AGAIN = 30.0


class DrainPolicies(Protocol):
    """Reads the policies of clusters."""

    async def of(self, target: ClusterTarget) -> ClusterPolicies:
        """What the policies of a cluster say, read from the API server."""

    def known(self, target: ClusterTarget) -> ClusterPolicies:
        """The same, by the caches."""

    async def is_deleted(self, target: ClusterTarget) -> bool:
        """Whether a Cluster is being deleted or gone, read from the API server."""


class DrainRemover(UnmarkedRemover):
    """Removes steps of drains."""

    def __init__(self, policies: DrainPolicies, *, requested: bool = False) -> None:
        """`requested`: a user requested the drain of a cluster that stays."""
        self._policies = policies
        self._requested = requested

    def begin(self, context: StepContext) -> StepRemoval:
        return _DrainRemoval(self._policies, context, requested=self._requested)


class _DrainRemoval(VerifiedRemoval):
    """The removal of one step of a drain."""

    def __init__(self, policies: DrainPolicies, context: StepContext, *, requested: bool) -> None:
        super().__init__(context)
        self._policies = policies
        self._requested = requested
        self._tried = context.step.effort == Effort.TRY
        self._decision: DrainDecision | None = None
        self._begun = False
        """Whether it is recorded that the deletion of an object has begun: from then on, no object is added."""
        self._beginning = asyncio.Lock()

    @property
    def _own_waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        """What it waits for besides its deletions: the step itself only if no object says more."""
        objects_only = len(self._waits) > 1 and isinstance(self._waits.get(self._ref), Waiting)
        return {ref: what for ref, what in self._waits.items() if not (objects_only and ref == self._ref)}

    def _actor(self, what: Waiting | Failed) -> str:
        reason = reason_of(what)
        return "the owner of the object" if reason in _BY_OTHERS else actor_of(reason)

    async def run(self) -> None:
        chunks = await self._retry(self._begin)
        means = self._context.means
        means = msgspec.structs.replace(means, deleters=(*means.deleters, self._link()))
        self._inner = inner = InventoryRemover().begin(
            msgspec.structs.replace(self._context, means=means, chunks=chunks, target=self._target)
        )
        await inner.run()
        await self._retry(self._verify)
        await self._settle()
        self._verified = True
        self._context.changed()

    # Before the first deletion

    async def _begin(self) -> Sequence[Inventory]:
        """The Inventories of the step, with the objects that were created since the plan was made."""
        if not self._requested:
            await self._check_deleted()
        found = (await self._policies.of(self._target)).policies
        self._decision = decision = rules.decisions(found).get(self._ref.name)
        if decision is None:
            # It is frozen in the plan, and its objects are recorded. Nothing is added to it.
            return await self._inventories.of(self._ref.uid)
        chunks = await self._inventories.of(self._ref.uid)
        self._begun = any(_has_begun(item.entry) for item in items(chunks))
        if self._begun:
            return chunks
        async with self._member(chunks) as member:
            await member.verify()
            known = {item.key for item in items(chunks)}
            new = {
                item.key: item.entry
                for item in await self._foreign(member, decision)
                if item.key not in known and not item.terminating
            }
            if new and chunks:
                await add_found(self._inventories, chunks, new)
            elif new:
                effort = Effort(self._context.step.effort)
                await Records(self._inventories, self._ref, member, effort=effort).put(new)
        if new and self._tried:
            await self._inventories.sealed(self._ref.uid, self._context.teardown)
        return await self._inventories.of(self._ref.uid)

    async def _check_deleted(self) -> None:
        """Raise unless the cluster is being deleted: nothing else allows to delete what Unwind did not create."""
        ref = self._target.ref
        if not await self._policies.is_deleted(self._target):
            raise TransientError(
                f"cannot drain {ref}: it is not being deleted", reason=Reason.HELD, remedy="delete the Cluster"
            )

    async def _foreign(self, member: Member, decision: DrainDecision) -> list[DrainedObject]:
        """The objects on the member that belong to no other step and to no other drained object."""
        found = await objects.read(member, decision)
        elsewhere = await self._elsewhere()
        uids = {item.ref.uid for item in found}
        return [item for item in found if item.ref.uid not in elsewhere and not item.owners & uids]

    async def _elsewhere(self) -> dict[str, Entry]:
        """The objects in the Inventories of other owners, by uid."""
        return {
            item.entry.object.uid: item.entry
            for chunk in await self._inventories.on(self._target.ref.uid)
            if not rules.is_drain(chunk.spec.owner)
            for item in items([chunk])
        }

    # The link in the chain

    def _link(self) -> Registration:
        return Registration(
            name=_NAME,
            kinds=(Kinds("*", "*"),),
            delete=self._delete,
            order=FIRST,
            about="Keep what a TeardownPolicy excludes from its drain, and record if a finalizer shows the cleanup.",
        )

    async def _delete(self, ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if not ctx.absent:
            if kept := await self._kept(ctx, obj):
                return kept
            metadata = obj["metadata"]
            finalizer = rules.cleanup_finalizer(metadata.get("finalizers"))
            if finalizer and ctx.memo.get(_FINALIZER) in (None, objects.NONE):
                await ctx.memo.put(_FINALIZER, finalizer)
            await self._record_begun(ctx)
        outcome = await next(ctx, obj)
        decision, finalizer = self._decision, ctx.memo.get(_FINALIZER) or objects.NONE
        if isinstance(outcome, Gone) and finalizer == objects.NONE and not (decision and decision.settle):
            return Kept(
                Reason.NOT_VERIFIED,
                "deleted, but it had no finalizer that shows whether its resource outside the cluster is deleted; look"
                " for it there",
                by=self._context.step.effort_from or "unwind",
            )
        return outcome

    async def _record_begun(self, ctx: DeleteContext) -> None:
        """Record that a deletion has begun, once for all objects: hundreds of writes to one Inventory would conflict
        with each other, and each of them writes all of it."""
        async with self._beginning:
            if not self._begun:
                await ctx.memo.put(_BEGUN)
                self._begun = True

    async def _kept(self, ctx: DeleteContext, obj: Object) -> Kept | None:
        """Why an object is not deleted after all."""
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        if (ctx.ref.group, ctx.ref.kind) == ("", "Service") and obj["spec"].get("type") != "LoadBalancer":
            return Kept(Reason.NOT_OURS, "it is no longer of type LoadBalancer, so it is left in place", by="unwind")
        policies = self._policies.known(self._target).policies
        decision = rules.decisions(policies).get(self._ref.name)
        exclusion = rules.excluded(policies, decision, metadata.get("labels") or {}) if decision else None
        if exclusion is None:
            return None
        if exclusion.conflict and not self._tried:
            changes = await ctx.changes(ctx.resource, namespace=ctx.ref.namespace, name=ctx.ref.name)
            raise Again(exclusion.conflict, until=changes, after=_LOOK_AGAIN, code=Reason.POLICY_CONFLICT)
        by = ", ".join(f"TeardownPolicy/{name}" for name in exclusion.by)
        return Kept(Reason.KEPT_BY_POLICY, exclusion.message, by=by)

    # After the last deletion

    async def _verify(self) -> None:
        """Return if nothing is left that the drain has to delete; raise Again and name the rest otherwise."""
        decision = self._decision
        if decision is None:
            return
        chunks = await self._inventories.of(self._ref.uid)
        recorded = {item.key: item.entry for item in items(chunks)}
        self._waits.clear()
        async with self._member(chunks) as member:
            rest = self._rest(await objects.read(member, decision), recorded, await self._elsewhere())
            # Nothing waits for a step that is only tried, and users of a cluster that stays go on creating objects.
            ignored = [it for it in rest if self._tried or (self._requested and it[1].code in _BY_OTHERS)]
            if ignored:
                await self._note(chunks, member, ignored)
                rest = [it for it in rest if it not in ignored]
            await self._until_detached(member, recorded.values())
            if not rest:
                return
            for item, waiting in rest:
                self._waits[item.ref] = waiting
            first, waiting = rest[0]
            changes = await member.watches.changes(first.resource, namespace=first.ref.namespace, name=first.ref.name)
            # It may have gone since the list.
            now = await objects.read(member, decision)
            if not any(item.ref.uid == first.ref.uid for item in now):
                changes.close()
                raise Again(waiting.reason, after=0.0, code=waiting.code)
            raise Again(
                f"waiting until {len(rest)} objects are gone", until=changes, after=_LOOK_AGAIN, code=waiting.code
            )

    def _rest(
        self, found: Iterable[DrainedObject], recorded: Mapping[str, Entry], elsewhere: Mapping[str, Entry]
    ) -> list[tuple[DrainedObject, Waiting]]:
        """What is left and why, without what stays on purpose (pure)."""
        staying = {entry.object.uid for entry in recorded.values() if entry.left}
        rest: list[tuple[DrainedObject, Waiting]] = []
        for item in found:
            entry, known = elsewhere.get(item.ref.uid), recorded.get(item.key)
            if item.ref.uid in staying or item.owners & staying:
                continue
            if entry is not None:
                # A step that is removed later, or that leaves it on purpose. What it gave up on is waited for.
                if entry.ledger is None or entry.ledger.reason != Reason.GAVE_UP:
                    continue
                message = f"{item.ref} is still there, although Unwind was done with it; see `unwind why`"
                rest.append((item, Waiting(message, code=Reason.DELETING)))
            elif item.terminating:
                rest.append((item, Waiting(f"{item.ref} is being deleted", code=Reason.DELETING)))
            elif known is not None and known.object.uid != item.ref.uid:
                message = f"{item.ref} was deleted and created again by {item.made_by}; stop that one, then delete it"
                rest.append((item, Waiting(message, code=Reason.CREATED_AGAIN)))
            else:
                message = f"{item.ref} was created after the drain began, by {item.made_by}; delete it"
                rest.append((item, Waiting(message, code=Reason.APPEARED_LATE)))
        return rest

    async def _note(
        self, chunks: list[Inventory], member: Member, rest: Iterable[tuple[DrainedObject, Waiting]]
    ) -> None:
        """Write what is left into the ledger, because nothing waits for it."""
        at = self._context.means.clock.now().replace(microsecond=0)
        entries = {
            f"{item.key}-{item.ref.uid}": msgspec.structs.replace(
                item.entry, ledger=LedgerNote(reason=waiting.code, message=waiting.reason, by="unwind", at=at)
            )
            for item, waiting in rest
        }
        if chunks:
            await add_found(self._inventories, chunks, entries)
        else:
            effort = Effort(self._context.step.effort)
            await Records(self._inventories, self._ref, member, effort=effort).put(entries)

    async def _until_detached(self, member: Member, entries: Iterable[Entry]) -> None:
        """Raise Again while a deleted volume is attached to a node."""
        volumes = {
            Volume.parse(entry.memo[REMEMBERED]).name
            for entry in entries
            if REMEMBERED in entry.memo and not entry.left
        }
        if not volumes:
            return
        changes = await member.watches.changes(VOLUME_ATTACHMENTS)
        for item in await member.client.list(VOLUME_ATTACHMENTS):
            name = item["spec"]["source"].get("persistentVolumeName")
            if name in volumes:
                raise Again(
                    f"PersistentVolume {name} is still attached to node {item['spec'].get('nodeName')}; waiting for"
                    " its detachment",
                    until=changes,
                    after=_LOOK_AGAIN,
                )
        changes.close()

    async def _settle(self) -> None:
        """Wait as long as the policy says, if a controller may still be at work and nothing shows it."""
        decision, clock = self._decision, self._context.means.clock
        chunks = await self._retry(lambda: self._inventories.of(self._ref.uid))
        entries = [item for item in items(chunks) if not item.entry.left]
        unseen = [item for item in entries if item.entry.memo.get(objects.FINALIZER, objects.NONE) == objects.NONE]
        if decision is None or not (decision.settle and unseen):
            return
        first = unseen[0]
        if (said := first.entry.memo.get(_GONE_AT)) is None:
            # Written down, so that the wait does not begin again after a restart.
            said = clock.now().isoformat()
            chunk = next(chunk for chunk in chunks if chunk.metadata.name == first.chunk)
            change = {first.key: {"memo": {_GONE_AT: said}}}
            await self._retry(lambda: self._inventories.write(chunk, change))
        left = (datetime.fromisoformat(said) + decision.settle - clock.now()).total_seconds()
        if left <= 0:
            return
        over = asyncio.Event()
        timer = clock.call_later(left, over.set)
        why = (
            f"waiting {left:.0f}s (settle of the TeardownPolicy) for controllers to clean up outside the cluster: no"
            " finalizer"
            " shows when they have"
        )
        self._waits[self._ref] = Waiting(why, code=Reason.SETTLING)
        self._context.changed()
        try:
            await over.wait()
        finally:
            timer.cancel()
            self._waits.pop(self._ref, None)

    @property
    def _inventories(self) -> Inventories:
        return self._context.means.inventories


_BY_OTHERS = (Reason.CREATED_AGAIN, Reason.APPEARED_LATE)


def _has_begun(entry: Entry) -> bool:
    """Whether the deletion of an object has begun."""
    return f"{_NAME}.{_BEGUN}" in entry.memo
