"""Whether a cluster may join, and under which name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from unwind.api.karmada import Cluster, ClusterSpec
from unwind.api.meta import ObjectMeta
from unwind.errors import UnwindError
from unwind.karmada import join_refusals
from unwind.karmada.join_objects import JoinOptions

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EDGE = JoinOptions(name="edge")


def cluster(name: str, **spec: Any) -> Cluster:
    return Cluster(metadata=ObjectMeta(name=name), spec=ClusterSpec(**{"sync_mode": "Push", **spec}))


def existing_member(*clusters: Cluster) -> Cluster | None:
    return join_refusals.existing_member(EDGE, clusters, identity="u-1", server="https://edge")


def test_a_cluster_that_is_not_joined_may_join() -> None:
    assert existing_member() is None
    assert existing_member(cluster("other", id="u-2", api_endpoint="https://other")) is None
    # The address may have belonged to another cluster: the identity counts.
    assert existing_member(cluster("other", id="u-2", api_endpoint="https://edge")) is None


def test_a_join_that_was_interrupted_continues_under_the_same_name() -> None:
    assert existing_member(cluster("other", id="u-2"), begun := cluster("edge", id="u-1")) is begun


@pytest.mark.parametrize(
    ("existing", "message"),
    [
        (cluster("other", id="u-1"), "already joined as other"),
        (cluster("other", api_endpoint="https://edge"), "already joined as other"),
        (cluster("edge", id="u-2"), "taken by cluster u-2"),
        (cluster("edge"), "taken by a cluster without an id"),
        (cluster("edge", id="u-1", sync_mode="Pull"), "in Pull mode"),
        (
            Cluster(
                metadata=ObjectMeta(name="edge", deletion_timestamp=NOON),
                spec=ClusterSpec(sync_mode="Push", id="u-1"),
            ),
            "being unjoined",
        ),
    ],
)
def test_a_member_has_one_name_and_a_name_one_member(existing: Cluster, message: str) -> None:
    with pytest.raises(UnwindError, match=message):
        existing_member(existing)


def made(version: int, *, second: int = 0, **meta: Any) -> Cluster:
    return Cluster(
        metadata=ObjectMeta(
            name=f"m-{version}",
            creation_timestamp=NOON.replace(second=second),
            resource_version=str(version),
            generation=1,
            **meta,
        )
    )


def test_of_two_clusters_created_in_one_second_the_resource_version_tells_the_older() -> None:
    first, second = made(9), made(10)
    assert join_refusals.may_be_older(first, second)
    assert not join_refusals.may_be_older(second, first)


def test_an_updated_cluster_of_the_same_second_may_be_older() -> None:
    assert join_refusals.may_be_older(made(12, finalizers=("unwind.dev/member",)), made(10))
    assert not join_refusals.may_be_older(made(12, second=1, finalizers=("unwind.dev/member",)), made(10))
    assert join_refusals.may_be_older(made(12), made(10, second=1))
