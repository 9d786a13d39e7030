"""Teardown records: written with the plan before the first deletion, kept for a retention time after the end."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind import logs
from unwind.api.meta import manifest, without_condition
from unwind.api.names import (
    DELETE_FOR_MOVE_ANNOTATION,
    SET_ASIDE_ANNOTATION,
    SET_ASIDE_LABEL,
    ConditionType,
    EventReason,
)
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
from unwind.errors import UnwindError
from unwind.kube.decoding import Key
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.events import Regarding
from unwind.teardown import drafts, force_release
from unwind.teardown import status as teardown_status
from unwind.teardown.archive_controller import ASK_AGAIN, may_forget
from unwind.teardown.status import TeardownProgress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Plan, TeardownSpec
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client, Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.informers import Informer
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.archive_controller import Archive
    from unwind.teardown.drafts import Drafted, PolicyTerms, TeardownNotice
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

KEEP = timedelta(days=7)
"""How long a finished Teardown is kept."""


class NotStoredError(UnwindError):
    """The API server stored a record without some of its fields, so its signature does not match."""


class TeardownCaches(Protocol):
    """The cache of Teardowns."""

    teardowns: Informer[Teardown]

    @property
    def ready(self) -> bool:
        """Whether the cache is synced."""

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Call `listed` whenever a cache is synced."""


