"""The objects of a join: valid names, and a Cluster with the options that were given."""

from __future__ import annotations

import msgspec
import pytest

from unwind.api.karmada import RemoveStrategy
from unwind.api.names import REMOVE_STRATEGY_ANNOTATION
from unwind.errors import UnwindError
from unwind.karmada import join_objects
from unwind.karmada.join_objects import JoinOptions
from unwind.kube.kubeconfig import ClusterConnection

EDGE = JoinOptions(name="edge")


@pytest.mark.parametrize("name", ["a", "a-1", "x" * 48])
def test_a_name_is_a_dns_label(name: str) -> None:
    JoinOptions(name=name).check()


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "a_b", "ä", "a\n", "x" * 49])
def test_a_name_that_is_no_dns_label_or_too_long_is_refused(name: str) -> None:
    with pytest.raises(UnwindError, match="invalid "):
        JoinOptions(name=name).check()
    with pytest.raises(UnwindError, match="--cluster-namespace"):
        JoinOptions(name="a", namespace=name if len(name) < 49 else name * 2).check()


def test_a_cluster_object_has_the_options_that_were_given_and_no_others() -> None:
    connection = ClusterConnection(server="https://edge")
    plain = join_objects.member_cluster(EDGE, connection, identity="u-1")
    assert plain["spec"] == {
        "syncMode": "Push",
        "id": "u-1",
        "apiEndpoint": "https://edge",
        "secretRef": {"namespace": "karmada-cluster", "name": "edge"},
    }
    assert "annotations" not in plain["metadata"]
    options = JoinOptions(name="edge", provider="p", zones=("a", "b"), remove_strategy=RemoveStrategy.REQUIRED)
    full = join_objects.member_cluster(
        options, msgspec.structs.replace(connection, insecure=True, proxy="http://p"), identity="u-1"
    )
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
