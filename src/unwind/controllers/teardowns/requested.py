"""The controller of teardowns that somebody asks for: any object, with all that it holds and owns (`unwind delete`).

What goes is found out once and written into an inventory, then the plan is, and only then anything is deleted: killed
at any moment, it goes on from what is written. What refuses, refuses before that, and ends the request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.conditions import without_condition
from unwind.api.fields import Unknown
from unwind.api.meta import ref_of
from unwind.api.names import (
    MAX_OBJECTS_ANNOTATION,
    REQUEST_PREFIX,
    RESOURCE_ANNOTATION,
    VOLUMES_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.api.policies import volume_policy
from unwind.api.unwind import BLOCKERS_SHOWN, TEARDOWNS, Blocker, Cause, Effort, Phase, Plan, Step, Teardown
from unwind.clock import SYSTEM
from unwind.controllers.teardowns import entitling, telling
from unwind.controllers.teardowns.drafting import Said
from unwind.controllers.teardowns.executing import Execution
from unwind.controllers.teardowns.recording import KEEP, forget, left_of
from unwind.controllers.teardowns.signing import RecordKeys
from unwind.controllers.teardowns.steps import Means
from unwind.controllers.teardowns.telling import View, guarded
from unwind.controllers.teardowns.undertaking import UnderWay
from unwind.errors import UnwindError
from unwind.fleet.fleet import Fleet
from unwind.fleet.targets import Anchor
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.fencing import Fences
from unwind.kube.queue import Queue
from unwind.kube.views import Key
from unwind.removing import blast, claims, shielded
from unwind.removing.blast import Told
from unwind.removing.inventories import Inventories, ledgered
from unwind.removing.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.controllers.addons.caches import Caches
    from unwind.deleting.registering import External, Registration
    from unwind.deleting.registry import Plugin
    from unwind.fleet.member import Member
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.metrics import Metrics
    from unwind.parts import Owner
    from unwind.removing.blast import Blast

log = logs.get(__name__)

# What could not be looked at may answer again: an API server behind an APIService, for example.
_LOOK_AGAIN = 10.0
# A task that was told to end has done so by then; if not, it is looked at once more.
_SOON = 1.0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is deleted."""

    reason: Reason
    message: str
    objects: tuple[Told, ...] = ()


