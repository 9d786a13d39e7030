"""In which order a removal goes, proven from the member's audit log."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.removals import RemovalScene, serve_finalizers, stateful_set, until_claimed
from unwind.api.annotation_values import VolumePolicy
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.kube import object_watch
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

FINALIZER = "gadgets.example.dev/cleanup"


async def test_custom_resources_go_while_their_operator_runs_and_definitions_and_namespaces_last(
    scene: RemovalScene, room: str
) -> None:
    group = f"{room}.dev"
    await scene.namespace(room)
    gadgets = await scene.definition(group)
    await scene.deployment(room, "operator")
    await scene.config_map(room, "settings")
    for name in ("one", "two"):
        metadata = {"name": name, "namespace": room, "finalizers": [FINALIZER]}
        await scene.put(gadgets, {"metadata": metadata})
    await scene.write()
    async with scene.waiting("Gadget", "waits for", FINALIZER) as (_, removing), asyncio.TaskGroup() as tasks:
        # Nothing that comes later has been touched.
        assert {item.object_ref.resource for item in scene.deleted()} == {"gadgets"}
        operator = tasks.create_task(serve_finalizers(scene.client, gadgets, FINALIZER))
        await removing
        operator.cancel()
    order = scene.order()
    assert set(order[:2]) == {"gadgets/one", "gadgets/two"}
    assert order[2:] == [
        "deployments/operator",
        "configmaps/settings",
        f"customresourcedefinitions/gadgets.{group}",
        f"namespaces/{room}",
    ]


async def test_a_load_balancer_is_waited_for_before_workloads_go(plane: Plane, scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.deployment(room, "web")
    spec = {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}
    service = await scene.put(SERVICES, {"metadata": {"name": "balanced", "namespace": room}, "spec": spec})
    inner = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await scene.put(SERVICES, {"metadata": {"name": "inner", "namespace": room}, "spec": inner})
    cloud = plane.clouds[scene.cluster.name]

    def addressed(it: Object | None) -> bool:
        return bool(it and it["status"]["loadBalancer"].get("ingress"))

    await object_watch.until(scene.client, SERVICES, "balanced", addressed, "addressed", namespace=room)
    assert service.uid in cloud.load_balancers
    standing: list[bool] = []

    async def watch_the_workload() -> None:
        async for event in scene.client.watch(DEPLOYMENTS, namespace=room):
            if event.type == "MODIFIED" and event.object["metadata"].get("deletionTimestamp"):
                standing.append(service.uid in cloud.load_balancers)
                return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch_the_workload())
        await scene.remove()
    assert standing == [False]
    assert scene.order() == ["services/balanced", "deployments/web", "services/inner"]


async def test_webhooks_go_before_the_workloads_behind_them(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.deployment(room, "hook")
    service = {"name": "hook", "namespace": room}
    webhook = {
        "name": f"hook.{room}.dev",
        "clientConfig": {"service": service},
        # Of nothing that there is: a webhook of one test must not get in the way of others.
        "rules": [{"apiGroups": [f"{room}.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await scene.put(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": room}, "webhooks": [webhook]})
    await scene.put(SERVICES, {"metadata": service, "spec": {"ports": [{"port": 443}], "selector": {"app": "hook"}}})
    await scene.remove()
    assert scene.order() == [f"validatingwebhookconfigurations/{room}", "deployments/hook", "services/hook"]


@pytest.mark.soak
async def test_a_definition_that_the_workloads_convert_goes_before_them(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    gadgets = await scene.definition(f"{room}.dev")
    await scene.put(gadgets, {"metadata": {"name": "one", "namespace": room}})
    await scene.deployment(room, "converter")
    service = {"name": "converter", "namespace": room}
    spec = {"ports": [{"port": 443}], "selector": {"app": "converter"}}
    await scene.put(SERVICES, {"metadata": service, "spec": spec})
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]},
    }
    name = f"gadgets.{room}.dev"
    await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"conversion": conversion}})
    await scene.remove()
    assert scene.order() == [
        "gadgets/one",
        f"customresourcedefinitions/{name}",
        "deployments/converter",
        "services/converter",
    ]


async def test_sources_go_in_the_reverse_of_the_order_in_which_they_were_applied(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    for number in range(4):
        await scene.config_map(room, f"source-{number}", order=number)
    await scene.deployment(room, "first", order=0)
    await scene.deployment(room, "second", order=1)
    await scene.remove()
    assert scene.order() == [
        "deployments/second",
        "deployments/first",
        *(f"configmaps/source-{number}" for number in (3, 2, 1, 0)),
    ]


async def test_a_workload_is_gone_with_its_pods_before_the_next_stage_begins(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.deployment(room, "web", replicas=2)
    await scene.config_map(room, "settings")
    running: list[int] = []

    async def watch_the_rest() -> None:
        async for event in scene.client.watch(CONFIG_MAPS, namespace=room, name="settings"):
            if event.type == "DELETED":
                running.append(len(await scene.client.list(PODS, namespace=room)))
                return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch_the_rest())
        await scene.remove()
    assert running == [0]


async def test_the_claims_of_a_stateful_set_are_written_down_and_go_after_it(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=2))
    made = [await until_claimed(scene.client, room, f"data-db-{number}") for number in range(2)]
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-db-9", "namespace": room}}
    theirs = await scene.client.create(PERSISTENT_VOLUME_CLAIMS, body | {"spec": made[0]["spec"]})
    removal = await scene.remove(volumes=VolumePolicy.DELETE)
    uids = {item["metadata"]["uid"] for item in made}
    assert removal.progress.total == 5
    assert (removal.progress.removed, removal.progress.left) == (3, 2)
    assert uids < removal.removed
    account = await scene.account()
    assert {account[f"pvc-{uid}"].state for uid in uids} == {"Removed"}
    # It has the name of one of the set's and not its labels: nobody deletes it.
    assert account[f"pvc-{theirs['metadata']['uid']}"].ledger
    left = await scene.client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-9", namespace=room)
    assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
    sent = [deletion.object_ref.resource for deletion in scene.cluster.audit.deletions(namespace=room) if deletion.uid]
    claims = [at for at, resource in enumerate(sent) if resource == "persistentvolumeclaims"]
    assert len(claims) == 2
    assert sent.index("statefulsets") < claims[0]


async def test_a_claim_that_no_chunk_has_room_for_gets_a_chunk_of_its_own(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=1))
    claim = await until_claimed(scene.client, room, "data-db-0")
    for number in range(499):
        metadata = {"name": f"gone-{number}", "namespace": room, "uid": f"u-{number}"}
        scene.enter(CONFIG_MAPS, {"metadata": metadata}, state="Removed")
    removal = await scene.remove(volumes=VolumePolicy.DELETE)
    assert removal.progress.removed == 501
    first, second = await scene.read()
    assert len(first.spec.entries) == 500
    assert list(second.spec.entries) == [f"pvc-{claim['metadata']['uid']}"]
    assert second.spec.sealed_for == "t-1"
    await scene.client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=room)


async def test_a_volume_that_goes_with_its_claim_is_waited_for_also_after_a_crash(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    volume = f"volume-{room}"
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": volume,
    }
    source = {"driver": "csi.example.dev", "volumeHandle": volume}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "csi": source,
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": room, "name": "data"},
    }
    annotations = {"pv.kubernetes.io/provisioned-by": "csi.example.dev"}
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume, "annotations": annotations}}
    made = await scene.client.create(PERSISTENT_VOLUMES, body | {"spec": spec})
    await scene.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data", "namespace": room}, "spec": claim})

    def bound(it: Object | None) -> bool:
        return bool(it and it.get("status", {}).get("phase") == "Bound")

    await object_watch.until(scene.client, PERSISTENT_VOLUME_CLAIMS, "data", bound, "bound", namespace=room)
    await scene.write()
    for _ in range(2):  # the second time the claim is gone already
        async with scene.waiting(f"PersistentVolume {volume} waits for its provisioner") as (_, removing):
            removing.cancel()
        await object_watch.until_absent(scene.client, PERSISTENT_VOLUME_CLAIMS, "data", namespace=room)
    async with scene.waiting(f"PersistentVolume {volume} waits for its provisioner") as (removal, removing):
        # What a provisioner does in the end.
        with suppress(ConflictError, NotFoundError):
            await scene.client.delete(PERSISTENT_VOLUMES, volume, uid=made["metadata"]["uid"])
        await removing
    assert removal.progress.removed == 1


@pytest.mark.soak
@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
async def test_what_a_custom_resource_owned_is_gone_before_its_operator_goes_also_after_a_crash(
    scene: RemovalScene, room: str, scope: str
) -> None:
    await scene.cluster.create_namespace(room)
    gadgets = await scene.definition(f"{room}.dev", scope=scope)
    where = {"namespace": room} if scope == "Namespaced" else {}
    owner = await scene.put(gadgets, {"metadata": {"name": "one", **where}})
    await scene.deployment(room, "operator")
    # Nothing makes the API server keep the owner until it is gone.
    reference = {"apiVersion": gadgets.api_version, "kind": "Gadget", "name": "one", "uid": owner.uid}
    metadata = {"name": "owned", "namespace": room, "ownerReferences": [reference], "finalizers": [FINALIZER]}
    await scene.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await scene.write()
    for _ in range(2):  # the second time the owner is gone already
        async with scene.waiting(f"waiting for the garbage collector to delete dependents: ConfigMap {room}/owned") as (
            removal,
            running,
        ):
            assert removal.removed == {owner.uid}
            running.cancel()
        assert scene.order() == ["gadgets/one"]
    async with scene.waiting("waiting for the garbage collector to delete dependents") as (removal, running):
        await scene.client.patch(CONFIG_MAPS, "owned", {"metadata": {"finalizers": None}}, namespace=room)
        await running
    assert scene.order() == ["gadgets/one", "deployments/operator", f"customresourcedefinitions/gadgets.{room}.dev"]
    assert removal.progress.over
