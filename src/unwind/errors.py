"""Errors shown to users, with exit codes."""

from __future__ import annotations


class UnwindError(Exception):
    """An error for users: cause and next step, in one line.

    The command line prints it and exits with `exit_code`; any other exception there is a bug.
    """

    exit_code = 1

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)


RETRIED = "will retry"


def will_retry(error: object) -> str:
    """The text of an error after which the caller retries: says so unless the error names another next step."""
    text = str(error)
    named = "retry" in text or (isinstance(error, UnwindError) and bool(error.remedy))
    return text if named else f"{text}; {RETRIED}"


class UsageError(UnwindError):
    """Invalid arguments, independent of the cluster; nothing was done."""

    exit_code = 2


class TimedOutError(UnwindError):
    """A wait timed out; the operation may still complete."""

    exit_code = 3


class WouldLeakError(UnwindError):
    """A deletion would leave something behind, or that could not be known."""

    exit_code = 4
