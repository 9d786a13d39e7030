"""Metrics of deletions, by kind and outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import prometheus_client

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.api.resources import Resource
    from unwind.deleters.outcomes import Gone, Kept

_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 10800.0, 86400.0)


class Measures:
    """Counts the deletions of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ends = prometheus_client.Counter(
            "unwind_deletions",
            "Finished deletions of external resources, by outcome: gone or kept.",
            ["kind", "end"],
            registry=registry,
        )
        self._waiting = prometheus_client.Gauge(
            "unwind_deletions_waiting", "Objects whose external resource is being deleted.", ["kind"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "unwind_deletion_seconds",
            "Time from the deletionTimestamp of an object to the end of its deletion.",
            ["kind", "end"],
            buckets=_SECONDS,
            registry=registry,
        )

    def ended(self, resource: Resource, outcome: Gone | Kept, *, seconds: float) -> None:
        kind, end = _called(resource), type(outcome).__name__.lower()
        self._ends.labels(kind, end).inc()
        # Whole seconds of the API server's clock against ours: the difference may be negative.
        self._seconds.labels(kind, end).observe(max(0.0, seconds))

    def waiting(self, resource: Resource, count: int) -> None:
        self._waiting.labels(_called(resource)).set(count)

    def forget(self, resource: Resource) -> None:
        """Drop a kind that is not served any more."""
        with suppress(KeyError):
            self._waiting.remove(_called(resource))


def _called(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
