"""`Always` protects objects of every kind, by policies alone, and stops no controller."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.commands import command, json_of
from tests.plane.support.extension_registration import serve_only
from tests.plane.support.objects import crd, define, new_object, until_allowed, until_refused
from tests.plane.support.protected_objects import ROOM, apply_policies, delete, ours, pod
from tests.plane.support.protection_table import ALWAYS, LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICES,
    Resource,
)
from unwind.api.rights import HOME
from unwind.kube import object_watch
from unwind.kube.errors import ApiError, NotFoundError
from unwind.protection import manifests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

pytestmark = pytest.mark.timeout(400)

GIZMOS = Resource("other.example.dev", "v1", "gizmos", "Gizmo")
SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A cluster with the policies and no manager."""
    member = await plane.add_member(f"any-kind-{uuid.uuid4().hex[:8]}")
    client = member.client
    await define(client, crd(GIZMOS))
    await member.create_namespace(ROOM)
    await apply_policies(client)
    for resource in (GIZMOS, CONFIG_MAPS, REPLICA_SETS, JOBS):
        await until_heeded(client, resource)
    await until_refused(lambda: client.create(GIZMOS, labelled(GIZMOS, f"typo-{uuid.uuid4().hex[:8]}", "always")))
    yield member
    await plane.remove_member(member.name)


async def until_heeded(client: Client, resource: Resource) -> None:
    made = await client.create(resource, labelled(resource, "canary"))
    uid = made["metadata"]["uid"]
    await until_refused(lambda: client.delete(resource, "canary", uid=uid, namespace=ROOM, dry_run=True))


def labelled(resource: Resource, name: str, value: str = "Always", **content: Any) -> Object:
    match = {"app": name}
    template = pod(match, restartPolicy="Never")
    filled: dict[str, Object] = {
        "ReplicaSet": {"spec": {"replicas": 0, "selector": {"matchLabels": match}, "template": pod(match)}},
        "Job": {"spec": {"suspend": True, "template": template}},
    }
    body = new_object(resource, name, ROOM, **filled.get(resource.kind, {})) | content
    body["metadata"]["labels"] = {LABEL: value}
    return body


async def refused(act: Awaitable[Any]) -> str:
    with pytest.raises(ApiError) as refusal:
        await act
    return ours(refusal.value)


async def test_a_labelled_custom_resource_cannot_be_deleted_and_the_denial_says_how_to(cluster: LocalCluster) -> None:
    made = await cluster.client.create(GIZMOS, labelled(GIZMOS, "kept"))
    said = await refused(delete(cluster.client, GIZMOS, made))
    way = f"kubectl label gizmos.other.example.dev/kept -n {ROOM} {LABEL}-"
    assert said == f"{ALWAYS}; to delete it anyway, remove the label first: {way}"
    await cluster.client.patch(GIZMOS, "kept", {"metadata": {"labels": {LABEL: None}}}, namespace=ROOM)
    await delete(cluster.client, GIZMOS, made)
    await object_watch.until_absent(cluster.client, GIZMOS, "kept", namespace=ROOM)


async def test_of_a_collection_of_custom_resources_the_labelled_one_stays(cluster: LocalCluster) -> None:
    client = cluster.client
    for name, label in (("a", None), ("b", "Always"), ("c", None)):
        body = new_object(GIZMOS, name, ROOM)
        body["metadata"]["labels"] = {"together": "yes"} | ({LABEL: label} if label else {})
        await client.create(GIZMOS, body)
    path = f"{GIZMOS.path(namespace=ROOM)}?labelSelector=together%3Dyes"
    said = await refused(client._write("delete", GIZMOS, "DELETE", path, {}))
    assert f"gizmos.other.example.dev/b -n {ROOM}" in said
    left = {gizmo["metadata"]["name"] for gizmo in await client.list(GIZMOS, namespace=ROOM, labels="together=yes")}
    assert "b" in left


async def test_an_unknown_value_on_any_kind_is_refused_when_it_is_written(cluster: LocalCluster) -> None:
    said = await refused(cluster.client.create(GIZMOS, labelled(GIZMOS, "typo", "always")))
    assert "always: unknown value" in said


async def test_a_namespace_that_is_deleted_without_a_manager_keeps_a_labelled_object_of_any_kind(
    cluster: LocalCluster,
) -> None:
    client = cluster.client
    room = await client.create(NAMESPACES, new_object(NAMESPACES, "leaving"))
    kept = labelled(GIZMOS, "kept")
    kept["metadata"]["namespace"] = "leaving"
    await client.create(GIZMOS, kept)
    await client.create(GIZMOS, new_object(GIZMOS, "free", "leaving"))
    await delete(client, NAMESPACES, room)
    await object_watch.until_absent(client, GIZMOS, "free", namespace="leaving")
    # Its controller has tried: the namespace says what it waits for.
    found = await object_watch.until(
        client, NAMESPACES, "leaving", lambda it: it is not None and "forbidden by" in str(it["status"]), "refused"
    )
    assert found
    assert await client.get(GIZMOS, "kept", namespace="leaving")


