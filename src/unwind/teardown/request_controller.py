"""The controller of teardowns that somebody asks for: any object, with all that it holds and owns (`unwind delete`).

What goes is found out once and written into an inventory, then the plan is, and only then anything is deleted: killed
at any moment, it goes on from what is written. What refuses, refuses before that, and ends the request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.meta import ref_of, without_condition
from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import BLOCKERS_SHOWN, TEARDOWNS, Blocker, Cause, Phase, Plan, Teardown
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.inventory.inventories import Inventories, ledgered
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, ConflictError
from unwind.kube.fencing import Fences
from unwind.kube.workqueue import Queue
from unwind.members.members import Members
from unwind.members.targets import ClusterTarget
from unwind.teardown import plan, requests
from unwind.teardown import status as teardown_status
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.records import KEEP, forget, left_of
from unwind.teardown.requested_steps import RefusedError, RequestedSteps, RequestRefusal
from unwind.teardown.runner import TeardownRunner
from unwind.teardown.running import RunningTeardowns
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.status import TeardownProgress, guarded
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.step_sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from unwind.clock import Clock
    from unwind.deleters.registration import External, Registration
    from unwind.deleters.registry import Plugin
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.metrics import Metrics
    from unwind.teardown.records import TeardownCaches
    from unwind.teardown.requested_steps import Refusals

log = logs.get(__name__)

# What could not be looked at may answer again: an API server behind an APIService, for example.
_LOOK_AGAIN = 10.0
# A task that was told to end has done so by then; if not, it is looked at once more.
_SOON = 1.0


class RequestController:
    """Carries out what people ask for with a Teardown of the cause Requested."""

    name = "requested teardowns"

    def __init__(
        self,
        client: Client,
        caches: TeardownCaches,
        *,
        namespace: str,
        owner: ShardOwner,
        metrics: Metrics,
        deleters: Iterable[Registration | External],
        refusals: Refusals,
        plugins: Iterable[Plugin] = (),
        keep: timedelta = KEEP,
        keys: RecordKeys | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`namespace`: Unwind's own, where the inventories and the keys of records are. `refusals`: the objects that
        may not be deleted, each with the reason. `keep`: how long a record stays."""
        self._client = client
        self._refusals = refusals
        self._fleet = Members(client, clock=clock, troubled=_tell_troubled)
        self._means = RemovalDeps(
            fleet=self._fleet,
            inventories=Inventories(client, namespace=namespace),
            deleters=tuple(deleters),
            plugins=tuple(plugins),
            clock=clock,
        )
        self._keys = keys or RecordKeys(client, namespace=namespace)
        self._owner = owner
        self._keep = keep
        self._clock = clock
        self._caches = caches
        self._teardowns = caches.teardowns
        self._withdrawn: dict[Key, str] = {}
        """Teardowns that somebody deleted, and their uids: nothing more is done for them."""
        self._cleaned: set[str] = set()
        """Teardowns, by uid, after which nothing is left to be taken away."""
        self._queue: Queue[Key] = Queue(
            metrics.timed("requested", Fences(owner).around(self._reconcile, lambda key: key.name)),
            group=lambda key: key,
            clock=clock,
            failed=_tell_failed,
        )
        self._under_way: RunningTeardowns[TeardownRunner] = RunningTeardowns(
            caches.teardowns, again=self._queue.add_after
        )
        metrics.queue("requested", self._queue)
        self._teardowns.subscribe(self._teardown_changed)
        owner.subscribe(self._look_at_all)
        caches.subscribe(self._look_at_all)

    @property
    def ready(self) -> bool:
        return self._caches.ready  # a kind that is not served holds nobody up

    async def run(self) -> None:
        """Look after all of them, until cancelled."""
        async with self._fleet, asyncio.TaskGroup() as group:
            self._under_way.belong_to(group)
            await self._keys.until_known()
            await self._teardowns.until_synced()
            await self._queue.run()

    # What happens

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it and it.spec.cause == Cause.REQUESTED:
            if change.new is None:
                self._withdrawn[change.key] = it.metadata.uid
            self._queue.add(change.key)

    def _look_at_all(self) -> None:
        asked = {
            Key("", teardown.metadata.name)
            for teardown in self._teardowns.cache
            if teardown.spec.cause == Cause.REQUESTED
        }
        for key in {*asked, *self._under_way}:
            self._queue.add(key)

    # What is done

    async def _reconcile(self, key: Key) -> float | None:
        if not self._owner.owns(key.name):
            self._under_way.stop(key)
            return None
        if uid := self._withdrawn.get(key):
            return await self._give_up(key, uid)
        teardown = self._teardowns.cache.get(key)
        if teardown is None or key in self._under_way:
            return None
        if teardown.finished:
            await self._clean(teardown)
            left = left_of(teardown, keep=self._keep, now=self._clock.now())
            if left == 0:
                # Whatever its plan says, nothing but its own inventory goes with it.
                await forget(self._client, self._means.inventories, teardown, owners=(teardown.metadata.uid,))
            return left or None
        if teardown.spec.plan is None:
            prepared = await self._prepare(teardown)
            if isinstance(prepared, float):
                return prepared
            if prepared is None:
                return None  # refused, which is told by an event
            teardown = prepared
        elif not (is_own(teardown) and await self._keys.verified(teardown)):
            message = "spec.plan was not written by this manager: delete this Teardown, and request it anew"
            await self._refuse(teardown, RequestRefusal(reason=Reason.NOT_GENUINE, message=message))
            return None
        target = _target(teardown)
        execution = TeardownRunner(
            teardown,
            target,
            self._means,
            self._client,
            sources=Sources((self._source(teardown),)),
            owns=lambda: self._owner.owns(key.name),
        )
        self._under_way.begin(key, execution)
        return None

    async def _give_up(self, key: Key, uid: str) -> float | None:
        """Somebody has taken the request back: what is not deleted yet stays."""
        if key in self._under_way:
            self._under_way.stop(key)
            return _SOON
        inventories = self._means.inventories
        # What was knowingly left behind by then stays written down.
        await inventories.discard_all(chunk for chunk in await inventories.of(uid) if not ledgered(chunk))
        self._withdrawn.pop(key, None)
        self._cleaned.discard(uid)
        self._queue.add(key)  # another of that name may be there
        return None

    async def _clean(self, teardown: Teardown) -> None:
        """Take the accounts of nothing away; those with something in the ledger stay as long as the record does."""
        if teardown.metadata.uid in self._cleaned:
            return
        inventories = self._means.inventories
        chunks = await inventories.of(teardown.metadata.uid)
        if teardown.phase is Phase.REFUSED:
            await inventories.discard_all(chunks)
        else:
            await inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))
        self._cleaned.add(teardown.metadata.uid)

    async def _prepare(self, teardown: Teardown) -> Teardown | float | None:
        """The Teardown with its plan, once the inventory is written; None if it is refused; or when to look again."""
        target = _target(teardown)
        try:
            found = await self._source(teardown).steps(target)
            made = plan.combine([found], {}, ()).drafted().plan
            return await self._planned(teardown, made) if made else _LOOK_AGAIN
        except RefusedError as error:
            await self._refuse(teardown, error.refusal)
            return None
        except ConflictError:
            raise  # somebody else has changed it: it is read anew
        except ApiError as error:
            if error.code != 403:
                raise
            await self._refuse(
                teardown, RequestRefusal(reason=Reason.NO_RIGHT, message=requests.told([requests.unread(error)]))
            )
            return None
        except UnwindError as error:
            await self._hold(teardown, str(error))
            return _LOOK_AGAIN

    def _source(self, teardown: Teardown) -> RequestedSteps:
        return RequestedSteps(self._client, self._means, teardown, refusals=self._refusals)

    async def _planned(self, teardown: Teardown, made: Plan) -> Teardown:
        """The Teardown with its plan. Everything that goes is in the inventory by now."""
        # Only as it was read: somebody who was faster has begun already, or taken it back.
        read = await self._client.get(TEARDOWNS, teardown.metadata.name)
        now = msgspec.convert(read, Teardown)
        if now.metadata.uid != teardown.metadata.uid or now.spec != teardown.spec:
            raise UnwindError(
                f"Teardown {teardown.metadata.name} was changed meanwhile", remedy="it is looked at again"
            )
        written = await self._client.revise(TEARDOWNS, read, self._keys.with_plan(now, made))
        planned = msgspec.convert(written, Teardown)
        self._teardowns.take(planned)
        return planned

    # What it says

    async def _refuse(self, teardown: Teardown, refusal: RequestRefusal) -> None:
        log.info("refused", teardown=teardown.metadata.name, target=str(teardown.spec.target), why=refusal.message)
        gone = refusal.reason is Reason.TARGET_GONE
        said = TeardownNotice(ConditionType.REFUSED, refusal.reason, refusal.message)
        view = TeardownProgress(steps=(), wave=0, phase=Phase.TARGET_GONE if gone else Phase.REFUSED, said=(said,))
        blockers = [
            Blocker(object=item.object, reason=refusal.reason.value, message=item.why, actor="whoever protects it")
            for item in refusal.objects
        ]
        await self._say(teardown, view, blockers)

    async def _hold(self, teardown: Teardown, why: str) -> None:
        said = TeardownNotice(ConditionType.BLOCKED, Reason.HELD, why)
        await self._say(teardown, TeardownProgress(steps=(), wave=0, phase=Phase.HELD, said=(said,)), [])

    async def _say(self, teardown: Teardown, view: TeardownProgress, blockers: list[Blocker]) -> None:
        status = teardown_status.status(teardown, view, now=self._clock.now())
        first = next((item.message for item in view.said), "")
        status = msgspec.structs.replace(
            status,
            blockers=tuple(blockers[:BLOCKERS_SHOWN]),
            blocked_by=first,
            # There is none, and what is said of it is about clusters.
            conditions=without_condition(status.conditions, ConditionType.PLANNED),
        )
        if status == teardown.status:
            return
        body = {
            "apiVersion": TEARDOWNS.api_version,
            "kind": TEARDOWNS.kind,
            # With the uid: one that was taken back meanwhile is not made again.
            "metadata": guarded(teardown),
            "status": msgspec.to_builtins(status),
        }
        written = await self._client.apply(TEARDOWNS, body, subresource="status")
        self._teardowns.take(msgspec.convert(written, Teardown))


def _target(teardown: Teardown) -> ClusterTarget:
    # Nobody else looks after the target, and it is where the manager is: there is no way to it but that.
    return ClusterTarget(ref=teardown.spec.target, secret="", has_class=True)


def is_own(teardown: Teardown) -> bool:
    """Whether the plan of a request names the inventory of this very Teardown, and no other (pure)."""
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    return [step.object for step in steps] == [ref_of(TEARDOWNS, teardown.metadata)]


def _tell_troubled(error: Exception) -> None:
    log.warning("the cluster cannot be followed", why=str(error))


def _tell_failed(key: Key, error: Exception) -> None:
    log.warning("a teardown that was asked for could not be looked after", teardown=key.name, why=str(error))
