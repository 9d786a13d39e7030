"""A member with many Works on it, unjoined with Required, against the sum of their objects' DELETEs.

It counts from the deletion of the Cluster until the watch of the member has told of the last object; the size is
`UNWIND_BENCH_WORKS` (500). How long it takes to put the Works there is told beside it: creates, against bare ones.

Putting 500 Works there is 2,000 writes of the manager on the management cluster beside 5,000 creates on the member: the
finalizer, the Inventory with its intended entries, their confirmation, and the status. Shares of the processor time,
measured on two shared cores: the API server of the management cluster 48 %, that of the member 23 %, the manager 13 %,
etcd 10 %, the rest 6 %. In the API server, a bare create took 1.2 ms, a Work 2.8 ms, its finalizer 3.3 ms, an Inventory
4 to 5 ms, its confirmation 10 ms with whole entries, 8 ms with the fields that change, and 6.5 ms if only metadata is
returned (one pass of 200 requests each; under load, 11.5 and 9.7 ms for the first and the last). No single part of it
stands out: it is JSON, the schema, admission and the garbage collector, for objects of 3 KB. A confirmation that is
written later would be missed by a removal that follows at once, which then reads each object.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import uvloop

from bench.addons import AT_ONCE, bare_session, config_map, following, gone, managing
from bench.ratios import Ratio
from unwind.api.karmada import CLUSTERS, WORKS, RemoveStrategy
from unwind.api.names import KARMADA_CLUSTER_NAMESPACE, KARMADA_EXECUTION_NAMESPACE
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.rights import Setting
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.karmada import join
from unwind.karmada.join_objects import JoinOptions
from unwind.kube.object_watch import until_absent, until_true
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.addons import Bare
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

WORKS_THERE = int(os.environ.get("UNWIND_BENCH_WORKS", "500"))
OBJECTS_EACH = 10
ROUNDS = int(os.environ.get("UNWIND_BENCH_ROUNDS", "5"))
PLACE = "works"


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        await install(plane.management.client, Setting())
        async with managing(plane.management), bare_session(plane) as session:
            await unjoined(plane, session)


class Membership:
    """The member with Works on it, under another name in each round: a namespace takes its time to go."""

    def __init__(self, plane: Plane, number: int) -> None:
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.name = f"edge-{number}"
        self.execution = f"{KARMADA_EXECUTION_NAMESPACE}{self.name}"

    def objects(self, work: int) -> list[str]:
        return [f"work-{work:04}-{number:02}" for number in range(OBJECTS_EACH)]

    def everything(self) -> set[str]:
        return {f"{PLACE}/{item}" for work in range(WORKS_THERE) for item in self.objects(work)}

    async def deploy(self) -> float:
        """Join it, and have all Works on it; the seconds that these took, from the first to the last."""
        options = JoinOptions(name=self.name, remove_strategy=RemoveStrategy.REQUIRED)
        await join.join(self.client, self.member.client, options)
        await until_true(self.client, CLUSTERS, self.name, "Ready")
        left = {f"work-{work:04}" for work in range(WORKS_THERE)}
        async with following(self.client, WORKS, applied(left), namespace=self.execution) as over:
            began = time.perf_counter()
            await gather_limited((self._work(work) for work in range(WORKS_THERE)), limit=16)
            await over()
            return time.perf_counter() - began

    async def _work(self, number: int) -> None:
        manifests = [config_map(PLACE, name) for name in self.objects(number)]
        body = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": f"work-{number:04}", "namespace": self.execution},
            "spec": {"workload": {"manifests": manifests}},
        }
        await self.client.create(WORKS, body)

    async def unjoin(self) -> float:
        """Delete the Cluster; the seconds until the last object was seen to be absent. Returns when all that stood for
        it is gone."""
        found = await self.client.get(CLUSTERS, self.name)
        async with following(self.member.client, CONFIG_MAPS, gone(self.everything()), namespace=PLACE) as over:
            began = time.perf_counter()
            await self.client.delete(CLUSTERS, self.name, uid=found["metadata"]["uid"])
            await over()
            took = time.perf_counter() - began
        await until_absent(self.client, CLUSTERS, self.name, within=600)
        home = await self.client.cluster_uid()
        await join.take_out(self.member.client, self.name, KARMADA_CLUSTER_NAMESPACE, joined_to=home)
        # It can be joined again when that is gone, too.
        await until_absent(self.member.client, NAMESPACES, KARMADA_CLUSTER_NAMESPACE, within=600)
        return took

    async def bare(self, bare: Bare) -> tuple[float, float]:
        """The same objects, made and deleted with nothing around it; the seconds of both."""
        made: dict[str, str] = {}

        async def one(where: str) -> None:
            made[where] = await bare.create(config_map(*where.split("/")))

        await bare.warm()
        began = time.perf_counter()
        await gather_limited((one(where) for where in self.everything()), limit=AT_ONCE)
        created = time.perf_counter() - began
        async with following(self.member.client, CONFIG_MAPS, gone(set(made)), namespace=PLACE) as over:
            began = time.perf_counter()
            await gather_limited((bare.delete(where, uid) for where, uid in made.items()), limit=AT_ONCE)
            await over()
            return created, time.perf_counter() - began


def applied(left: set[str]) -> Callable[[str, Object], bool]:
    """Over when these Works have said that they are on the member."""

    def over(_: str, obj: Object) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or []
        if any(condition["type"] == "Applied" and condition["status"] == "True" for condition in conditions):
            left.discard(obj["metadata"]["name"])
        return not left

    return over


async def unjoined(plane: Plane, bare: Bare) -> None:
    [member] = plane.members.values()
    await member.create_namespace(PLACE)
    took: list[tuple[float, float, float, float]] = []
    for number in range(ROUNDS):
        it = Membership(plane, number)
        deployed, removed = await it.deploy(), await it.unjoin()
        bare_deployed, bare_removed = await it.bare(bare)
        took.append((removed, bare_removed, deployed, bare_deployed))
    removed, bare_removed, deployed, bare_deployed = (statistics.median(column) for column in zip(*took, strict=True))
    what = f"{WORKS_THERE} Works x {OBJECTS_EACH} ConfigMaps"
    print(Ratio(f"unjoin {what}", f"bare DELETEs, {AT_ONCE} at once", removed, bare_removed, goal=1.4), flush=True)
    print(Ratio(f"put {what} there", f"bare creates, {AT_ONCE} at once", deployed, bare_deployed, goal=2.0), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
