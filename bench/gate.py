"""The gate: what Cluster API's question costs, and how soon after its start a process has answers.

The management cluster is real. It has 1,000 Clusters with the ClusterSummaries of ten profiles each. The Clusters are
paused, so that nothing is deployed and nothing else goes on while it is measured.

The manager, the gate that is called directly and the bare lists all are the manager's ServiceAccount with the installed
rights, so API priority and fairness applies to both sides of each ratio.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvloop

from bench.clusters import define_clusters
from bench.listener import Load, on_core, prepare, server
from bench.ratios import RUNS, Ratio, alternate
from unwind.addons import cluster_summaries
from unwind.addons.caches import AddonCaches
from unwind.addons.matching import ProfileKey
from unwind.addons.summary_gate_source import SummaryGateSource
from unwind.api import capi
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import API_VERSION, Hook
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.resources import CONFIG_MAPS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, ClusterProfile
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Plan, Step, Teardown, TeardownSpec
from unwind.capi import hook_protocol
from unwind.capi.hook_handlers import HookHandlers
from unwind.capi.hook_protocol import ALWAYS
from unwind.capi.hook_registry import HookRegistry
from unwind.certificates import KeyPair
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.inventory.inventories import Inventories
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.local.plane import running
from unwind.members import targets
from unwind.server.listener import Address, Listener, address_of, bind
from unwind.server.routes import Request, Response, Route
from unwind.server.tls import Tls
from unwind.teardown.signatures import RecordKeys
from unwind.testing.managers import manager_client, manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

CLUSTERS_MADE, PROFILES_EACH = 1_000, 10
CALLERS, SECONDS = 16, 3
AT_ONCE = 50
FLEET = "fleet"
DELETE = Hook.BEFORE_CLUSTER_DELETE
CONSTANT = hook_protocol.wait(
    DELETE, "waiting for add-on cleanup: " + ", ".join(f"ClusterProfile/p-{n}" for n in range(5)), 1
)


async def main() -> None:
    async with running() as plane:
        management = plane.management
        await install(management.client, Setting())
        await define_clusters(management.client)
        found = await fill(management)
        await starting(management)
        await asking(management, found)


async def fill(management: LocalCluster) -> list[Object]:
    """Have the clusters and their summaries; the clusters come back."""
    client = management.client
    await management.create_namespace(FLEET)
    await client.create(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "source", "namespace": FLEET},
            "data": {"a": ""},
        },
    )
    kind = CLUSTER_PROFILES
    spec = {
        "clusterSelector": {"matchLabels": {"fleet": "bench"}},
        "clusterDeletionBehavior": "EnforceRemovePolicies",
        "policyRefs": [{"kind": "ConfigMap", "namespace": FLEET, "name": "source"}],
    }
    profiles: list[ClusterProfile] = []
    for number in range(PROFILES_EACH):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": f"p-{number}"}, "spec": spec}
        profiles.append(msgspec.convert(await client.create(kind, body), ClusterProfile))
    made: list[Object] = []

    async def cluster(number: int) -> None:
        body = paused(f"c-{number:04}")
        await client.create(CLUSTERS, body)
        initialized = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        name = body["metadata"]["name"]
        one = await client.patch(CLUSTERS, name, initialized, namespace=FLEET, subresource="status")
        made.append(one)
        target = targets.of_capi(msgspec.convert(one, capi.Cluster))
        for profile in profiles:
            key = ProfileKey(kind.kind, "", profile.metadata.name)
            await client.create(
                CLUSTER_SUMMARIES, cluster_summaries.new(key, profile.metadata.uid, profile.spec, target)
            )

    await gather_limited((cluster(number) for number in range(CLUSTERS_MADE)), limit=AT_ONCE)
    return made


def paused(name: str) -> Object:
    """A Cluster of an ordinary size."""
    return {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": name, "namespace": FLEET, "labels": {"fleet": "bench", "env": "prod"}},
        "spec": {
            "paused": True,
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.0.0.0/16"]}, "serviceDomain": "cluster.local"},
            "controlPlaneEndpoint": {"host": f"{name}.example.dev", "port": 6443},
            "topology": {
                "classRef": {"name": "big"},
                "version": "v1.34.0",
                "controlPlane": {"replicas": 3},
                "variables": [{"name": f"v-{number}", "value": "x" * 100} for number in range(10)],
            },
        },
    }


# From the start of a process to its first answers


@asynccontextmanager
async def reading(process: asyncio.subprocess.Process, read: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Read what a process says, to its end, and terminate it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(read)
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def process(path: Path) -> AsyncIterator[Callable[[], Awaitable[dict[str, float]]]]:
    """`unwind run` with this kubeconfig, and how to wait until it is ready."""
    told = {"UNWIND_LISTEN": "127.0.0.1:0", "UNWIND_METRICS_LISTEN": "127.0.0.1:0"}
    argv = [str(Path(sys.executable).with_name("unwind")), "run", "--kubeconfig", str(path)]
    running = await asyncio.create_subprocess_exec(*argv, env=os.environ | told, stderr=subprocess.PIPE)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        # To its end: a process whose words nobody reads stands still sooner or later.
        assert running.stderr
        async for line in running.stderr:
            found = re.search(r"127\.0\.0\.1:\d+", line.decode())
            if found and b"listening" in line and b"metrics" in line:
                listening.set_result(found.group())

    async def ready() -> dict[str, float]:
        address = await listening
        marks = {"listening": time.perf_counter()}
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"http://{address}/readyz") as answer:
                    if answer.status == 200:
                        return marks | {"ready": time.perf_counter()}
                await asyncio.sleep(0.01)

    async with reading(running, read()):
        yield ready


async def starting(management: LocalCluster) -> None:
    """A process, from its start until it says that it is ready, against listing the same objects."""
    parts: list[tuple[float, float]] = []
    path = await manager_kubeconfig(management, HOME)

    async def start() -> float:
        began = time.perf_counter()
        async with process(path) as ready:
            marks = await ready()
        parts.append((marks["listening"] - began, marks["ready"] - marks["listening"]))
        return marks["ready"] - began

    async def listing() -> float:
        began = time.perf_counter()
        found = await asyncio.gather(client.list(CLUSTERS), client.list(CLUSTER_SUMMARIES))
        assert [len(item) for item in found] == [CLUSTERS_MADE, CLUSTERS_MADE * PROFILES_EACH]
        return time.perf_counter() - began

    async with manager_client(management.client, HOME) as client:
        took, least = await alternate(start, listing)
    what = f"start to ready, {CLUSTERS_MADE:,} clusters, {CLUSTERS_MADE * PROFILES_EACH:,} summaries"
    print(Ratio(what, "listing them with the bare client", took, least, goal=3.0))
    before, after = (statistics.median(item) for item in zip(*parts, strict=True))
    print(f"until it listens (Python, imports, certificate, first connection): {before:.2f} s; caches: {after:.2f} s")


# What a question costs


async def asking(management: LocalCluster, found: list[Object]) -> None:
    async def torn_down(one: Object) -> None:
        uid, name = one["metadata"]["uid"], one["metadata"]["name"]
        steps = tuple(
            Step(
                name=f"ClusterProfile/p-{number}",
                object=ObjectRef(kind="ClusterSummary", namespace=FLEET, name=f"p-{number}-capi-{name}"),
                effort=Effort.ENFORCE.value,
                wave=1,
                objects=20,
            )
            for number in range(PROFILES_EACH)
        )
        record = Teardown(
            metadata=ObjectMeta(name=uid),
            spec=TeardownSpec(
                title=f"Cluster {FLEET}/{name}",
                target=ObjectRef(kind=CLUSTERS.kind, group=CLUSTERS.group, namespace=FLEET, name=name, uid=uid),
                cause=Cause.CLUSTER_DELETED.value,
                plan=Plan(steps=steps, waves=1, objects=200),
            ),
        )
        await management.client.create(TEARDOWNS, manifest(TEARDOWNS, keys.signed(record)))

    keys = RecordKeys(management.client, namespace=HOME)
    await keys.load()
    await gather_limited((torn_down(obj) for obj in found), limit=AT_ONCE)
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        echo, pems = prepare(scratch)
        bodies = scratch / "bodies"
        bodies.write_bytes(b"\n".join(msgspec.json.encode(question(obj)) for obj in found))
        print(f"bodies of {bodies.stat().st_size // len(found):,} bytes")
        config = await manager_kubeconfig(management, HOME)
        address = await stack.enter_async_context(
            server(sys.executable, "-m", "bench.gate", "serve", *pems, str(config))
        )
        seen: dict[str, list[Load]] = {"/constant": [], hook_protocol.path(DELETE): []}
        for _ in range(RUNS):
            for path, loads in seen.items():
                loads.append(await load(echo, address, path, scratch / "ca", bodies))
    assert not any(item.failures for loads in seen.values() for item in loads)
    constant, ours = seen.values()
    each, least = (statistics.median(item.each for item in loads) * 10_000 for loads in (ours, constant))
    print(Ratio("10,000 BeforeClusterDelete over TLS", "the same server answering a constant", each, least, goal=1.67))
    each, least = (statistics.median(item.p99 for item in loads) * 1_000 for loads in (ours, constant))
    print(Ratio("p99 of 1,000 such", "the same server answering a constant", each, least, goal=2.0))


def question(cluster: Object) -> Object:
    """What Cluster API asks: the Cluster without managedFields and status.

    Not paused: Cluster API asks nothing about paused Clusters. Those of this benchmark are paused to be left alone.
    """
    meta = {key: value for key, value in cluster["metadata"].items() if key != "managedFields"}
    meta |= {"deletionTimestamp": meta["creationTimestamp"], "finalizers": ["cluster.cluster.x-k8s.io"]}
    return {
        "apiVersion": API_VERSION,
        "kind": f"{DELETE.value}Request",
        "settings": {},
        "cluster": {key: value for key, value in cluster.items() if key != "status"}
        | {"metadata": meta, "spec": cluster["spec"] | {"paused": False}},
    }


async def load(echo: Path, address: str, path: str, authority: Path, bodies: Path) -> Load:
    options = (address, str(authority), str(CALLERS), str(SECONDS), str(bodies), path)
    process = await asyncio.create_subprocess_exec(*on_core(-1), str(echo), "load", *options, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return msgspec.json.decode(output, type=Load)


def constant(body: bytes, request: Request) -> Response:
    return CONSTANT


async def serve(pair: KeyPair, path: Path) -> None:
    """The gate with caches that follow the API server, and a constant beside it."""
    async with Client(kubeconfig.load(path)) as client:
        caches = AddonCaches(client)
        source = SummaryGateSource(client, caches, Inventories(client, namespace=HOME))
        gate = HookHandlers(client, caches, source, namespace=HOME, registry=HookRegistry(), hooks=ALWAYS)
        listener = Listener(
            "https", [Route(path="/constant", name="constant", handler=constant), *gate.routes()], tls=Tls(pair)
        )
        listening = bind(Address("127.0.0.1", 0), option="")
        async with asyncio.TaskGroup() as group:
            following = group.create_task(caches.run())
            await asyncio.gather(caches.summaries.until_synced(), caches.teardowns.until_synced())
            assert len(caches.teardowns.cache) == CLUSTERS_MADE
            await listener.open(listening)
            print(address_of(listening), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            following.cancel()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        if sys.argv[1:2] == ["serve"]:
            certificate, key, config = (Path(item) for item in sys.argv[2:])
            uvloop.run(serve(KeyPair(certificate.read_bytes(), key.read_bytes()), config))
        else:
            uvloop.run(main())
