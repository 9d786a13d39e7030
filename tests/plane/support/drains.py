"""What the tests of drains are made of: a cluster, policies that drain it, and what users created on it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tests.plane.support.cluster_teardowns import MEMBER, TeardownScene, manager, scene, waves
from tests.plane.support.objects import teardown_policy
from tests.plane.support.policies import LABEL
from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectRef
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import (
    CONFIG_MAPS,
    INGRESSES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICES,
    STATEFUL_SETS,
)
from unwind.api.rights import HOME
from unwind.api.unwind import Entry, EntryState, Phase
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.drain.step_source import DrainSteps
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until, until_absent
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.local.cloud import LoadBalancers
    from unwind.local.plane import Plane
    from unwind.teardown.step_removers import RemovalDeps

# A StatefulSet that another test left creates its claims again.
DRAINED = (STATEFUL_SETS, SERVICES, INGRESSES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)


class DrainScene:
    """A cluster that policies select by a label of its own, and what users created on it with kubectl."""

    def __init__(self, cluster: TeardownScene, cloud: LoadBalancers) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.member = cluster.member.client
        self.cloud = cloud
        self.namespace = cluster.on_member

    async def begin(self) -> None:
        """Select the cluster, and remove what other tests left on the member: a drain would find it."""
        patch = {"metadata": {"labels": {LABEL: self.cluster.name}}}
        await self.client.patch(CLUSTERS, self.cluster.name, patch, namespace=self.cluster.namespace)
        for resource in DRAINED:
            for item in await self.member.list(resource):
                if resource is not SERVICES or item["spec"].get("type") == "LoadBalancer":
                    await self.clear(resource, item)

    async def clear(self, resource: Resource, item: Object) -> None:
        meta = item["metadata"]
        namespace = meta.get("namespace")
        with suppress(NotFoundError):
            await self.member.delete(resource, meta["name"], uid=meta["uid"], namespace=namespace)
            if meta.get("finalizers"):
                await self.member.patch(resource, meta["name"], {"metadata": {"finalizers": None}}, namespace=namespace)
        await until_absent(self.member, resource, meta["name"], namespace=namespace)

    def called(self, name: str) -> str:
        return f"{self.cluster.name}-{name}"

    async def policy(self, name: str, drain: Object, **spec: Any) -> None:
        body = teardown_policy(self.called(name), {LABEL: self.cluster.name}, drain=drain, **spec)
        await self.client.create(TEARDOWN_POLICIES, body)

    async def drained(self) -> Teardown:
        """Delete the cluster while a manager runs; its Teardown, when that is complete."""
        async with self.manager():
            await self.cluster.delete()
            ended = await self.cluster.ended()
        assert ended.phase is Phase.COMPLETE
        return ended

    async def waves_when_blocked(self, part: str) -> dict[str, int]:
        """The wave of each step by the name of its object, when a message with this part tells what blocks."""
        held = await self.cluster.teardown(
            lambda one: any(part in item.message for item in one.status.blockers), f"blocked by {part}"
        )
        return {name.partition("-capi")[0]: wave for name, wave in waves(held).items()}

    async def forget_policies(self) -> None:
        for policy in await self.client.list(TEARDOWN_POLICIES):
            meta = policy["metadata"]
            if meta["name"].startswith(self.cluster.name):
                await self.client.delete(TEARDOWN_POLICIES, meta["name"], uid=meta["uid"])

    # What users created

    async def service(self, name: str, *, cloud: bool = True, **metadata: Any) -> ObjectRef:
        """A Service of type LoadBalancer. `cloud`: wait for its load balancer."""
        spec: Object = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": name}}
        made = await self.create(SERVICES, name, spec, **metadata)
        if cloud:
            await until(
                self.member,
                SERVICES,
                name,
                lambda it: bool(((it or {}).get("status") or {}).get("loadBalancer", {}).get("ingress")),
                "with an address",
                namespace=self.namespace,
            )
        return made

    async def ingress(self, name: str, **metadata: Any) -> ObjectRef:
        backend = {"service": {"name": name, "port": {"number": 80}}}
        paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
        rules = [{"host": f"{name}.example.com", "http": {"paths": paths}}]
        return await self.create(INGRESSES, name, {"rules": rules}, **metadata)

    async def create(self, resource: Resource, name: str, spec: Object, **metadata: Any) -> ObjectRef:
        body: Object = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, **({"namespace": self.namespace} if resource.namespaced else {}), **metadata},
            "spec": spec,
        }
        made = await self.member.create(resource, body)
        return ObjectRef(
            group=resource.group,
            version=resource.version,
            kind=resource.kind,
            namespace=self.namespace if resource.namespaced else "",
            name=name,
            uid=made["metadata"]["uid"],
        )

    async def volume(self, name: str, *, reclaim: str = "Delete", finalizers: tuple[str, ...] = ()) -> ObjectRef:
        """A claim that is bound to a volume. `reclaim`: the reclaim policy."""
        claim_spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "8Gi"}},
            "storageClassName": "fast",
            "volumeName": self.called(name),
        }
        claim = await self.create(PERSISTENT_VOLUME_CLAIMS, name, claim_spec)
        volume_spec = {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": reclaim,
            "storageClassName": "fast",
            "csi": {"driver": "disk.example.dev", "volumeHandle": name},
            "claimRef": {"namespace": self.namespace, "name": name, "uid": claim.uid},
        }
        await self.create(PERSISTENT_VOLUMES, self.called(name), volume_spec, finalizers=list(finalizers))
        return claim

    def entry(self, ref: ObjectRef, plural: str) -> Entry:
        """An object as another step records it."""
        return Entry(object=ref, resource=plural, state=EntryState.CONFIRMED.value)

    async def free(self, prefix: str) -> None:
        """Take the finalizers off the ConfigMaps of one add-on."""
        for name in await self.cluster.objects():
            if name.startswith(prefix):
                free = {"metadata": {"finalizers": None}}
                await self.member.patch(CONFIG_MAPS, name, free, namespace=self.namespace)

    async def exists(self, resource: Resource, name: str) -> bool:
        found = await self.member.list(resource, namespace=self.namespace if resource.namespaced else None)
        return any(item["metadata"]["name"] == name for item in found)

    async def ledger(self, ended: Teardown) -> dict[str, str]:
        """The reasons in the ledger of drained objects, by object."""
        assert ended.spec.plan
        notes: dict[str, str] = {}
        for step in ended.spec.plan.steps:
            found = await self.cluster.inventory(step.object)
            entries = found.spec.entries.values() if found else ()
            notes |= {str(entry.object): entry.ledger.reason for entry in entries if entry.ledger}
        return notes

    @asynccontextmanager
    async def manager(self, *, clock: Clock | None = None, best_effort: float = 60.0) -> AsyncIterator[None]:
        """The controller of teardowns with profiles and drains, as the installed ServiceAccount."""
        clock = clock or StillClock()
        async with manager_client(self.client, HOME) as own:
            caches = PolicyCaches(own)
            reader = Policies(own, caches, clusters=lambda: CLUSTERS)

            def steps(deps: RemovalDeps) -> DrainSteps:
                return DrainSteps(reader, deps.members, deps.inventories, clock)

            running = asyncio.ensure_future(caches.run())
            try:
                async with manager(own, clock=clock, best_effort=best_effort, sources=(steps,)):
                    yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


S = TypeVar("S", bound=DrainScene)


@asynccontextmanager
async def draining(plane: Plane, namespace: str, type_: type[S]) -> AsyncIterator[S]:
    """A scene on a cluster of its own, without policies at its end."""
    it = type_(await scene(plane, namespace), plane.clouds[MEMBER])
    await it.begin()
    yield it
    await it.forget_policies()
