"""The client, the informers and the command line, each against the least that the same work could take."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
import uuid
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvloop

from bench.ratios import Ratio, alternate
from unwind.api.resources import CONFIG_MAPS
from unwind.concurrency import gather_limited
from unwind.kube import decoding
from unwind.kube.client import Client
from unwind.kube.informers import Informer
from unwind.kube.kubeconfig import ClusterConnection
from unwind.local.plane import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.kube.cache import Cache
    from unwind.local.cluster import LocalCluster

LISTED = 10_000
DELETED = 2_000
AT_ONCE = 50
EVENTS = 20_000


async def main() -> None:
    async with running() as plane:
        cluster = plane.management
        await fill(cluster, "listed", LISTED)
        await listing(cluster)
        await memory(cluster)
        await deleting(cluster)
        await events(cluster)
    await helping()


async def fill(cluster: LocalCluster, namespace: str, count: int) -> list[tuple[str, str]]:
    """Make ConfigMaps of 1 KB; their names and uids come back."""
    await cluster.create_namespace(namespace)
    made: list[tuple[str, str]] = []

    async def one(number: int) -> None:
        metadata = {"name": f"config-{number:05}", "namespace": namespace, "labels": {"app": "bench"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"payload": "x" * 1000}}
        created = await cluster.client.create(CONFIG_MAPS, body)
        made.append((metadata["name"], created["metadata"]["uid"]))  # type: ignore[arg-type]

    await gather_limited((one(number) for number in range(count)), limit=AT_ONCE)
    return made


async def fresh(cluster: LocalCluster, count: int) -> tuple[str, list[tuple[str, str]]]:
    """A new namespace with so many of them."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    return namespace, await fill(cluster, namespace, count)


@asynccontextmanager
async def warmed_session(cluster: LocalCluster) -> AsyncIterator[aiohttp.ClientSession]:
    """A bare pooled client with open connections."""
    connection = cluster.connection("admin", groups=("system:masters",))
    connector = aiohttp.TCPConnector(ssl=connection.ssl_context(), limit=0)
    async with aiohttp.ClientSession(connection.server, connector=connector) as session:

        async def get() -> None:
            async with session.get("/readyz") as answer:
                await answer.read()

        await asyncio.gather(*(get() for _ in range(AT_ONCE)))
        yield session


async def follow_until(informer: Informer[Any], state: Callable[[], Awaitable[object]]) -> float:
    """Run the informer until it is so; the seconds that it took."""
    began = time.perf_counter()
    task = asyncio.create_task(informer.run())
    await state()
    took = time.perf_counter() - began
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return took


