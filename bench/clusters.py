"""Many clusters with add-ons on them, all deleted at once, against the sum of their objects' DELETEs.

All of them lead to one real member, each with a namespace of its own there and on the management cluster. Its full
size is 200 clusters: `UNWIND_BENCH_CLUSTERS=200`. Reckoned from 20 clusters that would take two busy cores a quarter
of an hour, most of it to put the objects there, so the default is smaller; what is printed says how many there were.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
import yaml

from bench.addons import AT_ONCE, bare_session, config_map, following, gone, kubeconfig, managing, profile, provisioned
from bench.ratios import Ratio
from unwind.api.capi import CLUSTERS
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.rights import Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.kube.object_watch import until_absent, until_true
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from bench.addons import Bare
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

MANY = int(os.environ.get("UNWIND_BENCH_CLUSTERS", "40"))
PROFILES_EACH, OBJECTS_EACH = 10, 5
ROUNDS = 3
HOLD = "example.dev/hold"


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        await install(plane.management.client, Setting())
        await define_clusters(plane.management.client)
        async with managing(plane.management) as manager, bare_session(plane) as session:
            await many(plane, session, manager)


async def define_clusters(client: Client) -> None:
    """Cluster API's kind, without Cluster API: who deletes a Cluster and lets it go is this benchmark."""
    await define(client, CLUSTERS)


async def define(client: Client, resource: Resource) -> None:
    """Serve a namespaced kind with any content and a status."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    name, kind = f"{resource.plural}.{resource.group}", resource.kind
    spec = {
        "group": resource.group,
        "scope": "Namespaced",
        "names": {"plural": resource.plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": [version],
    }
    body = {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    await until_true(client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established")


class Many:
    """Many clusters that are all the same member, each with objects in a namespace of its own."""

    def __init__(
        self, plane: Plane, *, clusters: int = MANY, profiles: int = PROFILES_EACH, objects: int = OBJECTS_EACH
    ) -> None:
        self._objects_each = objects
        self.management = plane.management
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.namespaces = [f"many-{number:03}" for number in range(clusters)]
        self.profiles = [f"many-{number}" for number in range(profiles)]

    def objects(self, profile: str) -> list[str]:
        return [f"{profile}-{number}" for number in range(self._objects_each)]

    def everything(self) -> set[str]:
        return {
            f"{namespace}/{item}" for namespace in self.namespaces for it in self.profiles for item in self.objects(it)
        }

    async def make(self) -> None:
        await gather_limited((self._place(namespace) for namespace in self.namespaces), limit=16)
        for name in self.profiles:
            # Without a namespace it is looked for in each cluster's own.
            refs = [{"kind": "ConfigMap", "name": name}]
            enforced = {"clusterDeletionBehavior": "EnforceRemovePolicies"}
            await self.client.create(CLUSTER_PROFILES, profile(name, {"app": "many"}, policyRefs=refs, **enforced))

    async def _place(self, namespace: str) -> None:
        await self.management.create_namespace(namespace)
        await self.member.create_namespace(namespace)
        for name in self.profiles:
            held = yaml.dump_all([config_map(namespace, item) for item in self.objects(name)])
            await self.client.create(CONFIG_MAPS, config_map(namespace, name, all=held))

    async def deploy(self) -> float:
        """Have a cluster in each namespace, with everything on it; the seconds that took."""
        left = {f"{namespace}/{name}-capi-edge" for namespace in self.namespaces for name in self.profiles}
        async with following(self.client, CLUSTER_SUMMARIES, provisioned(left)) as over:
            began = time.perf_counter()
            await gather_limited((self._cluster(namespace) for namespace in self.namespaces), limit=16)
            await over()
            return time.perf_counter() - began

    async def _cluster(self, namespace: str) -> None:
        # That of the round before is held until all is tidy.
        await until_absent(self.client, SECRETS, "edge-kubeconfig", namespace=namespace, within=600)
        await self.client.create(SECRETS, kubeconfig(self.member, namespace, "edge-kubeconfig", "value"))
        metadata = {"name": "edge", "namespace": namespace, "labels": {"app": "many"}, "finalizers": [HOLD]}
        body = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "metadata": metadata, "spec": {}}
        await self.client.create(CLUSTERS, body)
        ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await self.client.patch(CLUSTERS, "edge", ready, namespace=namespace, subresource="status")

    async def remove(self) -> float:
        """Delete all clusters at once; the seconds until the last object was seen to be absent. Returns when all that
        belongs to the clusters is gone."""
        finished: set[str] = set()

        def complete(_: str, obj: Object) -> bool:
            if (obj.get("status") or {}).get("phase") == Phase.COMPLETE:
                finished.add(obj["metadata"]["name"])
            return len(finished) == len(self.namespaces)

        summaries = {f"{namespace}/{name}-capi-edge" for namespace in self.namespaces for name in self.profiles}
        async with (
            following(self.client, TEARDOWNS, complete) as ended,
            following(self.client, CLUSTER_SUMMARIES, gone(summaries)) as tidy,
            following(self.member.client, CONFIG_MAPS, gone(self.everything())) as over,
        ):
            clusters = await self.client.list(CLUSTERS)
            began = time.perf_counter()
            await gather_limited((self._delete(cluster) for cluster in clusters), limit=AT_ONCE)
            await over()
            took = time.perf_counter() - began
            await ended()
            await gather_limited((self._let_go(namespace) for namespace in self.namespaces), limit=16)
            await tidy()
        return took

    async def _delete(self, cluster: Object) -> None:
        meta = cluster["metadata"]
        await self.client.delete(CLUSTERS, meta["name"], uid=meta["uid"], namespace=meta["namespace"])

    async def _let_go(self, namespace: str) -> None:
        found = await self.client.get(SECRETS, "edge-kubeconfig", namespace=namespace)
        await self.client.delete(SECRETS, "edge-kubeconfig", uid=found["metadata"]["uid"], namespace=namespace)
        await self.client.patch(CLUSTERS, "edge", {"metadata": {"finalizers": None}}, namespace=namespace)

    async def remove_bare(self, bare: Bare) -> float:
        """The same objects, made and deleted with nothing around it; only the deletions are counted."""
        made: dict[str, str] = {}

        async def one(where: str) -> None:
            made[where] = await bare.create(config_map(*where.split("/")))

        await gather_limited((one(where) for where in self.everything()), limit=AT_ONCE)
        await bare.warm()
        async with following(self.member.client, CONFIG_MAPS, gone(set(made))) as over:
            began = time.perf_counter()
            await gather_limited((bare.delete(where, uid) for where, uid in made.items()), limit=AT_ONCE)
            await over()
            return time.perf_counter() - began


async def many(plane: Plane, bare: Bare, manager: int) -> None:
    it = Many(plane)
    await it.make()
    took: list[tuple[float, float]] = []
    resident: list[float] = []
    for _ in range(ROUNDS):
        await it.deploy()
        took.append((await it.remove(), await it.remove_bare(bare)))
        resident.append(megabytes(manager))
    ours, least = (statistics.median(column) for column in zip(*took, strict=True))
    objects = MANY * PROFILES_EACH * OBJECTS_EACH
    print(Ratio(f"delete {MANY} clusters, {objects:,} objects", f"bare DELETEs, {AT_ONCE} at once", ours, least, 2.0))
    growth = resident[-1] / resident[0]
    after = ", ".join(f"{item:.0f}" for item in resident)
    print(f"resident after each round: {after} MB: {growth:.2f} x (goal 1.1 x) {'ok' if growth <= 1.1 else 'MISSED'}")


def megabytes(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    uvloop.run(main())
