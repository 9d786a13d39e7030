"""Errors that a person reads."""

from __future__ import annotations


class UnwindError(Exception):
    """What happened and what to do about it, fit for one line on a terminal.

    The command line prints it as it is and exits with `exit_code`; anything else that gets there is a bug.
    """

    exit_code = 1

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)


class UsageError(UnwindError):
    """What was asked for makes no sense, whatever the cluster says: nothing was done."""

    exit_code = 2


class TimedOutError(UnwindError):
    """It was waited for as long as was said, and has not happened; it may still happen."""

    exit_code = 3
