"""Which Pods exceed the Pod Security Standard "baseline"."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.helm.pod_security import exceeds_baseline

_PLAIN = {"containers": [{"name": "c", "image": "c", "securityContext": {"capabilities": {"add": ["CHOWN"]}}}]}


def _container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", **fields}]}


@pytest.mark.parametrize(
    ("pod", "exceeds"),
    [
        (_PLAIN, False),
        ({**_PLAIN, "serviceAccountName": "cleanup", "volumes": [{"name": "v", "emptyDir": {}}]}, False),
        ({**_PLAIN, "hostNetwork": True}, True),
        ({**_PLAIN, "hostPID": True}, True),
        ({**_PLAIN, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, True),
        ({**_PLAIN, "securityContext": {"seccompProfile": {"type": "Unconfined"}}}, True),
        (_container(securityContext={"privileged": True}), True),
        (_container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), True),
        (_container(securityContext={"procMount": "Unmasked"}), True),
        (_container(ports=[{"containerPort": 80, "hostPort": 80}]), True),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, True),
        ({"containers": ["nonsense"]}, True),
    ],
)
def test_a_pod_exceeds_the_baseline_if_it_can_take_over_its_node(pod: dict[str, Any], *, exceeds: bool) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    assert exceeds_baseline(job) == exceeds
    assert exceeds_baseline({"apiVersion": "v1", "kind": "Pod", "spec": pod}) == exceeds


@pytest.mark.parametrize("document", [{"kind": "ConfigMap"}, {"kind": "Job", "spec": None}])
def test_an_object_without_pods_does_not(document: dict[str, Any]) -> None:
    assert not exceeds_baseline(document)


def test_an_unexpected_type_counts_as_more() -> None:
    assert exceeds_baseline({"kind": "Job", "spec": "nonsense"})
