"""The records of teardowns: written with the plan before anything is deleted, kept for a while after the end."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind import logs
from unwind.api.meta import manifest, without_condition
from unwind.api.names import SET_ASIDE_ANNOTATION, SET_ASIDE_LABEL, ConditionType, EventReason
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
from unwind.errors import UnwindError
from unwind.kube.decoding import Key
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.events import Regarding
from unwind.teardown import drafts, release
from unwind.teardown import status as teardown_status
from unwind.teardown.status import TeardownProgress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from unwind.api.unwind import Plan
    from unwind.clock import Clock
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.informers import Informer
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import Drafted, TeardownNotice
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

KEEP = timedelta(days=7)
"""How long the record of a teardown stays."""


class TeardownCaches(Protocol):
    """Where Teardowns are followed."""

    teardowns: Informer[Teardown]

    @property
    def ready(self) -> bool:
        """Whether it is known which there are."""

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Have `listed` called whenever a cache is complete."""


class TeardownRecords:
    """The Teardowns of targets of one kind. Others look after those of other kinds."""

    def __init__(
        self,
        client: Client,
        teardowns: Informer[Teardown],
        inventories: Inventories,
        *,
        keys: RecordKeys,
        recorder: Recorder | None = None,
        group: str,
        cause: Cause,
        keep: timedelta,
        clock: Clock,
    ) -> None:
        """`keys`: by which our records are recognised. `group`: the API group of the targets. `cause`: why these go.
        `keep`: how long a record stays."""
        self._client = client
        self._keys = keys
        self._recorder = recorder
        self._teardowns = teardowns
        self._inventories = inventories
        self._group = group
        self._cause = cause
        self._keep = keep
        self._clock = clock
        self.cleaned: set[str] = set()
        """Targets, by uid, that are gone and after which nothing is left to be taken away."""

    def concerns(self, teardown: Teardown) -> bool:
        """Whether it is one of these, and not asked for by somebody: a Machine is of the same group as a Cluster."""
        return teardown.spec.target.group == self._group and teardown.spec.cause != Cause.REQUESTED

    def of(self, key: Key) -> list[Teardown]:
        """Those of the targets that have, or had, this name, as far as the manager wrote them."""
        return [item for item in self._told(key) if self._keys.genuine(item)]

    def keys(self) -> set[Key]:
        """Where the targets are, or were."""
        return {target_of(teardown) for teardown in self._teardowns.cache if self.concerns(teardown)}

    def get(self, uid: str) -> Teardown | None:
        """The record of the target with this uid, as far as the cache knows."""
        return self._keys.chosen(self._teardowns.cache.by("uid", uid), uid)

    async def written(self, target: ClusterTarget, draft: Callable[[], Awaitable[Drafted]]) -> Teardown:
        """The target's Teardown; written with its plan before anything is deleted. If `draft` made none, it has none,
        and says why."""
        found = self.get(target.ref.uid)
        if found and found.spec.plan:
            return found
        drafted = await draft()
        if found is None:
            teardown = await self._created(target, drafted.plan)
        elif drafted.plan:
            teardown = await self._planned(found, drafted.plan)
        else:
            await self._hold(found, drafted, target)
            return found
        self._teardowns.take(teardown)
        if teardown.spec.plan is None:
            await self._hold(teardown, drafted, target)
        return teardown

    async def retain(self, key: Key) -> float | None:
        """See to it that finished records go when their time is over; in how many seconds the next one is due."""
        due: list[float] = []
        for teardown in self._told(key):
            if self._keys.genuine(teardown):
                left = left_of(teardown, keep=self._keep, now=self._clock.now())
            elif self._keys.is_of_another(teardown):
                continue
            elif SET_ASIDE_LABEL in teardown.metadata.labels:
                left = _aside_for(teardown, keep=self._keep, now=self._clock.now())
            else:
                if not await self._keys.verified(teardown):
                    await self._set_aside(teardown)
                continue
            if left:
                due.append(left)
            elif left is not None:
                await self._forget(teardown)
        return min(due, default=None)

    def _told(self, key: Key) -> list[Teardown]:
        """Those that say that they are of a target of this name, whoever wrote them."""
        return [teardown for teardown in self._teardowns.cache.by("target", key) if self.concerns(teardown)]

    async def _forget(self, teardown: Teardown) -> None:
        if self._keys.genuine(teardown):
            steps = teardown.spec.plan.steps if teardown.spec.plan else ()
            await forget(self._client, self._inventories, teardown, owners=(step.object.uid for step in steps))
            self.cleaned.discard(teardown.spec.target.uid)
        else:  # whatever its plan says, none of that is its own
            await forget(self._client, self._inventories, teardown, owners=())

    async def _created(self, target: ClusterTarget, plan: Plan | None) -> Teardown:
        """A new record of the target; or the one that is there already, if the manager wrote it."""
        uid = target.ref.uid
        for name in self._keys.names(uid):
            wanted = self._keys.signed(drafts.teardown(target, plan, name=name, cause=self._cause))
            try:
                return msgspec.convert(await self._client.create(TEARDOWNS, manifest(TEARDOWNS, wanted)), Teardown)
            except AlreadyExistsError:
                found = await self._client.get(TEARDOWNS, name, type=Teardown)
            if await self._keys.verified(found) and found.spec.target.uid == uid:
                return found
            if not self._keys.is_of_another(found):
                why = await self._set_aside(found)
                plan = plan and msgspec.structs.replace(plan, warnings=(*plan.warnings, why))
        raise UnwindError(f"every name for the record of {target} is taken by Teardowns that the manager did not write")

    async def _planned(self, found: Teardown, plan: Plan) -> Teardown:
        """The record with its plan, signed anew."""
        read = await self._client.get(TEARDOWNS, found.metadata.name)
        now = msgspec.convert(read, Teardown)
        if now.metadata.uid != found.metadata.uid or not await self._keys.verified(now):
            raise UnwindError(f"Teardown {found.metadata.name} was changed meanwhile", remedy="it is read again")
        if now.spec.plan:
            return now  # another replica was faster
        return msgspec.convert(
            await self._client.revise(TEARDOWNS, read, self._keys.with_plan(now, plan)),
            Teardown,
        )

    async def _set_aside(self, teardown: Teardown) -> str:
        """Mark a Teardown that has the place of a record of ours; what is said of it."""
        meta = teardown.metadata
        why = f"Teardown {meta.name} was not written by this manager, or was changed since: it is ignored"
        if SET_ASIDE_LABEL not in meta.labels:
            mark = {"labels": {SET_ASIDE_LABEL: "true"}, "annotations": {SET_ASIDE_ANNOTATION: why}}
            await self._client.patch(TEARDOWNS, meta.name, {"metadata": {"uid": meta.uid} | mark})
            log.warning("record set aside", teardown=meta.name, uid=meta.uid, target=str(teardown.spec.target))
            if self._recorder:
                it = Regarding(TEARDOWNS.api_version, TEARDOWNS.kind, meta.name, meta.uid)
                self._recorder.report(it, EventReason.RECORD_SET_ASIDE, why, action="Verify", type="Warning")
        return why

    async def _hold(self, teardown: Teardown, drafted: Drafted, target: ClusterTarget) -> None:
        now = self._clock.now()
        await hold(self._client, teardown, drafted.said, gated=target.gated, now=now)


