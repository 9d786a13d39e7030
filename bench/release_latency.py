"""How long a Cluster waits after its last add-on is gone: last object absent → let go by the real Cluster API.

Both ends are told by watches that this program has open: the member's, of the last object, and the management
cluster's, of the Cluster that Cluster API marks when the hook has let go. Twenty clusters, one after the other: half of
them with a last wave that is wide, half with a chain. All of them lead to one real member, each with a namespace of its
own on both sides.

Cluster API runs once as the plane has it, and once as installations do: there it looks at each Cluster once a second at
most.

What it is made of: Cluster API keeps a blocking answer for the seconds that it was told, and a second is the least that
can be said. So the end is noticed half a second late in the middle, and a second at worst; all the rest (the Teardown's
last status, a fresh read to confirm it, Cluster API's own write) was a tenth of a second on two shared cores.

The manager is its ServiceAccount, with the installed rights, so API priority and fairness applies to its requests.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
import yaml

from bench.addons import config_map, following, profile, provisioned
from bench.gate import reading
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.names import OK_TO_DELETE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.capi.admission_policies import extension_name
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.kube.object_watch import until_absent, until_true
from unwind.local.capi import create_cluster
from unwind.local.home import Shape
from unwind.local.paths import Port
from unwind.local.plane import running
from unwind.testing.managers import manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

CLUSTERS_EACH = 10
OBJECTS = 5
WIDE, CHAIN = 20, 3
MEDIAN, WORST = 1.5, 3.0
NAME = "edge"


class Way(msgspec.Struct, frozen=True):
    """How one cluster went, in seconds after its last object was seen to be absent."""

    shape: str
    written: float
    """The Teardown says that everything is removed."""
    opened: float
    """The hook lets it go."""
    let_go: float
    """Cluster API has heard it: the Cluster says so, or is gone."""


async def main() -> None:
    async with running(Shape(members=1, capi=True)) as plane:
        port = Port()
        await install(plane.management.client, Setting(url=f"https://127.0.0.1:{port}"), accept_shadowing=True)
        port.release()
        async with managing(plane.management, f"127.0.0.1:{port}") as manager:
            await until_true(plane.management.client, EXTENSION_CONFIGS, extension_name(HOME), "Discovered")
            await prepare(plane)
            tell("", await round_of(plane, manager, "a"))
            await limit_rate(plane)
            tell(", rate limited", await round_of(plane, manager, "b"))


class Manager:
    """`unwind run`, as far as it says when it lets clusters go."""

    def __init__(self) -> None:
        self.opened: dict[str, float] = {}
        """By the uid of the Cluster, as seconds since the epoch."""

    async def read(self, stderr: asyncio.StreamReader) -> None:
        async for line in stderr:
            said: Any = msgspec.json.decode(line)
            if said["event"] == "cluster deletion allowed":
                self.opened.setdefault(said["uid"], datetime.fromisoformat(said["time"]).timestamp())


@asynccontextmanager
async def managing(management: LocalCluster, listen: str) -> AsyncIterator[Manager]:
    path = await manager_kubeconfig(management, HOME)
    argv = [str(Path(sys.executable).with_name("unwind")), "run", "--kubeconfig", str(path)]
    told = {"UNWIND_LISTEN": listen, "UNWIND_METRICS_LISTEN": "127.0.0.1:0", "UNWIND_LOG_FORMAT": "json"}
    process = await asyncio.create_subprocess_exec(*argv, env=os.environ | told, stderr=subprocess.PIPE)
    assert process.stderr
    manager = Manager()
    async with reading(process, manager.read(process.stderr)):
        yield manager


async def limit_rate(plane: Plane) -> None:
    """Start Cluster API's manager anew, as it runs in installations."""
    assert plane.cluster_api
    assert plane.cluster_api.daemon
    daemon = plane.cluster_api.daemon
    daemon.argv = [item.replace("ReconcilerRateLimiting=false", "ReconcilerRateLimiting=true") for item in daemon.argv]
    await daemon.stop()
    await daemon.start()


def profiles(shape: str) -> list[str]:
    return [f"{shape}-{number:02}" for number in range(WIDE if shape == "wide" else CHAIN)]


def objects(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(OBJECTS)]


