"""Everything that is stuck on all members, against the bare lists of the same kinds with the same concurrency.

The number of members is `UNWIND_BENCH_MEMBERS` (2), each a control plane of its own, with `UNWIND_BENCH_OBJECTS` (2000)
ConfigMaps of which one is stuck. 50 members need about 40 GiB of memory.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import uvloop

from bench.ratios import RUNS, Ratio, alternate
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.rights import Setting
from unwind.api.sveltos import SVELTOS_CLUSTERS
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.kube import decoding
from unwind.kube.object_watch import until_true
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.members import contents
from unwind.members.members import Members
from unwind.why.reachable_clusters import ReachableCluster
from unwind.why.stuck import find_stuck

if TYPE_CHECKING:
    from unwind.kube.discovery import Discovery
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

MEMBERS = int(os.environ.get("UNWIND_BENCH_MEMBERS", "2"))
OBJECTS = int(os.environ.get("UNWIND_BENCH_OBJECTS", "2000"))
ROUNDS = int(os.environ.get("UNWIND_BENCH_ROUNDS", str(RUNS)))
_MEMBERS_AT_ONCE = 16
_KINDS_AT_ONCE = 8


async def main() -> None:
    async with running(Shape(members=MEMBERS)) as plane:
        await install(plane.management.client, Setting())
        await until_true(
            plane.management.client,
            CUSTOM_RESOURCE_DEFINITIONS,
            f"{SVELTOS_CLUSTERS.plural}.{SVELTOS_CLUSTERS.group}",
            "Established",
        )
        for name, member in plane.members.items():
            await fill(member)
            await register(plane, name, member)
        async with Members(plane.management.client) as fleet:
            home = ReachableCluster(plane.management.client, fleet=fleet)
            clusters = [plane.management, *plane.members.values()]
            discoveries = [ReachableCluster(cluster.client).discovery for cluster in clusters]

            async def search() -> float:
                began = time.perf_counter()
                report = await find_stuck(home, older_than=timedelta(0), members=True)
                assert (report.clusters, len(report.objects)) == (MEMBERS + 1, MEMBERS), report
                return time.perf_counter() - began

            async def bare() -> float:
                began = time.perf_counter()
                pairs = zip(clusters, discoveries, strict=True)
                await gather_limited((lists(*pair) for pair in pairs), limit=_MEMBERS_AT_ONCE)
                return time.perf_counter() - began

            await search()
            await bare()
            took, limit = await alternate(search, bare, runs=ROUNDS)
    print(Ratio(f"stuck on {MEMBERS} members of {OBJECTS} objects", "the bare lists", took, limit, 2.0))


async def fill(member: LocalCluster) -> None:
    async def make(number: int) -> None:
        finalizers = ["example.dev/held"] if number == 0 else []
        name = f"item-{number:05}"
        metadata = {"name": name, "namespace": "default", "finalizers": finalizers}
        made = await member.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        if finalizers:
            await member.client.delete(CONFIG_MAPS, name, uid=made["metadata"]["uid"], namespace="default")

    await gather_limited((make(number) for number in range(OBJECTS)), limit=16)


async def register(plane: Plane, name: str, member: LocalCluster) -> None:
    client = plane.management.client
    metadata = {"name": f"{name}-sveltos-kubeconfig", "namespace": "default"}
    data = {"kubeconfig": member.kubeconfig.read_text()}
    await client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    await client.create(
        SVELTOS_CLUSTERS,
        {
            "apiVersion": SVELTOS_CLUSTERS.api_version,
            "kind": SVELTOS_CLUSTERS.kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": {},
        },
    )


async def lists(cluster: LocalCluster, discovery: Discovery) -> None:
    """All pages of all kinds, received and not decoded."""
    kinds = contents.listable(await discovery.kinds(), namespaced=False)

    async def one(number: int) -> None:
        async for _ in cluster.client.pages(
            kinds[number], accept=decoding.metadata(kinds[number]).accept_list, ahead=True
        ):
            pass

    await gather_limited((one(number) for number in range(len(kinds))), limit=_KINDS_AT_ONCE)


if __name__ == "__main__":
    uvloop.run(main())
