"""What Cluster API asks, for tests; and the records of teardowns that answers go by."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from unwind.api.hooks import API_VERSION, Hook
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import Plan, Step, StepStatus, Teardown, TeardownSpec, TeardownStatus

UID = "3f1c7a52-6d0e-4b7e-9f55-0c1d2e3f4a5b"
V1BETA1, V1BETA2 = "cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"


def cluster(
    *, uid: str = UID, name: str = "prod-7", namespace: str = "fleet", version: str = V1BETA2
) -> dict[str, Any]:
    """A Cluster as Cluster API sends it: with a spec, without a status."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": "4711",
        "generation": 3,
        "creationTimestamp": "2025-05-01T10:00:00Z",
        "deletionTimestamp": "2025-06-01T10:00:00Z",
        "finalizers": ["cluster.cluster.x-k8s.io"],
        "labels": {"env": "prod", "topology.cluster.x-k8s.io/owned": ""},
        "annotations": {"unwind.dev/deadline": "30m"},
    }
    named = {"classRef": {"name": "stub"}} if version == V1BETA2 else {"class": "stub"}
    topology = {
        **named,
        "version": "v1.34.0",
        "controlPlane": {"replicas": 3},
        "variables": [{"name": "a", "value": 1}],
    }
    network = {"pods": {"cidrBlocks": ["10.0.0.0/16"]}, "serviceDomain": "cluster.local"}
    spec = {"clusterNetwork": network, "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "topology": topology}
    return {"apiVersion": version, "kind": "Cluster", "metadata": metadata, "spec": spec, "status": {}}


def request(hook: Hook = Hook.BEFORE_CLUSTER_DELETE, **more: Any) -> dict[str, Any]:
    """What a hook is asked."""
    return {"apiVersion": API_VERSION, "kind": f"{hook.value}Request", "cluster": cluster(), "settings": {}} | more


def body(hook: Hook = Hook.BEFORE_CLUSTER_DELETE, **more: Any) -> bytes:
    return json.dumps(request(hook, **more)).encode()


def teardown(
    *steps: tuple[str, str, str], uid: str = UID, phase: str = "Removing", waves: tuple[int, ...] = (), objects: int = 3
) -> Teardown:
    """The record of a teardown of these steps: name, effort, state ("" for one that status does not mention)."""
    places = waves or (1,) * len(steps)
    return Teardown(
        metadata=ObjectMeta(name=uid, uid=f"teardown-of-{uid}", resource_version="1"),
        spec=TeardownSpec(
            title="Cluster fleet/prod-7",
            target=ObjectRef(kind="Cluster", namespace="fleet", name="prod-7", uid=uid),
            cause="ClusterDeleted",
            plan=Plan(
                steps=tuple(
                    Step(
                        name=name,
                        object=ObjectRef(kind="ClusterSummary", name=name),
                        effort=effort,
                        wave=wave,
                        objects=objects,
                    )
                    for (name, effort, _), wave in zip(steps, places, strict=True)
                ),
                waves=max(places, default=0),
            ),
        ),
        status=TeardownStatus(
            phase=phase, steps=tuple(StepStatus(name=name, state=state) for name, _, state in steps if state)
        ),
    )


def without_plan(it: Teardown) -> Teardown:
    return msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, plan=None))
