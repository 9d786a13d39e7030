"""When Unwind paused Cluster API for a Cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectMeta
from unwind.capi.admission_gate_pause import PAUSE_LASTS, end_pause, paused_since

if TYPE_CHECKING:
    from unwind.kube.client import Client

AT = "2026-01-01T10:00:00Z"
PAUSE: dict[str, Any] = {"f:metadata": {"f:annotations": {".": {}, "f:cluster.x-k8s.io/paused": {}}}}


def cluster(value: str | None, *writers: dict[str, Any]) -> dict[str, Any]:
    annotations = {} if value is None else {"cluster.x-k8s.io/paused": value}
    return {"metadata": {"annotations": annotations, "managedFields": list(writers)}}


def test_a_pause_of_ours_counts_from_when_it_was_written() -> None:
    by = {"manager": "unwind-delete", "time": AT, "fieldsV1": PAUSE}
    assert paused_since(cluster("unwind.dev", by)) == datetime(2026, 1, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "it",
    [
        cluster("unwind.dev", {"manager": "kubectl", "time": AT, "fieldsV1": PAUSE}),
        cluster("unwind.dev", {"manager": "unwind-delete", "time": AT, "fieldsV1": {"f:spec": {}}}),
        cluster("true", {"manager": "unwind-delete", "time": AT, "fieldsV1": PAUSE}),
        cluster(None),
        {"metadata": {}},
    ],
)
def test_what_others_paused_is_theirs_to_unpause(it: dict[str, Any]) -> None:
    assert paused_since(it) is None


META = ObjectMeta(namespace="shops", name="prod-7", uid="u-1")
BEGUN = datetime(2026, 1, 1, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Clusters:
    """A server with one Cluster."""

    def __init__(self, **metadata: Any) -> None:
        by = {"manager": "unwind-delete", "time": AT, "fieldsV1": PAUSE}
        self.found = cluster("unwind.dev", by)
        self.found["metadata"] |= {"uid": "u-1", "resourceVersion": "7", **metadata}
        self.patches: list[dict[str, Any]] = []

    async def get(self, *_: object, namespace: str) -> dict[str, Any]:
        assert namespace == "shops"
        return self.found

    async def patch(self, _: object, name: str, patch: dict[str, Any], **more: str) -> None:
        assert (name, more["namespace"]) == ("prod-7", "shops")
        self.patches.append(patch)


async def ended(clusters: Clusters, now: datetime) -> float | None:
    return await end_pause(cast("Client", clusters), CLUSTERS, META, now=now)


async def test_a_cluster_that_was_paused_and_not_deleted_is_unpaused_after_a_while_if_it_is_unchanged() -> None:
    clusters = Clusters()
    assert await ended(clusters, BEGUN + PAUSE_LASTS - SECOND) == 1
    assert clusters.patches == []
    assert await ended(clusters, BEGUN + PAUSE_LASTS) is None
    annotations = {"cluster.x-k8s.io/paused": None}
    assert clusters.patches == [{"metadata": {"uid": "u-1", "resourceVersion": "7", "annotations": annotations}}]


@pytest.mark.parametrize("metadata", [{"deletionTimestamp": AT}, {"uid": "u-2"}, {"managedFields": []}])
async def test_no_other_cluster_is_unpaused(metadata: dict[str, Any]) -> None:
    clusters = Clusters(**metadata)
    assert await ended(clusters, BEGUN + 2 * PAUSE_LASTS) is None
    assert clusters.patches == []
