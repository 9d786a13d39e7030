"""The plane is real: what Kubernetes does with objects, rights and requests, it does here."""

from __future__ import annotations

import os
import ssl
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.objects import delete, new_object, until_refused
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, SECRETS, SERVICES, Resource
from unwind.kube import object_watch
from unwind.kube.client import Client, Object
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.kubeconfig import ClusterConnection
from unwind.local import tools
from unwind.local.cloud import CLEANUP_FINALIZER

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


def pod_template(**spec: object) -> Object:
    containers = [{"name": "main", "image": "registry.example/app"}]
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers, **spec}}


def deployment(name: str, namespace: str) -> Object:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": pod_template()}
    return new_object(DEPLOYMENTS, name, namespace, spec=spec)


async def until(
    cluster: LocalCluster, resource: Resource, name: str, namespace: str | None, holds: Callable[[Object], bool]
) -> Object:
    found = await object_watch.until(
        cluster.client, resource, name, lambda it: it is not None and holds(it), "as expected", namespace=namespace
    )
    assert found
    return found


async def until_gone(cluster: LocalCluster, resource: Resource, name: str, namespace: str | None = None) -> None:
    await object_watch.until_absent(cluster.client, resource, name, namespace=namespace)


async def test_every_server_has_the_version_of_kubernetes_that_was_asked_for(plane: Plane) -> None:
    wanted = tools.KUBERNETES_MINORS[os.environ.get("UNWIND_KUBERNETES") or next(iter(tools.KUBERNETES_MINORS))]
    for cluster in plane.clusters():
        assert msgspec.json.decode(await cluster.client.raw("/version"))["gitVersion"] == wanted.version


async def test_a_deployment_becomes_ready_and_its_pods_go_with_it(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    await cluster.client.create(DEPLOYMENTS, deployment("web", namespace))
    await until(cluster, DEPLOYMENTS, "web", namespace, lambda it: it.get("status", {}).get("readyReplicas") == 2)
    pods = await cluster.client.list(PODS, namespace=namespace)
    assert [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]

    await delete(cluster.client, DEPLOYMENTS, "web", namespace)
    for pod in pods:
        await until_gone(cluster, PODS, pod["metadata"]["name"], namespace)
    assert await cluster.client.list(REPLICA_SETS, namespace=namespace) == []


async def test_a_job_completes(plane: Plane, namespace: str) -> None:
    spec = {"template": pod_template(restartPolicy="Never")}
    await plane.management.client.create(JOBS, new_object(JOBS, "once", namespace, spec=spec))
    await until(plane.management, JOBS, "once", namespace, lambda it: it["status"].get("succeeded") == 1)


async def test_a_deleted_namespace_goes_with_what_is_in_it(plane: Plane) -> None:
    cluster, name = plane.members["member-1"], f"doomed-{uuid.uuid4().hex[:6]}"
    await cluster.create_namespace(name)
    await cluster.client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "inside", name))
    await delete(cluster.client, NAMESPACES, name)
    await until_gone(cluster, NAMESPACES, name)
    assert "inside" in {
        entry.object_ref.name or "inside"
        for entry in cluster.audit.deletions(resource="configmaps", namespace=name)
        if entry.username == "system:serviceaccount:kube-system:namespace-controller"
    }


async def test_a_load_balancer_holds_its_service_until_the_cloud_has_removed_it(plane: Plane, namespace: str) -> None:
    cluster, cloud = plane.management, plane.clouds["management"]
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "web"}}
    created = await cluster.client.create(SERVICES, new_object(SERVICES, "front", namespace, spec=spec))
    uid = created["metadata"]["uid"]
    given = await until(
        cluster, SERVICES, "front", namespace, lambda it: bool(it["status"]["loadBalancer"].get("ingress"))
    )
    assert given["metadata"]["finalizers"] == [CLEANUP_FINALIZER]
    assert given["status"]["loadBalancer"]["ingress"][0]["ip"] == cloud.load_balancers[uid].address

    await delete(cluster.client, SERVICES, "front", namespace)
    held = await cluster.client.get(SERVICES, "front", namespace=namespace)
    assert held["metadata"]["deletionTimestamp"]
    assert uid in cloud.load_balancers, "the cloud takes its time"
    await until_gone(cluster, SERVICES, "front", namespace)
    assert uid not in cloud.load_balancers