async def hold(
    client: Client, teardown: Teardown, said: tuple[TeardownNotice, ...], *, gated: bool = True, now: datetime
) -> None:
    """Say why a teardown has no plan."""
    overdue = release.overdue(teardown, now=now)
    view = TeardownProgress(steps=(), wave=0, phase=Phase.HELD, said=said, gated=gated, overdue=overdue)
    status = teardown_status.status(teardown, view, now=now)
    # What somebody else says of it is not taken back, and is no reason to say the same again.
    others = without_condition(teardown.status.conditions, ConditionType.GATE_NOT_ARMED)
    if status == msgspec.structs.replace(teardown.status, conditions=others):
        return
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": teardown_status.guarded(teardown),
        "status": msgspec.to_builtins(status),
    }
    await client.apply(TEARDOWNS, body, subresource="status")


def left_of(teardown: Teardown, *, keep: timedelta, now: datetime) -> float | None:
    """For how many seconds a record is still kept; None if it is not finished (pure)."""
    ended = teardown.status.finished_at
    return max(0.0, (ended + keep - now).total_seconds()) if teardown.finished and ended else None


def _aside_for(teardown: Teardown, *, keep: timedelta, now: datetime) -> float:
    """For how many seconds a record that was set aside is still kept, as evidence (pure)."""
    since = teardown.status.finished_at or teardown.metadata.creation_timestamp
    return max(0.0, (since + keep - now).total_seconds()) if since else 0.0


async def forget(client: Client, inventories: Inventories, teardown: Teardown, *, owners: Iterable[str]) -> None:
    """Take a record away, with its ledger: the inventories of these owners."""
    await inventories.discard_all(await inventories.owned(owners))
    with suppress(NotFoundError):  # somebody was faster
        await client.delete(TEARDOWNS, teardown.metadata.name, uid=teardown.metadata.uid)


def target_of(teardown: Teardown) -> Key:
    """Where the target of a teardown is."""
    return Key(teardown.spec.target.namespace, teardown.spec.target.name)
