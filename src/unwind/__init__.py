"""The public API for deleters: `from unwind import Again, Gone, Kept, deleter`.

docs/api.md lists the public API. Every module that it does not name is private and may change in any version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import (
        CONFIG_MAPS,
        DAEMON_SETS,
        DEPLOYMENTS,
        JOBS,
        NAMESPACES,
        NODES,
        PERSISTENT_VOLUME_CLAIMS,
        PERSISTENT_VOLUMES,
        PODS,
        SECRETS,
        SERVICE_ACCOUNTS,
        SERVICES,
        STATEFUL_SETS,
        Resource,
    )
    from unwind.deleting.builtin import WaitForDependents
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.kinds import Kinds
    from unwind.deleting.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
    from unwind.deleting.protocol import DeleteFunc, Deleter, End
    from unwind.deleting.registering import External, Registration, deleter
    from unwind.errors import UnwindError
    from unwind.kube.absence import Presence, Sighting
    from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError

# Imported on first use: the command line starts without them.
_MODULES = {
    "Again": "unwind.deleting.outcomes",
    "AlreadyExistsError": "unwind.kube.errors",
    "ApiError": "unwind.kube.errors",
    "CONFIG_MAPS": "unwind.api.resources",
    "ConflictError": "unwind.kube.errors",
    "DAEMON_SETS": "unwind.api.resources",
    "DEPLOYMENTS": "unwind.api.resources",
    "DeleteContext": "unwind.deleting.context",
    "DeleteFunc": "unwind.deleting.protocol",
    "Deleter": "unwind.deleting.protocol",
    "End": "unwind.deleting.protocol",
    "Event": "unwind.deleting.outcomes",
    "External": "unwind.deleting.registering",
    "Gone": "unwind.deleting.outcomes",
    "JOBS": "unwind.api.resources",
    "Kept": "unwind.deleting.outcomes",
    "Kinds": "unwind.deleting.kinds",
    "NAMESPACES": "unwind.api.resources",
    "NODES": "unwind.api.resources",
    "NotFoundError": "unwind.kube.errors",
    "ObjectRef": "unwind.api.meta",
    "PERSISTENT_VOLUMES": "unwind.api.resources",
    "PERSISTENT_VOLUME_CLAIMS": "unwind.api.resources",
    "PODS": "unwind.api.resources",
    "Pace": "unwind.deleting.outcomes",
    "PermanentError": "unwind.deleting.outcomes",
    "Presence": "unwind.kube.absence",
    "Registration": "unwind.deleting.registering",
    "Resource": "unwind.api.resources",
    "SECRETS": "unwind.api.resources",
    "SERVICES": "unwind.api.resources",
    "SERVICE_ACCOUNTS": "unwind.api.resources",
    "STATEFUL_SETS": "unwind.api.resources",
    "Severity": "unwind.deleting.outcomes",
    "Sighting": "unwind.kube.absence",
    "TransientError": "unwind.deleting.outcomes",
    "UnreachableError": "unwind.kube.errors",
    "UnwindError": "unwind.errors",
    "WaitForDependents": "unwind.deleting.builtin",
    "deleter": "unwind.deleting.registering",
}

__all__ = [
    "CONFIG_MAPS",
    "DAEMON_SETS",
    "DEPLOYMENTS",
    "JOBS",
    "NAMESPACES",
    "NODES",
    "PERSISTENT_VOLUMES",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFUL_SETS",
    "Again",
    "AlreadyExistsError",
    "ApiError",
    "ConflictError",
    "DeleteContext",
    "DeleteFunc",
    "Deleter",
    "End",
    "Event",
    "External",
    "Gone",
    "Kept",
    "Kinds",
    "NotFoundError",
    "ObjectRef",
    "Pace",
    "PermanentError",
    "Presence",
    "Registration",
    "Resource",
    "Severity",
    "Sighting",
    "TransientError",
    "UnreachableError",
    "UnwindError",
    "WaitForDependents",
    "deleter",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