async def test_a_resource_that_is_not_served_outlasts_its_namespace(cluster: LocalCluster) -> None:
    """A limit that docs/limits.md names: such resources cannot be listed, and do not go with their namespace."""
    client = cluster.client
    hidden = Resource("hidden.example.dev", "v1", "secrets", "Hidden")
    await define(client, crd(hidden))
    room = await client.create(NAMESPACES, new_object(NAMESPACES, "hiding"))
    kept = labelled(hidden, "kept")
    kept["metadata"]["namespace"] = "hiding"
    await until_allowed(lambda: client.create(hidden, kept))
    await serve_only(client, Resource(hidden.group, "none", hidden.plural, hidden.kind))
    await delete(client, NAMESPACES, room)
    await object_watch.until_absent(client, NAMESPACES, "hiding")
    await serve_only(client, hidden)
    assert await client.get(hidden, "kept", namespace="hiding")


async def test_a_protected_service_with_150_endpoints_is_scaled_to_5(cluster: LocalCluster) -> None:
    client, match = cluster.client, {"app": "wide"}
    ports = [{"port": 80}]
    service = labelled(SERVICES, "wide", spec={"selector": match, "ports": ports, "clusterIP": "None"})
    await client.create(SERVICES, service)
    spec = {"replicas": 150, "selector": {"matchLabels": match}, "template": pod(match, nodeSelector={})}
    await client.create(DEPLOYMENTS, new_object(DEPLOYMENTS, "wide", ROOM, spec=spec))

    async def endpoints() -> tuple[int, int]:
        slices = await client.list(SLICES, namespace=ROOM, labels="kubernetes.io/service-name=wide")
        assert all(item["metadata"]["labels"][LABEL] == "Always" for item in slices), "its controller copies labels"
        return len(slices), sum(len(item.get("endpoints") or ()) for item in slices)

    await eventually(lambda: _is(endpoints, (2, 150)))
    await client.patch(DEPLOYMENTS, "wide", {"spec": {"replicas": 5}}, namespace=ROOM, subresource="scale")
    await eventually(lambda: _is(endpoints, (1, 5)))
    made = await client.get(SERVICES, "wide", namespace=ROOM)
    assert await refused(delete(client, SERVICES, made))


