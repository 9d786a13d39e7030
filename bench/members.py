"""A member with many Works on it, unjoined with Required, against the sum of their objects' DELETEs.

It counts from the deletion of the Cluster until the watch of the member has told of the last object; the size is
`UNWIND_BENCH_WORKS` (500). How long it takes to put the Works there is told beside it: creates, against bare ones.

Putting a Work of 10 objects there is a create of the user and four writes of the manager on the management cluster, and
10 creates on the member: finalizer, Inventory with the intended entries, their confirmation, status. All of it is
limited by the processor, on two shared cores, so the ratio follows the processor time of all processes. For one Work,
in milliseconds (median of 3 rounds of 200 Works, load 7; bare: 10 creates):

|      | API server, management | API server, member | etcd | controller managers | manager or client | sum |
|------|------|------|-----|-----|-----|------|
| Work | 26.4 | 15.1 | 5.7 | 3.1 | 7.9 | 58.2 |
| bare |  0.4 | 11.9 | 1.4 | 0.9 | 2.5 | 17.1 |

The goal of 2 x would be 34 ms. The creates on the member, the manager and the Work of the user take 28 of them: that
leaves room for one write of the manager, of 4 to 10 ms with etcd. At least three are needed: the finalizer and the
intended entries before the first create, because they are in different objects, and the status after the last one. In
the API server and in etcd, by batches of 100: Work 2.6 to 3.1 and 0.6, finalizer 3.9 and 0.8, Inventory 5.0 to 7.2 and
0.8, confirmation 5.4 to 6.6 and 0.8, status 5.3 to 10.4 and 1.2. A profile of the API server during the writes is flat:
pruning and defaults by the schema 15 %, garbage collection 14 %, validation by the schema 8 %, field managers 5 %,
admission policies 5 %. What was tried or reckoned:

- One Inventory for many Works ("group commit"): entries cost more than requests. An Inventory of 80 entries takes 8 to
  20 ms and its confirmation 15 to 24, of 160 entries 31 to 35 and 30 to 50; so 4.3 ms a Work instead of 11, and 2.9 x
  in all. Inventories would have several owners then, and none could be sealed by itself.
- The status as a guarded merge patch instead of a server-side apply: 8.5 and 10.1 ms against 5.3 and 10.4.
- The finalizer set at the admission of a Work, by a mutating policy: saves one write, about 0.3 x.
- A confirmation that is written later would be missed by a removal that follows at once, which then reads each object.

All of these together would make about 2.5 x.
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
