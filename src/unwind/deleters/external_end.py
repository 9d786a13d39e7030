"""The end of the chain of an object that represents something outside the cluster, wherever a removal meets it.

While the operator of the kind is running, it deletes the external resource: Unwind deletes the object and waits for the
finalizer of the operator. If the operator is not running, the external end deletes the resource and verifies its
absence. Then Unwind removes the finalizer of the operator, and records that in the ledger. If any of this is unknown,
the object is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.concurrency import SingleFlight
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, TransientError
from unwind.deleters.registry import EXTERNAL_SCOPE
from unwind.kube.absence import Presence
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext, End
    from unwind.deleters.outcomes import Outcome
    from unwind.deleters.registration import External
    from unwind.kube.absence import Sighting
    from unwind.kube.client import Client, Object

_BEGUN, _RELEASED = "begun", "released"
# Nothing reports that an operator starts or stops.
_LOOK_AGAIN = 30.0
# Seconds for which the answer is used for other objects.
_RECENT = 2.0


class ReleasedFinalizers(NamedTuple):
    """Finalizers of an operator that Unwind removes, for the ledger."""

    object: ObjectRef
    resource: Resource
    cluster: ObjectRef
    """The member that the object is on."""
    system_uid: str
    """The identity of that cluster."""
    finalizers: tuple[str, ...]
    external: str
    """The name of the external end."""
    why: str
    """How it is known that the external resource is absent."""

    @property
    def message(self) -> str:
        removed = ", ".join(self.finalizers)
        return f"removed the finalizer {removed}: its operator is not running, and {self.why}"


class ExternalEnds(Protocol):
    """The external ends of objects on member clusters, and the ledger."""

    async def is_home(self, system_uid: str) -> bool:
        """Whether this is the management cluster, where a controller watches the objects with external resources."""

    async def open(self, external: External, *, cluster: ObjectRef, namespace: str) -> End:
        """The end with the credentials that are mapped to this member and namespace. Raises if there are none."""

    async def record(self, released: ReleasedFinalizers) -> None:
        """Write a ledger entry about finalizers of an operator, before they are removed."""

    async def withdraw(self, ref: ObjectRef) -> None:
        """Delete that entry: they were not removed."""


class ChosenEnd(NamedTuple):
    """The end of the chain for one pass."""

    end: End
    left_to_others: bool
    """Whether others delete the external resource: then deleters that act on it are not called."""


class ExternalObjects:
    """Chooses the end of the chain for the objects of one removal."""

    def __init__(self, ends: ExternalEnds | None, cluster: ObjectRef) -> None:
        """`cluster`: the object that represents the cluster of the removal."""
        self._ends = ends
        self._cluster = cluster
        self._running: dict[External, tuple[float, str]] = {}
        """The running operators, and when that was read."""
        self._reading: SingleFlight[str] = SingleFlight()

    async def choose(self, external: External, ctx: DeleteContext, obj: Object) -> ChosenEnd:
        """The end of the chain for an object of a kind with an external resource. An error becomes an end that raises
        it, because an object that is kept needs no end."""
        try:
            return await self._choose(external, ctx, obj)
        except Exception as error:  # noqa: BLE001 - the code of a plugin may raise anything
            return ChosenEnd(_FailingEnd(error), left_to_others=True)

    async def _choose(self, external: External, ctx: DeleteContext, obj: Object) -> ChosenEnd:
        if ctx.absent and EXTERNAL_SCOPE not in ctx.memo.scopes():
            return ChosenEnd(KubernetesEnd(), left_to_others=True)
        if self._ends is None:
            raise PermanentError(
                f"cannot delete {ctx.ref}: {external.name} is not available here",
                reason=Reason.HELD,
                remedy="delete it with `unwind delete`, which a manager carries out",
            )
        if await self._ends.is_home(ctx.cluster):
            return ChosenEnd(_HomeEnd(external), left_to_others=True)
        running = "" if ctx.absent else await self._operator(external, ctx)
        if running and (_terminating(obj) or _held(external, obj)):
            await self._leave_to_operator(ctx)
            return ChosenEnd(_OperatorEnd(running), left_to_others=True)
        end = await self._ends.open(external, cluster=self._cluster, namespace=ctx.ref.namespace)
        if not running:
            return ChosenEnd(ExternalEnd(external, end, self._ends, self._cluster), left_to_others=False)
        # The operator adds its finalizer before it creates the resource.
        memo = ctx.memo.of(EXTERNAL_SCOPE).nested()
        seen = await end.sighting(ctx.with_memo(memo), obj)
        if seen.presence is Presence.UNKNOWN:
            raise TransientError(
                f"cannot determine whether {ctx.ref} has an external resource: {seen.why}",
                remedy="will retry; if it lasts, check the credentials and the connection to the external system",
            )
        if seen.presence is Presence.PRESENT:
            raise PermanentError(
                f"cannot delete {ctx.ref}: {running} is running but has not added its finalizer, and {seen.why}",
                reason=Reason.HELD,
                remedy="check the log of the operator",
            )
        return ChosenEnd(_OperatorEnd(running), left_to_others=True)

    async def _operator(self, external: External, ctx: DeleteContext) -> str:
        """The running operator, read once for all objects that are deleted together. It is read again before its
        finalizer is removed."""
        now = ctx.clock.monotonic()
        if (last := self._running.get(external)) and now - last[0] < _RECENT:
            return last[1]
        running = await self._reading.ask(external, lambda: running_operator(external, ctx.client))
        self._running[external] = (now, running)
        return running

    async def _leave_to_operator(self, ctx: DeleteContext) -> None:
        """The operator is running again: what Unwind has begun in its place does not count any more."""
        memo = ctx.memo.of(EXTERNAL_SCOPE)
        if _RELEASED in memo:
            assert self._ends  # noqa: S101 - for the type checker
            await self._ends.withdraw(ctx.ref)
            await memo.drop(_RELEASED)
        await memo.drop(_BEGUN)


async def running_operator(external: External, client: Client) -> str:
    """The operator of these kinds, if it is running on this cluster; else an empty string."""
    return await external.operator(client) if external.operator else ""


async def verified_absent(end: End, ctx: DeleteContext, obj: Object) -> str:
    """How it is known that the external resource of an object is absent. Raises if it is not absent, or unknown."""
    seen = await end.sighting(ctx, obj)
    if not seen.absent:
        raise TransientError(
            f"cannot remove the finalizers of the operator from {ctx.ref}: {seen.why}", remedy="will retry"
        )
    return seen.why or "its external resource is verified absent"


class ExternalEnd:
    """Deletes the external resource with an external end, then the object."""

    name = EXTERNAL_SCOPE

    def __init__(self, external: External, end: End, ends: ExternalEnds, cluster: ObjectRef) -> None:
        self._external = external
        self._end = end
        self._ends = ends
        self._cluster = cluster
        self._kubernetes = KubernetesEnd()

    @property
    def clients(self) -> tuple[object, ...]:
        return self._end.clients

    async def delete(self, ctx: DeleteContext, obj: Object) -> Outcome:
        held = () if ctx.absent else _held(self._external, obj)
        begun = _BEGUN in ctx.memo
        # From here on, an absent object does not mean that the external resource is absent.
        await ctx.memo.put(_BEGUN)
        if held and not _terminating(obj):
            # The finalizer keeps the object. An operator that starts now deletes the resource, and does not create it.
            await self._kubernetes.send(ctx, obj)
            raise Again(f"{ctx.ref} is being deleted", after=0)
        if not ctx.absent and not _terminating(obj):
            await self._rehearse(ctx, obj, begun=begun)
        outcome = await self._delete_resource(ctx, obj)
        if ctx.absent or isinstance(outcome, Kept):
            return outcome
        if held:
            obj = await self._release(ctx, obj, held)
        return await self._kubernetes.delete(ctx, obj)

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Check whether the object still exists."""
        return await self._kubernetes.sighting(ctx, obj)

    async def _rehearse(self, ctx: DeleteContext, obj: Object, *, begun: bool) -> None:
        """Ask the API server whether it would delete the object as it was read: no finalizer keeps it, so its external
        resource is deleted first, and a label that was set meanwhile must count before that. `begun`: whether an
        earlier pass has begun."""
        try:
            left = await self._kubernetes.send(ctx, obj, dry_run=True)
        except (Again, Exception):
            if not begun:
                await ctx.memo.drop(_BEGUN)
            raise
        if left is None:
            raise Again(f"{ctx.ref} is gone", after=0)  # the next pass continues without it

    async def _delete_resource(self, ctx: DeleteContext, obj: Object) -> Outcome:
        inside = ctx.with_memo(ctx.memo.nested()).within(self._end.name)
        try:
            outcome = await self._end.delete(inside, obj)
        except Again as again:
            # Not a wait for a finalizer, although the object has one.
            if again.code == Reason.DELETING:
                again.code = Reason.EXTERNAL_RESOURCE
            raise
        if not isinstance(outcome, Gone | Kept):
            raise PermanentError(
                f"cannot delete {ctx.ref}: plugin {self._end.name} returned {outcome!r} instead of Gone or Kept",
                remedy="install a corrected version of its package, and restart the manager",
            )
        return outcome

    async def _release(self, ctx: DeleteContext, obj: Object, held: tuple[str, ...]) -> Object:
        """Remove the finalizers of an operator that is not running, after a proof that its resource is absent."""
        why = await verified_absent(self._end, ctx.with_memo(ctx.memo.nested()), obj)
        if running := await running_operator(self._external, ctx.client):
            raise Again(f"{running} is running again and deletes {ctx.ref} itself", after=0)
        await self._ends.record(
            ReleasedFinalizers(
                object=ctx.ref,
                resource=ctx.resource,
                cluster=self._cluster,
                system_uid=ctx.cluster,
                finalizers=held,
                external=self._external.name,
                why=why,
            )
        )
        await ctx.memo.put(_RELEASED, ",".join(held))
        try:
            written = await ctx.client.revise(ctx.resource, obj, without_finalizers(obj, held))
        except ConflictError:
            raise Again(f"will retry: {ctx.ref} was changed meanwhile", after=0) from None
        except NotFoundError:
            return obj  # whether it is absent is verified below
        ctx.log.info("finalizer of an operator removed", finalizers=list(held), why=why)
        return written


