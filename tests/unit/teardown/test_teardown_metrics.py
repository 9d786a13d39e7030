"""The metric of Teardowns."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from unwind.addons.caches import AddonCaches
from unwind.api.meta import ObjectMeta
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown, TeardownSpec, TeardownStatus
from unwind.teardown.teardown_metrics import TeardownMetrics
from unwind.testing.objects import Objects


def teardown(name: str, cause: str, phase: str = "", **labels: str) -> Teardown:
    return Teardown(
        metadata=ObjectMeta(name=name, labels=labels),
        spec=TeardownSpec(cause=cause),
        status=TeardownStatus(phase=phase),
    )


def test_teardowns_are_counted_by_cause_and_phase_and_unknown_values_share_a_label() -> None:
    teardowns, registry = AddonCaches(Objects(resources=(TEARDOWNS,)).client).teardowns, CollectorRegistry()
    TeardownMetrics(teardowns, registry)
    for item in (
        teardown("a", Cause.WITHDRAWN, Phase.HELD),
        teardown("b", Cause.WITHDRAWN, Phase.HELD),
        teardown("c", Cause.PRUNED),
        teardown("d", "Newer", "Other"),
        teardown("e", Cause.WITHDRAWN, Phase.HELD, **{SET_ASIDE_LABEL: "true"}),
    ):
        teardowns.cache.put(item)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert sorted(lines) == [
        'unwind_teardowns{cause="Pruned",phase="Pending"} 1.0',
        'unwind_teardowns{cause="Withdrawn",phase="Held"} 2.0',
        'unwind_teardowns{cause="other",phase="other"} 1.0',
    ]
