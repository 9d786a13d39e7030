"""What the stand-in for Cluster API's providers makes of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from unwind.local.provider import (
    WorkloadCluster,
    covers,
    finalizer,
    kubeconfig_secret,
    owner,
    wanted_fields,
    wanted_status,
)
from unwind.local.stubs import STUB_CLUSTERS, STUB_CONTROL_PLANES

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

WORKLOAD = WorkloadCluster("https://127.0.0.1:6443", b"way in")
OWNER = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "prod-7", "uid": "u-7"}
BOTH = pytest.mark.parametrize("resource", [STUB_CLUSTERS, STUB_CONTROL_PLANES], ids=lambda one: one.kind)
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def stub(*, owners: list[Object] | None = None, finalizers: list[str] | None = None, **rest: Any) -> Object:
    metadata = {"name": "x", "ownerReferences": owners or [], "finalizers": finalizers or []}
    return {"metadata": metadata, "spec": {"member": "member-1", "version": "v1.36.3"}} | rest


def condition(status: Object) -> Object:
    (only,) = status["conditions"]
    return dict(only)


@BOTH
def test_a_finalizer_is_added_to_those_of_others_once(resource: Resource) -> None:
    mine = finalizer(resource)
    assert wanted_fields(resource, stub(finalizers=["theirs"]), WORKLOAD)["metadata"]["finalizers"] == ["theirs", mine]
    assert wanted_fields(resource, stub(finalizers=[mine, "theirs"]), WORKLOAD)["metadata"]["finalizers"] == [
        mine,
        "theirs",
    ]


def test_infrastructure_is_told_where_the_members_api_server_is() -> None:
    endpoint = {"host": "127.0.0.1", "port": 6443}
    assert wanted_fields(STUB_CLUSTERS, stub(), WORKLOAD)["spec"] == {"controlPlaneEndpoint": endpoint}
    assert "spec" not in wanted_fields(STUB_CLUSTERS, stub(), None)


@BOTH
def test_an_unknown_member_is_named_and_nothing_is_claimed_of_it(resource: Resource) -> None:
    status = wanted_status(resource, stub(owners=[OWNER]), None, now=NOW)
    assert status.keys() == {"conditions"}
    assert condition(status)["status"] == "False"
    assert "'member-1'" in condition(status)["message"]


@BOTH
def test_nothing_is_provided_for_an_object_that_no_cluster_refers_to(resource: Resource) -> None:
    status = wanted_status(resource, stub(owners=[{"apiVersion": "v1", "kind": "Secret"}]), WORKLOAD, now=NOW)
    assert status.keys() == {"conditions"}
    assert condition(status)["reason"] == "WaitingForCluster"


def test_a_member_that_is_there_is_provided_at_once() -> None:
    infrastructure = wanted_status(STUB_CLUSTERS, stub(owners=[OWNER]), WORKLOAD, now=NOW)
    assert infrastructure["initialization"] == {"provisioned": True}
    assert (condition(infrastructure)["type"], condition(infrastructure)["status"]) == ("Ready", "True")
    control_plane = wanted_status(STUB_CONTROL_PLANES, stub(owners=[OWNER]), WORKLOAD, now=NOW)
    assert control_plane["initialization"] == {"controlPlaneInitialized": True}
    assert control_plane["versions"] == [{"version": "v1.36.3"}]
    assert (condition(control_plane)["type"], condition(control_plane)["status"]) == ("Available", "True")


def test_a_control_plane_says_its_old_version_until_it_is_upgraded() -> None:
    old = [{"version": "v1.35.4"}]
    it = stub(owners=[OWNER], status={"versions": old})
    assert wanted_status(STUB_CONTROL_PLANES, it, WORKLOAD, now=NOW, upgraded=False)["versions"] == old
    assert wanted_status(STUB_CONTROL_PLANES, it, WORKLOAD, now=NOW)["versions"] == [{"version": "v1.36.3"}]


@BOTH
def test_the_time_of_a_condition_moves_only_with_its_status(resource: Resource) -> None:
    before = wanted_status(resource, stub(owners=[OWNER]), WORKLOAD, now=THEN)
    same = wanted_status(resource, stub(owners=[OWNER], status=before), WORKLOAD, now=NOW)
    assert same == before
    other = wanted_status(resource, stub(owners=[OWNER], status=before), None, now=NOW)
    assert condition(other)["lastTransitionTime"] == NOW


def test_the_kubeconfig_secret_goes_with_the_cluster_and_is_found_by_its_name() -> None:
    reference = owner(stub(owners=[OWNER | {"controller": True, "blockOwnerDeletion": True}]))
    assert reference
    metadata = kubeconfig_secret(reference, "ns", WORKLOAD)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("prod-7-kubeconfig", "ns")
    assert metadata["labels"] == {"cluster.x-k8s.io/cluster-name": "prod-7"}
    assert metadata["ownerReferences"] == [OWNER]


@pytest.mark.parametrize(
    ("current", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": {"b": 1}}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}]}, True),
        ({"a": 1}, {"a": {"b": 1}}, False),
    ],
)
def test_a_patch_is_covered_if_it_would_change_nothing(current: Object, patch: Object, expected: bool) -> None:
    assert covers(current, patch) is expected
