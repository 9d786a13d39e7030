"""The deleters that come along, on a real API server with controllers and nodes, crashed wherever they wait."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from unwind import Gone, Kept
from unwind.api import names
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, PODS, STATEFUL_SETS
from unwind.deleters.builtin import BUILTIN, SCALE_TO_ZERO
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.kube import object_watch
from unwind.kube.errors import NotFoundError
from unwind.kube.watches import Watches
from unwind.testing import World, prove_idempotent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


class Witness(KubernetesEnd):
    """The end, which writes down what was there when the deletion came to it."""

    def __init__(self, namespace: str, name: str) -> None:
        self.seen: list[tuple[object, int]] = []
        self._namespace = namespace
        self._name = name

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        if not ctx.absent and not obj["metadata"].get("deletionTimestamp"):
            now = await ctx.client.get(ctx.resource, self._name, namespace=self._namespace)
            self.seen.append((now["spec"]["replicas"], await pods(ctx.client, self._namespace, self._name)))
        return await super().delete(ctx, obj)


async def pods(client: Client, namespace: str, name: str) -> int:
    return len(await client.list(PODS, namespace=namespace, labels=f"app={name}"))


@asynccontextmanager
async def following(client: Client, *resources: Resource) -> AsyncIterator[Watches]:
    """Watches that outlast what is crashed: an API server, and its watches, do not die with our process."""
    async with Watches(client, cluster=await client.cluster_uid()) as watches:
        held = [await watches.changes(resource) for resource in resources]
        yield watches
        for item in held:
            item.close()


async def workload(client: Client, resource: Resource, namespace: str, *, replicas: int) -> Object:
    """One with all its Pods running."""
    name = f"web-{uuid.uuid4().hex[:6]}"
    labels = {"app": name}
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "web", "image": "example.dev/web"}]},
        },
    }
    if resource is STATEFUL_SETS:
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    metadata = {"name": name, "namespace": namespace, "annotations": {names.SCALE_TO_ZERO_ANNOTATION: "true"}}
    body = {"apiVersion": "apps/v1", "kind": resource.kind, "metadata": metadata, "spec": spec}
    await client.create(resource, body)
    made = await object_watch.until(
        client,
        resource,
        name,
        lambda it: it is not None and (it.get("status") or {}).get("readyReplicas", 0) == replicas,
        "ready",
        namespace=namespace,
    )
    assert made
    return made


async def is_there(client: Client, resource: Resource, obj: Object) -> bool:
    metadata = obj["metadata"]
    try:
        found = await client.get(resource, metadata["name"], namespace=metadata["namespace"])
    except NotFoundError:
        return False
    return bool(found["metadata"]["uid"] == metadata["uid"])


@pytest.mark.parametrize("resource", [DEPLOYMENTS, STATEFUL_SETS], ids=lambda one: one.kind)
async def test_a_workload_is_scaled_to_zero_before_it_goes_wherever_the_process_dies(
    plane: Plane, namespace: str, resource: Resource
) -> None:
    client = plane.management.client
    ends: list[Witness] = []

    async def fresh() -> World:
        made = await workload(client, resource, namespace, replicas=1)
        name = made["metadata"]["name"]
        ends.append(Witness(namespace, name))

        async def state() -> object:
            return await is_there(client, resource, made), await pods(client, namespace, name)

        return World(made, SCALE_TO_ZERO, next=ends[-1], live=(client, watches, resource), state=state)

    async with following(client, resource) as watches:
        proof = await prove_idempotent(fresh)
    assert isinstance(proof.end, Gone)
    assert any("in scale_to_zero" in crash for crash in proof.crashes)
    # Whenever the deletion came to its end, nothing ran any more.
    assert {seen for end in ends for seen in end.seen} == {(0, 0)}
    for sent in plane.management.audit.deletions(resource=resource.plural, namespace=namespace):
        assert sent.uid


async def test_an_owner_waits_for_what_it_owns_wherever_the_process_dies(plane: Plane, namespace: str) -> None:
    client = plane.management.client

    async def fresh() -> World:
        owner = await config_map(client, namespace, annotations={names.WAIT_FOR_DEPENDENTS_ANNOTATION: "cm,jobs.batch"})
        metadata = owner["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
        left = [
            (CONFIG_MAPS, await config_map(client, namespace, ownerReferences=[reference])),
            (JOBS, await suspended_job(client, namespace, ownerReferences=[reference])),
        ]

        async def somebody() -> None:
            """Takes one of them at a time, in the order in which they are waited for."""
            assert await is_there(client, CONFIG_MAPS, owner) or not left, "it did not wait"
            if left:
                resource, one = left.pop(0)
                uid, name = one["metadata"]["uid"], one["metadata"]["name"]
                await client.delete(resource, name, uid=uid, namespace=namespace, propagation="Background")

        async def state() -> object:
            return await is_there(client, CONFIG_MAPS, owner), len(left)

        return World(owner, *BUILTIN, live=(client, watches, CONFIG_MAPS), meanwhile=somebody, state=state)

    async with following(client, CONFIG_MAPS, JOBS) as watches:
        proof = await prove_idempotent(fresh)
    assert isinstance(proof.end, Gone)
    assert any("in delete" in crash for crash in proof.crashes)


async def test_what_a_policy_keeps_is_kept_wherever_the_process_dies(plane: Plane, namespace: str) -> None:
    client = plane.management.client

    async def fresh() -> World:
        obj = await config_map(client, namespace, annotations={names.RECONCILE_POLICY_ANNOTATION: "detach-on-delete"})

        async def state() -> object:
            return await is_there(client, CONFIG_MAPS, obj)

        return World(obj, *BUILTIN, live=(client, watches, CONFIG_MAPS), state=state)

    async with following(client, CONFIG_MAPS) as watches:
        proof = await prove_idempotent(fresh)
    assert isinstance(proof.end, Kept)
    assert proof.crashes
    assert not plane.management.audit.deletions(resource="configmaps", namespace=namespace)


async def config_map(client: Client, namespace: str, **metadata: Any) -> Object:
    metadata |= {"name": f"cm-{uuid.uuid4().hex[:6]}", "namespace": namespace}
    return await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


async def suspended_job(client: Client, namespace: str, **metadata: Any) -> Object:
    metadata |= {"name": f"job-{uuid.uuid4().hex[:6]}", "namespace": namespace}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "it", "image": "example.dev/it"}]}}
    spec = {"suspend": True, "template": template}
    return await client.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
