"""How Cluster API's manager is started, and what it is given to work with."""

from __future__ import annotations

from pathlib import Path

import pytest

from unwind.errors import UnwindError
from unwind.kube.object_watch import conditions_text, has_condition
from unwind.local import stubs
from unwind.local.capi import manager, read_definitions
from unwind.local.plane_programs import ClusterFiles


def flags(*, rate_limited: bool = False) -> dict[str, str]:
    argv = manager(Path("/bin/m"), ClusterFiles(Path("/plane/x")), health=1, webhooks=2, rate_limited=rate_limited)
    return dict(flag.removeprefix("--").split("=", 1) for flag in argv[1:])


def test_the_manager_can_topologies_and_runtime_extensions() -> None:
    assert flags()["feature-gates"] == "ClusterTopology=true,RuntimeSDK=true,ReconcilerRateLimiting=false"
    assert "ReconcilerRateLimiting=true" in flags(rate_limited=True)["feature-gates"]


def test_the_manager_serves_its_health_on_loopback_and_no_diagnostics() -> None:
    assert flags()["health-addr"] == "127.0.0.1:1"
    assert flags()["diagnostics-address"] == "0"


def test_a_directory_without_kinds_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnwindError, match="unwind local build"):
        read_definitions(tmp_path)


def test_every_stub_kind_is_under_the_contract_that_cluster_api_looks_for() -> None:
    for definition in stubs.custom_resource_definitions():
        assert definition["metadata"]["labels"] == {"cluster.x-k8s.io/v1beta2": "v1beta2"}
        assert definition["metadata"]["name"].startswith(f"{definition['spec']['names']['kind'].lower()}s.")


def test_what_a_cluster_names_is_made_before_it() -> None:
    made = stubs.cluster_by_hand("c", "ns", member="m", version="v1.36.3", labels={})
    assert [resource.kind for resource, _ in made] == ["StubCluster", "StubControlPlane", "Cluster"]
    assert [resource.kind for resource, _ in stubs.cluster_class()][-1] == "ClusterClass"


def test_the_account_of_an_object_is_one_line() -> None:
    message = "* InfrastructureReady: no\n* ControlPlaneAvailable: no"
    available = {"type": "Available", "status": "False", "reason": "NotAvailable", "message": message}
    other = {"type": "InfrastructureReady", "status": "False", "reason": "X", "message": "no"}
    cluster = {"status": {"conditions": [available, other]}}
    told = "Available is False (NotAvailable): * InfrastructureReady: no * ControlPlaneAvailable: no"
    assert conditions_text(cluster, "Available") == told
    assert conditions_text(cluster, "Missing") == f"{told}; InfrastructureReady is False (X): no"
    assert conditions_text(None) == "it does not exist"


def test_conditions_that_are_null_are_not_true() -> None:
    assert not has_condition({"status": {"conditions": None}}, "Established")
    assert not has_condition(None, "Established")
