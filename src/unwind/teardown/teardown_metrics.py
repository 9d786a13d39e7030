"""Metrics of Teardowns: how many there are, what blocks them, how long they take, and what they remove and leave.

Gauges are computed from the cache when the metrics are read, so every replica reports the same values: aggregate them
with `max`. Counters and histograms are of the Teardowns that this replica owns: aggregate them with `sum`.
"""

from __future__ import annotations

import collections
from heapq import nsmallest
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from unwind.api.names import SET_ASIDE_LABEL, Reason
from unwind.api.unwind import Cause, Phase
from unwind.kube.metrics import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from unwind.api.unwind import Teardown
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.informers import Informer

_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10800.0, 43200.0, 86400.0)
HELD_SHOWN = 50
"""The number of held Teardowns with a series of their own: those that have been held longest."""


class TeardownMetrics(Collector):
    """Reports the Teardowns of a cache."""

    def __init__(
        self,
        teardowns: Informer[Teardown],
        registry: CollectorRegistry,
        *,
        owns: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        """`owns`: whether this replica owns a key; each Teardown is counted by one replica. `clock`: of the API
        server."""
        self._teardowns = teardowns
        self._owns = owns
        self._clock = clock
        self._seconds = Histogram(
            "unwind_teardown_duration_seconds",
            "Time from the request of a deletion to the end of its Teardown.",
            ["cause", "phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._removed = Counter(
            "unwind_objects_removed", "Objects that were removed and verified absent.", ["cause"], registry=registry
        )
        registry.register(self)
        teardowns.subscribe(self._on_change)

    def collect(self) -> Iterable[Metric]:
        teardowns = [item for item in self._teardowns.cache if SET_ASIDE_LABEL not in item.metadata.labels]
        family = GaugeMetricFamily(
            "unwind_teardowns", "Teardowns that exist, also finished ones.", labels=["cause", "phase"]
        )
        for labels, number in collections.Counter((_cause(item), _phase(item)) for item in teardowns).items():
            family.add_metric(labels, number)
        yield family
        family = GaugeMetricFamily(
            "unwind_teardown_blockers", "Teardowns in progress that are blocked for a reason.", labels=["reason"]
        )
        for reason, number in collections.Counter(reason for item in teardowns for reason in _reasons(item)).items():
            family.add_metric([reason], number)
        yield family
        family = GaugeMetricFamily(
            "unwind_teardown_held_seconds",
            "Seconds for which a Teardown has been held, with its first blocker and who must act.",
            labels=["teardown", "target", "cause", "reason", "blocker", "actor"],
        )
        now = self._clock.now()
        for since, item in longest_held(teardowns):
            first = item.status.blockers[0]
            labels_of_one = [
                item.metadata.name,
                item.spec.title,
                _cause(item),
                first.reason,
                str(first.object),
                first.actor,
            ]
            family.add_metric(labels_of_one, max(0.0, (now - since).total_seconds()))
        yield family
        family = GaugeMetricFamily(
            "unwind_ledger_entries", "Objects in the ledgers of all Teardowns that exist.", labels=["cause"]
        )
        left: collections.Counter[str] = collections.Counter()
        for item in teardowns:
            left[_cause(item)] += item.status.left
        for cause, number in left.items():
            family.add_metric([cause], number)
        yield family

    def _on_change(self, change: Change[Teardown]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or SET_ASIDE_LABEL in new.metadata.labels:
            return
        if not self._owns(new.metadata.uid):
            return
        gained = _removed(new) - _removed(old)
        if gained > 0:
            self._removed.labels(_cause(new)).inc(gained)
        began, ended = new.spec.requested_at or new.status.started_at, new.status.finished_at
        if new.finished and not old.finished and began and ended:
            self._seconds.labels(_cause(new), _phase(new)).observe(max(0.0, (ended - began).total_seconds()))


def longest_held(teardowns: Iterable[Teardown]) -> list[tuple[datetime, Teardown]]:
    """The Teardowns that have been held longest, each with the time since when (pure)."""
    held = [
        (min(blocker.since for blocker in item.status.blockers if blocker.since), item)
        for item in teardowns
        if item.phase is Phase.HELD and item.status.blockers and any(blocker.since for blocker in item.status.blockers)
    ]
    return nsmallest(HELD_SHOWN, held, key=lambda one: (one[0], one[1].metadata.name))


def _cause(teardown: Teardown) -> str:
    return teardown.spec.cause if teardown.spec.cause in tuple(Cause) else OTHER


def _phase(teardown: Teardown) -> str:
    return teardown.phase.value if isinstance(teardown.phase, Phase) else OTHER


def _reasons(teardown: Teardown) -> set[str]:
    """Why a Teardown is blocked. Plugins can write any reason: unknown ones share a label value."""
    if teardown.finished:
        return set()
    known = tuple(Reason)
    return {blocker.reason if blocker.reason in known else OTHER for blocker in teardown.status.blockers}


def _removed(teardown: Teardown) -> int:
    """The number of objects that are verified absent, of "40/120"."""
    number = teardown.status.removed.partition("/")[0]
    return int(number) if number.isdecimal() else 0
