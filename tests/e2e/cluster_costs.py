"""Clusters with what costs money outside of them: load balancers, volumes, and a kind whose operator has to clean up.

Each is a Cluster of the real Cluster API with another gate: one with a ClusterClass, one with a KubeadmControlPlane and
Machines, and one with MachinePools only.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tests.e2e.gated_clusters import MEMBER, GatedCluster, GateScene, lead_to
from tests.eventually import eventually
from tests.plane.support.commands import command, kubectl
from tests.plane.support.objects import crd, new_object
from unwind.api.capi import MACHINE_POOLS, MACHINE_SETS, MACHINES
from unwind.api.names import CLUSTER_NAME_LABEL, MACHINE_GATE_ANNOTATION, Reason
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    INGRESSES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICES,
    Resource,
)
from unwind.api.unwind import Gate, Phase
from unwind.kube.client import Client
from unwind.kube.errors import AlreadyExistsError, ApiError, NotFoundError, UnreachableError
from unwind.kube.object_watch import until
from unwind.local import stubs, tools
from unwind.local.cloud import USER
from unwind.local.cluster import ALL_RIGHTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.e2e.gated_clusters import Ground
    from unwind.api.unwind import Teardown
    from unwind.kube.client import Object
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.cloud import LoadBalancers

GATES = (Gate.HOOK, Gate.MACHINES, Gate.ADMISSION)
# Without Karmada: its Clusters would be those of `kubectl delete cluster`.
FEATURES = "addons,capi,gates,drain,protection"
CLAIMS = ("data-0", "data-1")
OPERATOR = "test-operator"
_NAME = "prod"
_WORKERS = 2
_RETRY = 0.2
_LONG = 90.0
# What Cluster API deletes with a cluster.
_PARTS = ("stubmachines", "stubmachinepools", "stubcontrolplanes", "kubeadmcontrolplanes", "stubclusters")


class TestOperator:
    """Serves a finalizer on objects that stand for something outside the cluster."""

    __test__ = False

    def __init__(self, *kinds: Resource, namespace: str) -> None:
        self.outside: set[str] = set()
        """What exists outside the cluster, by the uid of its object."""
        self.working = asyncio.Event()
        """While it is not set, nothing is cleaned up."""
        self.working.set()
        self._kinds = kinds
        self._namespace = namespace
        self._finalizer = f"{namespace}.example.dev/cleanup"

    async def run(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._serve(client, kind))

    async def _serve(self, client: Client, kind: Resource) -> None:
        while True:
            with suppress(ApiError, UnreachableError):  # the kind is not served, or not any more
                async for event in client.watch(kind, namespace=self._namespace):
                    if event.type in ("ADDED", "MODIFIED"):
                        await self._advance(client, kind, event.object)
            await asyncio.sleep(_RETRY)

    async def _advance(self, client: Client, kind: Resource, obj: Object) -> None:
        meta = obj["metadata"]
        marks = meta.get("finalizers", [])
        if "deletionTimestamp" not in meta:
            self.outside.add(meta["uid"])
            if self._finalizer not in marks:
                await client.revise(kind, obj, {"metadata": {"finalizers": [*marks, self._finalizer]}})
        elif self._finalizer in marks:
            await self.working.wait()
            self.outside.discard(meta["uid"])
            left = [mark for mark in marks if mark != self._finalizer]
            await client.revise(kind, obj, {"metadata": {"finalizers": left}})


class CostScene(GateScene):
    """A namespace for one cluster, on both sides, and a policy that drains it."""

    def __init__(self, ground: Ground, namespace: str, gate: Gate) -> None:
        super().__init__(ground, namespace)
        self.gate = gate
        self.kind = Resource(f"{namespace}.example.dev", "v1", "databases", "Database")
        self.operator = TestOperator(INGRESSES, self.kind, namespace=namespace)
        self.uids: set[str] = set()
        """What was made with kubectl, and has to go."""
        self._workers = _WORKERS

    @property
    def cloud(self) -> LoadBalancers:
        return self.ground.plane.clouds[MEMBER]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The scene, with its policy and its operator."""
        await self.begin()
        drain = {
            "loadBalancers": "Enforce",
            "resources": [{"group": self.kind.group, "kind": self.kind.kind, "effort": "Enforce"}],
        }
        spec = {"clusterSelector": {"matchLabels": self.label}, "gate": self.gate.value, "drain": drain}
        policy = await self.client.create(TEARDOWN_POLICIES, new_object(TEARDOWN_POLICIES, self.namespace, spec=spec))
        connection = self.member.connection(OPERATOR, groups=ALL_RIGHTS)
        async with Client(connection, user_agent=OPERATOR) as client:
            task = asyncio.ensure_future(self.operator.run(client))
            try:
                yield
            finally:
                self.operator.working.set()
                await self.client.delete(TEARDOWN_POLICIES, self.namespace, uid=policy["metadata"]["uid"])
                await self.clear()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def clear(self) -> None:
        await super().clear()
        for resource in (SERVICES, INGRESSES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES):
            where = self.namespace if resource.namespaced else None
            for item in await self.member.client.list(resource, namespace=where):
                meta = item["metadata"]
                if where or meta["name"].startswith(self.namespace):
                    with suppress(NotFoundError):
                        await self.member.client.delete(resource, meta["name"], uid=meta["uid"], namespace=where)
                        free = {"metadata": {"finalizers": None}}
                        await self.member.client.patch(resource, meta["name"], free, namespace=where)

    # What there is

    async def profiles(self) -> None:
        """Two add-ons: one with the kind of the operator, and one that depends on nothing."""
        await self.add_on("web")
        await self.source("operator", crd(self.kind))
        await self.profile("operator", "operator", clusterDeletionBehavior="EnforceRemovePolicies")

    async def costly_cluster(self) -> GatedCluster:
        """The cluster with its add-ons, when its gate is armed."""
        version = tools.KUBERNETES.version
        if self.gate is Gate.MACHINES:
            cluster = await self._kubeadm_cluster(version)
        else:
            cluster = await self.cluster(name=_NAME, topology=self.gate is Gate.HOOK)
        nodes = stubs.machine_pool if self.gate is Gate.ADMISSION else stubs.workers
        for resource, body in nodes(_NAME, self.namespace, replicas=self._workers, version=version):
            await self.client.create(resource, body)
        for profile in ("web", "operator"):
            await self.until_on(cluster, profile)
        await self.until_machines()

        def armed(it: Object | None) -> bool:
            [one, *_] = ((it or {}).get("status") or {}).get("clusters") or [{}]
            return (one.get("gate"), one.get("gateKind")) == ("Armed", self.gate.value)

        await until(self.client, TEARDOWN_POLICIES, self.namespace, armed, "armed", within=_LONG)
        return cluster

    async def _kubeadm_cluster(self, version: str) -> GatedCluster:
        # From this the controller of the KubeadmControlPlane sees that kubeadm has initialized the first Machine.
        config = new_object(CONFIG_MAPS, "kubeadm-config", "kube-system")
        with suppress(AlreadyExistsError):
            await self.member.client.create(CONFIG_MAPS, config)
        objects = stubs.kubeadm_cluster(_NAME, self.namespace, member=MEMBER, version=version, labels=self.label)
        [*_, made] = [await self.client.create(resource, body) for resource, body in objects]
        return GatedCluster(self, _NAME, made["metadata"]["uid"])

    async def until_machines(self) -> None:
        """Return when all Machines exist, and hold the cluster if that is its gate."""
        count = {Gate.HOOK: self._workers, Gate.MACHINES: self._workers + 1, Gate.ADMISSION: 0}[self.gate]

        async def ready() -> bool:
            found = [it["metadata"] for it in await self.machines()]
            armed = [MACHINE_GATE_ANNOTATION in (it.get("annotations") or {}) for it in found]
            return len(found) == count and (self.gate is not Gate.MACHINES or all(armed))

        await eventually(ready, f"{count} Machines", within=_LONG)

    async def grow(self) -> None:
        """Add a worker, and return when it holds the cluster, too."""
        self._workers += 1
        replicas = {"spec": {"replicas": self._workers}}
        await self.client.patch(MACHINE_SETS, f"{_NAME}-workers", replicas, namespace=self.namespace)
        await self.until_machines()

    async def machines(self) -> list[Object]:
        labels = f"{CLUSTER_NAME_LABEL}={_NAME}"
        return await self.client.list(MACHINES, namespace=self.namespace, labels=labels)

    async def make_costs(self, directory: Path) -> None:
        """What an application team makes with kubectl. Returns when all of it exists outside the cluster, too."""
        ports = [{"port": 80}]
        backend = {"service": {"name": "shop", "port": {"number": 80}}}
        rule = {
            "host": "shop.example.com",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
        }
        objects = [
            new_object(SERVICES, "shop", self.namespace, spec={"type": "LoadBalancer", "ports": ports}),
            new_object(INGRESSES, "shop", self.namespace, spec={"rules": [rule]}),
            new_object(self.kind, "orders", self.namespace, spec={"size": "8Gi"}),
        ]
        for name in CLAIMS:
            objects += self._volume(name)
        file = directory / "costs.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        done = await kubectl(self.member.kubeconfig, "create", "-f", str(file))
        assert done.returncode == 0, done.stderr
        served: dict[Resource, tuple[str, Callable[[Object | None], bool]]] = {
            SERVICES: ("shop", _has_address),
            INGRESSES: ("shop", _is_served),
            self.kind: ("orders", _is_served),
        }
        for resource, (name, state) in served.items():
            made = await until(
                self.member.client, resource, name, state, "served", namespace=self.namespace, within=_LONG
            )
            assert made
            self.uids.add(made["metadata"]["uid"])
        for name in CLAIMS:
            await until(
                self.member.client,
                PERSISTENT_VOLUME_CLAIMS,
                name,
                lambda it: ((it or {}).get("status") or {}).get("phase") == "Bound",
                "bound",
                namespace=self.namespace,
                within=_LONG,
            )
        assert self.uids <= self.outside()

    def _volume(self, name: str) -> list[Object]:
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
        claim: Object = {"resources": {"requests": {"storage": "8Gi"}}, "volumeName": f"{self.namespace}-{name}"}
        volume: Object = {
            "capacity": {"storage": "8Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "disk.example.dev", "volumeHandle": name},
            "claimRef": {"namespace": self.namespace, "name": name},
        }
        return [
            new_object(PERSISTENT_VOLUMES, f"{self.namespace}-{name}", spec=volume | common),
            new_object(PERSISTENT_VOLUME_CLAIMS, name, self.namespace, spec=claim | common),
        ]

    def outside(self) -> set[str]:
        """What exists outside the cluster."""
        return {*self.cloud.load_balancers, *self.operator.outside}

    async def lead_to(self, connection: ClusterConnection) -> None:
        """Have everybody reach the cluster by another way."""
        await lead_to(self.client, self.namespace, _NAME, connection)

    # Its end

    async def delete(self) -> None:
        """Delete the cluster as a person does."""
        management = self.ground.management
        if self.gate is Gate.ADMISSION:
            refused = await kubectl(management.kubeconfig, "delete", "cluster", _NAME, "-n", self.namespace)
            assert f"unwind delete cluster/{_NAME} -n {self.namespace}" in refused.stderr
            named = f"cluster.cluster.x-k8s.io/{_NAME}"

            async def accepted() -> bool:
                ran = await command(management, "delete", named, "-n", self.namespace, "--yes", "--no-wait")
                # One that was killed may be starting again.
                assert ran.code == 0 or "no manager is running" in ran.err, ran.err
                return ran.code == 0

            await eventually(accepted, "a deletion that is accepted", within=_LONG)
            return
        done = await kubectl(management.kubeconfig, "delete", "cluster", _NAME, "-n", self.namespace, "--wait=false")
        assert done.returncode == 0, done.stderr

    def gone_at(self) -> list[str]:
        """When Cluster API began to delete parts of the cluster."""
        parts = _PARTS if self.gate is Gate.MACHINES else (*_PARTS, MACHINES.plural, MACHINE_POOLS.plural)
        found = self.ground.management.audit.deletions(namespace=self.namespace)
        return [item.request_received_timestamp for item in found if item.object_ref.resource in parts]

    def cleaned_at(self) -> list[str]:
        """When the cloud and the operator had cleaned up, and told so."""
        found = self.member.audit.entries(verbs=("patch",), namespace=self.namespace)
        return [item.stage_timestamp for item in found if item.username in (USER, OPERATOR) and item.code < 300]

    async def planned_costs(self) -> dict[str, str]:
        """What costs money, by object: who made it."""
        cluster = f"cluster.cluster.x-k8s.io/{_NAME}"
        done = await command(self.ground.management, "plan", cluster, "-n", self.namespace, "-o", "json")
        assert done.code == 4, "no policy decides about the volumes"
        told = json.loads(done.out)
        return {f"{it['object']['kind']} {it['object']['name']}": it["madeBy"] for it in told["costs"]}

    async def check(self, ended: Teardown) -> None:
        """What has to be so after every deletion, whatever happened meanwhile."""
        assert ended.phase is Phase.COMPLETE
        assert not self.outside() & self.uids
        assert await self.on_member() == {}
        crds = await self.member.client.list(CUSTOM_RESOURCE_DEFINITIONS)
        assert not any(item["spec"]["group"] == self.kind.group for item in crds)
        # The volumes are kept, and named.
        claims = await self.member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=self.namespace)
        assert sorted(it["metadata"]["name"] for it in claims) == list(CLAIMS)
        assert not any("deletionTimestamp" in it["metadata"] for it in claims)
        ledger = {name: reason for name, (reason, _) in (await self.ledger(ended)).items()}
        assert ledger == dict.fromkeys(CLAIMS, Reason.KEPT_BY_POLICY)
        # Only then Machines.
        assert len(self.gone_at()) >= 3
        assert min(self.gone_at()) > max(self.cleaned_at())
        # Each once, by its uid.
        sent = [item.uid for item in self.member.audit.deletions(namespace=self.namespace) if item.uid in self.uids]
        assert sorted(sent) == sorted(self.uids)


def _has_address(it: Object | None) -> bool:
    return bool(((it or {}).get("status") or {}).get("loadBalancer", {}).get("ingress"))


def _is_served(it: Object | None) -> bool:
    return bool((it or {}).get("metadata", {}).get("finalizers"))
