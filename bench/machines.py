"""Machines that are let go of beside a held teardown, against the same writes of a client that knows what to write.

200 Machines (`UNWIND_BENCH_MACHINES` changes the number) of a Cluster with the gate Machines are deleted at once, and
their Cluster is not: the manager removes its hook from each. Another Cluster is being deleted meanwhile, and its
Machine is held. What is bare removes an annotation of the same length from as many Machines, each as soon as its DELETE
was answered. Both end when a watch has told that the last Machine has lost its hook.

Nothing of Cluster API runs: it takes minutes to drain and terminate a real Machine, and would be in both rows. The
Machines have a finalizer, as those of Cluster API.

The manager is its ServiceAccount, with the installed rights, so API priority and fairness applies to its requests. What
is bare is in system:masters.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import uvloop

from bench.addons import AT_ONCE, following, gone, kubeconfig, managing
from bench.clusters import HOLD, define, define_clusters
from bench.ratios import RUNS, Ratio, alternate
from unwind.api.capi import CLUSTERS, MACHINES
from unwind.api.names import CLUSTER_NAME_LABEL, MACHINE_GATE_ANNOTATION
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import SECRETS, SERVICES
from unwind.api.rights import Setting
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.kube.object_watch import until
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

MANY = int(os.environ.get("UNWIND_BENCH_MACHINES", "200"))
PLACE, HELD, GATED, FREE = "machines", "held", "gated", "free"
BARE_ANNOTATION = MACHINE_GATE_ANNOTATION.replace("/unwind", "/nobody")
_FREED: Object = {"metadata": {"finalizers": None}}
GOAL = 2.0


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        client = plane.management.client
        await install(client, Setting())
        await define_clusters(client)
        await define(client, MACHINES)
        async with managing(plane.management):
            machines = Machines(plane)
            await machines.prepare()
            ours, bare = await alternate(machines.let_go, machines.delete, runs=RUNS)
            await machines.check_held()
            against = f"bare DELETEs and patches, {AT_ONCE} at once"
            print(Ratio(f"let go of {MANY} Machines beside a teardown", against, ours, bare, GOAL))
            took = sorted(machines.took)
            print(
                f"DELETE of a Machine -> its hook removed, {len(took)} Machines:"
                f" median {statistics.median(took):.2f} s, last {took[-1]:.2f} s"
            )


class Machines:
    """Machines of a Cluster that stays, again and again, and one that is held."""

    def __init__(self, plane: Plane) -> None:
        self.management = plane.management
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.took: list[float] = []
        """How long each Machine waited for us, in seconds."""

    async def prepare(self) -> None:
        """Two Clusters with the gate; one of them is being deleted, and waits for a Service."""
        await self.management.create_namespace(PLACE)
        await self.member.create_namespace(PLACE)
        kind = TEARDOWN_POLICIES
        spec = {
            "clusterSelector": {"matchLabels": {"app": PLACE}},
            "gate": "Machines",
            "drain": {"loadBalancers": "Enforce"},
        }
        policy = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": PLACE}, "spec": spec}
        await self.client.create(TEARDOWN_POLICIES, policy)
        metadata = {"name": "shop", "namespace": PLACE, "finalizers": [HOLD]}
        balanced = {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "ports": [{"port": 80}]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": balanced}
        await self.member.client.create(SERVICES, service)
        held, _ = await self._cluster(HELD), await self._cluster(GATED)
        await self._create(HELD, 1)
        await self.client.delete(CLUSTERS, HELD, uid=held, namespace=PLACE)

        def waits(it: Object | None) -> bool:
            return ((it or {}).get("status") or {}).get("phase") == Phase.HELD

        await until(self.client, TEARDOWNS, held, waits, "held", within=60.0)

    async def _cluster(self, name: str) -> str:
        """Create a Cluster that is ready; its uid."""
        await self.client.create(SECRETS, kubeconfig(self.member, PLACE, f"{name}-kubeconfig", "value"))
        metadata: Object = {"name": name, "namespace": PLACE, "labels": {"app": PLACE}, "finalizers": [HOLD]}
        body = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "metadata": metadata, "spec": {}}
        made = await self.client.create(CLUSTERS, body)
        ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await self.client.patch(CLUSTERS, name, ready, namespace=PLACE, subresource="status")
        return str(made["metadata"]["uid"])

    async def _create(self, cluster: str, count: int) -> dict[str, str]:
        """Create Machines; return their uids by name when all have the hook."""
        hook = _hook_of(cluster)
        made: dict[str, str] = {}
        armed: set[str] = set()

        async def one(number: int) -> None:
            name = f"{cluster}-{number:04}"
            metadata: Object = {
                "name": name,
                "namespace": PLACE,
                "labels": {CLUSTER_NAME_LABEL: cluster},
                "finalizers": [HOLD],
                "annotations": {BARE_ANNOTATION: "nobody"} if cluster == FREE else {},
            }
            body = {"apiVersion": MACHINES.api_version, "kind": MACHINES.kind, "metadata": metadata, "spec": {}}
            made[name] = (await self.client.create(MACHINES, body))["metadata"]["uid"]

        def over(_: str, obj: Object) -> bool:
            if hook in (obj["metadata"].get("annotations") or {}) and _cluster_of(obj) == cluster:
                armed.add(obj["metadata"]["name"])
            return len(armed) == count

        async with following(self.client, MACHINES, over, namespace=PLACE) as ready:
            await gather_limited((one(number) for number in range(count)), limit=AT_ONCE)
            await ready()
        return made

    async def let_go(self) -> float:
        """The seconds from the first DELETE until the manager has let go of the last Machine."""
        return await self._measure(GATED)

    async def delete(self) -> float:
        """The same writes, with nothing around them."""
        return await self._measure(FREE)

    async def _measure(self, cluster: str) -> float:
        machines = await self._create(cluster, MANY)
        asked: dict[str, float] = {}
        freed: dict[str, float] = {}

        async def one(name: str, uid: str) -> None:
            asked[name] = time.perf_counter()
            await self.client.delete(MACHINES, name, uid=uid, namespace=PLACE)
            if cluster == FREE:
                patch = {"metadata": {"uid": uid, "annotations": {BARE_ANNOTATION: None}}}
                await self.client.patch(MACHINES, name, patch, namespace=PLACE)

        async with following(self.client, MACHINES, _losing(_hook_of(cluster), asked, freed), namespace=PLACE) as over:
            began = time.perf_counter()
            await gather_limited((one(name, uid) for name, uid in machines.items()), limit=AT_ONCE)
            await over()
            took = time.perf_counter() - began
        if cluster == GATED:
            self.took += [freed[name] - asked[name] for name in freed]
        await self._remove(machines)
        return took

    async def _remove(self, machines: dict[str, str]) -> None:
        async def one(name: str) -> None:
            await self.client.patch(MACHINES, name, _FREED, namespace=PLACE)

        left = {f"{PLACE}/{name}" for name in machines}
        async with following(self.client, MACHINES, gone(left), namespace=PLACE) as over:
            await gather_limited((one(name) for name in machines), limit=AT_ONCE)
            await over()

    async def check_held(self) -> None:
        """The Machine of the Cluster that is being deleted is still held."""
        [machine] = await self.client.list(MACHINES, namespace=PLACE)
        assert MACHINE_GATE_ANNOTATION in machine["metadata"]["annotations"]


def _losing(hook: str, asked: dict[str, float], freed: dict[str, float]) -> Callable[[str, Object], bool]:
    """Over when all Machines have lost their hook; notes when each did."""

    def over(_: str, obj: Object) -> bool:
        meta = obj["metadata"]
        if meta["name"] in asked and hook not in (meta.get("annotations") or {}):
            freed.setdefault(meta["name"], time.perf_counter())
        return len(freed) == MANY

    return over


def _hook_of(cluster: str) -> str:
    return BARE_ANNOTATION if cluster == FREE else MACHINE_GATE_ANNOTATION


def _cluster_of(obj: Object) -> str:
    name: str = (obj["metadata"].get("labels") or {}).get(CLUSTER_NAME_LABEL, "")
    return name


if __name__ == "__main__":
    uvloop.run(main())
