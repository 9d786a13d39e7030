"""What is measured of the machinery, in Prometheus' form and with labels whose number is bounded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from prometheus_client import CollectorRegistry

    from unwind.kube.informers import Informer
    from unwind.kube.queue import Queue

K = TypeVar("K")

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
OTHER = "other"


class Metrics:
    """Counts calls, reconciles, queues and caches of one process."""

    def __init__(self, registry: CollectorRegistry, *, resources: Collection[str] = ()) -> None:
        """`resources`: those that have a label of their own. All others, of which there is no end, share one."""
        self._resources = frozenset(resources)
        self._calls = Histogram(
            "unwind_api_call_seconds",
            "Calls to API servers, until the answer.",
            ["verb", "resource", "status"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._reconciles = Histogram(
            "unwind_reconcile_seconds", "Reconciles.", ["controller"], buckets=_SECONDS, registry=registry
        )
        self._errors = Counter("unwind_reconcile_errors", "Reconciles that failed.", ["controller"], registry=registry)
        self._depth = Gauge("unwind_queue_depth", "Keys that wait for a worker.", ["controller"], registry=registry)
        self._working = Gauge("unwind_queue_working", "Keys being worked on.", ["controller"], registry=registry)
        self._objects = Gauge("unwind_cache_objects", "Objects in a cache.", ["resource"], registry=registry)
        self._synced = Gauge("unwind_cache_synced", "Whether a cache is whole.", ["resource"], registry=registry)
        self._age = Gauge(
            "unwind_cache_age_seconds", "Since the server of a cache was heard.", ["resource"], registry=registry
        )

    def called(self, verb: str, resource: str, status: int, seconds: float) -> None:
        """A client's `observe`."""
        kind = resource if resource in self._resources else OTHER
        outcome = f"{status // 100}xx" if status else "none"
        self._calls.labels(verb, kind, outcome).observe(seconds)

    def timed(
        self, controller: str, reconcile: Callable[[K], Awaitable[float | None]]
    ) -> Callable[[K], Awaitable[float | None]]:
        """A reconciler that is measured."""
        seconds, errors = self._reconciles.labels(controller), self._errors.labels(controller)

        async def measured(key: K) -> float | None:
            began = time.monotonic()
            try:
                return await reconcile(key)
            except Exception:
                errors.inc()
                raise
            finally:
                seconds.observe(time.monotonic() - began)

        return measured

    def queue(self, controller: str, queue: Queue[Any]) -> None:
        """Show a queue, read when somebody asks."""
        self._depth.labels(controller).set_function(lambda: queue.depth)
        self._working.labels(controller).set_function(lambda: queue.working)

    def informer(self, informer: Informer[Any]) -> None:
        """Show an informer's cache, read when somebody asks."""
        resource = informer.view.resource
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        self._objects.labels(name).set_function(lambda: len(informer.store))
        self._synced.labels(name).set_function(lambda: float(informer.synced))
        self._age.labels(name).set_function(lambda: informer.age)