async def _is(found: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return bool(await found() == wanted)


async def test_a_deployment_whose_template_carries_the_label_rolls_out_and_old_replica_sets_go(
    cluster: LocalCluster,
) -> None:
    client, match = cluster.client, {"app": "rolling"}
    template = pod(match | {LABEL: "Always"}, nodeSelector={})
    spec = {"replicas": 3, "revisionHistoryLimit": 0, "selector": {"matchLabels": match}, "template": template}
    await client.create(DEPLOYMENTS, new_object(DEPLOYMENTS, "rolling", ROOM, spec=spec))

    async def pods(image: str) -> int:
        found = await client.list(PODS, namespace=ROOM, labels="app=rolling")
        return sum(item["spec"]["containers"][0]["image"] == image for item in found) if _alike(found) else -1

    async def replica_sets() -> list[str]:
        found = await client.list(REPLICA_SETS, namespace=ROOM, labels="app=rolling")
        assert all(item["metadata"]["labels"][LABEL] == "Always" for item in found)
        return [item["metadata"]["name"] for item in found]

    await eventually(lambda: _is(lambda: pods("registry.example/app"), 3))
    [first] = await replica_sets()
    found = await client.get(REPLICA_SETS, first, namespace=ROOM)
    assert await refused(delete(client, REPLICA_SETS, found)), "a person is refused all the same"

    another = [{"name": "main", "image": "registry.example/app:2"}]
    change = {"spec": {"template": {"spec": {"containers": another}}}}
    await client.patch(DEPLOYMENTS, "rolling", change, namespace=ROOM)
    await eventually(lambda: _is(lambda: pods("registry.example/app:2"), 3))

    async def only_the_new_one() -> bool:
        return len(names := await replica_sets()) == 1 and first not in names

    await eventually(only_the_new_one)
    deployment = await client.get(DEPLOYMENTS, "rolling", namespace=ROOM)
    await delete(client, DEPLOYMENTS, deployment)
    await eventually(lambda: _is(replica_sets, []))


def _alike(pods: list[Object]) -> bool:
    return len({obj["spec"]["containers"][0]["image"] for obj in pods}) <= 1


async def test_an_object_with_a_controller_is_free_and_a_claim_with_one_is_not(cluster: LocalCluster) -> None:
    client = cluster.client
    owner = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "owner", ROOM))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    for number, controller in enumerate((True, False)):
        body = labelled(GIZMOS, f"owned-{number}")
        body["metadata"]["ownerReferences"] = [reference | {"controller": controller}]
        made = await client.create(GIZMOS, body)
        if controller:
            await delete(client, GIZMOS, made)
        else:
            assert await refused(delete(client, GIZMOS, made))
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    claim = labelled(PERSISTENT_VOLUME_CLAIMS, "owned", spec=storage | {"volumeName": "none-such"})
    claim["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    made = await client.create(PERSISTENT_VOLUME_CLAIMS, claim)
    assert await refused(delete(client, PERSISTENT_VOLUME_CLAIMS, made))


async def test_protect_takes_any_kind_and_refuses_what_the_label_would_not_protect(cluster: LocalCluster) -> None:
    client = cluster.client
    await client.create(GIZMOS, new_object(GIZMOS, "mine", ROOM))
    told = await json_of(cluster, "protect", "gizmo/mine", "-n", ROOM)
    assert (told["label"], told["enforced"]["way"]) == ("Always", "policy")
    assert told["enforced"]["by"].endswith(f"-any-kind.{HOME}")
    assert told["now"].startswith(ALWAYS)
    await json_of(cluster, "unprotect", "gizmo/mine", "-n", ROOM)
    assert (
        "does not count dependents"
        in (await command(cluster, "protect", "gizmo/mine", "-n", ROOM, "--cascading")).refusal
    )

    await client.create(SLICES, new_object(SLICES, "copy", ROOM, addressType="IPv4", endpoints=[]))
    refusal = (await command(cluster, "protect", "endpointslice/copy", "-n", ROOM)).refusal
    assert "an EndpointSlice" in refusal or "a EndpointSlice cannot be protected" in refusal
    name = manifests.policy_name("any-kind", HOME)
    refusal = (await command(cluster, "protect", f"validatingadmissionpolicy/{name}")).refusal
    assert "the API server does not call admission policies for" in refusal
    assert "restrict its deletion with RBAC" in refusal
    owner = await client.get(GIZMOS, "mine", namespace=ROOM)
    body = new_object(GIZMOS, "part", ROOM)
    reference = {"apiVersion": GIZMOS.api_version, "kind": "Gizmo", "name": "mine", "uid": owner["metadata"]["uid"]}
    body["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    await client.create(GIZMOS, body)
    refusal = (await command(cluster, "protect", "gizmo/part", "-n", ROOM)).refusal
    assert "Gizmo mine is its controller and must be able to delete it; protect Gizmo mine instead" in refusal
    assert "labels" not in (await client.get(GIZMOS, "part", namespace=ROOM))["metadata"]


async def test_protect_warns_that_a_volume_loses_its_disk_with_its_claim(cluster: LocalCluster) -> None:
    client = cluster.client
    storage: Object = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = storage | {
        "capacity": {"storage": "1Mi"},
        "hostPath": {"path": "/nowhere"},
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": ROOM, "name": "data"},
    }
    await client.create(PERSISTENT_VOLUMES, new_object(PERSISTENT_VOLUMES, "disk", spec=volume))
    told = await json_of(cluster, "protect", "pv/disk")
    assert "warnings" not in told, "no claim is bound to it"
    claim = storage | {"resources": {"requests": {"storage": "1Mi"}}, "volumeName": "disk"}
    await client.create(PERSISTENT_VOLUME_CLAIMS, new_object(PERSISTENT_VOLUME_CLAIMS, "data", ROOM, spec=claim))
    await object_watch.until(
        client, PERSISTENT_VOLUMES, "disk", lambda it: bool(it and it["status"].get("phase") == "Bound"), "bound"
    )
    [warning] = (await json_of(cluster, "protect", "pv/disk"))["warnings"]
    assert f"deleting PersistentVolumeClaim {ROOM}/data deletes the disk of this PersistentVolume" in warning
    assert f"unwind protect pvc/data -n {ROOM}" in warning
    retain = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    await client.patch(PERSISTENT_VOLUMES, "disk", retain)
    assert "warnings" not in await json_of(cluster, "protect", "pv/disk")


async def test_an_eviction_is_no_deletion_that_a_policy_sees(cluster: LocalCluster) -> None:
    """A limit that docs/limits.md names: if this fails, the page is wrong."""
    client = cluster.client
    body = labelled(PODS, "evicted", spec=pod({}, terminationGracePeriodSeconds=0)["spec"])
    made = await client.create(PODS, body)
    assert await refused(delete(client, PODS, made))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted", "namespace": ROOM}}
    path = f"{PODS.path(namespace=ROOM)}/evicted/eviction"
    await client._write("create", PODS, "POST", path, eviction)
    with pytest.raises(NotFoundError):
        await client.get(PODS, "evicted", namespace=ROOM)
