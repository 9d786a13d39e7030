"""Deletion protection by webhook: what a denial costs, whatever the number of Pods, and what counting them takes.

The API server is real and asks a server of its own process, as it does in a cluster. A constant answer has to have the
number of its question in it; nothing else of the question is read for it.

What follows the API server is the manager's ServiceAccount with the installed rights. Deletions are sent by the
administrator, with and without the webhook.
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.listener import server
from bench.ratios import RUNS, Ratio, alternate
from unwind import logs
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import DEPLOYMENTS, NAMESPACES, PODS, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.rights import HOME
from unwind.certificates import Authority, KeyPair
from unwind.concurrency import gather_limited
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.events import Recorder
from unwind.local.plane import running
from unwind.manager.health import new_registry
from unwind.protection.contents_reader import ProtectionLookup
from unwind.protection.manifests import configuration
from unwind.protection.namespace_cache import ProtectionCaches
from unwind.protection.webhook import DenialReporter, ProtectionWebhook
from unwind.server.listener import Address, Listener, address_of, bind
from unwind.server.routes import Request, Response, Route
from unwind.server.tls import Tls
from unwind.testing.managers import manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

CALLERS, CALLS = 16, 2_000
AT_ONCE = 16
IN_NAMESPACES = (10, 1_000, 10_000)
COUNTED = 50_000
BYTES_A_POD = 400
ROOM, CONSTANT = "room", "constant"
MESSAGE = f"forbidden by ResourcesProtectionDeletion for {DELETE_PROTECTION_LABEL}=Always"


async def main(divisor: int) -> None:
    """`divisor`: to try it with less."""
    async with running() as plane, AsyncExitStack() as stack:
        cluster = plane.management
        resident = await stack.enter_async_context(counting(cluster))
        before = await resident(0)

        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority("bench")
        pair = authority.server("localhost", hosts=("localhost", "127.0.0.1"))
        pems = [scratch / "crt", scratch / "key"]
        for path, content in zip(pems, (pair.certificate, pair.key), strict=True):
            path.write_bytes(content)
        command = (sys.executable, "-m", "bench.protection_webhook", "serve")
        config = await manager_kubeconfig(cluster, HOME)
        address = await stack.enter_async_context(server(*command, *map(str, pems), str(config)))
        await register(cluster, address, authority)
        await deployments(cluster, CALLS // divisor)

        rooms = {number // divisor or 1: f"room-{number}" for number in IN_NAMESPACES}
        for number, name in rooms.items():
            await fill(cluster, name, number)
        await namespaces(cluster, rooms, CALLS // divisor)

        counted, there = COUNTED // divisor, sum(rooms)
        began = time.perf_counter()
        await fill(cluster, "crowd", counted - there)
        print(f"{counted - there:,} Pods were made in {time.perf_counter() - began:.0f} s")
        await memory(cluster, resident, before, counted)


async def register(cluster: LocalCluster, address: str, authority: Authority) -> None:
    """Have the API server ask the one about what is labelled, and the other about all of one namespace."""
    bundle = base64.b64encode(authority.certificate).decode()

    def calling(path: str) -> Object:
        return {"url": f"https://{address}{path}", "caBundle": bundle}

    ours = configuration("bench", calling, everything=True)
    labelled = next(item for item in ours["webhooks"] if item["name"].startswith("labelled."))
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": CONSTANT}}}
    constant = labelled | {"name": "constant.bench.dev", "clientConfig": calling("/constant"), "objectSelector": {}}
    client = cluster.client
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, ours)
    await client.create(
        VALIDATING_WEBHOOK_CONFIGURATIONS, ours | {"metadata": {"name": "bench"}, "webhooks": [constant | here]}
    )


# What a denial costs


async def deployments(cluster: LocalCluster, calls: int) -> None:
    """A protected Deployment, by our webhook and by a constant: both answer the same."""
    client, found = cluster.client, {}
    for namespace, labels in ((ROOM, {DELETE_PROTECTION_LABEL: "Always"}), (CONSTANT, {})):
        await cluster.create_namespace(namespace)
        match = {"app": "web"}
        spec = {"replicas": 0, "selector": {"matchLabels": match}, "template": pod("web", namespace, match)}
        metadata = {"name": "web", "namespace": namespace, "labels": match | labels}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        found[namespace] = await client.create(DEPLOYMENTS, body)
        await until_denied(client, DEPLOYMENTS, found[namespace])
    ours, constant = await alternate(
        lambda: denials(client, DEPLOYMENTS, found[ROOM], calls),
        lambda: denials(client, DEPLOYMENTS, found[CONSTANT], calls),
    )
    what = f"{calls:,} DELETEs of a protected Deployment"
    print(Ratio(what, "a webhook that answers a constant", ours, constant, goal=1.11))
    print(f"{calls / ours:.0f} a second, {CALLERS} at once: {constant / ours:.2f} x the rate of a constant")


async def namespaces(cluster: LocalCluster, rooms: dict[int, str], calls: int) -> None:
    """Namespaces that Pods keep, however many."""
    client, took = cluster.client, {number: list[float]() for number in rooms}
    found = {number: await client.get(NAMESPACES, name) for number, name in rooms.items()}
    for number, namespace in found.items():
        await until_denied(client, NAMESPACES, namespace, f"active pods {number}>0")
    for _ in range(RUNS):
        for number, namespace in found.items():
            took[number].append(await denials(client, NAMESPACES, namespace, calls))
    medians = {number: statistics.median(one) for number, one in took.items()}
    fewest = min(medians)
    for number in sorted(medians)[1:]:
        what = f"{calls:,} DELETEs of a namespace with {number:,} Pods"
        print(Ratio(what, f"one with {fewest:,}", medians[number], medians[fewest], goal=1.2))


async def denials(client: Client, resource: Resource, obj: Object, calls: int) -> float:
    meta, left = obj["metadata"], iter(range(calls))

    async def caller() -> None:
        for _ in left:
            with suppress(ApiError):
                await client.delete(
                    resource, meta["name"], uid=meta["uid"], namespace=meta.get("namespace"), dry_run=True
                )
                raise AssertionError("it is not protected")

    began = time.perf_counter()
    await gather_limited((caller() for _ in range(CALLERS)), limit=CALLERS)
    return time.perf_counter() - began


async def until_denied(client: Client, resource: Resource, obj: Object, words: str = MESSAGE) -> None:
    """It takes the API server a moment to know whom to ask, and us one to have counted."""
    meta, said = obj["metadata"], ""
    async with asyncio.timeout(120):
        while words not in said:
            try:
                await client.delete(
                    resource, meta["name"], uid=meta["uid"], namespace=meta.get("namespace"), dry_run=True
                )
            except ApiError as error:
                said = str(error)
            await asyncio.sleep(0.05)


# Pods


def pod(name: str, namespace: str, labels: dict[str, str]) -> Object:
    """A Pod of an ordinary size that nobody gives a node."""
    variables = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(10)]
    containers = [{"name": "main", "image": "registry.example/app:1.2.3", "env": variables}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": containers, "schedulerName": "nobody"},
    }


async def fill(cluster: LocalCluster, namespace: str, number: int) -> None:
    """A labelled namespace with Pods in it."""
    await cluster.create_namespace(namespace)
    label = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Cascading"}}}
    await cluster.client.patch(NAMESPACES, namespace, label)
    numbers = iter(range(number))

    async def maker() -> None:
        for number in numbers:
            body = pod(f"web-6f9d8c7b5d-{number:05}", namespace, {"app": "web", "pod-template-hash": "6f9d8c7b5d"})
            await cluster.client.create(PODS, {"apiVersion": "v1", "kind": "Pod"} | body)

    await gather_limited((maker() for _ in range(AT_ONCE)), limit=AT_ONCE)


# What counting them takes


@asynccontextmanager
async def counting(cluster: LocalCluster) -> AsyncIterator[Callable[[int], Awaitable[int]]]:
    """A process that counts Pods, and how much of memory it has when it has counted so many."""
    config = await manager_kubeconfig(cluster, HOME)
    command = (sys.executable, "-m", "bench.protection_webhook", "count", str(config))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )

    async def resident(number: int) -> int:
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{number}\n".encode())
        return int(await process.stdout.readline())

    try:
        yield resident
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def memory(cluster: LocalCluster, watching: Callable[[int], Awaitable[int]], before: int, number: int) -> None:
    async with counting(cluster) as fresh:
        listed = await fresh(number)
    for what, after in (("listed", listed), ("seen to come", await watching(number))):
        each = (after - before) / number
        verdict = "ok" if each <= BYTES_A_POD else "MISSED"
        print(
            f"{number:,} Pods counted, {what}: {before / 2**20:.1f} to {after / 2**20:.1f} MiB resident, "
            f"{each:.0f} bytes a Pod (goal {BYTES_A_POD}) {verdict}"
        )


async def count(path: Path) -> None:
    async with Client(kubeconfig.load(path)) as client, asyncio.TaskGroup() as group:
        caches = ProtectionCaches(client)
        following = group.create_task(caches.run())
        while line := await asyncio.to_thread(sys.stdin.readline):
            while not counted(caches, int(line)):  # noqa: ASYNC110 - nobody is told of what is only counted
                await asyncio.sleep(0.1)
            print(resident_bytes(), flush=True)
        following.cancel()


def counted(caches: ProtectionCaches, number: int) -> bool:
    pods = caches.counts.informers[0]
    return caches.synced and len(pods.store) >= number


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


# The server


async def serve(pair: KeyPair, path: Path) -> None:
    """The webhook with caches that follow the API server, and a constant beside it."""
    async with Client(kubeconfig.load(path)) as client:
        caches = ProtectionCaches(client)
        webhook = ProtectionWebhook(
            counts=caches.counts,
            guards=caches.guards,
            lookup=ProtectionLookup(client),
            reporter=DenialReporter(registry=new_registry(), recorder=Recorder(client, instance="bench")),
        )
        routes = [Route(path="/constant", name="constant", handler=constant), *webhook.routes()]
        listener = Listener("https", routes, tls=Tls(pair))
        listening = bind(Address("127.0.0.1", 0), option="")
        async with asyncio.TaskGroup() as group:
            following = group.create_task(caches.run())
            await listener.open(listening)
            print(address_of(listening), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            following.cancel()


_BEFORE = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"'
_AFTER = b'","allowed":false,"status":{"code":403,"reason":"Forbidden","message":"' + MESSAGE.encode() + b'"}}}'


def constant(body: bytes, request: Request) -> Response:
    start = body.index(b'"uid":"') + 7
    return Response(_BEFORE + body[start : body.index(b'"', start)] + _AFTER)


if __name__ == "__main__":
    # To standard error: what the processes print on standard output is read as numbers and addresses.
    logs.setup("auto")
    with suppress(KeyboardInterrupt):
        match sys.argv[1:]:
            case ["serve", certificate, key, config]:
                uvloop.run(serve(KeyPair(Path(certificate).read_bytes(), Path(key).read_bytes()), Path(config)))
            case ["count", config]:
                uvloop.run(count(Path(config)))
            case [divisor]:
                uvloop.run(main(int(divisor)))
            case _:
                uvloop.run(main(1))
