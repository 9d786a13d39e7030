"""The metric of Teardowns: how many there are, by cause and phase."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import Cause, Phase
from unwind.kube.metrics import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from unwind.api.unwind import Teardown
    from unwind.kube.informers import Informer


class TeardownMetrics(Collector):
    """Counts the Teardowns in a cache when the metrics are read."""

    def __init__(self, teardowns: Informer[Teardown], registry: CollectorRegistry) -> None:
        self._teardowns = teardowns
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "unwind_teardowns", "Teardowns that exist, also finished ones.", labels=["cause", "phase"]
        )
        for (cause, phase), number in counted(self._teardowns.cache).items():
            family.add_metric([cause, phase], number)
        yield family


def counted(teardowns: Iterable[Teardown]) -> Counter[tuple[str, str]]:
    """The number of Teardowns by cause and phase, without those that were set aside. Unknown values share a label
    value (pure)."""
    return Counter(
        (
            item.spec.cause if item.spec.cause in tuple(Cause) else OTHER,
            item.phase.value if isinstance(item.phase, Phase) else OTHER,
        )
        for item in teardowns
        if SET_ASIDE_LABEL not in item.metadata.labels
    )