async def listing(cluster: LocalCluster) -> None:
    async def into_the_cache() -> float:
        informer = Informer(cluster.client, decoding.raw(CONFIG_MAPS), namespace="listed")
        took = await follow_until(informer, informer.until_synced)
        assert len(informer.cache) == LISTED + 1  # and kube-root-ca.crt
        return took

    async def into_dicts() -> float:
        began = time.perf_counter()
        token, seen = "", 0
        while True:
            page = msgspec.json.decode(
                await cluster.client.raw(f"/api/v1/namespaces/listed/configmaps?limit=500&continue={token}")
            )
            seen += len(page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert seen == LISTED + 1
        return time.perf_counter() - began

    ours, least = await alternate(into_the_cache, into_dicts)
    print(
        Ratio(f"list {LISTED:,} ConfigMaps into the cache", "the same pages, decoded to dicts", ours, least, goal=1.5)
    )


async def memory(cluster: LocalCluster) -> None:
    wire = 0
    async with aclosing(cluster.client.pages(CONFIG_MAPS, namespace="listed")) as pages:
        async for page in pages:
            wire += sum(len(memoryview(item)) for item in page.items or ())
    raw = await _held(cluster, decoding.raw(CONFIG_MAPS))
    partial = await _held(cluster, decoding.metadata(CONFIG_MAPS))
    print(
        f"a cached ConfigMap of 1 KB, raw: {raw / LISTED:.0f} bytes, on the wire {wire / LISTED:.0f}: "
        f"{raw / wire:.2f} x (goal 1.6 x) {'ok' if raw <= 1.6 * wire else 'MISSED'}"
    )
    print(
        f"the same, metadata only: {partial / LISTED:.0f} bytes (goal 700) "
        f"{'ok' if partial / LISTED <= 700 else 'MISSED'}"
    )


async def _held(cluster: LocalCluster, view: decoding.View[Any]) -> int:
    """What a filled cache takes, all its indexes and keys included."""
    informer = Informer(cluster.client, view, namespace="listed", indexes={"namespace": lambda it: [it.namespace]})
    gc.collect()
    tracemalloc.start()
    task = asyncio.create_task(informer.run())
    await informer.until_synced()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gc.collect()
    full = tracemalloc.get_traced_memory()[0]
    cache: Cache[Any] = informer.cache
    for key in list(cache.keys()):
        cache.drop(key)
    gc.collect()
    emptied = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return full - emptied


async def deleting(cluster: LocalCluster) -> None:
    async def ours() -> float:
        namespace, made = await fresh(cluster, DELETED)
        began = time.perf_counter()
        await gather_limited(
            (cluster.client.delete(CONFIG_MAPS, name, uid=uid, namespace=namespace) for name, uid in made),
            limit=AT_ONCE,
        )
        return time.perf_counter() - began

    async def bare() -> float:
        namespace, made = await fresh(cluster, DELETED)
        todo = iter(made)
        async with warmed_session(cluster) as session:

            async def worker() -> None:
                for name, uid in todo:
                    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
                    options = {"preconditions": {"uid": uid}}
                    async with session.delete(path, json=options) as answer:
                        await answer.read()
                        assert answer.status == 200

            began = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
            return time.perf_counter() - began

    mine, least = await alternate(ours, bare)
    print(
        Ratio(
            f"delete {DELETED:,} ConfigMaps, {AT_ONCE} at once", "the same with a bare pooled client", mine, least, 1.2
        )
    )


async def events(cluster: LocalCluster) -> None:
    recorded = await record(cluster)
    lines = recorded.count(b"\n")
    async with replaying(recorded) as connection:

        async def ours() -> float:
            handled = 0
            done = asyncio.Event()

            def handle(_: object) -> None:
                nonlocal handled
                handled += 1
                if handled == lines:
                    done.set()

            async with Client(connection) as client:
                informer = Informer(client, decoding.raw(CONFIG_MAPS))
                informer.subscribe(handle)
                return await follow_until(informer, done.wait)

        async def least() -> float:
            async with Client(connection) as client:
                began = time.perf_counter()
                await client.raw("/api/v1/configmaps?limit=500")
                seen = 0
                async with aclosing(client.watch_lines(CONFIG_MAPS)) as batches:
                    async for batch in batches:
                        for line in batch:
                            msgspec.json.decode(line)
                        seen += len(batch)
                        if seen == lines:
                            break
                return time.perf_counter() - began

        mine, bare = await alternate(ours, least)
    print(Ratio(f"{lines:,} watch events into a handler", "reading and decoding the same", mine, bare, goal=4.0))


async def record(cluster: LocalCluster) -> bytes:
    """The bytes of a real watch, each object of 1 KB changed so often that there are enough events."""
    async with aclosing(cluster.client.watch_lines(CONFIG_MAPS, namespace="listed")) as batches:
        pieces: list[bytes] = []
        async for batch in batches:
            pieces += batch
            if len(pieces) >= LISTED:
                break
    changed = [msgspec.json.decode(piece) for piece in pieces[: EVENTS // 2]]
    again = []
    for number, event in enumerate(changed):
        event["type"] = "MODIFIED"
        event["object"]["metadata"]["resourceVersion"] = str(10**9 + number)
        again.append(msgspec.json.encode(event))
    return b"\n".join([*pieces[: EVENTS // 2], *again]) + b"\n"


@asynccontextmanager
async def replaying(recorded: bytes) -> AsyncIterator[ClusterConnection]:
    """A server that lists nothing and then plays the recorded watch, in another process: both sides read a socket."""
    program = Path(__file__).with_name("replay.py")
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin
    assert server.stdout
    server.stdin.write(recorded)
    server.stdin.write_eof()
    port = int(await server.stdout.readline())
    try:
        yield ClusterConnection(server=f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        await server.wait()


async def helping() -> None:
    unwind = str(Path(sys.executable).with_name("unwind"))

    async def timed(*argv: str) -> float:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.DEVNULL)
        assert await process.wait() == 0
        return time.perf_counter() - began

    ours, least = await alternate(lambda: timed(unwind, "--help"), lambda: timed(sys.executable, "-c", "pass"), runs=9)
    print(Ratio("unwind --help", "python -c pass", ours, least, goal=16))


if __name__ == "__main__":
    uvloop.run(main())
