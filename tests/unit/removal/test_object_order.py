"""In which order the objects of one step go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.removal.making import item
from unwind.removal.object_order import Facts, Stage, order, served_by, stage


@pytest.mark.parametrize(
    ("group", "kind", "when"),
    [
        ("example.dev", "Gadget", Stage.CUSTOM_RESOURCES),
        ("cert-manager.io", "Certificate", Stage.CUSTOM_RESOURCES),
        ("snapshot.storage.k8s.io", "VolumeSnapshot", Stage.CUSTOM_RESOURCES),
        ("networking.k8s.io", "Ingress", Stage.CLOUD),
        ("gateway.networking.k8s.io", "Gateway", Stage.CLOUD),
        ("gateway.networking.k8s.io", "HTTPRoute", Stage.CUSTOM_RESOURCES),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", Stage.CALLERS),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", Stage.CALLERS),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", Stage.REST),
        ("apiregistration.k8s.io", "APIService", Stage.CALLERS),
        ("apps", "Deployment", Stage.WORKLOADS),
        ("apps", "StatefulSet", Stage.WORKLOADS),
        ("batch", "CronJob", Stage.WORKLOADS),
        ("", "Pod", Stage.WORKLOADS),
        ("", "PersistentVolumeClaim", Stage.CLAIMS),
        ("", "Service", Stage.REST),
        ("", "ServiceAccount", Stage.REST),
        ("rbac.authorization.k8s.io", "ClusterRole", Stage.REST),
        ("apiextensions.k8s.io", "CustomResourceDefinition", Stage.DEFINITIONS),
        ("", "Namespace", Stage.NAMESPACES),
    ],
)
def test_each_kind_has_its_stage(group: str, kind: str, when: Stage) -> None:
    assert stage(item(kind, group=group), Facts()) is when


def test_a_load_balancer_goes_with_what_the_cloud_has_a_part_of() -> None:
    assert stage(item("Service", "balanced"), Facts(balancers=frozenset(["balanced"]))) is Stage.CLOUD


def test_a_definition_that_is_converted_by_the_step_goes_before_its_workloads() -> None:
    definition = item("CustomResourceDefinition", "gadgets", group="apiextensions.k8s.io")
    assert stage(definition, Facts(converted=frozenset(["gadgets"]))) is Stage.CALLERS


def test_stages_come_before_the_order_of_sources() -> None:
    first = item("ConfigMap", "first", order=0)
    last = item("ConfigMap", "last", order=9)
    workload = item("Deployment", "workload", group="apps", order=0)
    resource = item("Gadget", "resource", group="example.dev", order=0)
    assert order([first, workload, last, resource]) == [[resource], [workload], [last], [first]]


def test_what_one_source_put_there_goes_side_by_side() -> None:
    together = [item("ConfigMap", name, order=3) for name in "abc"]
    assert order(together) == [together]
    assert order([]) == []


@pytest.mark.parametrize(
    ("conversion", "is_served"),
    [
        (None, False),
        ({"strategy": "None"}, False),
        ({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://elsewhere"}}}, False),
        ({"webhook": {"clientConfig": {"service": {"namespace": "room", "name": "hook", "path": "/"}}}}, True),
        ({"webhook": {"clientConfig": {"service": {"namespace": "other", "name": "hook"}}}}, False),
    ],
)
def test_a_definition_is_served_by_a_service_of_the_step(conversion: Any, is_served: bool) -> None:
    spec = {"group": "example.dev"} | ({"conversion": conversion} if conversion else {})
    assert served_by({"kind": "CustomResourceDefinition", "spec": spec}, {("room", "hook")}) is is_served
