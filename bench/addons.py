"""Add-ons put on a member and taken from it, against the least that the same writes could take.

The manager is `unwind run`, in a process of its own. What is bare runs here: as many requests at once, on connections
that are warm, and it ends as ours does, when the watch of the member has told of the last object.

On the management cluster, the manager is its ServiceAccount, with the installed rights: API priority and fairness
applies to its requests, as in every installation. On the member, both sides are the user of the member's kubeconfig,
which is in system:masters, as in the kubeconfig Secrets of Cluster API: neither is subject to it.

Requests that follow each other in a chain of 10 profiles, by the audit logs. What is bare sends 20 to deploy (the
creates of a profile, then its patch) and 10 to withdraw.

- deploy, 18: label of the cluster, ClusterSummary, source and Secret, identity of the member, Namespace, Inventory; the
  creates of each profile; the uids and the status of the last one.
- withdraw, 16: label of the cluster, fresh reads and Secret, ClusterSummary and identity of the member, Inventory, list
  with a watch, Namespace; the DELETEs of each profile.

Until the Inventory of a profile was written while the one before it was deployed, and the credentials were marked at
the same time, deploying took 30 requests in a row. The Inventory of the first profile, the list and the Namespace could
be read while its ClusterSummary is deleted, too: that would need a removal that is prepared before it is decided.

Processor time in milliseconds for one withdrawal of the chain (medians of 3 and of 4 runs, loads 8 and 9, so only the
sums of a line and the line below it compare):

|        | manager | this process | etcd | API server, management | API server, member | controller managers | sum |
|--------|-----|-----|-----|-----|-----|-----|------|
| before | 125 |  34 | 137 | 134 | 354 |  63 |  847 |
| bare   |  20 | 109 |  95 |  11 | 409 |  38 |  683 |
| now    | 209 |  44 | 194 | 139 | 478 |  72 | 1136 |
| bare   |  43 | 147 | 189 |  40 | 562 |  73 | 1054 |

So 1.24 and 1.08 times the processor time of what is bare. 34 requests go to the management cluster besides Leases: 20
reads of Inventories, half of them of a second one that does not exist, 10 DELETEs of ClusterSummaries, and 4 others.
Before, the statuses of the ten profiles were written in the middle of the first deletions in some runs, depending on
the moment in which the label was removed, and the Secret was read twice.
"""

from __future__ import annotations

import asyncio
import base64
import os
import statistics
import subprocess
import sys
import time
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvloop
import yaml

from bench.ratios import RUNS, Ratio
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.testing.managers import manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

    Wait = Callable[[], Awaitable[None]]

CHAIN, WIDE, OBJECTS = 10, 50, 20
# As many as the transport of Unwind has under way to one API server.
AT_ONCE = 128
# What is told afterwards (statuses, lists of what is deployed) belongs to what was done before.
REST = 3.0
_LONG = 600.0


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        await install(plane.management.client, Setting())
        async with managing(plane.management), bare_session(plane) as session:
            await chain(plane, session)
            await wide(plane, session)


