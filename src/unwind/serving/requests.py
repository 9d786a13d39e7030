"""Metrics of HTTP requests.

Plain numbers, because everything runs on one thread; the Prometheus types lock and look up on every count, which is a
tenth of the time of a whole request.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from unwind.serving.listener import Listener

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS = [*(str(bound) for bound in _BUCKETS), "+Inf"]


class _Count:
    __slots__ = ("buckets", "statuses", "total")

    def __init__(self) -> None:
        self.statuses = [0] * 6
        self.buckets = [0] * len(_BOUNDS)
        self.total = 0.0


class Requests(Collector):
    """Metrics of requests by listener, route and status class: count, duration, in flight."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Count] = {}
        self._listeners: list[Listener] = []

    def watch(self, listener: Listener) -> None:
        """Also collect the gauges of this listener."""
        self._listeners.append(listener)

    def observe(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count a response. `route`: the name of a route, empty for unknown paths."""
        count = self._counts.get((listener, route))
        if count is None:
            count = self._counts[listener, route] = _Count()
        count.statuses[status // 100] += 1
        count.buckets[bisect_left(_BUCKETS, seconds)] += 1
        count.total += seconds

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "unwind_http_requests", "Number of HTTP requests answered.", labels=("listener", "route", "status")
        )
        times = HistogramMetricFamily(
            "unwind_http_request_duration_seconds",
            "Seconds from the first byte of a request to its response.",
            labels=("listener", "route"),
        )
        for (listener, route), count in self._counts.items():
            for number, answered in enumerate(count.statuses):
                if answered:
                    answers.add_metric((listener, route, f"{number}xx"), answered)
            buckets = list(zip(_BOUNDS, accumulate(count.buckets), strict=True))
            times.add_metric((listener, route), buckets, sum_value=count.total)
        yield answers
        yield times
        for gauge in (
            GaugeMetricFamily("unwind_http_under_way", "Number of HTTP requests in flight.", labels=("listener",)),
            GaugeMetricFamily("unwind_http_waiting", "Number of queued HTTP requests.", labels=("listener",)),
            GaugeMetricFamily("unwind_http_connections", "Number of open connections.", labels=("listener",)),
        ):
            for one in self._listeners:
                gauge.add_metric((one.name,), getattr(one, gauge.name.removeprefix("unwind_http_")))
            yield gauge
