"""Removals at Azure that take their time: sent once, followed from entry to entry, and believed when they are seen.

What is remembered between the entries is a URL and a time, as JSON. (azure-core's own pollers can be put away, too, but
their tokens hold a whole request and are read back by the library; ours can be read by anybody, and do nothing.)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Reason
from unwind.azure import answers
from unwind.azure.identity import ArmId
from unwind.deleting.outcomes import Again, Gone, Pace, PermanentError, TransientError
from unwind.kube.absence import Presence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.azure.answers import Reply
    from unwind.azure.arm import ArmClient
    from unwind.azure.identity import Target
    from unwind.deleting.context import DeleteContext

# Where Azure does not say when to ask again.
_ASK_AGAIN = 10.0
# How long a resource may still be seen after its removal is over, or when nobody knows how it goes on any more. Then
# the removal is sent again: at Azure that harms nothing.
PATIENCE = timedelta(minutes=10)
# A memo has room for 4,096 bytes, and a URL with Azure's signature in it takes up to 3,000.
_LONGEST_URL = 3000

_OPERATION, _GONE = "operation", "gone"


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A removal under way."""

    since: datetime
    url: str = ""
    """Where to ask; empty if only the resource itself can be looked at."""

    @classmethod
    def read(cls, text: str) -> Operation:
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise PermanentError(
                "what was remembered of an operation at Azure cannot be read",
                reason=Reason.HELD,
                remedy="find out who changed the object's memo, and take the annotation away",
            ) from None

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class State(Enum):
    """How an operation stands, as far as one answer tells."""

    RUNNING = "running"
    OVER = "over"
    """It says that it is done; whether it is, the resource itself shows."""
    BROKEN = "broken"
    """It says that it failed, or was cancelled."""
    LOST = "lost"
    """Nobody knows it any more, or we may not ask."""
    UNKNOWN = "unknown"
    """No answer to the question: throttled, or out of order."""


def state(reply: Reply) -> State:
    """Judge the answer to a poll, of either style (pure)."""
    if reply.status == 202:
        return State.RUNNING
    if reply.status == 204:
        return State.OVER
    if reply.status == 200:
        said = (reply.content or {}).get("status")
        # Without a status it is what a `Location` leads to, and to have it is to be done.
        word = said.lower() if isinstance(said, str) else "succeeded"
        if word in ("failed", "canceled", "cancelled"):
            return State.BROKEN
        return State.OVER if word == "succeeded" else State.RUNNING
    if 400 <= reply.status < 500 and reply.status not in (401, 408, 429):
        # Expired, or not ours to read: an identity that may delete in a resource group need not be allowed to read the
        # operations of the subscription.
        return State.LOST
    return State.UNKNOWN


def where(reply: Reply) -> str:
    """Where an operation that has begun says it can be asked for; of the two, the one with a status (pure)."""
    return reply.headers.get("azure-asyncoperation") or reply.headers.get("location") or ""


