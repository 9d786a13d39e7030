"""Unwind takes Kubernetes clusters, add-ons and resources apart.

For people who write deleters: `from unwind import Again, Gone, Kept, deleter`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unwind.deleting.builtin import WaitForDependents
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.kinds import Kinds
    from unwind.deleting.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
    from unwind.deleting.protocol import DeleteFunc, Deleter, End
    from unwind.deleting.registering import External, Registration, deleter

# Read when they are asked for: the command line starts without them.
_HOMES = {
    "Again": "outcomes",
    "DeleteContext": "context",
    "DeleteFunc": "protocol",
    "Deleter": "protocol",
    "End": "protocol",
    "Event": "outcomes",
    "External": "registering",
    "Gone": "outcomes",
    "Kept": "outcomes",
    "Kinds": "kinds",
    "Pace": "outcomes",
    "PermanentError": "outcomes",
    "Registration": "registering",
    "Severity": "outcomes",
    "TransientError": "outcomes",
    "WaitForDependents": "builtin",
    "deleter": "registering",
}

__all__ = [
    "Again",
    "DeleteContext",
    "DeleteFunc",
    "Deleter",
    "End",
    "Event",
    "External",
    "Gone",
    "Kept",
    "Kinds",
    "Pace",
    "PermanentError",
    "Registration",
    "Severity",
    "TransientError",
    "WaitForDependents",
    "deleter",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"unwind.deleting.{_HOMES[name]}"), name)