class _OperatorEnd(KubernetesEnd):
    """Deletes the object and waits for its operator, which deletes the external resource."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        try:
            return await super().delete(ctx, obj)
        except Again as again:
            told = f"{again.reason}; {self._operator} is running and deletes its external resource"
            after = _LOOK_AGAIN if again.after is None else min(again.after, _LOOK_AGAIN)
            raise Again(told, until=again.until, after=after, code=again.code) from None


class _HomeEnd(KubernetesEnd):
    """Deletes the object on the management cluster, where the controller of external objects does the rest."""

    def __init__(self, external: External) -> None:
        self._external = external

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        if ctx.absent:
            return await super().delete(ctx, obj)
        changes = await ctx.changes(ctx.resource, namespace=ctx.ref.namespace, name=ctx.ref.name)
        claims = (Finalizer.EXTERNAL.value, *self._external.finalizers)
        if not _terminating(obj) and not any(name in claims for name in _finalizers(obj)):
            raise Again(
                f"{ctx.ref} waits for the finalizer {Finalizer.EXTERNAL} of the manager, which needs the right to"
                f" patch {ctx.resource.plural}.{ctx.resource.group}",
                until=changes,
                after=_LOOK_AGAIN,
                code=Reason.EXTERNAL_RESOURCE,
            )
        try:
            return await super().delete(ctx, obj)
        except Again as again:
            if again.after and (said := _ready(obj)):
                told = f"{ctx.ref} waits for its external resource: {said}"
                raise Again(told, until=changes, after=_LOOK_AGAIN, code=Reason.EXTERNAL_RESOURCE) from None
            if again.after:
                again.until, again.after = changes, _LOOK_AGAIN
            raise


class _FailingEnd(KubernetesEnd):
    """Raises the error because of which no end could be chosen."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        raise self._error


def without_finalizers(obj: Object, some: Iterable[str]) -> Object:
    """The patch that removes these finalizers and no others."""
    gone = set(some)
    return {"metadata": {"finalizers": [name for name in _finalizers(obj) if name not in gone]}}


def _held(external: External, obj: Object) -> tuple[str, ...]:
    """The finalizers of the operator on an object."""
    return tuple(name for name in _finalizers(obj) if name in external.finalizers)


def _finalizers(obj: Object) -> list[str]:
    found: list[str] | None = obj["metadata"].get("finalizers")
    return found or []


def _terminating(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _ready(obj: Object) -> str:
    """What the Ready condition of a terminating object says; empty if it says nothing."""
    status = obj.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) and _terminating(obj) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == ConditionType.READY:
            return str(condition.get("message") or "") if condition.get("status") == "False" else ""
    return ""
