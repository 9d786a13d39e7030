"""Outcomes of a deletion, and exceptions that make it continue later.

A deletion ends in one of two ways, which are returned: `Gone` and `Kept`. Everything incomplete leaves the chain as an
exception, so that code after `await next(...)` does not run too early.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from unwind.api.fields import Word
from unwind.api.names import Reason
from unwind.errors import RETRIED, UnwindError
from unwind.kube.workqueue import Backoff


class Gone(msgspec.Struct, frozen=True):
    """The object is verified absent."""

    why: str = ""
    """How that is known."""


class Kept(msgspec.Struct, frozen=True):
    """The object was not deleted on purpose: its finalizer is removed, and the ledger records it."""

    reason: str = Reason.KEPT_BY_POLICY
    """Why, as a CamelCase word."""
    message: str = ""
    """Why, in one sentence."""
    by: str = ""
    """Who decided it: an annotation, a deleter, a user."""


Outcome = Gone | Kept


class Event(Protocol):
    """An event to wait for, such as an `asyncio.Event` or the result of `ctx.changes(...)`."""

    async def wait(self) -> object:
        """Return as soon as it has happened."""


class Again(BaseException):
    """Leave the chain for now and run it again from the start: `raise Again("…", after=10)`.

    It is a BaseException, so that an `except Exception` around `await next(...)` does not treat it as a failure: a
    deleter that catches errors to log or translate them would otherwise end the deletion too early. It may also be
    raised in a task group: a group of them is one wait.
    """

    def __init__(
        self, reason: str, *, after: float | None = None, until: Event | None = None, code: str = Reason.DELETING
    ) -> None:
        """`reason`: what it waits for, and who must act. `after`: seconds; `until`: an event; both: whichever comes
        first. `code`: the reason of the blocker in status, as a CamelCase word.

        Without `after` and `until`, the chain runs again when the object changes.
        """
        super().__init__(reason)
        self.reason = reason
        self.after = after
        self.until = until
        self.code = code


class Severity(Word):
    """Severity of a failure, as in Azure Service Operator's conditions."""

    ERROR = "Error"
    """It will not resolve by itself: a user must act."""
    WARNING = "Warning"
    INFO = "Info"


class Pace(Enum):
    """How soon to retry after a failure: exponential back-off from one second up to a limit. It never stops: users
    cannot restart a deletion."""

    FAST = Backoff(first=1.0, limit=30.0)
    SLOW = Backoff(first=1.0, limit=180.0)
    VERY_SLOW = Backoff(first=60.0, limit=3600.0)


class TransientError(UnwindError):
    """A failure that may succeed later. Any other exception counts as one; this one carries details."""

    def __init__(
        self,
        what: str,
        *,
        reason: str = Reason.FAILED,
        pace: Pace = Pace.FAST,
        retry_after: float = 0.0,
        remedy: str = "",
    ) -> None:
        """`retry_after`: seconds that the server asked for; there is no earlier retry. Without a `remedy` the message
        says that the deletion is retried."""
        super().__init__(what, remedy=remedy or ("" if "retry" in what else RETRIED))
        self.severity = Severity.WARNING
        self.reason = reason
        self.pace = pace
        self.retry_after = retry_after


class PermanentError(UnwindError):
    """A failure that lasts until a user acts: the Ready condition gets this severity and reason, the finalizer stays.

    It is retried when the object changes and, in case a user acted elsewhere, at a very slow pace.
    """

    def __init__(
        self, what: str, *, severity: Severity = Severity.ERROR, reason: str = Reason.FAILED, remedy: str = ""
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.severity = severity
        self.reason = reason
        self.pace = Pace.VERY_SLOW
        self.retry_after = 0.0
