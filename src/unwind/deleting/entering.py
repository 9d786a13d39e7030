"""One entry into an object's chain, and what came of it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind import logs
from unwind.api.names import Reason
from unwind.deleting.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
from unwind.errors import UnwindError
from unwind.kube.errors import UnreachableError
from unwind.kube.watches import Subscription
from unwind.plugins import Cancellation, described, leaves

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import End
    from unwind.deleting.registry import Registry
    from unwind.kube.client import Object

log = logs.get(__name__)
T = TypeVar("T")

# Seconds after which a chain that waits for several events, and so for the first of them only, is entered again.
_SEVERAL_WITHIN = 5.0


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
    """Do the work, and return what came of it as a value. Raises only if the current task is cancelled.

    Deleters of other packages run in here: SystemExit, a CancelledError that the manager did not cause, and groups of
    exceptions are failures of this one deletion.
    """
    cancellation = Cancellation()
    try:
        result = await work
    except BaseException as error:  # noqa: BLE001 - a deleter may raise anything
        cancellation.check(error)
        return _unfinished(error)
    cancellation.check()  # a deleter may have swallowed it
    return result


async def enter(registry: Registry, end: End, ctx: DeleteContext, obj: Object) -> Outcome:
    """Go through the object's chain once."""
    until: object = None
    try:
        through = await registry.chain(ctx, obj, end)
        return await _believed(await through(ctx, obj), end, ctx, obj)
    except (Again, BaseExceptionGroup) as error:
        if again := _again(error):
            until = again.until
        raise
    finally:
        ctx.entry.close(but=until)


def _unfinished(error: BaseException) -> Waiting | Failed:
    if again := _again(error):
        return _waiting(again)
    # Of several, first what a person can read, and last what only follows from the others.
    found = sorted(
        (one for one in leaves(error) if not isinstance(one, Again)),
        key=lambda one: (not isinstance(one, UnwindError), isinstance(one, asyncio.CancelledError)),
    )
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    told = f"{described(first)}{more}"
    if isinstance(first, TransientError | PermanentError):
        return _failed(told, first)
    if isinstance(first, UnreachableError):
        return Failed(told, Reason.UNREACHABLE, Severity.WARNING, Pace.FAST, error=first)
    if not isinstance(first, UnwindError):
        # Not written for people: a bug in a deleter, or in us.
        log.warning("deletion failed", exc_info=error)
    failure = first if isinstance(first, Exception) else None
    return Failed(told, type(first).__name__, Severity.WARNING, Pace.SLOW, error=failure)


def _again(error: BaseException) -> Again | None:
    """The Again that an error is, or that all errors of a group are together; None if one of them is something else.

    Several waits become one, for the first event and at most for as long as the shortest of them.
    """
    found = list(leaves(error))
    several = [one for one in found if isinstance(one, Again)]
    if len(several) < len(found):
        return None
    if len(several) == 1:
        return several[0]
    afters = [one.after for one in several if isinstance(one.after, int | float)]
    return Again(
        "; ".join(dict.fromkeys(str(one.reason) for one in several)),
        after=min([*afters, _SEVERAL_WITHIN]),
        until=next((one.until for one in several if one.until is not None), None),
    )


def _waiting(again: Again) -> Waiting | Failed:
    after: Any = again.after
    until: Any = again.until
    # Both come from a deleter: what cannot be waited for would fail outside of its chain.
    if not (after is None or (isinstance(after, int | float) and 0 <= after < math.inf)):
        return _nonsense(f"a deleter raised Again with after={after!r}")
    if not (until is None or callable(getattr(until, "wait", None))):
        return _nonsense(f"a deleter raised Again with until={until!r}, which has no wait()")
    return Waiting(str(again.reason), after, until)


def _failed(told: str, error: TransientError | PermanentError) -> Failed:
    severity: Any = error.severity
    pace: Any = error.pace
    after: Any = error.retry_after
    return Failed(
        told,
        str(error.reason),
        severity if isinstance(severity, Severity) else Severity.WARNING,
        pace if isinstance(pace, Pace) else Pace.SLOW,
        after if isinstance(after, int | float) and 0 <= after < math.inf else 0.0,
        error,
    )


def _nonsense(told: str) -> Failed:
    return Failed(told, Reason.FAILED, Severity.ERROR, Pace.SLOW)


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
