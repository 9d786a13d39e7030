"""Runs an object's chain once and returns the outcome."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind import logs
from unwind.api.names import Reason
from unwind.deleters.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
from unwind.errors import RETRIED, UnwindError, will_retry
from unwind.kube.errors import UnreachableError, UnwatchedError
from unwind.kube.watches import Subscription
from unwind.plugins import TaskCancellation, error_message, leaves

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unwind.deleters.context import DeleteContext, End
    from unwind.deleters.outcomes import Outcome
    from unwind.deleters.registry import DeleterRegistry
    from unwind.kube.client import Object

log = logs.get(__name__)
T = TypeVar("T")

# Seconds after which a chain that waits for several events, and so only for the first of them, runs again.
_SEVERAL_WITHIN = 5.0
_RETRIED = ("", RETRIED)
_CORRECTED = "see its package in `unwind deleters`, install a corrected version, and restart the manager"


class Waiting(msgspec.Struct, frozen=True):
    """The deletion is incomplete; the chain must run again."""

    reason: str
    after: float | None = None
    until: Event | None = None
    code: str = Reason.DELETING
    """The reason of the blocker in status, as a CamelCase word."""

    @property
    def told(self) -> str:
        """What it waits for, in one line."""
        return self.reason

    def close(self) -> None:
        """Stop waiting."""
        if isinstance(self.until, Subscription):
            self.until.close()


class Failed(msgspec.Struct, frozen=True):
    """The deletion failed; the chain must run again."""

    message: str
    reason: str
    severity: Severity
    pace: Pace
    retry_after: float = 0.0
    error: Exception | None = None

    @property
    def told(self) -> str:
        """What failed, in one line."""
        return self.message


async def attempt(work: Awaitable[T]) -> T | Waiting | Failed:
    """Run the work and return its outcome as a value. Raises only if the current task is cancelled.

    Deleters of plugins run in here: SystemExit, a CancelledError that the manager did not cause, and exception groups
    are failures of this one deletion.
    """
    cancellation = TaskCancellation()
    try:
        result = await work
    except BaseException as error:  # noqa: BLE001 - a deleter may raise anything
        cancellation.check(error)
        return _unfinished(error)
    cancellation.check()  # a deleter may have swallowed the cancellation
    return result


async def enter(
    registry: DeleterRegistry, end: End, ctx: DeleteContext, obj: Object, *, left_to_others: bool = False
) -> Outcome:
    """Run the object's chain once. `left_to_others`: the external resource is deleted by others."""
    until: object = None
    try:
        through = await registry.chain(ctx, obj, end, left_to_others=left_to_others)
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
    # Of several errors, report a readable one first, and last those that only follow from others.
    found = sorted(
        (leave for leave in leaves(error) if not isinstance(leave, Again)),
        key=lambda one: (not isinstance(one, UnwindError), isinstance(one, asyncio.CancelledError)),
    )
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    told = f"{error_message(first).removesuffix(f'; {RETRIED}')}{more}"
    if not isinstance(first, PermanentError) and not (isinstance(first, UnwindError) and first.remedy not in _RETRIED):
        told = will_retry(told)
    if isinstance(first, TransientError | PermanentError):
        return _failed(told, first)
    if isinstance(first, UnreachableError):
        reason = Reason.FAILED if isinstance(first, UnwatchedError) else Reason.UNREACHABLE
        return Failed(told, reason, Severity.WARNING, Pace.FAST, error=first)
    if not isinstance(first, UnwindError):
        # An unexpected exception: a bug in a deleter or in Unwind.
        log.warning("deletion failed", exc_info=error)
    failure = first if isinstance(first, Exception) else None
    return Failed(told, type(first).__name__, Severity.WARNING, Pace.SLOW, error=failure)


def _again(error: BaseException) -> Again | None:
    """The Again that an error is, or the combination of a group of them; None if the group has any other error.

    Several waits become one, for the first event and at most the shortest time.
    """
    found = list(leaves(error))
    several = [item for item in found if isinstance(item, Again)]
    if len(several) < len(found):
        return None
    if len(several) == 1:
        return several[0]
    afters = [item.after for item in several if isinstance(item.after, int | float)]
    return Again(
        "; ".join(dict.fromkeys(str(item.reason) for item in several)),
        after=min([*afters, _SEVERAL_WITHIN]),
        until=next((item.until for item in several if item.until is not None), None),
        code=next((item.code for item in several if item.code != Reason.DELETING), Reason.DELETING),
    )


def _waiting(again: Again) -> Waiting | Failed:
    after: Any = again.after
    until: Any = again.until
    # Both values come from a deleter: an invalid one would fail outside of its chain.
    if not (after is None or (isinstance(after, int | float) and 0 <= after < math.inf)):
        return _nonsense(f"a deleter raised Again with after={after!r}; {_CORRECTED}")
    if not (until is None or callable(getattr(until, "wait", None))):
        return _nonsense(f"a deleter raised Again with until={until!r}, which has no wait(); {_CORRECTED}")
    return Waiting(str(again.reason), after, until, str(again.code))


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
    """The outcome, unless a deleter returns Gone for an object that is not verified absent: the finalizer must then
    stay."""
    if isinstance(outcome, Kept):
        return outcome
    if not isinstance(outcome, Gone):
        raise PermanentError(
            f"cannot delete {ctx.ref}: a deleter of {ctx.resource.kind} returned {outcome!r} instead of Gone or Kept",
            remedy=_CORRECTED,
        )
    if not (ctx.entry.ended or ctx.absent):
        sighting = await end.sighting(ctx, obj)
        if not sighting.absent:
            raise PermanentError(
                f"a deleter reports that {ctx.ref} is gone, but {sighting.why}",
                remedy=_CORRECTED,
            )
    return outcome
