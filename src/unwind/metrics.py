"""Where everything that is counted is registered.

Every label's values are a fixed, small set: verbs, kinds, routes, classes of status. Never a name, never a uid.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector


def new_registry() -> CollectorRegistry:
    """A registry that knows of the process: its memory, processor time and files. A process that runs has one."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
