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
    from unwind.deleters.builtin import WaitForDependents
    from unwind.deleters.context import DeleteContext, DeleteFunc, Deleter, End
    from unwind.deleters.outcomes import Again, Event, Gone, Kept, Pace, PermanentError, Severity, TransientError
    from unwind.deleters.registration import External, Kinds, NamespaceCredentials, Registration, deleter
    from unwind.errors import UnwindError
    from unwind.kube.absence import Presence, Sighting
    from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError

# Imported on first use: the command line starts without them.
_MODULES = {
    "Again": "unwind.deleters.outcomes",
    "AlreadyExistsError": "unwind.kube.errors",
    "ApiError": "unwind.kube.errors",
    "CONFIG_MAPS": "unwind.api.resources",
    "ConflictError": "unwind.kube.errors",
    "DAEMON_SETS": "unwind.api.resources",
    "DEPLOYMENTS": "unwind.api.resources",
    "DeleteContext": "unwind.deleters.context",
    "DeleteFunc": "unwind.deleters.context",
    "Deleter": "unwind.deleters.context",
    "End": "unwind.deleters.context",
    "Event": "unwind.deleters.outcomes",
    "External": "unwind.deleters.registration",
    "Gone": "unwind.deleters.outcomes",
    "JOBS": "unwind.api.resources",
    "Kept": "unwind.deleters.outcomes",
    "Kinds": "unwind.deleters.registration",
    "NAMESPACES": "unwind.api.resources",
    "NODES": "unwind.api.resources",
    "NamespaceCredentials": "unwind.deleters.registration",
    "NotFoundError": "unwind.kube.errors",
    "ObjectRef": "unwind.api.meta",
    "PERSISTENT_VOLUMES": "unwind.api.resources",
    "PERSISTENT_VOLUME_CLAIMS": "unwind.api.resources",
    "PODS": "unwind.api.resources",
    "Pace": "unwind.deleters.outcomes",
    "PermanentError": "unwind.deleters.outcomes",
    "Presence": "unwind.kube.absence",
    "Registration": "unwind.deleters.registration",
    "Resource": "unwind.api.resources",
    "SECRETS": "unwind.api.resources",
    "SERVICES": "unwind.api.resources",
    "SERVICE_ACCOUNTS": "unwind.api.resources",
    "STATEFUL_SETS": "unwind.api.resources",
    "Severity": "unwind.deleters.outcomes",
    "Sighting": "unwind.kube.absence",
    "TransientError": "unwind.deleters.outcomes",
    "UnreachableError": "unwind.kube.errors",
    "UnwindError": "unwind.errors",
    "WaitForDependents": "unwind.deleters.builtin",
    "deleter": "unwind.deleters.registration",
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
    "NamespaceCredentials",
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
