"""One entry into an object's chain, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind import logs
from unwind.api.names import Reason
from unwind.deleting.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
from unwind.errors import UnwindError
from unwind.kube.errors import UnreachableError
from unwind.kube.watches import Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import End
    from unwind.deleting.registry import Registry
    from unwind.kube.client import Object

log = logs.get(__name__)
T = TypeVar("T")


class Waiting(msgspec.Struct, frozen=True):
    """It is not finished; the chain is to be entered again."""

    reason: str
    after: float | None = None
    until: Event | None = None

    @property
    def told(self) -> str:
        """What is waited for, in a line."""
        return self.reason

    def close(self) -> None:
        """Wait for it no longer."""
        if isinstance(self.until, Subscription):
            self.until.close()


class Failed(msgspec.Struct, frozen=True):
    """It did not work; the chain is to be entered again."""

    message: str
    reason: str
    severity: Severity
    pace: Pace
    retry_after: float = 0.0
    error: Exception | None = None

    @property
    def told(self) -> str:
        """What went wrong, in a line."""
        return self.message


async def attempt(work: Awaitable[T]) -> T | Waiting | Failed:
    """Do the work, and tell what came of it as a value. Raises nothing, unless it is cancelled."""
    try:
        return await work
    except Again as again:
        return Waiting(again.reason, again.after, again.until)
    except (TransientError, PermanentError) as error:
        return Failed(str(error), error.reason, error.severity, error.pace, error.retry_after, error)
    except UnreachableError as error:
        return Failed(str(error), Reason.UNREACHABLE, Severity.WARNING, Pace.FAST, error=error)
    except Exception as error:
        if not isinstance(error, UnwindError):
            # Nobody wrote it for people to read: it is a mistake in a deleter, or in us.
            log.warning("a deletion was broken off", exc_info=error)
        told = str(error) or type(error).__name__
        return Failed(told, type(error).__name__, Severity.WARNING, Pace.SLOW, error=error)


async def enter(registry: Registry, end: End, ctx: DeleteContext, obj: Object) -> Outcome:
    """Go through the object's chain once."""
    until: object = None
    try:
        through = await registry.chain(ctx, obj, end)
        return await _believed(await through(ctx, obj), end, ctx, obj)
    except Again as again:
        until = again.until
        raise
    finally:
        ctx.entry.close(but=until)


async def _believed(outcome: Outcome, end: End, ctx: DeleteContext, obj: Object) -> Outcome:
    """The outcome, unless a deleter says Gone of what nobody saw to be gone: then no finalizer may go."""
    if isinstance(outcome, Kept):
        return outcome
    if not isinstance(outcome, Gone):
        raise PermanentError(f"a deleter of {ctx.resource.kind} returned {outcome!r}, which is neither Gone nor Kept")
    if not (ctx.entry.ended or ctx.absent):
        sighting = await end.sighting(ctx, obj)
        if not sighting.absent:
            raise PermanentError(f"a deleter says that {ctx.ref} is gone, but {sighting.why}")
    return outcome
