"""The Prometheus registry of the process.

Label values are small, fixed sets: verbs, kinds, routes, status classes. Never a name or uid.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector


def new_registry() -> CollectorRegistry:
    """A registry with the process metrics: memory, CPU time and open files. One per process."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