async def test_a_service_that_is_no_load_balancer_any_more_loses_its_address(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    await cluster.client.create(SERVICES, new_object(SERVICES, "front", namespace, spec=spec))
    await until(cluster, SERVICES, "front", namespace, lambda it: bool(it["status"]["loadBalancer"].get("ingress")))
    await cluster.client.patch(SERVICES, "front", {"spec": {"type": "ClusterIP"}}, namespace=namespace)
    released = await until(cluster, SERVICES, "front", namespace, lambda it: not it["metadata"].get("finalizers"))
    assert not released["status"]["loadBalancer"].get("ingress")


async def test_the_audit_log_says_who_deleted_what_by_which_uid_and_in_which_order(
    plane: Plane, namespace: str
) -> None:
    cluster = plane.management
    for name in ("b", "a"):
        await cluster.client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, name, namespace))
    uids = [await delete(cluster.client, CONFIG_MAPS, name, namespace) for name in ("a", "b")]

    deletions = cluster.audit.deletions(resource="configmaps", namespace=namespace)
    assert [(entry.object_ref.name, entry.username, entry.uid) for entry in deletions] == [
        ("a", "admin", uids[0]),
        ("b", "admin", uids[1]),
    ]


async def test_no_secret_is_written_to_the_audit_log(plane: Plane, namespace: str) -> None:
    secret = new_object(SECRETS, "token", namespace, stringData={"password": "not-for-the-log"})
    await plane.management.client.create(SECRETS, secret)
    log = plane.management.audit.path.read_text()
    assert '"token"' in log
    assert "not-for-the-log" not in log


async def test_a_delete_with_the_uid_of_another_object_is_refused(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "kept", namespace))
    with pytest.raises(ApiError) as refusal:
        await client.delete(CONFIG_MAPS, "kept", namespace=namespace, uid=str(uuid.uuid4()))
    assert refusal.value.code == 409
    await client.get(CONFIG_MAPS, "kept", namespace=namespace)


async def test_a_user_has_no_right_that_nobody_gave(plane: Plane, namespace: str) -> None:
    async with Client(plane.management.connection("stranger")) as stranger:
        with pytest.raises(ApiError) as refusal:
            await stranger.list(SECRETS, namespace=namespace)
    assert refusal.value.code == 403


async def test_admission_is_that_of_a_real_cluster(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    created = await client.create(CLAIMS, new_object(CLAIMS, "data", namespace, spec=claim))
    assert created["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]

    await client.create(QUOTAS, new_object(QUOTAS, "none", namespace, spec={"hard": {"pods": "0"}}))
    await until(plane.management, QUOTAS, "none", namespace, lambda it: "hard" in it["status"])
    # Admission sees a quota a moment after its controller has written the status.
    pod = new_object(PODS, "one", namespace, spec=pod_template()["spec"])
    await until_refused(lambda: client.create(PODS, pod), "exceeded quota")


async def test_clients_verify_the_server_they_talk_to(plane: Plane) -> None:
    management, member = plane.management.connection("admin"), plane.members["member-1"].connection("admin")
    elsewhere = ClusterConnection(
        server=member.server,
        authority=management.authority,
        certificate=management.certificate,
        key=management.key,
    )
    async with Client(elsewhere) as client:
        with pytest.raises(UnreachableError) as failure:
            await client.list(NAMESPACES)
    assert isinstance(failure.value.__cause__, ssl.SSLCertVerificationError)


async def test_a_member_is_a_cluster_of_its_own(plane: Plane, module_member: LocalCluster) -> None:
    uids = {(await cluster.client.get(NAMESPACES, "kube-system"))["metadata"]["uid"] for cluster in plane.clusters()}
    assert len(uids) == 3
    await module_member.create_namespace("only-here")
    with pytest.raises(NotFoundError):
        await plane.management.client.get(NAMESPACES, "only-here")


async def test_an_api_server_that_is_killed_comes_back_at_the_same_address(module_member: LocalCluster) -> None:
    await module_member.create_namespace("before")
    server, daemon = module_member.server, module_member.api_server
    await daemon.stop()
    with pytest.raises(UnreachableError):
        await module_member.client.get(NAMESPACES, "before")
    await daemon.start()
    assert module_member.server == server
    await module_member.client.get(NAMESPACES, "before")
