"""The end of the chain for Azure resources: a deletion is sent once, polled, and complete when absence is verified.

Between passes a URL and a time are stored as JSON. (azure-core's pollers can be stored, too, but their tokens contain a
whole request that the library decodes again; this format is readable and executes nothing.)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import MEMO_ANNOTATION, RECONCILE_POLICY_ANNOTATION, Reason
from unwind.deleters.outcomes import Again, Gone, Pace, PermanentError, TransientError
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.resource_ids import ArmId, AzureTarget, NeverCreated
from unwind.kube.absence import Presence, Sighting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.deleters.context import DeleteContext
    from unwind.external.azure.arm_client import ArmClient
    from unwind.external.azure.arm_responses import ArmReply
    from unwind.kube.client import Object

# The poll interval if Azure does not say one.
_ASK_AGAIN = 10.0
# How long a resource may still be visible after its deletion is done, or after its operation is unknown. Then the
# DELETE is sent again, which is harmless at Azure.
PATIENCE = timedelta(minutes=10)
# A memo is limited to 4,096 bytes, and a URL with Azure's signature takes up to 3,000.
_LONGEST_URL = 3000

_OPERATION, _GONE = "operation", "gone"
_TARGET = "target"


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running operation."""

    since: datetime
    url: str = ""
    """The URL to poll; empty if only the resource itself can be read."""

    @classmethod
    def read(cls, text: str) -> Operation:
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise PermanentError(
                "cannot decode the operation at Azure that is recorded in the annotations of the object",
                reason=Reason.HELD,
                remedy=f"find out who changed its annotations {MEMO_ANNOTATION}*, and remove them to start over",
            ) from None

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class OperationState(Enum):
    """The state of an operation, according to one response."""

    RUNNING = "running"
    OVER = "over"
    """It reports success; only the resource itself proves it."""
    BROKEN = "broken"
    """It reports failure or cancellation."""
    LOST = "lost"
    """It is unknown by now, or may not be read."""
    UNKNOWN = "unknown"
    """Undetermined: throttled, or unavailable."""


def state(reply: ArmReply) -> OperationState:
    """Interpret the response to a poll, of either style (pure)."""
    if reply.status == 202:
        return OperationState.RUNNING
    if reply.status == 204:
        return OperationState.OVER
    if reply.status == 200:
        said = (reply.content or {}).get("status")
        # Without a status it is the result behind a `Location`, which exists only when it is done.
        word = said.lower() if isinstance(said, str) else "succeeded"
        if word in ("failed", "canceled", "cancelled"):
            return OperationState.BROKEN
        return OperationState.OVER if word == "succeeded" else OperationState.RUNNING
    if 400 <= reply.status < 500 and reply.status not in (401, 408, 429):
        # Expired, or not readable: an identity that may delete in a resource group need not be allowed to read the
        # operations of the subscription.
        return OperationState.LOST
    return OperationState.UNKNOWN


def where(reply: ArmReply) -> str:
    """The URL to poll for an operation that has started; of two, the one that returns a status (pure)."""
    return reply.headers.get("azure-asyncoperation") or reply.headers.get("location") or ""


