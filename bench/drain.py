"""A cluster that is drained of many load balancers, against bare DELETEs of the same Services.

500 Services of type LoadBalancer (`UNWIND_BENCH_SERVICES` changes the number) with load balancers at a simulated cloud,
which serves its finalizer without a delay. It runs in this program, for both sides. Ours begins with the DELETE of the
Cluster: the Services are read and recorded with their uids before the first one is deleted. Both end when a watch has
told of the last Service. The second row ends when the Teardown is complete: after one more read of the cluster.

The manager is its ServiceAccount, with the installed rights, so API priority and fairness applies to its requests on
the management cluster. On the member, both sides are in system:masters.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import uvloop

from bench.addons import AT_ONCE, following, gone, kubeconfig, managing
from bench.clusters import HOLD, define_clusters
from bench.ratios import Ratio, alternate
from unwind.api.capi import CLUSTERS
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import SECRETS, SERVICES
from unwind.api.rights import Setting
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.kube.object_watch import until, until_absent
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

MANY = int(os.environ.get("UNWIND_BENCH_SERVICES", "500"))
PLACE, NAME, SECRET = "drained", "edge", "edge-kubeconfig"
GOAL = 2.0
ROUNDS = 3


async def main() -> None:
    async with running(Shape(members=1, cloud=True, cloud_delay=0.0)) as plane:
        await install(plane.management.client, Setting())
        await define_clusters(plane.management.client)
        async with managing(plane.management):
            draining = Draining(plane)
            await draining.prepare()
            ours, bare = await alternate(draining.drain, draining.delete, runs=ROUNDS)
            complete = sorted(draining.complete)[len(draining.complete) // 2]
            against = f"bare DELETEs, {AT_ONCE} at once"
            print(Ratio(f"drain {MANY} Services, last one absent", against, ours, bare, GOAL))
            print(Ratio("the same, Teardown complete", against, complete, bare, GOAL))


class Draining:
    """A cluster with load balancers, again and again."""

    def __init__(self, plane: Plane) -> None:
        self.client = plane.management.client
        self.management = plane.management
        [self.member] = plane.members.values()
        self.complete: list[float] = []
        """When the Teardowns were complete, in seconds after the DELETE of the Cluster."""

    async def prepare(self) -> None:
        await self.management.create_namespace(PLACE)
        await self.member.create_namespace(PLACE)
        spec = {
            "clusterSelector": {"matchLabels": {"app": PLACE}},
            "gate": "None",
            "drain": {"loadBalancers": "Enforce"},
        }
        kind = TEARDOWN_POLICIES
        policy = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": PLACE}, "spec": spec}
        await self.client.create(TEARDOWN_POLICIES, policy)

    async def _services(self) -> dict[str, str]:
        """Services with load balancers; their uids by name."""
        made: dict[str, str] = {}
        served: set[str] = set()

        async def one(number: int) -> None:
            name = f"shop-{number:04}"
            metadata = {"name": name, "namespace": PLACE}
            spec = {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "ports": [{"port": 80}]}
            body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
            made[name] = (await self.member.client.create(SERVICES, body))["metadata"]["uid"]

        def has_addresses(_: str, obj: Object) -> bool:
            if ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress"):
                served.add(obj["metadata"]["name"])
            return len(served) == MANY

        async with following(self.member.client, SERVICES, has_addresses, namespace=PLACE) as ready:
            await gather_limited((one(number) for number in range(MANY)), limit=AT_ONCE)
            await ready()
        return made

    async def drain(self) -> float:
        """The seconds from the DELETE of the Cluster until the last Service is absent."""
        services = await self._services()
        cluster = await self._cluster()

        def complete(_: str, obj: Object) -> bool:
            ended = (obj.get("status") or {}).get("phase") == Phase.COMPLETE
            return bool(obj["metadata"]["name"] == cluster["uid"] and ended)

        left = {f"{PLACE}/{name}" for name in services}
        async with (
            following(self.client, TEARDOWNS, complete) as ended,
            following(self.member.client, SERVICES, gone(left), namespace=PLACE) as over,
        ):
            began = time.perf_counter()
            await self.client.delete(CLUSTERS, NAME, uid=cluster["uid"], namespace=PLACE)
            await over()
            took = time.perf_counter() - began
            await ended()
            self.complete.append(time.perf_counter() - began)
        await self._let_go()
        return took

    async def _cluster(self) -> Object:
        """The metadata of a Cluster that the policy has selected."""
        await self.client.create(SECRETS, kubeconfig(self.member, PLACE, SECRET, "value"))
        metadata: Object = {"name": NAME, "namespace": PLACE, "labels": {"app": PLACE}, "finalizers": [HOLD]}
        body = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "metadata": metadata, "spec": {}}
        made: Object = (await self.client.create(CLUSTERS, body))["metadata"]
        ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await self.client.patch(CLUSTERS, NAME, ready, namespace=PLACE, subresource="status")

        def selected(it: Object | None) -> bool:
            return bool(((it or {}).get("status") or {}).get("selected"))

        await until(self.client, TEARDOWN_POLICIES, PLACE, selected, "selecting the Cluster", within=60.0)
        return made

    async def _let_go(self) -> None:
        found = await self.client.get(SECRETS, SECRET, namespace=PLACE)
        await self.client.delete(SECRETS, SECRET, uid=found["metadata"]["uid"], namespace=PLACE)
        await self.client.patch(CLUSTERS, NAME, {"metadata": {"finalizers": None}}, namespace=PLACE)
        for resource, name in ((CLUSTERS, NAME), (SECRETS, SECRET)):
            await until_absent(self.client, resource, name, namespace=PLACE, within=120.0)

    async def delete(self) -> float:
        """The same Services, with nothing around their deletion."""
        services = await self._services()

        async def one(name: str, uid: str) -> None:
            await self.member.client.delete(SERVICES, name, uid=uid, namespace=PLACE)

        left = {f"{PLACE}/{name}" for name in services}
        async with following(self.member.client, SERVICES, gone(left), namespace=PLACE) as over:
            began = time.perf_counter()
            await gather_limited((one(name, uid) for name, uid in services.items()), limit=AT_ONCE)
            await over()
            return time.perf_counter() - began


if __name__ == "__main__":
    uvloop.run(main())