class Requested:
    """Carries out what people ask for with a Teardown of the cause Requested."""

    name = "requested teardowns"

    def __init__(
        self,
        client: Client,
        caches: Caches,
        *,
        namespace: str,
        owner: Owner,
        metrics: Metrics,
        deleters: Iterable[Registration | External],
        plugins: Iterable[Plugin] = (),
        keep: timedelta = KEEP,
        keys: RecordKeys | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`namespace`: Unwind's own, where the inventories and the keys of records are. `keep`: how long a record
        stays."""
        self._client = client
        self._namespace = namespace
        self._fleet = Fleet(client, clock=clock, troubled=_tell_troubled)
        self._means = Means(
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
        self._under_way: UnderWay[Execution] = UnderWay(caches.teardowns, again=self._queue.add_after)
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
        asked = {Key("", one.metadata.name) for one in self._teardowns.cache if one.spec.cause == Cause.REQUESTED}
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
            await self._refuse(teardown, Refusal(reason=Reason.NOT_GENUINE, message=message))
            return None
        # Nobody else looks after the target, and it is where the manager is: there is no way to it but that.
        target = Anchor(ref=teardown.spec.target, secret="", has_class=True)
        # Claims that go are in the inventory. One that appears later stays.
        execution = Execution(teardown, target, self._means, self._client, owns=lambda: self._owner.owns(key.name))
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
        try:
            async with self._fleet.management() as member:
                found = await self._looked_at(member, teardown)
                if isinstance(found, Refusal):
                    await self._refuse(teardown, found)
                    return None
                return await self._planned(member, teardown, found)
        except ConflictError:
            raise  # somebody else has changed it: it is read anew
        except ApiError as error:
            if error.code != 403:
                raise
            await self._refuse(
                teardown, Refusal(reason=Reason.NO_RIGHT, message=entitling.told([entitling.unread(error)]))
            )
            return None
        except UnwindError as error:
            await self._hold(teardown, str(error))
            return _LOOK_AGAIN

    async def _looked_at(self, member: Member, teardown: Teardown) -> Blast | Refusal:
        """What goes, as the server says now and not a cache; or why nothing does."""
        ref = teardown.spec.target
        # First of all: the API server has authorised the request by these words alone.
        if invalid := invalid_request(teardown):
            return Refusal(reason=Reason.INVALID_TARGET, message=invalid)
        resource = await member.discovery.resource(ref.kind, group=ref.group, version=ref.version or None)
        said = teardown.metadata.annotations.get(RESOURCE_ANNOTATION, "")
        if invalid := invalid_target(ref, resource, said):
            return Refusal(reason=Reason.INVALID_TARGET, message=invalid)
        volumes = volume_policy(teardown.metadata.annotations)
        if isinstance(volumes, Unknown):
            return Refusal(reason=Reason.UNKNOWN_VALUE, message=f"{VOLUMES_ANNOTATION} is {volumes}")
        try:
            seen = await blast.look(member, resource, ref.name, namespace=ref.namespace, uid=ref.uid, volumes=volumes)
        except (NotFoundError, blast.AnotherError) as error:
            return Refusal(reason=Reason.TARGET_GONE, message=str(error))
        if refusing := await shielded.refusals(member, seen, home=self._namespace):
            return Refusal(reason=Reason.PROTECTED, message=refused(refusing), objects=refusing)
        if too_many := exceeds(teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION), len(seen.everything)):
            return Refusal(reason=Reason.TOO_MANY_OBJECTS, message=too_many)
        if lacking := await entitling.missing(self._client, seen.entries):
            return Refusal(reason=Reason.NO_RIGHT, message=entitling.told(lacking))
        return seen

    async def _planned(self, member: Member, teardown: Teardown, seen: Blast) -> Teardown:
        """First the inventory, then the plan: with a plan, everything that goes is written down."""
        owner = ref_of(TEARDOWNS, teardown.metadata)
        records = Records(self._means.inventories, owner, member)
        await records.load(exactly=True)
        # With the claims that stay: they belong into the ledger.
        wanted = {entry.object.uid: entry for entry in (*seen.entries, *seen.retained)}
        # An earlier try may have died over this, and something may have gone or come since.
        await records.change({key: None for key in records.entries if key not in wanted})
        await records.put({key: entry for key, entry in wanted.items() if key not in records.entries})
        if records.entries.keys() != wanted.keys():
            raise UnwindError("the inventory is not as it was written", remedy="it is looked at again")
        made = plan(
            owner, teardown.spec.title, objects=len(seen.entries), warnings=tuple(claims.warnings(seen.retained))
        )
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

    async def _refuse(self, teardown: Teardown, refusal: Refusal) -> None:
        log.info("refused", teardown=teardown.metadata.name, target=str(teardown.spec.target), why=refusal.message)
        gone = refusal.reason is Reason.TARGET_GONE
        said = Said(ConditionType.REFUSED, refusal.reason, refusal.message)
        view = View(steps=(), wave=0, phase=Phase.TARGET_GONE if gone else Phase.REFUSED, said=(said,))
        blockers = [
            Blocker(object=one.object, reason=refusal.reason.value, message=one.why, actor="whoever protects it")
            for one in refusal.objects
        ]
        await self._say(teardown, view, blockers)

    async def _hold(self, teardown: Teardown, why: str) -> None:
        said = Said(ConditionType.BLOCKED, Reason.HELD, why)
        await self._say(teardown, View(steps=(), wave=0, phase=Phase.HELD, said=(said,)), [])

    async def _say(self, teardown: Teardown, view: View, blockers: list[Blocker]) -> None:
        status = telling.status(teardown, view, now=self._clock.now())
        first = next((one.message for one in view.said), "")
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


def invalid_request(teardown: Teardown) -> str:
    """Why a request cannot be for exactly one object; empty if it is (pure)."""
    name, ref = teardown.metadata.name, teardown.spec.target
    if not name.startswith(REQUEST_PREFIX):
        return (
            f"the name of a requested Teardown must begin with {REQUEST_PREFIX}: delete this one, and request it anew"
        )
    return "" if ref.uid and ref.name else "spec.target must have a name and a uid"


def invalid_target(ref: ObjectRef, resource: Resource, said: str) -> str:
    """How a target differs from the resource that the API server serves for its kind; empty if it agrees (pure).

    `said`: the resource by which the API server has authorised the request.
    """
    if said != resource.plural:
        return f"annotation {RESOURCE_ANNOTATION} is {said!r}, but the resource of {ref.kind} is {resource.plural!r}"
    if resource.namespaced and not ref.namespace:
        return f"{ref.kind} is namespaced, but spec.target.namespace is empty"
    if ref.namespace and not resource.namespaced:
        return f"{ref.kind} is cluster-scoped, but spec.target.namespace is {ref.namespace!r}"
    return ""


def is_own(teardown: Teardown) -> bool:
    """Whether the plan of a request names the inventory of this very Teardown, and no other (pure)."""
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    return [step.object for step in steps] == [ref_of(TEARDOWNS, teardown.metadata)]


def plan(owner: ObjectRef, title: str, *, objects: int, warnings: tuple[str, ...] = ()) -> Plan:
    """One step, whose inventory this owner has: in which order the objects go is known from what they are."""
    step = Step(name=title, object=owner, effort=Effort.ENFORCE.value, wave=1, objects=objects)
    return Plan(steps=(step,), waves=1, objects=objects, warnings=warnings)


def refused(objects: Iterable[Told]) -> str:
    """What refuses, for people."""
    return "; ".join(f"{one.object}: {one.why}" for one in objects)


def exceeds(limit: str | None, objects: int) -> str:
    """That more would go than somebody allows; empty if not. A limit that is no number allows nothing."""
    if limit is None:
        return ""
    try:
        allowed = int(limit)
    except ValueError:
        return f"{MAX_OBJECTS_ANNOTATION} is {limit!r}, which is no number"
    return f"{objects} objects would go, and no more than {allowed} may" if objects > allowed else ""


def _tell_troubled(error: Exception) -> None:
    log.warning("the cluster cannot be followed", why=str(error))


def _tell_failed(key: Key, error: Exception) -> None:
    log.warning("a teardown that was asked for could not be looked after", teardown=key.name, why=str(error))
