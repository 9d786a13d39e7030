"""Which clusters can be joined, and under which name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from unwind.api.karmada import Cluster, ClusterSpec, RemoveStrategy
from unwind.api.meta import ObjectMeta
from unwind.api.names import REMOVE_STRATEGY_ANNOTATION
from unwind.errors import UnwindError
from unwind.karmada import join_objects
from unwind.karmada.join_objects import Wish
from unwind.kube.kubeconfig import ClusterConnection

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EDGE = Wish(name="edge")


def cluster(name: str, **spec: Any) -> Cluster:
    return Cluster(metadata=ObjectMeta(name=name), spec=ClusterSpec(**{"sync_mode": "Push", **spec}))


def standing(*clusters: Cluster) -> Cluster | None:
    return join_objects.standing(EDGE, clusters, identity="u-1", server="https://edge")


@pytest.mark.parametrize("name", ["a", "a-1", "x" * 48])
def test_a_name_is_a_dns_label(name: str) -> None:
    Wish(name=name).check()


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "a_b", "ä", "a\n", "x" * 49])
def test_what_cannot_be_part_of_other_names_is_refused(name: str) -> None:
    with pytest.raises(UnwindError, match="invalid "):
        Wish(name=name).check()
    with pytest.raises(UnwindError, match="--cluster-namespace"):
        Wish(name="a", namespace=name if len(name) < 49 else name * 2).check()


def test_a_cluster_that_nobody_knows_may_become_a_member() -> None:
    assert standing() is None
    assert standing(cluster("other", id="u-2", api_endpoint="https://other")) is None
    # The address may have belonged to another cluster: the identity counts.
    assert standing(cluster("other", id="u-2", api_endpoint="https://edge")) is None


def test_what_was_begun_under_the_same_name_is_gone_on_with() -> None:
    assert standing(cluster("other", id="u-2"), begun := cluster("edge", id="u-1")) is begun


@pytest.mark.parametrize(
    ("there", "said"),
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
def test_a_member_has_one_name_and_a_name_one_member(there: Cluster, said: str) -> None:
    with pytest.raises(UnwindError, match=said):
        standing(there)


def test_only_what_was_said_is_written() -> None:
    way = ClusterConnection(server="https://edge")
    plain = join_objects.cluster(EDGE, way, identity="u-1")
    assert plain["spec"] == {
        "syncMode": "Push",
        "id": "u-1",
        "apiEndpoint": "https://edge",
        "secretRef": {"namespace": "karmada-cluster", "name": "edge"},
    }
    assert "annotations" not in plain["metadata"]
    wish = Wish(name="edge", provider="p", zones=("a", "b"), remove_strategy=RemoveStrategy.REQUIRED)
    full = join_objects.cluster(wish, msgspec.structs.replace(way, insecure=True, proxy="http://p"), identity="u-1")
    assert (
        full["spec"]
        | {
            "insecureSkipTLSVerification": True,
            "proxyURL": "http://p",
            "provider": "p",
            "zones": ["a", "b"],
            "removeStrategy": "Required",
        }
        == full["spec"]
    )
    assert full["metadata"]["annotations"] == {REMOVE_STRATEGY_ANNOTATION: "Required"}


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


def test_of_two_that_were_made_at_once_the_later_one_knows_that_it_is() -> None:
    first, second = made(9), made(10)
    assert join_objects.may_be_older(first, second)
    assert not join_objects.may_be_older(second, first)


def test_where_that_cannot_be_told_it_may_be_older() -> None:
    assert join_objects.may_be_older(made(12, finalizers=("unwind.dev/member",)), made(10))
    assert not join_objects.may_be_older(made(12, second=1, finalizers=("unwind.dev/member",)), made(10))
    assert join_objects.may_be_older(made(12), made(10, second=1))
