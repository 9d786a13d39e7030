"""Other systems' controllers are recognized by what their makers call them, wherever they run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from unwind.api.resources import DEPLOYMENTS, STATEFUL_SETS
from unwind.install.conflicting_controllers import RIVALS, in_leases, in_workloads
from unwind.install.running_managers import lease_held

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def workload(
    namespace: str = "elsewhere",
    name: str = "renamed",
    *,
    labels: dict[str, str] | None = None,
    image: str = "registry.example/app:1",
    replicas: int = 1,
    running: int = 1,
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"replicas": running, "availableReplicas": running},
    }


def names_of(*workloads: dict[str, Any]) -> list[str]:
    return [item.rival.name for item in in_workloads(DEPLOYMENTS, workloads)]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (workload("projectsveltos", "addon-controller"), "Sveltos' addon-controller"),
        (workload("projectsveltos", "sc-manager"), "Sveltos' sveltoscluster-manager"),
        (workload(labels={"control-plane": "addon-controller"}), "Sveltos' addon-controller"),
        (workload(image="docker.io/projectsveltos/addon-controller:v1.0.0"), "Sveltos' addon-controller"),
        (
            workload(image="localhost:5000/mirror/projectsveltos/sveltoscluster-manager@sha256:00"),
            "Sveltos' sveltoscluster-manager",
        ),
        (workload("karmada-system", "karmada-controller-manager"), "Karmada's controller-manager"),
        (workload(labels={"app.kubernetes.io/name": "karmada-controller-manager"}), "Karmada's controller-manager"),
        (workload("kruise-system", "kruise-controller-manager"), "OpenKruise"),
        (workload(labels={"app": "azure-service-operator-v2"}), "Azure Service Operator"),
    ],
)
def test_a_rival_is_known_by_its_name_its_labels_or_its_image(found: dict[str, Any], name: str) -> None:
    assert names_of(found) == [name]


@pytest.mark.parametrize(
    "found",
    [
        workload("mine", "addon-controller"),
        workload(image="registry.example/projectsveltos/addon-controller-docs:1"),
        workload(image="registry.example/other/addon-controller:1"),
        workload("kube-system", "kube-controller-manager", labels={"control-plane": "controller-manager"}),
    ],
)
def test_somebody_elses_program_of_a_similar_name_is_no_rival(found: dict[str, Any]) -> None:
    assert names_of(found) == []


def test_one_that_is_scaled_to_nothing_is_not_alive_until_its_last_pod_is_gone() -> None:
    assert names_of(workload("projectsveltos", "addon-controller", replicas=0, running=0)) == []
    assert names_of(workload("projectsveltos", "addon-controller", replicas=0, running=1)) != []
    assert names_of(workload("projectsveltos", "addon-controller", replicas=1, running=0)) != []


def test_the_remedy_names_the_object_that_was_found() -> None:
    [alive] = in_workloads(STATEFUL_SETS, [workload("projectsveltos", "addon-controller")])
    assert alive.found == "StatefulSet projectsveltos/addon-controller, 1 of 1 available"
    assert alive.remedy == "kubectl -n projectsveltos scale statefulset addon-controller --replicas=0"


def lease(name: str, *, holder: str | None = "host_1", age: float = 1.0, **spec: Any) -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    body = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15, **spec}
    return {"metadata": {"namespace": "karmada-system", "name": name}, "spec": body}


def test_a_controller_that_runs_elsewhere_is_known_by_the_lease_it_holds_here() -> None:
    found = in_leases([lease("karmada-controller-manager"), lease("karmada-agent-member-1"), lease("other")], now=NOW)
    assert [item.rival.name for item in found] == ["Karmada's controller-manager", "Karmada's agent"]
    assert "host_1" in found[0].found


@pytest.mark.parametrize(
    ("found", "is_held"),
    [
        (lease("l", age=29), True),
        (lease("l", age=31), False),
        (lease("l", age=-3600), True),
        (lease("l", holder=""), False),
        (lease("l", holder=None), False),
        (lease("l", age=3600, renewTime=None), True),
        (lease("l", age=100, leaseDurationSeconds=60), True),
        ({"metadata": {}, "spec": {}}, False),
        ({"metadata": {}}, False),
    ],
)
def test_a_lease_is_held_until_it_has_certainly_run_out(found: dict[str, Any], is_held: bool) -> None:
    assert lease_held(found, now=NOW) is is_held


def test_only_those_that_coexist_are_let_be_and_they_say_why() -> None:
    coexisting = [rival for rival in RIVALS if rival.coexists]
    assert {rival.name for rival in coexisting} == {"OpenKruise", "Azure Service Operator"}
    assert all(rival.note for rival in coexisting)
