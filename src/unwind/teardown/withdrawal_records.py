"""The Teardowns of withdrawals and prunes: one step each, written only for a removal that needs attention.

Until there is a record, the terminating owner and its Inventories are the record, so that small removals cost no
write. It is written with the first of: a blocker, 5 seconds, a ledger entry, a deadline, a restart of the manager.

The controllers of ClusterSummaries and Works report here what they remove (`follow`), what they wait for (`hold`) and
the end (`end`). This controller writes the records from that, and deletes them after their retention time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.karmada import WORKS
from unwind.api.names import DEADLINE_ANNOTATION, FORCE_RELEASE_ANNOTATION, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Phase, Plan, Release, Step, StepState, Teardown
from unwind.inventory.inventories import items
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.teardown import drafts, force_release
from unwind.teardown import status as teardown_status
from unwind.teardown.archive_controller import may_forget
from unwind.teardown.force_release import LetGo
from unwind.teardown.records import KEEP, NotStoredError, TeardownCaches, TeardownRecords, left_of
from unwind.teardown.status import StepView, TeardownProgress, step_reports
from unwind.teardown.withdrawal_progress import LiveRemoval, RecordedRemoval, member_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from unwind.api.unwind import Blocker, Inventory, LedgerNote, TeardownStatus
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.teardown.signatures import RecordKeys
    from unwind.teardown.status import StepReport
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_runner import StepRunner

log = logs.get(__name__)

RECORD_AFTER = 5.0
"""Seconds after which a removal gets a record, whatever it does."""
_BLOCKED_AFTER = 1.0
# Seconds after which the counts in a record are updated, if nothing else has changed.
_COUNTS_EVERY = 1.0
# Seconds until an unfinished record without a running removal is checked again.
_LOOK_AGAIN = 30.0
_CAUSES = (Cause.WITHDRAWN, Cause.PRUNED)
# Prefix of the queue keys of records without a removal in this process, followed by the name of the Teardown.
_RECORD = "record/"
_OWNERS = {(kind.group, kind.kind): kind for kind in (CLUSTER_SUMMARIES, WORKS)}


class WithdrawalRecords(Controller[str]):
    """Writes the records of withdrawals and prunes."""

    name = "withdrawals"

    def __init__(
        self,
        shared: ControllerDeps,
        caches: TeardownCaches,
        deps: RemovalDeps,
        *,
        keys: RecordKeys,
        keep: timedelta = KEEP,
    ) -> None:
        """`keep`: how long a finished record is kept."""
        super().__init__(shared, caches)
        self._teardowns = caches.teardowns
        self._inventories = deps.inventories
        self._keys = keys
        self._keep = keep
        self._records = TeardownRecords(
            shared,
            caches.teardowns,
            deps.inventories,
            keys=keys,
            group="",
            cause=Cause.WITHDRAWN,
            keep=keep,
            archive=deps.archive,
        )
        self._archive = deps.archive
        self._live: dict[str, LiveRemoval] = {}
        self._started: datetime | None = None
        self._teardowns.subscribe(self._teardown_changed)

    async def run(self) -> None:
        """Write records until cancelled."""
        self._started = self._clock.now().replace(microsecond=0)
        await self._keys.until_known()
        await self._queue.run()

    # What the controllers of the owners report

    def follow(self, subject: RecordedRemoval, runners: Callable[[], Sequence[StepRunner]]) -> None:
        """The removal of an owner runs. `runners`: its parts; their progress is read when it is needed."""
        live = self._of(subject)
        live.follow(runners)
        self._changed(live)

    def hold(self, subject: RecordedRemoval, *blockers: Blocker, paused: bool = False) -> None:
        """The removal of an owner waits. `paused`: because its cluster is paused: no deadline passes."""
        live = self._of(subject)
        live.hold(blockers, paused=paused)
        self._changed(live)

    def report(self, subject: RecordedRemoval) -> StepReport | None:
        """What the record of a removal says about it; None if it has no record that is not finished."""
        record = self._find(subject)
        return step_reports(record).get(subject.step) if record and not record.finished else None

    def drop(self, uid: str, cause: Cause = Cause.WITHDRAWN) -> None:
        """The removal of an owner does not run in this process any more."""
        if (live := self._live.pop(f"{cause}/{uid}", None)) and (record := self._find(live.subject)):
            self._queue.add(f"{_RECORD}{record.metadata.name}")

    async def let_go(self, subject: RecordedRemoval, *, paused: bool) -> LetGo | None:
        """Why the owner is released before its objects are removed; None if it is not."""
        resource = _OWNERS[subject.owner.group, subject.owner.kind]
        whole = msgspec.structs.replace(subject.target, annotations=subject.annotations)
        forced = await force_release.forced(self._client, resource, whole, reviewed=False)
        if forced or paused:
            return forced
        record = self._find(subject)
        overdue = record is not None and force_release.overdue(record, now=self._clock.now())
        return force_release.expired(record.spec) if record and overdue else None

    async def end(
        self, subject: RecordedRemoval, *, total: int, removed: int, left: int, let_go: LetGo | None = None
    ) -> None:
        """The removal has ended. If it has a record, or needs one, its end is written: call this before the owner is
        deleted."""
        live = self._of(subject)
        async with live.writing:
            teardown = self._find(subject)
            if teardown is None and (left or let_go or self._seconds_to_record(live, blocked=False) <= 0):
                try:
                    teardown = await self._create(live)
                except NotStoredError as error:  # no gate depends on it, and the ledger is in the Inventories
                    log.warning("removal not recorded", target=str(subject.owner), why=str(error))
            if teardown and not teardown.finished:
                state = StepState.REMOVED
                if subject.effort is Effort.LEAVE:
                    state = StepState.LEFT
                elif let_go:
                    state = StepState.GIVEN_UP if left else StepState.REMOVED
                step = StepView(name=subject.step, state=state, total=total, removed=removed, left=left)
                await self._finish(teardown, step, Phase.RELEASED if let_go else Phase.COMPLETE, let_go)
        self._live.pop(subject.key, None)
        if teardown:
            self._queue.add(f"{_RECORD}{teardown.metadata.name}")

    async def settle(self, subject: RecordedRemoval) -> None:
        """Nothing of an owner has to be pruned any more: end the record of its last prune, if there is one."""
        record, live = self._find(subject), self._live.get(subject.key)
        if record is None and live is None:
            return
        planned = record.spec.plan.objects if record and record.spec.plan else 0
        if live and live.runners:
            view, let_go = live.view(planned), live.let_go
            total, removed, left = view.total, view.removed, view.left
        else:
            # It was interrupted, perhaps while it was released.
            released = _released(await self._inventories.of(subject.owner.uid), record)
            let_go = LetGo(released[0].reason, released[0].message, released[0].by) if released else None
            total, removed, left = planned, max(0, planned - len(released)), len(released)
        if let_go and let_go.reason == Reason.FORCED:
            await self._use_up(subject)
        await self.end(subject, total=total, removed=removed, left=left, let_go=let_go if left else None)

    async def _use_up(self, subject: RecordedRemoval) -> None:
        """Remove the annotation that has force-released a prune: its owner stays, and later removals must not be
        released by it."""
        owner = subject.owner
        patch = {"metadata": {"uid": owner.uid, "annotations": {FORCE_RELEASE_ANNOTATION: None}}}
        with suppress(NotFoundError):  # deleted meanwhile
            await self._client.patch(_OWNERS[owner.group, owner.kind], owner.name, patch, namespace=owner.namespace)

    def _of(self, subject: RecordedRemoval) -> LiveRemoval:
        live = self._live.get(subject.key)
        if live is None:
            began, started = subject.deleted_at, self._started
            live = self._live[subject.key] = LiveRemoval(
                subject,
                began=self._clock.now().replace(microsecond=0),
                since=self._clock.monotonic(),
                resumed=bool(began and started and began < started),
            )
        live.subject = subject
        return live

    def _changed(self, live: LiveRemoval) -> None:
        # Called for every object that is removed. What blocks it is evaluated when the record may be due.
        at_once = live.resumed or DEADLINE_ANNOTATION in live.subject.target.annotations
        self._queue.add_after(live.subject.key, 0.0 if at_once and not live.written_at else _BLOCKED_AFTER)

    # Events

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        it = change.new
        # A removal that runs here writes its record itself.
        if it and it.spec.cause in _CAUSES and not self._is_live(it):
            self._queue.add(f"{_RECORD}{it.metadata.name}")

    def _enqueue_all(self) -> None:
        recorded = {f"{_RECORD}{item.metadata.name}" for item in self._teardowns.cache if item.spec.cause in _CAUSES}
        for key in recorded | self._live.keys():
            self._queue.add(key)

    def _shard(self, key: str) -> str | None:
        if live := self._live.get(key):
            return live.subject.shard
        record = self._record(key)
        return member_shard(record.spec.member) if record and record.spec.member else None

    def _describe(self, key: str) -> dict[str, str]:
        return {"teardown": key.partition("/")[2]}

    # Reconcile

    async def _reconcile(self, key: str) -> float | None:
        shard = self._shard(key)
        if shard is None or not self._owner.owns(shard):
            return None
        if live := self._live.get(key):
            return await self._advance(live)
        record = self._record(key)
        if record is None or not self._teardowns.synced or self._is_live(record):
            return None
        if record.finished:
            left = left_of(record, keep=self._keep, now=self._clock.now(), archive=self._archive)
            if left == 0:
                await self._forget(record)
            return left or None
        return await self._end_without_owner(record)

    async def _advance(self, live: LiveRemoval) -> float | None:
        """Write the record if it is due, or has changed; returns the seconds until the next look."""
        if self._find(live.subject) is None and (wait := self._seconds_to_record(live, blocked=live.blocked)) > 0:
            return wait
        # Not under the lock: it reads from the member, and `end` must not wait for that.
        record = self._find(live.subject)
        await live.look_at_blockers(record.status.blockers if record else (), self._clock.now())
        async with live.writing:
            if self._live.get(live.subject.key) is not live:
                return None  # it has ended
            teardown = self._find(live.subject) or await self._create(live)
            return None if teardown.finished else await self._update(live, teardown)

    async def _update(self, live: LiveRemoval, teardown: Teardown) -> float:
        subject = live.subject
        overdue = not live.paused and force_release.overdue(teardown, now=self._clock.now())
        if subject.cause is Cause.PRUNED:
            # Its owner does not wait for it, so it is released here.
            live.let_go = live.let_go or await self.let_go(subject, paused=live.paused)
            if live.let_go:
                subject.release(live.let_go)
        elif overdue and force_release.expired(teardown.spec):
            subject.wake()
        view = TeardownProgress(
            steps=(live.view(teardown.spec.plan.objects if teardown.spec.plan else 0),),
            wave=1,
            phase=Phase.REMOVING,
            said=drafts.misunderstood(live.subject.target),
            overdue=overdue,
            paused=live.paused,
            known=live.known,
        )
        status = teardown_status.status(teardown, view, now=self._clock.now())
        now = self._clock.monotonic()
        counts_only = teardown_status.same_but_for_counts(status, teardown.status)
        if status != teardown.status and not (counts_only and now - live.written_at < _COUNTS_EVERY):
            live.written_at = now
            async with self._client.aside:
                await self._write(teardown, status)
        left = None if live.paused else force_release.remaining_seconds(teardown, now=self._clock.now())
        # A change of what it waits for is reported; progress is not.
        progressing = live.runners and not live.waits
        return min(_COUNTS_EVERY if progressing else _LOOK_AGAIN, left or _LOOK_AGAIN)

    def _seconds_to_record(self, live: LiveRemoval, *, blocked: bool) -> float:
        """Seconds until a removal gets a record; 0 or less if it is due. `blocked`: whether something blocks it."""
        if live.resumed or live.left or blocked or DEADLINE_ANNOTATION in live.subject.target.annotations:
            return 0.0
        return live.since + RECORD_AFTER - self._clock.monotonic()

    # Writes

    def _find(self, subject: RecordedRemoval) -> Teardown | None:
        """The record of a removal in the cache. A prune continues the record of an earlier one that has not ended."""
        for item in self._teardowns.cache.by("uid", subject.owner.uid):
            fits = item.spec.cause == subject.cause and not (subject.generation and item.finished)
            if fits and self._keys.genuine(item):
                return item
        return None

    def _record(self, key: str) -> Teardown | None:
        """The record with this queue key in the cache."""
        found = self._teardowns.cache.get(Key("", key.removeprefix(_RECORD)))
        mine = found and found.spec.cause in _CAUSES and self._keys.genuine(found)
        return found if mine else None

    def _is_live(self, record: Teardown) -> bool:
        live = self._live.get(f"{record.spec.cause}/{record.spec.target.uid}")
        found = self._find(live.subject) if live else None
        return found is not None and found.metadata.name == record.metadata.name

    async def _create(self, live: LiveRemoval) -> Teardown:
        subject = live.subject
        if subject.generation:
            objects = live.view(0).total
            await self._make_room(subject)
        else:
            objects = sum(not item.done for item in items(await self._inventories.of(subject.owner.uid)))
        step = Step(name=subject.step, object=subject.owner, effort=subject.effort.value, wave=1, objects=objects)
        plan = Plan(steps=(step,), waves=1, objects=objects)
        await self._keys.load()
        teardown = await self._records.created(
            msgspec.structs.replace(subject.target, deleted_at=live.began),
            plan,
            name=subject.name,
            cause=subject.cause,
            member=subject.member,
            title=f"{subject.step} on {subject.member}",
        )
        self._teardowns.take(teardown)
        log.info("removal recorded", teardown=teardown.metadata.name, target=str(subject.owner))
        return teardown

    async def _make_room(self, subject: RecordedRemoval) -> None:
        """Delete the finished record of an earlier prune of the same generation: a profile is also pruned if only its
        sources change. If the earlier one is not in the archive yet, it stays, and the new prune has no record: a
        removal does not wait for the archive."""
        before = self._teardowns.cache.get(Key("", subject.name))
        if before and before.finished and before.spec.cause == Cause.PRUNED and self._keys.genuine(before):
            if may_forget(self._archive, before):
                await self._delete(before)
            else:
                log.warning(
                    "removal not recorded",
                    target=str(subject.owner),
                    why="the record before is not archived; the removal goes on without a record",
                )

    async def _delete(self, record: Teardown) -> None:
        with suppress(NotFoundError):  # already deleted
            await self._client.delete(TEARDOWNS, record.metadata.name, uid=record.metadata.uid)

    async def _finish(self, teardown: Teardown, step: StepView, phase: Phase, let_go: LetGo | None = None) -> None:
        now = self._clock.now()
        view = TeardownProgress(
            steps=(step,),
            wave=1,
            phase=phase,
            release=Release(reason=let_go.reason, message=let_go.message, by=let_go.by, at=now.replace(microsecond=0))
            if let_go
            else None,
        )
        await self._write(teardown, teardown_status.status(teardown, view, now=now))

    async def _write(self, teardown: Teardown, status: TeardownStatus) -> None:
        while True:
            body = {
                "apiVersion": TEARDOWNS.api_version,
                "kind": TEARDOWNS.kind,
                "metadata": teardown_status.guarded(teardown),
                "status": msgspec.to_builtins(status),
            }
            try:
                written = await self._client.apply(TEARDOWNS, body, subresource="status")
            except NotFoundError:
                return  # it was deleted: the removal continues without it
            except ConflictError:
                # The shard is ours, so the last write was ours, too, or a label of a user.
                now = await self._client.get(TEARDOWNS, teardown.metadata.name, type=Teardown)
                if now.metadata.uid != teardown.metadata.uid or now.finished:
                    return
                teardown = now
                continue
            self._teardowns.take(msgspec.convert(written, Teardown))
            return

    async def _end_without_owner(self, record: Teardown) -> float | None:
        """End the record of an owner that is gone: nothing reports its end any more."""
        ref = record.spec.target
        resource = _OWNERS.get((ref.group, ref.kind))
        if resource is None:
            return None
        seen = await self._client.sighting(resource, ref.name, uid=ref.uid, namespace=ref.namespace)
        if not seen.absent:
            return _LOOK_AGAIN  # its controller reports it, or the Teardown of its cluster removes it
        chunks = await self._inventories.of(ref.uid)
        everything = items(chunks)
        done = all(item.done for item in everything)
        left = sum(item.entry.ledger is not None or not item.done for item in everything)
        if record.spec.cause == Cause.PRUNED and done:
            left = 0  # the withdrawal of the owner has recorded what was left
        planned = record.spec.plan.objects if record.spec.plan else 0
        step = StepView(
            name=record.spec.plan.steps[0].name if record.spec.plan and record.spec.plan.steps else ref.name,
            state=StepState.REMOVED if done else StepState.GIVEN_UP,
            total=max(planned, left),
            removed=max(0, planned - left),
            left=left,
        )
        await self._finish(record, step, Phase.COMPLETE if done else Phase.TARGET_GONE)
        return 0.0

    async def _forget(self, record: Teardown) -> None:
        """Delete a record with its ledger. Inventories that name objects that were never accounted for stay. A prune
        has no Inventories of its own: those of its owner are in use."""
        if record.spec.cause == Cause.WITHDRAWN:
            chunks = await self._inventories.of(record.spec.target.uid)
            await self._inventories.discard_all(chunk for chunk in chunks if all(item.done for item in items([chunk])))
        await self._delete(record)


def _released(chunks: list[Inventory], record: Teardown | None) -> list[LedgerNote]:
    """The notes of objects that were released since a prune began (pure)."""
    since = record.spec.requested_at if record else None
    notes = [item.entry.ledger for item in items(chunks) if item.entry.ledger]
    return [
        note
        for note in notes
        if note.reason in (Reason.FORCED, Reason.DEADLINE) and since and note.at and note.at >= since
    ]