@asynccontextmanager
async def managing(management: LocalCluster) -> AsyncIterator[int]:
    """`unwind run` as the manager's ServiceAccount, and its process id."""
    told = {"UNWIND_LISTEN": "127.0.0.1:0", "UNWIND_METRICS_LISTEN": "127.0.0.1:0"}
    path = await manager_kubeconfig(management, HOME)
    argv = [str(Path(sys.executable).with_name("unwind")), "run", "--kubeconfig", str(path)]
    process = await asyncio.create_subprocess_exec(
        *argv, "--roles", "controllers", env=os.environ | told, stderr=subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


class Bare:
    """Requests to a member with nothing around them."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def create(self, body: Object) -> str:
        namespace = body["metadata"]["namespace"]
        async with self._session.post(f"/api/v1/namespaces/{namespace}/configmaps", json=body) as answer:
            assert answer.status == 201
            made: Any = msgspec.json.decode(await answer.read())
            return str(made["metadata"]["uid"])

    async def delete(self, where: str, uid: str) -> None:
        namespace, name = where.split("/")
        await self._delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}", uid)

    async def delete_namespace(self, name: str, uid: str) -> None:
        await self._delete(f"/api/v1/namespaces/{name}", uid)

    async def _delete(self, path: str, uid: str) -> None:
        async with self._session.delete(path, json={"preconditions": {"uid": uid}}) as answer:
            await answer.read()
            assert answer.status == 200

    async def warm(self) -> None:
        async def get() -> None:
            async with self._session.get("/readyz") as answer:
                await answer.read()

        await asyncio.gather(*(get() for _ in range(AT_ONCE)))


@asynccontextmanager
async def bare_session(plane: Plane) -> AsyncIterator[Bare]:
    [member] = plane.members.values()
    connection = member.connection("admin", groups=("system:masters",))
    connector = aiohttp.TCPConnector(ssl=connection.ssl_context(), limit=0)
    async with aiohttp.ClientSession(connection.server, connector=connector) as session:
        yield Bare(session)


@asynccontextmanager
async def following(
    client: Client, resource: Resource, over: Callable[[str, Object], bool], *, namespace: str | None = None
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Watch, from before the block on; what it yields returns when an event was told of which `over` is true."""
    opened, ended = asyncio.Event(), asyncio.Event()
    listed = msgspec.json.decode(await client.raw(f"{resource.path(namespace=namespace)}?limit=1"))

    async def watch() -> None:
        since = listed["metadata"]["resourceVersion"]
        opened.set()
        while True:
            async with aclosing(client.watch(resource, namespace=namespace, since=since)) as events:
                async for event in events:
                    if event.type == "ERROR":
                        raise RuntimeError(f"the watch of {resource.plural} has lost its place: {event.object}")
                    if over(event.type, event.object):
                        ended.set()
                        return
                    since = event.object["metadata"]["resourceVersion"]
            # The server ends the stream of whoever reads too slowly; it goes on where it was.

    async def wait() -> None:
        async with asyncio.timeout(_LONG):
            await ended.wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        await opened.wait()
        yield wait
        task.cancel()


def gone(left: set[str]) -> Callable[[str, Object], bool]:
    """Over when these names (namespace/name) were told to be deleted."""

    def over(type_: str, obj: Object) -> bool:
        if type_ == "DELETED":
            left.discard(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
        return not left

    return over


def provisioned(left: set[str]) -> Callable[[str, Object], bool]:
    """Over when as many summaries of these profiles say that they are deployed."""

    def over(_: str, obj: Object) -> bool:
        features = (obj.get("status") or {}).get("featureSummaries") or []
        if features and all(feature["status"] == "Provisioned" for feature in features):
            left.discard(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
        return not left

    return over


def config_map(namespace: str, name: str, **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"made": "for a benchmark"}}


async def register(plane: Plane, namespace: str) -> None:
    """The member as a SveltosCluster, which no profile wants yet."""
    client, [member] = plane.management.client, plane.members.values()
    await plane.management.create_namespace(namespace)
    await client.create(SECRETS, kubeconfig(member, namespace, "edge-sveltos-kubeconfig", "kubeconfig"))
    metadata = {"name": "edge", "namespace": namespace}
    await client.create(
        SVELTOS_CLUSTERS,
        {"apiVersion": SVELTOS_CLUSTERS.api_version, "kind": "SveltosCluster", "metadata": metadata, "spec": {}},
    )
    await client.patch(SVELTOS_CLUSTERS, "edge", {"status": {"ready": True}}, namespace=namespace, subresource="status")


def kubeconfig(member: LocalCluster, namespace: str, name: str, key: str) -> Object:
    data = {key: base64.b64encode(member.kubeconfig.read_bytes()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}


class Profiles:
    """Profiles of ConfigMaps for one cluster: wanted by a label on it, and withdrawn when that goes."""

    def __init__(self, plane: Plane, namespace: str, count: int, *, chained: bool) -> None:
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.namespace = namespace
        self.names = [f"{namespace}-{number:02}" for number in range(count)]
        self.waves = [[name] for name in self.names] if chained else [self.names]
        """In the order in which they are deployed."""

    def objects(self, profile: str) -> list[str]:
        return [f"{profile}-{number:02}" for number in range(OBJECTS)]

    async def make(self) -> None:
        await self.member.create_namespace(self.namespace)
        before: list[str] = []
        for wave in self.waves:
            for name in wave:
                held = yaml.dump_all([config_map(self.namespace, item) for item in self.objects(name)])
                await self.client.create(CONFIG_MAPS, config_map(self.namespace, name, all=held))
                refs = [{"kind": "ConfigMap", "namespace": self.namespace, "name": name}]
                await self.client.create(
                    CLUSTER_PROFILES, profile(name, {"app": self.namespace}, policyRefs=refs, dependsOn=before)
                )
            before = wave if len(self.waves) > 1 else []

    async def _label(self, value: str | None) -> None:
        patch = {"metadata": {"labels": {"app": value}}}
        await self.client.patch(SVELTOS_CLUSTERS, "edge", patch, namespace=self.namespace)

    async def deploy(self) -> float:
        """The seconds until the last summary said that it is deployed; from rest."""
        await asyncio.sleep(REST)
        left = {f"{self.namespace}/{name}-sveltos-edge" for name in self.names}
        async with following(self.client, CLUSTER_SUMMARIES, provisioned(left), namespace=self.namespace) as over:
            began = time.perf_counter()
            await self._label(self.namespace)
            await over()
            return time.perf_counter() - began

    async def withdraw(self) -> float:
        """The seconds until the last object was seen to be absent, from rest; returns when the summaries are, too."""
        await asyncio.sleep(REST)
        left = {f"{self.namespace}/{item}" for name in self.names for item in self.objects(name)}
        summaries = {f"{self.namespace}/{name}-sveltos-edge" for name in self.names}
        async with (
            following(self.client, CLUSTER_SUMMARIES, gone(summaries), namespace=self.namespace) as tidy,
            following(self.member.client, CONFIG_MAPS, gone(left), namespace=self.namespace) as over,
        ):
            return await timed(self._label(None), over, tidy)

    async def deploy_bare(self, bare: Bare) -> tuple[float, dict[str, str]]:
        """Wave after wave, with a patch of a management object for each profile; the seconds, and what was made."""
        made: dict[str, str] = {}

        async def one(name: str) -> None:
            made[name] = await bare.create(config_map(self.namespace, name))

        await bare.warm()
        began = time.perf_counter()
        for wave in self.waves:
            await gather_limited((one(it) for name in wave for it in self.objects(name)), limit=AT_ONCE)
            for name in wave:
                note = {"metadata": {"annotations": {"deployed": str(len(made))}}}
                await self.client.patch(CONFIG_MAPS, name, note, namespace=self.namespace)
        return time.perf_counter() - began, made

    async def withdraw_bare(self, bare: Bare, made: dict[str, str]) -> float:
        """Wave after wave, each seen absent by watch before the next."""
        waves = [[item for name in wave for item in self.objects(name)] for wave in reversed(self.waves)]
        standing: list[set[str]] = [{f"{self.namespace}/{item}" for item in wave} for wave in waves]
        ends = [asyncio.Event() for _ in waves]

        def over(type_: str, obj: Object) -> bool:
            name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
            for left, end in zip(standing, ends, strict=True):
                if type_ == "DELETED" and name in left:
                    left.discard(name)
                    if not left:
                        end.set()
            return all(end.is_set() for end in ends)

        await bare.warm()
        async with following(self.member.client, CONFIG_MAPS, over, namespace=self.namespace) as ended:
            began = time.perf_counter()
            for wave, end in zip(waves, ends, strict=True):
                await gather_limited(
                    (bare.delete(f"{self.namespace}/{item}", made[item]) for item in wave), limit=AT_ONCE
                )
                await end.wait()
            await ended()
            return time.perf_counter() - began


def profile(name: str, labels: dict[str, str], **spec: Any) -> Object:
    body = {"clusterSelector": {"matchLabels": labels}} | spec
    return {
        "apiVersion": CLUSTER_PROFILES.api_version,
        "kind": "ClusterProfile",
        "metadata": {"name": name},
        "spec": body,
    }


async def timed(act: Awaitable[object], over: Wait, tidy: Wait) -> float:
    """The seconds from an act until its end was seen; returns when what follows is over, too."""
    began = time.perf_counter()
    await act
    await over()
    took = time.perf_counter() - began
    await tidy()
    return took


async def chain(plane: Plane, bare: Bare) -> None:
    deployed, withdrawn = await alternating(plane, bare, "chain", CHAIN, chained=True)
    what = f"{CHAIN} profiles x {OBJECTS} ConfigMaps"
    print(Ratio(f"withdraw a chain of {what}", "bare DELETEs, wave after wave", *withdrawn, goal=1.5), flush=True)
    print(Ratio(f"deploy a chain of {what}", "bare creates, one patch a step", *deployed, goal=1.75), flush=True)


async def wide(plane: Plane, bare: Bare) -> None:
    _, withdrawn = await alternating(plane, bare, "wide", WIDE, chained=False)
    what = f"withdraw {WIDE} profiles x {OBJECTS} side by side"
    print(Ratio(what, f"bare DELETEs, {AT_ONCE} at once", *withdrawn, goal=1.4), flush=True)


async def alternating(
    plane: Plane, bare: Bare, name: str, count: int, *, chained: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ours and bare in turn: the median seconds of both, for deploying and for withdrawing."""
    await register(plane, name)
    profiles = Profiles(plane, name, count, chained=chained)
    await profiles.make()
    await profiles.deploy()  # not counted: the manager may still be starting
    await profiles.withdraw()
    took: list[tuple[float, float, float, float]] = []
    for _ in range(RUNS):
        deployed, withdrawn = await profiles.deploy(), await profiles.withdraw()
        bare_deployed, made = await profiles.deploy_bare(bare)
        took.append((deployed, bare_deployed, withdrawn, await profiles.withdraw_bare(bare, made)))
    medians = [statistics.median(column) for column in zip(*took, strict=True)]
    return (medians[0], medians[1]), (medians[2], medians[3])


if __name__ == "__main__":
    uvloop.run(main())
