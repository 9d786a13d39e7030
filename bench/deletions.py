"""The deleter chain, against the least that the same deletions could take."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import uvloop

from bench.machinery import AT_ONCE, fresh, warmed_session
from bench.ratios import Ratio, alternate
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS
from unwind.concurrency import gather_limited
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import attempt, enter
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.deletion import Deletions
from unwind.deleters.memo import nowhere
from unwind.deleters.outcomes import Gone
from unwind.deleters.registration import Kinds, Registration
from unwind.deleters.registry import DeleterRegistry
from unwind.kube.absence import Presence, Sighting
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.watches import Watches
from unwind.local.plane import running

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

OBJECTS = 10_000
LINKS = 5
MICROSECONDS = 20


class Nothing:
    """An end that is reached at once."""

    name = "nothing"
    clients: tuple[object, ...] = ()

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        return Gone()

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        return Sighting(Presence.ABSENT, "")


async def pass_on(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002 - its name
    return await next(ctx, obj)


async def main() -> None:
    await linking()
    async with running() as plane:
        await deleting(plane.management)


async def linking() -> None:
    """What five links cost that do nothing, with all that is around them."""
    client = Client(ClusterConnection(server="http://127.0.0.1:1"))
    watches, resolver, end = Watches(client), Resolver(client), Nothing()
    links = [Registration(name=f"link-{n}", kinds=(Kinds("*", "*"),), delete=pass_on) for n in range(LINKS)]
    registry = DeleterRegistry(links)
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c-{n}", "namespace": "d", "uid": f"{n}"}}
        for n in range(OBJECTS)
    ]

    def context(obj: Object) -> DeleteContext:
        ref = ObjectRef(kind="ConfigMap", namespace="d", name=obj["metadata"]["name"], uid=obj["metadata"]["uid"])
        return DeleteContext(
            resource=CONFIG_MAPS, ref=ref, memo=nowhere(), resolver=resolver, watches=watches, clients=(client,)
        )

    async def through() -> float:
        contexts = [context(obj) for obj in objects]
        began = time.perf_counter()
        for ctx, obj in zip(contexts, objects, strict=True):
            assert isinstance(await attempt(enter(registry, end, ctx, obj)), Gone)
        return time.perf_counter() - began

    async def directly() -> float:
        contexts = [context(obj) for obj in objects]
        began = time.perf_counter()
        for ctx, obj in zip(contexts, objects, strict=True):
            assert isinstance(await end.delete(ctx, obj), Gone)
        return time.perf_counter() - began

    chained, bare = await alternate(through, directly)
    allowed = OBJECTS * MICROSECONDS / 1e6
    work = f"{LINKS} links that do nothing, {OBJECTS:,} objects"
    print(Ratio(work, f"{MICROSECONDS} µs an object", chained - bare, allowed, goal=1.0))


async def deleting(cluster: LocalCluster) -> None:
    async def ours() -> float:
        namespace, made = await fresh(cluster, OBJECTS)
        await warm(cluster.client)
        system = await cluster.client.cluster_uid()
        began = time.perf_counter()
        async with Watches(cluster.client, cluster=system) as watches:
            deletions = Deletions(DeleterRegistry(BUILTIN), watches, Resolver(cluster.client))

            async def one(name: str, uid: str) -> None:
                ref = ObjectRef(kind="ConfigMap", version="v1", namespace=namespace, name=name, uid=uid)
                assert isinstance(await deletions.delete(CONFIG_MAPS, ref, nowhere()), Gone)

            await gather_limited((one(name, uid) for name, uid in made), limit=AT_ONCE)
            return time.perf_counter() - began

    async def bare() -> float:
        namespace, made = await fresh(cluster, OBJECTS)
        async with warmed_session(cluster) as session:
            began = time.perf_counter()
            left = {uid for _, uid in made}
            todo = iter(made)
            watching = asyncio.Event()

            async def watch() -> None:
                async with aclosing(cluster.client.watch(CONFIG_MAPS, namespace=namespace)) as events:
                    async for event in events:
                        watching.set()
                        if event.type == "DELETED":
                            left.discard(event.object["metadata"]["uid"])
                            if not left:
                                return

            async def worker() -> None:
                for name, uid in todo:
                    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
                    async with session.delete(path, json={"preconditions": {"uid": uid}}) as answer:
                        await answer.read()
                        assert answer.status == 200

            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                await watching.wait()
                for _ in range(AT_ONCE):
                    group.create_task(worker())
            return time.perf_counter() - began

    mine, least = await alternate(ours, bare)
    work = f"{OBJECTS:,} ConfigMaps through the chain, seen absent"
    print(Ratio(work, "bare DELETEs and a bare watch", mine, least, goal=1.2))


async def warm(client: Client) -> None:
    await asyncio.gather(*(client.healthy() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    uvloop.run(main())
