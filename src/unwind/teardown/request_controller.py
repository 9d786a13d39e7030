"""The controller of requested Teardowns: deletes any object with its content and dependents (`unwind delete`).

It determines once what is deleted and writes the inventory, then the plan, and only then deletes the first object: if
the process is killed, it resumes from what is written. A request is refused before that, or not at all.

Deleting the Teardown cancels the deletion. The Teardown has a finalizer since its plan was written, so that this also
works while no manager runs: the deletion is stopped, what was stopped for it is restored, and then the finalizer goes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.meta import without_condition
from unwind.api.names import ConditionType, EventReason, Finalizer, Reason
from unwind.api.unwind import (
    BLOCKERS_SHOWN,
    TEARDOWNS,
    Blocker,
    Cancellation,
    Cause,
    Phase,
    Plan,
    StepState,
    Teardown,
    TeardownStatus,
)
from unwind.errors import UnwindError, will_retry
from unwind.inventory.inventories import ledgered
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.updates import set_finalizer
from unwind.teardown import cancellation, plan, requests
from unwind.teardown import status as teardown_status
from unwind.teardown.archive_controller import may_forget
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.records import KEEP, forget, left_of
from unwind.teardown.request_refusals import RefusedError, RequestRefusal
from unwind.teardown.request_step_source import RequestedSteps, management_target
from unwind.teardown.runner import TeardownRunner
from unwind.teardown.running_teardowns import RunningTeardowns
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.status import StepView, TeardownProgress, guarded
from unwind.teardown.step_sources import Sources
from unwind.why.blocker_causes import actor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import timedelta

    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.teardown.records import TeardownCaches
    from unwind.teardown.request_refusals import Refusals
    from unwind.teardown.request_step_source import RequestSource
    from unwind.teardown.step_removers import RemovalDeps

log = logs.get(__name__)

# Objects that could not be read may become readable: an API server behind an APIService may answer again.
_REQUEUE = 10.0
# The cache has normally caught up by then; if not, the key is requeued again.
_SOON = 1.0
# Writing a document takes a moment, and `unwind cancel` waits for it.
_UNARCHIVED = 2.0


class RequestController(Controller[Key]):
    """Reconciles Teardowns with cause Requested."""

    name = "requested teardowns"
    name_in_metrics = "requested"
    _caches: TeardownCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: TeardownCaches,
        deps: RemovalDeps,
        *,
        refusals: Refusals,
        keep: timedelta = KEEP,
        keys: RecordKeys | None = None,
        others: Callable[[Teardown], RequestSource | None] = lambda _: None,
    ) -> None:
        """`refusals`: finds the objects that may not be deleted. `keep`: how long a finished record is kept.
        `others`: the step source of a request that has one of its own."""
        super().__init__(shared, caches)
        self._refusals = refusals
        self._deps = deps
        self._keys = keys or RecordKeys(shared.client, namespace=deps.inventories.namespace)
        self._keep = keep
        self._others = others
        self._teardowns = caches.teardowns
        self._withdrawn: dict[Key, Teardown] = {}
        """Teardowns that are gone."""
        self._cleaned: set[str] = set()
        """The uids of Teardowns for which no cleanup is left."""
        self._running: RunningTeardowns[TeardownRunner] = RunningTeardowns(
            caches.teardowns, again=self._queue.add_after
        )
        self._teardowns.subscribe(self._teardown_changed)

    async def run(self) -> None:
        """Reconcile requested Teardowns, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._running.belong_to(group)
            await self._keys.until_known()
            await self._teardowns.until_synced()
            await self._queue.run()

    # Events

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        teardown = change.new or change.old
        if teardown and teardown.spec.cause == Cause.REQUESTED:
            if change.new is None:
                self._withdrawn[change.key] = teardown
            self._queue.add(change.key)

    def _enqueue_all(self) -> None:
        asked = {
            Key("", teardown.metadata.name)
            for teardown in self._teardowns.cache
            if teardown.spec.cause == Cause.REQUESTED
        }
        for key in {*asked, *self._running}:
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"teardown": key.name}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        if not self._owner.owns(key.name):
            self._running.stop(key)
            return None
        if gone := self._withdrawn.get(key):
            return await self._give_up(key, gone)
        teardown = self._teardowns.cache.get(key)
        if teardown is None:
            return None
        if teardown.metadata.terminating and not teardown.finished:
            return await self._cancel(key, teardown)
        if runner := self._running.get(key):
            source = self._source(teardown)
            if source.rechecks and await source.target(teardown) is None:
                runner.target_gone()
            return source.rechecks
        if teardown.finished:
            if not await self._clean(teardown):
                return _UNARCHIVED
            if teardown.metadata.terminating:
                return None  # without its finalizer it is gone
            left = left_of(teardown, keep=self._keep, now=self._clock.now(), archive=self._deps.archive)
            if left == 0:
                owners = await self._owners(teardown)
                await forget(self._client, self._deps.inventories, teardown, owners=owners)
            return left or None
        if teardown.spec.plan is None:
            prepared = await self._prepare(teardown)
            if isinstance(prepared, float):
                return prepared
            if prepared is None:
                return None  # refused, as its status reports
            teardown = prepared
        elif not (self._source(teardown).is_own() and await self._keys.verified(teardown)):
            message = "spec.plan was not written by this manager; delete this Teardown and request the deletion again"
            await self._refuse(teardown, RequestRefusal(reason=Reason.NOT_GENUINE, message=message))
            return None
        source = self._source(teardown)
        target = await source.target(teardown)
        runner = TeardownRunner(
            teardown,
            target or management_target(teardown),
            self._deps,
            self._client,
            sources=Sources((source,)),
            owns=lambda: self._owner.owns(key.name),
        )
        if target is None:
            runner.target_gone()
        self._running.begin(key, runner)
        return source.rechecks

    async def _cancel(self, key: Key, teardown: Teardown) -> float | None:
        """The Teardown is being deleted: stop the deletion, restore what was stopped for it, and report it."""
        await self._running.drained(key)
        # It may have ended at the last moment.
        try:
            now = await self._client.get(TEARDOWNS, key.name, type=Teardown)
        except NotFoundError:
            return None  # the event of its end follows
        if now.metadata.uid != teardown.metadata.uid or not now.metadata.terminating:
            return _SOON  # the cache is behind
        if now.finished:
            self._teardowns.take(now)
            return None if await self._clean(now) else _UNARCHIVED
        try:
            done = await self._source(now).cancel(self._clock.now())
        except UnwindError as error:
            await self._hold(now, f"cannot cancel yet: {will_retry(error)}", reason=Reason.RESTORING)
            return _REQUEUE
        done = cancellation.with_reason(done, now.metadata.annotations)
        message = f"cancelled: {cancellation.message(done)}"
        log.info("deletion cancelled", teardown=key.name, target=str(now.spec.target), why=message)
        await self._write_cancelled(now, done, message)
        regarding = Regarding.of(now.spec.target)
        self._recorder.report(regarding, EventReason.DELETION_CANCELLED, message, action="Cancel")
        return None  # it is finished, and the next reconcile cleans up

    async def _write_cancelled(self, teardown: Teardown, done: Cancellation, message: str) -> None:
        total = done.removed + done.deleting + done.unknown + done.kept
        steps = teardown.spec.plan.steps if teardown.spec.plan else ()
        own = (step.name for step in steps if step.object.uid == teardown.spec.target.uid)
        step = StepView(
            name=next(own, teardown.spec.title),
            state=StepState.GIVEN_UP if total > done.removed else StepState.REMOVED,
            total=total,
            removed=done.removed,
            left=total - done.removed,
        )
        notice = TeardownNotice(ConditionType.CANCELLED, Reason.CANCELLED, message)
        view = TeardownProgress(
            steps=(step,) if steps else (),
            wave=1,
            phase=Phase.CANCELLED,
            said=(notice,),
            cancelled=done,
        )
        await self._apply_status(teardown, teardown_status.status(teardown, view, now=self._clock.now()))

    async def _give_up(self, key: Key, teardown: Teardown) -> float | None:
        """The Teardown is gone: objects that are not deleted yet stay."""
        uid = teardown.metadata.uid
        if key in self._running:
            await self._running.drained(key)
            return _SOON
        if uid not in self._cleaned:
            inventories = self._deps.inventories
            # The ledger of objects that were left behind is kept.
            chunks = await inventories.owned(await self._owners(teardown))
            await inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))
        self._withdrawn.pop(key, None)
        self._cleaned.discard(uid)
        self._queue.add(key)  # there may be a new Teardown of that name
        return None

    async def _clean(self, teardown: Teardown) -> bool:
        """Delete inventories without ledger entries; those with ledger entries are kept as long as the record. Then its
        end is recorded, and it needs no finalizer any more. False if it is not in the archive yet: its finalizer
        stays, because a cancelled one is gone without it."""
        meta, inventories = teardown.metadata, self._deps.inventories
        if meta.uid not in self._cleaned:
            chunks = await inventories.owned(await self._owners(teardown))
            refused = teardown.phase is Phase.REFUSED
            await inventories.discard_all(chunk for chunk in chunks if refused or not ledgered(chunk))
            self._cleaned.add(meta.uid)
        if Finalizer.TEARDOWN in meta.finalizers:
            if not may_forget(self._deps.archive, teardown):
                return False
            await set_finalizer(self._client, TEARDOWNS, meta, Finalizer.TEARDOWN, wanted=False)
        return True

    async def _prepare(self, teardown: Teardown) -> Teardown | float | None:
        """The Teardown with its plan, after the inventory is written; None if refused; or seconds until a requeue."""
        try:
            found = await self._source(teardown).steps(management_target(teardown))
            made = plan.combine([found], {}, ()).drafted().plan
            return await self._planned(teardown, made) if made else _REQUEUE
        except RefusedError as error:
            await self._refuse(teardown, error.refusal)
            return None
        except ConflictError:
            raise  # it was changed concurrently: reconcile again
        except ApiError as error:
            if error.code != 403:
                raise
            await self._refuse(
                teardown, RequestRefusal(reason=Reason.NO_RIGHT, message=requests.told([requests.missing_right(error)]))
            )
            return None
        except UnwindError as error:
            await self._hold(teardown, will_retry(error))
            return _REQUEUE

    def _source(self, teardown: Teardown) -> RequestSource:
        other = self._others(teardown)
        return other or RequestedSteps(self._client, self._deps, teardown, refusals=self._refusals)

    async def _owners(self, teardown: Teardown) -> Collection[str]:
        """The owners of its Inventories. Regardless of its plan only itself, unless the manager wrote the plan."""
        itself = teardown.metadata.uid
        source = self._source(teardown)
        planned = teardown.spec.plan is not None and await self._keys.verified(teardown)
        return {itself, *await source.owners()} if planned or source.owners_by_uid else (itself,)

    async def _planned(self, teardown: Teardown, made: Plan) -> Teardown:
        """The Teardown with its plan. The inventory names everything that is deleted."""
        # Only if it is unchanged: another replica may have started it, or the user may have withdrawn it.
        read = await self._client.get(TEARDOWNS, teardown.metadata.name)
        now = msgspec.convert(read, Teardown)
        if now.metadata.uid != teardown.metadata.uid or now.spec != teardown.spec or now.metadata.terminating:
            raise UnwindError(
                f"cannot write the plan of Teardown {teardown.metadata.name}: it changed since it was read",
                remedy="will retry",
            )
        # With the finalizer: from now on, objects are deleted.
        patch = self._keys.with_plan(now, made)
        finalizers = [
            *(item for item in now.metadata.finalizers if item != Finalizer.TEARDOWN),
            Finalizer.TEARDOWN.value,
        ]
        patch["metadata"] = patch.get("metadata", {}) | {"finalizers": finalizers}
        written = await self._client.revise(TEARDOWNS, read, patch)
        planned = msgspec.convert(written, Teardown)
        self._teardowns.take(planned)
        return planned

    # Status

    async def _refuse(self, teardown: Teardown, refusal: RequestRefusal) -> None:
        log.info(
            "request refused", teardown=teardown.metadata.name, target=str(teardown.spec.target), why=refusal.message
        )
        gone = refusal.reason is Reason.TARGET_GONE
        notice = TeardownNotice(ConditionType.REFUSED, refusal.reason, refusal.message)
        view = TeardownProgress(steps=(), wave=0, phase=Phase.TARGET_GONE if gone else Phase.REFUSED, said=(notice,))
        blockers = [
            Blocker(
                object=refused.object,
                reason=(refused.reason or refusal.reason).value,
                message=refused.why,
                actor=actor_of(refused.reason or refusal.reason),
            )
            for refused in refusal.objects
        ]
        await self._write_status(teardown, view, blockers)

    async def _hold(self, teardown: Teardown, why: str, *, reason: Reason = Reason.HELD) -> None:
        notice = TeardownNotice(ConditionType.BLOCKED, reason, why)
        await self._write_status(teardown, TeardownProgress(steps=(), wave=0, phase=Phase.HELD, said=(notice,)), [])

    async def _write_status(self, teardown: Teardown, view: TeardownProgress, blockers: list[Blocker]) -> None:
        status = teardown_status.status(teardown, view, now=self._clock.now())
        first = next((notice.message for notice in view.said), "")
        status = msgspec.structs.replace(
            status,
            blockers=tuple(blockers[:BLOCKERS_SHOWN]),
            blocked_by=first,
            # There is no plan, and the message of this condition is about clusters.
            conditions=without_condition(status.conditions, ConditionType.PLANNED),
        )
        await self._apply_status(teardown, status)

    async def _apply_status(self, teardown: Teardown, status: TeardownStatus) -> None:
        if status == teardown.status:
            return
        body = {
            "apiVersion": TEARDOWNS.api_version,
            "kind": TEARDOWNS.kind,
            # With the uid: a Teardown that was deleted concurrently is not created again.
            "metadata": guarded(teardown),
            "status": msgspec.to_builtins(status),
        }
        written = await self._client.apply(TEARDOWNS, body, subresource="status")
        self._teardowns.take(msgspec.convert(written, Teardown))