class Removal:
    """One removal at Azure, from the request to the absence: `await` it in every entry, until it returns.

    What it remembers is in the memo of the deleter whose context it is given, so there is one a deleter.
    """

    def __init__(self, ctx: DeleteContext, arm: ArmClient, target: Target, *, what: str) -> None:
        """`target` is what will not be there any more; `what` says for people what is done to it."""
        self._ctx = ctx
        self._arm = arm
        self._target = target
        self._id = ArmId.parse(target.id)
        self._what = what

    @property
    def begun(self) -> bool:
        return _OPERATION in self._ctx.memo or _GONE in self._ctx.memo

    async def carry_out(self, send: Callable[[], Awaitable[Reply]]) -> Gone:
        """Have the request sent if it was not yet, or ask how it goes on; return when the target is seen absent.

        If the process dies after Azure has taken the request and before that is written down, it is sent once more:
        Azure then says that it is under way, or that nothing is there, and both will do.
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

    async def look(self) -> Reply:
        return await self._arm.get(self._target.id, api_version=self._target.api_version)

    async def _begin(self, reply: Reply) -> Gone:
        now = self._ctx.clock.now()
        if reply.status == 202:
            url = where(reply)
            # One that leads elsewhere, or does not fit, is not kept: the resource itself tells as well.
            operation = Operation(now, url if self._arm.reaches(url) and len(url) <= _LONGEST_URL else "")
            await self._ctx.memo.put(_OPERATION, operation.text)
            raise self._again(reply)
        if reply.status == 409 and _deleting(await self.look()):
            # We have sent it before, and died before that was written down; or somebody else has.
            await self._ctx.memo.put(_OPERATION, Operation(now).text)
            raise self._again(reply)
        if not reply.ok and not answers.not_there(reply, self._id):
            raise reply.error(f"{self._what} of {self._id}", now)
        return await self._look(None)

    async def _ask(self, operation: Operation) -> None:
        """Ask once how it goes on; returns if that is now to be seen from the resource itself."""
        ctx, now = self._ctx, self._ctx.clock.now()
        reply = await self._arm.poll(operation.url)
        match state(reply):
            case State.RUNNING:
                moved = reply.headers.get("location", "") if reply.status == 202 else ""
                if moved and moved != operation.url and self._arm.reaches(moved) and len(moved) <= _LONGEST_URL:
                    await ctx.memo.put(_OPERATION, Operation(operation.since, moved).text)
                raise self._again(reply)
            case State.UNKNOWN:
                raise reply.error(f"{self._what} of {self._id} is under way, and could not be asked for", now)
            case State.BROKEN:
                told = reply.fault
                # The next entry sends the request again. Were we to die before this, it would ask once more, and hear
                # the same.
                await ctx.memo.drop(_OPERATION)
                said = f"{told.code} {told.message}".strip() or "no reason given"
                refusal = answers.classify(0, told.code, reply.retry_after(now))
                raise refusal.error(f"{self._what} of {self._id} did not succeed at Azure: {said}")
            case State.OVER | State.LOST:
                return

    async def _look(self, operation: Operation | None) -> Gone:
        """Return if the resource is seen to be absent; see to it that it is looked at again if not.

        Without an operation, from now on only the resource itself is looked at.
        """
        ctx, now = self._ctx, self._ctx.clock.now()
        reply = await self.look()
        seen = answers.sighting(reply, self._id)
        if seen.presence is Presence.ABSENT:
            await ctx.memo.put(_GONE)
            return Gone(seen.why)
        if seen.presence is Presence.UNKNOWN:
            raise reply.error(f"it is not known whether {self._id} is still there", now)
        if operation is None:
            operation = Operation(now)
            await ctx.memo.put(_OPERATION, operation.text)
        if _deleting(reply) or now < operation.since + PATIENCE:
            raise self._again(reply)
        await ctx.memo.drop(_OPERATION)
        raise TransientError(
            f"{self._what} of {self._id} is over, as Azure says, and it is still there: it will be sent again",
            pace=Pace.SLOW,
        )

    async def _still_gone(self) -> Gone:
        reply = await self.look()
        seen = answers.sighting(reply, self._id)
        if seen.presence is Presence.PRESENT:
            # Not what we were asked to remove, but something that came after it.
            raise PermanentError(
                f"{self._id} was seen to be gone, and somebody has made it anew",
                reason=Reason.HELD,
                remedy="set the delete policy to detach-on-delete to keep it, or take the memo's annotations away",
            )
        if seen.presence is Presence.UNKNOWN:
            raise reply.error(f"it is not known whether {self._id} is still gone", self._ctx.clock.now())
        return Gone(seen.why)

    def _again(self, reply: Reply) -> Again:
        after = reply.retry_after(self._ctx.clock.now()) or _ASK_AGAIN
        return Again(f"{self._what} of {self._id} is under way at Azure", after=max(after, 1.0))


def _deleting(reply: Reply) -> bool:
    """Whether a resource says of itself that it is on its way out."""
    properties = (reply.content or {}).get("properties")
    said = properties.get("provisioningState") if isinstance(properties, dict) else None
    return isinstance(said, str) and said.lower() in ("deleting", "deprovisioning")
