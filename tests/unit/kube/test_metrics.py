"""Metrics have a bounded number of label values, and are read on demand."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from unwind.api.resources import DEPLOYMENTS
from unwind.kube import decoding
from unwind.kube.client import Client
from unwind.kube.fencing import FencedError
from unwind.kube.informers import Informer
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.metrics import Metrics
from unwind.kube.workqueue import Queue


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_kinds_that_nobody_listed_share_one_label(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry, resources=["configmaps"])
    for number in range(500):
        metrics.called("get", f"widgets-{number}", 200, 0.01)
    metrics.called("get", "configmaps", 404, 0.01)
    metrics.called("delete", "configmaps", 0, 30.0)
    text = generate_latest(registry).decode()
    counts = [line for line in text.splitlines() if line.startswith("unwind_api_call_seconds_count")]
    assert sorted(counts) == [
        'unwind_api_call_seconds_count{resource="configmaps",status="4xx",verb="get"} 1.0',
        'unwind_api_call_seconds_count{resource="configmaps",status="none",verb="delete"} 1.0',
        'unwind_api_call_seconds_count{resource="other",status="2xx",verb="get"} 500.0',
    ]


async def test_a_reconciler_is_timed_and_its_failures_are_counted_and_raised(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)

    async def reconcile(key: str) -> float | None:
        if key == "bad":
            raise RuntimeError(key)
        if key == "of another replica":
            raise FencedError(key)
        return 5.0

    timed = metrics.timed("cluster", reconcile)
    assert await timed("good") == 5.0
    with pytest.raises(RuntimeError):
        await timed("bad")
    with pytest.raises(FencedError):
        await timed("of another replica")
    assert registry.get_sample_value("unwind_reconcile_seconds_count", {"controller": "cluster"}) == 3
    assert registry.get_sample_value("unwind_reconcile_errors_total", {"controller": "cluster"}) == 1


def test_queues_and_caches_are_read_when_somebody_asks(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)

    async def never(_: str) -> float | None:
        return None

    queue: Queue[str] = Queue(never)
    informer = Informer(Client(ClusterConnection(server="https://127.0.0.1:1")), decoding.metadata(DEPLOYMENTS))
    metrics.queue("cluster", queue)
    metrics.informer(informer)
    queue.add("a")
    queue.add("b")
    informer.cache.put(
        decoding.Metadata(name="it", namespace="here", uid="1", resource_version="7"),
    )
    assert registry.get_sample_value("unwind_queue_depth", {"controller": "cluster"}) == 2
    assert registry.get_sample_value("unwind_cache_objects", {"resource": "deployments.apps"}) == 1
    assert registry.get_sample_value("unwind_cache_synced", {"resource": "deployments.apps"}) == 0