async def prepare(plane: Plane) -> None:
    for shape in ("wide", "chain"):
        before: list[str] = []
        for name in profiles(shape):
            # Without a namespace its source is looked for in each cluster's own.
            spec = {"policyRefs": [{"kind": "ConfigMap", "name": name}], "dependsOn": before}
            enforced = {"clusterDeletionBehavior": "EnforceRemovePolicies"}
            await plane.management.client.create(CLUSTER_PROFILES, profile(name, {"shape": shape}, **spec, **enforced))
            before = [name] if shape == "chain" else []


async def round_of(plane: Plane, manager: Manager, prefix: str) -> list[Way]:
    """Have all clusters, and delete one after the other."""
    places = {f"{prefix}-{shape}-{number}": shape for number in range(CLUSTERS_EACH) for shape in ("wide", "chain")}
    left = {f"{place}/{name}-capi-{NAME}" for place, shape in places.items() for name in profiles(shape)}
    async with following(plane.management.client, CLUSTER_SUMMARIES, provisioned(left)) as deployed:
        await gather_limited((_place(plane, place, shape) for place, shape in places.items()), limit=4)
        await deployed()
    return [await _remove(plane, manager, place, shape) for place, shape in places.items()]


async def _place(plane: Plane, place: str, shape: str) -> None:
    [member] = plane.members.values()
    await plane.management.create_namespace(place)
    await member.create_namespace(place)
    client = plane.management.client
    for name in profiles(shape):
        held = yaml.dump_all([config_map(place, item) for item in objects(name)])
        await client.create(CONFIG_MAPS, config_map(place, name, all=held))
    await create_cluster(client, name=NAME, namespace=place, member=member.name, labels={"shape": shape}, within=300)


class Seen:
    """When something was first told of, as seconds since the epoch."""

    def __init__(self, what: Callable[[str, Object], bool]) -> None:
        self._what = what
        self.at = 0.0

    def __call__(self, type_: str, obj: Object) -> bool:
        if not self.at and self._what(type_, obj):
            self.at = time.time()
        return bool(self.at)


async def _remove(plane: Plane, manager: Manager, place: str, shape: str) -> Way:
    client, [member] = plane.management.client, plane.members.values()
    cluster = await client.get(CLUSTERS, NAME, namespace=place)
    uid = cluster["metadata"]["uid"]
    standing = {item for name in profiles(shape) for item in objects(name)}

    def absent(type_: str, obj: Object) -> bool:
        if type_ == "DELETED":
            standing.discard(obj["metadata"]["name"])
        return not standing

    def let_go(type_: str, obj: Object) -> bool:
        return type_ == "DELETED" or OK_TO_DELETE_ANNOTATION in (obj["metadata"].get("annotations") or {})

    def written(_: str, obj: Object) -> bool:
        return bool(obj["metadata"]["name"] == uid and (obj.get("status") or {}).get("phase") == Phase.COMPLETE)

    last, told, gone = Seen(absent), Seen(written), Seen(let_go)
    async with (
        following(member.client, CONFIG_MAPS, last, namespace=place) as all_absent,
        following(client, TEARDOWNS, told) as complete,
        following(client, CLUSTERS, gone, namespace=place) as free,
    ):
        await client.delete(CLUSTERS, NAME, uid=uid, namespace=place)
        for it in (all_absent, complete, free):
            await it()
    await until_absent(client, CLUSTERS, NAME, namespace=place)
    way = Way(shape, told.at - last.at, manager.opened[uid] - last.at, gone.at - last.at)
    assert way.let_go > 0, "it was let go while something was there"
    return way


def tell(how: str, ways: list[Way]) -> None:
    for shapes, title in ((("wide",), "wide last wave"), (("chain",), "chain of 3"), (("wide", "chain"), "all")):
        took = [way for way in ways if way.shape in shapes]
        for word, goal, of in (("median", MEDIAN, statistics.median), ("worst", WORST, max)):
            value = of(way.let_go for way in took)
            verdict = "ok" if value <= goal else "MISSED"
            what = f"last object absent -> let go, {title}{how}"
            print(f"{what:<62} {word:>6} of {len(took):<2} {value:6.2f} s (goal {goal} s) {verdict}")
    written, opened, heard = (
        statistics.median(column)
        for column in zip(
            *((way.written, way.opened - way.written, way.let_go - way.opened) for way in ways), strict=True
        )
    )
    print(
        f"of which, in the median: until the Teardown says so {written:.2f} s; until Cluster API asks again and the"
        f" gate has confirmed it {opened:.2f} s; until Cluster API has written it down {heard:.2f} s"
    )


if __name__ == "__main__":
    uvloop.run(main())