class AzureRemoval:
    """One deletion at Azure, from the request to the verified absence: await it in every pass until it returns.

    It stores its state in the memo of the deleter whose context it gets, so there is one per deleter.
    """

    def __init__(self, ctx: DeleteContext, arm: ArmClient, target: AzureTarget, *, what: str) -> None:
        """`target`: the resource that will be absent. `what`: the name of the action, for messages."""
        self._ctx = ctx
        self._arm = arm
        self._target = target
        self._id = ArmId.parse(target.id)
        self._what = what

    @property
    def begun(self) -> bool:
        return _OPERATION in self._ctx.memo or _GONE in self._ctx.memo

    async def carry_out(self, send: Callable[[], Awaitable[ArmReply]]) -> Gone:
        """Send the request unless it was sent already, or poll its operation; return when the target is verified
        absent.

        After a crash between Azure's acceptance and its record, the request is sent again: Azure then answers that it
        is running, or that the resource does not exist; both are fine.
        """
        ctx = self._ctx
        if _GONE in ctx.memo:
            return await self._still_gone()
        kept = ctx.memo.get(_OPERATION)
        if kept is None:
            return await self._begin(await send())
        operation = Operation.read(kept)
        if operation.url:
            await self._ask(operation)
            return await self._look(None)
        return await self._look(operation)

    async def look(self) -> ArmReply:
        return await self._arm.get(self._target.id, api_version=self._target.api_version)

    async def _begin(self, reply: ArmReply) -> Gone:
        now = self._ctx.clock.now()
        if reply.status == 202:
            url = where(reply)
            # A URL of another server, or one that is too long, is not stored: the resource itself tells as well.
            operation = Operation(now, url if self._arm.reaches(url) and len(url) <= _LONGEST_URL else "")
            await self._ctx.memo.put(_OPERATION, operation.text)
            raise self._again(reply)
        if reply.status == 409 and _deleting(await self.look()):
            # It was sent before a crash, or by another client.
            await self._ctx.memo.put(_OPERATION, Operation(now).text)
            raise self._again(reply)
        if not reply.ok and not arm_responses.not_there(reply, self._id):
            raise reply.error(f"{self._what} of {self._id}", now)
        return await self._look(None)

    async def _ask(self, operation: Operation) -> None:
        """Poll once; returns if the resource itself must be read now."""
        ctx, now = self._ctx, self._ctx.clock.now()
        reply = await self._arm.poll(operation.url)
        match state(reply):
            case OperationState.RUNNING:
                moved = reply.headers.get("location", "") if reply.status == 202 else ""
                if moved and moved != operation.url and self._arm.reaches(moved) and len(moved) <= _LONGEST_URL:
                    await ctx.memo.put(_OPERATION, Operation(operation.since, moved).text)
                raise self._again(reply)
            case OperationState.UNKNOWN:
                raise reply.error(f"cannot poll {self._what} of {self._id}", now)
            case OperationState.BROKEN:
                told = reply.fault
                # The next pass sends the request again. A crash before this would poll once more, with the same result.
                await ctx.memo.drop(_OPERATION)
                said = f"{told.code} {told.message}".strip() or "no reason given"
                refusal = arm_responses.classify(0, told.code, reply.retry_after(now))
                raise refusal.error(f"Azure could not complete {self._what} of {self._id}: {said}")
            case OperationState.OVER | OperationState.LOST:
                return

    async def _look(self, operation: Operation | None) -> Gone:
        """Return if the resource is verified absent; otherwise schedule the next check.

        Without an operation, only the resource itself is read from now on.
        """
        ctx, now = self._ctx, self._ctx.clock.now()
        reply = await self.look()
        seen = arm_responses.sighting(reply, self._id)
        if seen.presence is Presence.ABSENT:
            await ctx.memo.put(_GONE)
            return Gone(seen.why)
        if seen.presence is Presence.UNKNOWN:
            raise reply.error(f"cannot determine whether {self._id} still exists", now)
        if operation is None:
            operation = Operation(now)
            await ctx.memo.put(_OPERATION, operation.text)
        if _deleting(reply) or now < operation.since + PATIENCE:
            raise self._again(reply)
        await ctx.memo.drop(_OPERATION)
        raise TransientError(
            f"Azure reports that {self._what} of {self._id} is done, but it still exists",
            remedy="will retry: it is sent again",
            pace=Pace.SLOW,
        )

    async def _still_gone(self) -> Gone:
        reply = await self.look()
        seen = arm_responses.sighting(reply, self._id)
        if seen.presence is Presence.PRESENT:
            # Not the resource that was to be deleted, but a later one.
            raise PermanentError(
                f"cannot complete the deletion of {self._id}: it was verified absent, but has been created again",
                reason=Reason.HELD,
                remedy=f"annotate the object with {RECONCILE_POLICY_ANNOTATION}=detach-on-delete to keep it, or remove "
                f"the annotations {MEMO_ANNOTATION}* to delete it again",
            )
        if seen.presence is Presence.UNKNOWN:
            raise reply.error(f"cannot determine whether {self._id} is still absent", self._ctx.clock.now())
        return Gone(seen.why)

    def _again(self, reply: ArmReply) -> Again:
        after = reply.retry_after(self._ctx.clock.now()) or _ASK_AGAIN
        return Again(f"waiting: {self._what} of {self._id} is in progress at Azure", after=max(after, 1.0))


def _deleting(reply: ArmReply) -> bool:
    """Whether a resource reports that it is being deleted."""
    properties = (reply.content or {}).get("properties")
    said = properties.get("provisioningState") if isinstance(properties, dict) else None
    return isinstance(said, str) and said.lower() in ("deleting", "deprovisioning")


class ArmEnd:
    """Deletes the Azure resource of an object, and returns when Azure reports that it does not exist."""

    name = "arm"

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm

    @property
    def clients(self) -> tuple[object, ...]:
        return (self._arm,)

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        target = self._target(ctx, obj)
        if isinstance(target, NeverCreated):
            return Gone(target.why)
        removal = AzureRemoval(ctx, self._arm, target, what="the deletion")

        async def send() -> ArmReply:
            # From here on the recorded resource counts, even if the annotation changes.
            await ctx.memo.put(_TARGET, msgspec.json.encode(target).decode())
            ctx.log.info("azure deletion requested", resource=target.id)
            return await self._arm.delete(target.id, api_version=target.api_version)

        return await removal.carry_out(send)

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Check whether it still exists."""
        target = self._target(ctx.within(self.name), obj)
        if isinstance(target, NeverCreated):
            return Sighting(Presence.ABSENT, target.why)
        reply = await self._arm.get(target.id, api_version=target.api_version)
        return arm_responses.sighting(reply, ArmId.parse(target.id))

    def _target(self, ctx: DeleteContext, obj: Object) -> AzureTarget | NeverCreated:
        kept = ctx.memo.get(_TARGET)
        if kept is not None:
            try:
                return msgspec.json.decode(kept, type=AzureTarget)
            except (msgspec.DecodeError, msgspec.ValidationError):
                raise PermanentError(
                    f"cannot decode what Unwind recorded in the annotations of {ctx.ref}",
                    reason=Reason.HELD,
                    remedy=f"find out who changed its annotations {MEMO_ANNOTATION}*, and remove them to start over",
                ) from None
        if ctx.absent:
            raise PermanentError(
                f"cannot delete the Azure resource of {ctx.ref}: the object is gone and its ARM id was not recorded",
                reason=Reason.HELD,
                remedy="delete it at Azure if it still exists; `unwind release` ends a teardown that waits for it",
            )
        return resource_ids.target(obj, ctx.resource)
