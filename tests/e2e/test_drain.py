"""`kubectl delete cluster` with real Cluster API: load balancers of users are gone at the cloud before it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.e2e.gated_clusters import MEMBER, GateScene, grounds, new_namespace, with_policy
from unwind.api.names import Reason
from unwind.api.resources import INGRESSES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SERVICES
from unwind.api.unwind import Phase
from unwind.kube.object_watch import until
from unwind.local.cloud import USER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import Ground
    from unwind.api.resources import Resource
    from unwind.kube.client import Object


class DrainScene(GateScene):
    """A namespace for one test, on both sides, without profiles."""

    async def clear(self) -> None:
        await self.unblock(*await self.on_member())

    async def create(self, resource: Resource, name: str, spec: Any) -> Object:
        namespace = {"namespace": self.namespace} if resource.namespaced else {}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **namespace}}
        return await self.member.client.create(resource, {**body, "spec": spec})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane with Cluster API, and Unwind that deploys nothing and only drains."""
    async with grounds(features="capi,drain", cloud=True) as ground, ground.manager():
        await ground.until_discovered()
        yield ground


@pytest_asyncio.fixture(loop_scope="session")
async def scene(ground: Ground) -> AsyncIterator[DrainScene]:
    async with with_policy(DrainScene(ground, new_namespace()), drain={"loadBalancers": "Enforce"}) as scene:
        yield scene


async def test_a_deleted_cluster_waits_for_its_load_balancers_keeps_volumes_and_names_them(
    ground: Ground, scene: DrainScene
) -> None:
    cluster, cloud = await scene.cluster(), ground.plane.clouds[MEMBER]
    service = await scene.create(SERVICES, "shop", {"type": "LoadBalancer", "ports": [{"port": 80}]})
    backend = {"service": {"name": "shop", "port": {"number": 80}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    await scene.create(INGRESSES, "web", {"rules": [{"host": "web.example.com", "http": {"paths": paths}}]})
    claim_spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "8Gi"}},
        "storageClassName": "fast",
        "volumeName": scene.namespace,
    }
    claim = await scene.create(PERSISTENT_VOLUME_CLAIMS, "data", claim_spec)
    volume_spec = {
        "capacity": {"storage": "8Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "fast",
        "csi": {"driver": "disk.example.dev", "volumeHandle": "data"},
        "claimRef": {"namespace": scene.namespace, "name": "data", "uid": claim["metadata"]["uid"]},
    }
    await scene.create(PERSISTENT_VOLUMES, scene.namespace, volume_spec)
    await until(
        scene.member.client,
        SERVICES,
        "shop",
        lambda it: bool(((it or {}).get("status") or {}).get("loadBalancer", {}).get("ingress")),
        "with an address",
        namespace=scene.namespace,
    )
    assert service["metadata"]["uid"] in cloud.load_balancers
    await cluster.delete()
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert ended.phase is Phase.COMPLETE
    assert service["metadata"]["uid"] not in cloud.load_balancers
    audit = scene.member.audit.entries(verbs=("patch",), resource="services", namespace=scene.namespace, user=USER)
    released = [entry.stage_timestamp for entry in audit]
    assert min(cluster.taken_apart()) > max(released)
    assert await scene.member.client.get(PERSISTENT_VOLUME_CLAIMS, "data", namespace=scene.namespace)
    ledger = {name: reason for name, (reason, _) in (await scene.ledger(ended)).items()}
    assert ledger == {"web": Reason.NOT_VERIFIED, "data": Reason.KEPT_BY_POLICY}
