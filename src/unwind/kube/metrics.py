"""Prometheus metrics of API requests, reconciles, queues and caches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from unwind.kube.fencing import FencedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from prometheus_client import CollectorRegistry

    from unwind.kube.informers import Informer
    from unwind.kube.workqueue import Queue

K = TypeVar("K")

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
OTHER = "other"


class Metrics:
    """Collects metrics of API requests, reconciles, queues and caches of one process."""

    def __init__(self, registry: CollectorRegistry, *, resources: Collection[str] = ()) -> None:
        """`resources`: those with a label value of their own. All others share one, because their number is
        unbounded."""
        self._resources = frozenset(resources)
        self._calls = Histogram(
            "unwind_api_call_seconds",
            "Duration of requests to API servers, until the response.",
            ["verb", "resource", "status"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._reconciles = Histogram(
            "unwind_reconcile_seconds", "Reconciles.", ["controller"], buckets=_SECONDS, registry=registry
        )
        self._errors = Counter("unwind_reconcile_errors", "Failed reconciles.", ["controller"], registry=registry)
        self._depth = Gauge("unwind_queue_depth", "Keys waiting for a worker.", ["controller"], registry=registry)
        self._working = Gauge("unwind_queue_working", "Keys being reconciled.", ["controller"], registry=registry)
        self._objects = Gauge("unwind_cache_objects", "Objects in a cache.", ["resource"], registry=registry)
        self._synced = Gauge("unwind_cache_synced", "Whether a cache is synced.", ["resource"], registry=registry)
        self._age = Gauge(
            "unwind_cache_age_seconds", "Seconds since the server last sent something.", ["resource"], registry=registry
        )

    def called(self, verb: str, resource: str, status: int, seconds: float) -> None:
        """Records a request; used as a client's `observe`."""
        kind = resource if resource in self._resources else OTHER
        outcome = f"{status // 100}xx" if status else "none"
        self._calls.labels(verb, kind, outcome).observe(seconds)

    def timed(
        self, controller: str, reconcile: Callable[[K], Awaitable[float | None]]
    ) -> Callable[[K], Awaitable[float | None]]:
        """The reconciler, with metrics."""
        seconds, errors = self._reconciles.labels(controller), self._errors.labels(controller)

        async def measured(key: K) -> float | None:
            began = time.monotonic()
            try:
                return await reconcile(key)
            except FencedError:
                raise  # no failure: another replica continues, or this one when it has the shard again
            except Exception:
                errors.inc()
                raise
            finally:
                seconds.observe(time.monotonic() - began)

        return measured

    def queue(self, controller: str, queue: Queue[Any]) -> None:
        """Export the metrics of a queue, read on demand."""
        self._depth.labels(controller).set_function(lambda: queue.depth)
        self._working.labels(controller).set_function(lambda: queue.working)

    def informer(self, informer: Informer[Any]) -> None:
        """Export the metrics of an informer's cache, read on demand."""
        resource = informer.view.resource
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        self._objects.labels(name).set_function(lambda: len(informer.store))
        self._synced.labels(name).set_function(lambda: float(informer.synced))
        self._age.labels(name).set_function(lambda: informer.age)
