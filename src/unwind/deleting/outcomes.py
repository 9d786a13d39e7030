"""How a deletion ends, and how it goes on when it has not ended yet.

There are two ends, and they are returned: `Gone` and `Kept`. Everything unfinished leaves the chain as an exception, so
that nothing that stands after `await next(...)` runs too early.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from unwind.api.fields import Word
from unwind.api.names import Reason
from unwind.errors import UnwindError
from unwind.kube.queue import Backoff


class Gone(msgspec.Struct, frozen=True):
    """It was seen to be absent."""

    why: str = ""
    """Where that knowledge comes from."""


class Kept(msgspec.Struct, frozen=True):
    """It was deliberately not deleted: the finalizer goes, and the ledger says so."""

    reason: str = Reason.KEPT_BY_POLICY
    """Why, as one word."""
    message: str = ""
    """Why, for people."""
    by: str = ""
    """Who decided it: an annotation, a deleter, a person."""


Outcome = Gone | Kept


class Event(Protocol):
    """Something that will happen; `asyncio.Event` is one, and so is what `ctx.changes(...)` returns."""

    async def wait(self) -> object:
        """Return as soon as it has happened."""


class Again(BaseException):
    """Leave the chain unfinished, and have it entered again from the top: `raise Again("…", after=10)`.

    It is a BaseException, so that an `except Exception` around `await next(...)` does not take it for a failure: a
    deleter that catches errors to log or to translate them would otherwise end the deletion too early. It may be raised
    in a task group as well: a group of them is waited for like one.
    """

    def __init__(self, reason: str, *, after: float | None = None, until: Event | None = None) -> None:
        """`reason` says what is waited for, and who must act; `after` seconds, `until` an event, or the first of both.

        Without either, the chain is entered again when the object changes.
        """
        super().__init__(reason)
        self.reason = reason
        self.after = after
        self.until = until


class Severity(Word):
    """How bad it is, in the words of Azure Service Operator's conditions."""

    ERROR = "Error"
    """It will not come right by itself: a person must act."""
    WARNING = "Warning"
    INFO = "Info"


class Pace(Enum):
    """How soon to try again what failed: exponentially from a second, up to a limit. Never not at all: a deletion
    cannot be started anew by the user."""

    FAST = Backoff(first=1.0, limit=30.0)
    SLOW = Backoff(first=1.0, limit=180.0)
    VERY_SLOW = Backoff(first=60.0, limit=3600.0)


class TransientError(UnwindError):
    """It did not work, and may work later. Any exception counts as one; this one says more."""

    def __init__(
        self,
        what: str,
        *,
        reason: str = Reason.FAILED,
        pace: Pace = Pace.FAST,
        retry_after: float = 0.0,
        remedy: str = "",
    ) -> None:
        """`retry_after`: seconds that the other side asked for; it is not tried sooner."""
        super().__init__(what, remedy=remedy)
        self.severity = Severity.WARNING
        self.reason = reason
        self.pace = pace
        self.retry_after = retry_after


class PermanentError(UnwindError):
    """It will not work until somebody acts: the Ready condition gets this severity and reason, the finalizer stays.

    It is tried again when the object changes, and, because somebody may have acted elsewhere, very slowly.
    """

    def __init__(
        self, what: str, *, severity: Severity = Severity.ERROR, reason: str = Reason.FAILED, remedy: str = ""
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.severity = severity
        self.reason = reason
        self.pace = Pace.VERY_SLOW
        self.retry_after = 0.0