class TeardownRecords:
    """The Teardowns of targets in one API group."""

    def __init__(
        self,
        shared: ControllerDeps,
        teardowns: Informer[Teardown],
        inventories: Inventories,
        *,
        keys: RecordKeys,
        group: str,
        cause: Cause,
        keep: timedelta,
        archive: Archive | None = None,
    ) -> None:
        """`keys`: verify the signatures of records. `group`: the API group of the targets. `cause`: the cause of the
        Teardowns. `keep`: how long a finished record is kept. `archive`: a record is kept until it is there."""
        self._client = shared.client
        self._keys = keys
        self._recorder = shared.recorder
        self._teardowns = teardowns
        self._inventories = inventories
        self._group = group
        self._cause = cause
        self._keep = keep
        self._clock = shared.clock
        self._archive = archive
        self.cleaned: set[str] = set()
        """The uids of deleted targets for which no cleanup is left."""

    def concerns(self, teardown: Teardown) -> bool:
        """Whether a Teardown is one of these. A request is not: a Machine is in the same API group as a Cluster."""
        return teardown.spec.target.group == self._group and teardown.spec.cause != Cause.REQUESTED

    def of(self, key: Key) -> list[Teardown]:
        """The genuine Teardowns of targets that have, or had, this name."""
        return [teardown for teardown in self._naming(key) if self._keys.genuine(teardown)]

    def keys(self) -> set[Key]:
        """The keys of all targets that have a Teardown."""
        return {target_of(teardown) for teardown in self._teardowns.cache if self.concerns(teardown)}

    def get(self, uid: str) -> Teardown | None:
        """The record of the target with this uid in the cache."""
        return self._keys.chosen(self._teardowns.cache.by("uid", uid), uid)

    async def written(
        self, target: ClusterTarget, draft: Callable[[], Awaitable[Drafted]], *, cause: Cause | None = None
    ) -> Teardown:
        """The Teardown of the target, written with its plan before the first deletion. If `draft` returns no plan, the
        Teardown has none and its conditions tell why. `cause`: of a new Teardown, if it is not the usual one."""
        found, cause = self.get(target.ref.uid), cause or self._cause
        over = found is not None and _is_over(found, target, cause)
        if found and found.spec.plan and not over:
            return found
        drafted = await draft()
        if found is None:
            teardown = await self.created(target, drafted.plan, cause=cause, terms=drafted.terms)
        elif drafted.plan or over:
            teardown = await self._planned(found, target, drafted, cause)
        else:
            await self._hold(found, drafted, target)
            return found
        self._teardowns.take(teardown)
        if teardown.spec.plan is None:
            await self._hold(teardown, drafted, target)
        return teardown

    async def retain(self, key: Key) -> float | None:
        """Delete records whose retention time is over; return the seconds until the next one is due."""
        due: list[float] = []
        for teardown in self._naming(key):
            if self._keys.genuine(teardown):
                left = left_of(teardown, keep=self._keep, now=self._clock.now(), archive=self._archive)
            elif self._keys.is_of_another(teardown):
                continue
            elif SET_ASIDE_LABEL in teardown.metadata.labels:
                left = _aside_left(teardown, keep=self._keep, now=self._clock.now())
            else:
                if not await self._keys.verified(teardown):
                    await self._set_aside(teardown)
                continue
            if left:
                due.append(left)
            elif left is not None:
                await self._forget(teardown)
        return min(due, default=None)

    def _naming(self, key: Key) -> list[Teardown]:
        """The Teardowns that name a target of this key, genuine or not."""
        return [teardown for teardown in self._teardowns.cache.by("target", key) if self.concerns(teardown)]

    async def _forget(self, teardown: Teardown) -> None:
        if self._keys.genuine(teardown):
            steps = teardown.spec.plan.steps if teardown.spec.plan else ()
            await forget(self._client, self._inventories, teardown, owners=(step.object.uid for step in steps))
            self.cleaned.discard(teardown.spec.target.uid)
        else:  # its plan is not trusted, so no inventory belongs to it
            await forget(self._client, self._inventories, teardown, owners=())

    async def created(
        self,
        target: ClusterTarget,
        plan: Plan | None,
        *,
        name: str = "",
        cause: Cause | None = None,
        member: ObjectRef | None = None,
        title: str = "",
        terms: PolicyTerms | None = None,
    ) -> Teardown:
        """A new record of the target, or the existing one if it is genuine. `name`: default is the uid of the target.
        `member`: the cluster that its objects are on, if that is not the target. `terms`: what policies say."""
        uid, cause = target.ref.uid, cause or self._cause
        for called in self._keys.names(name or uid):
            draft = drafts.teardown(target, plan, name=called, cause=cause, member=member, title=title, terms=terms)
            wanted = self._keys.signed(draft)
            try:
                made = msgspec.convert(await self._client.create(TEARDOWNS, manifest(TEARDOWNS, wanted)), Teardown)
            except AlreadyExistsError:
                found = await self._client.get(TEARDOWNS, called, type=Teardown)
            else:
                return await self._stored(wanted, made)
            if found.spec.target.uid == uid and _is_over(found, target, cause) and await self._keys.verified(found):
                raise UnwindError(
                    f"cannot create the Teardown of {target}: the record of its move is still there",
                    remedy="will retry",
                )
            if await self._keys.verified(found) and found.spec.target.uid == uid and _same(found.spec.cause, cause):
                return found
            if not self._keys.is_of_another(found):
                why = await self._set_aside(found)
                plan = plan and msgspec.structs.replace(plan, warnings=(*plan.warnings, why))
        raise UnwindError(
            f"cannot create the Teardown of {target}: every name is taken by a Teardown that the manager did not write",
            remedy=f"see the audit log for their author, then run `kubectl delete teardowns -l {SET_ASIDE_LABEL}`",
        )

    async def _planned(self, found: Teardown, target: ClusterTarget, drafted: Drafted, cause: Cause) -> Teardown:
        """The record with its plan, what policies say now, and a new signature."""
        read = await self._client.get(TEARDOWNS, found.metadata.name)
        now = msgspec.convert(read, Teardown)
        if now.metadata.uid != found.metadata.uid or not await self._keys.verified(now):
            raise UnwindError(
                f"cannot write the plan of Teardown {found.metadata.name}: it changed since it was read",
                remedy="will retry",
            )
        if _is_over(now, target, cause):
            return await self._planned_again(read, now, target, drafted, cause)
        if now.spec.plan or drafted.plan is None:
            return now  # another replica has written the plan, or what there is of it
        spec = drafts.with_terms(now.spec, drafted.terms) if drafted.terms else now.spec
        return await self._respecified(read, now, msgspec.structs.replace(spec, plan=drafted.plan))

    async def _planned_again(
        self, read: Object, now: Teardown, target: ClusterTarget, drafted: Drafted, cause: Cause
    ) -> Teardown:
        """The record of the move of a Cluster that is no longer moved, as the record of its deletion.

        The plan of a move was made for the ledger, so steps that could not be read are missing. The record is changed
        by one write: if it were deleted first, a process that ends in between would lose when the move ended, and the
        deadline would count from the deletion.
        """
        if now.status.phase:  # before its cause: a finished record of a deletion opens the gate
            read = await self._client.revise(TEARDOWNS, read, {"status": None}, subresource="status")
            now = msgspec.convert(read, Teardown)
        # As after any pause, its deadline begins again.
        began = self._clock.now().replace(microsecond=0)
        target = msgspec.structs.replace(target, deleted_at=max(began, target.deleted_at or began))
        made = drafts.teardown(target, drafted.plan, cause=cause, terms=drafted.terms).spec
        # These are immutable, and the served version of Clusters may be another one since.
        made = msgspec.structs.replace(made, target=now.spec.target, title=now.spec.title, member=now.spec.member)
        written = await self._respecified(read, now, made)
        why = (
            f"{target} was deleted as `clusterctl move` does ({DELETE_FOR_MOVE_ANNOTATION} and paused),"
            " and is no longer moved: its deletion is planned again"
        )
        log.warning("record of a move planned again", teardown=now.metadata.name, target=str(target))
        regarding = Regarding.of(now.spec.target)
        self._recorder.report(regarding, EventReason.MOVE_ENDED, why, action="Plan", type="Warning")
        return written

    async def _respecified(self, read: Object, now: Teardown, spec: TeardownSpec) -> Teardown:
        wanted = msgspec.structs.replace(now, spec=spec)
        written = await self._client.revise(TEARDOWNS, read, self._keys.changed_spec(now, wanted))
        return await self._stored(wanted, msgspec.convert(written, Teardown))

    async def _stored(self, wanted: Teardown, written: Teardown) -> Teardown:
        """The record as the API server stored it. Raises NotStoredError, and deletes it, if fields are missing: their
        values may be what keeps a gate closed, and a plan cannot be changed later."""
        if await self._keys.verified(written):
            return written
        meta, lost = written.metadata, _lost(msgspec.to_builtins(wanted.spec), msgspec.to_builtins(written.spec))
        with suppress(NotFoundError):  # already deleted
            await self._client.delete(TEARDOWNS, meta.name, uid=meta.uid)
        error = NotStoredError(
            f"cannot write Teardown {meta.name}: the API server did not store {', '.join(lost) or 'it as written'}",
            remedy="update the CRDs with `unwind install`",
        )
        regarding = Regarding.of(wanted.spec.target)
        self._recorder.report(regarding, EventReason.RECORD_NOT_STORED, str(error), action="Record", type="Warning")
        raise error

    async def _set_aside(self, teardown: Teardown) -> str:
        """Label a Teardown that has the name of one of our records but is not genuine; return the warning about it."""
        meta = teardown.metadata
        why = (
            f"Teardown {meta.name} was not written by this manager, or was changed since, and is ignored; see the"
            f" audit log for its author, then run `kubectl delete teardown {meta.name}`"
        )
        if SET_ASIDE_LABEL not in meta.labels:
            mark = {"labels": {SET_ASIDE_LABEL: "true"}, "annotations": {SET_ASIDE_ANNOTATION: why}}
            await self._client.patch(TEARDOWNS, meta.name, {"metadata": {"uid": meta.uid} | mark})
            log.warning(
                "record set aside",
                teardown=meta.name,
                uid=meta.uid,
                target=str(teardown.spec.target),
                why=why,
            )
            regarding = Regarding(TEARDOWNS.api_version, TEARDOWNS.kind, meta.name, meta.uid)
            self._recorder.report(regarding, EventReason.RECORD_SET_ASIDE, why, action="Verify", type="Warning")
        return why

    async def _hold(self, teardown: Teardown, drafted: Drafted, target: ClusterTarget) -> None:
        now = self._clock.now()
        await report_hold(self._client, teardown, drafted.said, gated=target.gated, now=now)


