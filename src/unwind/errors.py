"""Errors that a person reads."""

from __future__ import annotations


class UnwindError(Exception):
    """What happened and what to do about it, fit for one line on a terminal.

    The command line prints it as it is and exits with 1; anything else that gets there is a bug.
    """

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}: {remedy}" if remedy else what)