async def report_hold(
    client: Client, teardown: Teardown, said: tuple[TeardownNotice, ...], *, gated: bool = True, now: datetime
) -> None:
    """Report in status why a Teardown has no plan."""
    overdue = force_release.overdue(teardown, now=now)
    view = TeardownProgress(steps=(), wave=0, phase=Phase.HELD, said=said, gated=gated, overdue=overdue)
    status = teardown_status.status(teardown, view, now=now)
    # Other field managers own these conditions: they are not removed here, and do not cause another write.
    others = teardown.status.conditions
    for type_ in (ConditionType.GATE_NOT_ARMED, ConditionType.RELEASE_IGNORED):
        others = without_condition(others, type_)
    if status == msgspec.structs.replace(teardown.status, conditions=others):
        return
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": teardown_status.guarded(teardown),
        "status": msgspec.to_builtins(status),
    }
    await client.apply(TEARDOWNS, body, subresource="status")


def _lost(wanted: object, stored: object, path: str = "spec") -> list[str]:
    """The paths of values that were not stored as they were sent (pure)."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return [lost for name, value in wanted.items() for lost in _lost(value, stored.get(name), f"{path}.{name}")]
    return [] if wanted == stored else [path]


def _is_over(record: Teardown, target: ClusterTarget, cause: Cause) -> bool:
    """Whether a record is about the move of a target that is here, and is not moved any more (pure)."""
    return record.spec.cause == Cause.MOVED and cause != Cause.MOVED and target.terminating


def _same(cause: str, other: Cause) -> bool:
    """Whether two causes are of the same record: a cluster has one record, whether it is deleted or moved."""
    of_clusters = (Cause.CLUSTER_DELETED, Cause.MOVED)
    return cause == other or (cause in of_clusters and other in of_clusters)


def left_of(teardown: Teardown, *, keep: timedelta, now: datetime, archive: Archive | None = None) -> float | None:
    """The seconds that a record is still kept; None if it is not finished. One that is not in the archive yet is kept
    for longer."""
    ended = teardown.status.finished_at
    left = max(0.0, (ended + keep - now).total_seconds()) if teardown.finished and ended else None
    return ASK_AGAIN if left == 0 and not may_forget(archive, teardown) else left


def _aside_left(teardown: Teardown, *, keep: timedelta, now: datetime) -> float:
    """The seconds that a record that was set aside is still kept, as evidence (pure)."""
    since = teardown.status.finished_at or teardown.metadata.creation_timestamp
    return max(0.0, (since + keep - now).total_seconds()) if since else 0.0


async def forget(client: Client, inventories: Inventories, teardown: Teardown, *, owners: Iterable[str]) -> None:
    """Delete a record with its ledger: the inventories of these owners."""
    await inventories.discard_all(await inventories.owned(owners))
    with suppress(NotFoundError):  # already deleted
        await client.delete(TEARDOWNS, teardown.metadata.name, uid=teardown.metadata.uid)


def target_of(teardown: Teardown) -> Key:
    """The key of the target of a Teardown."""
    return Key(teardown.spec.target.namespace, teardown.spec.target.name)
