"""Informers follow a real API server through everything that happens to it."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import msgspec
import pytest

from tests.eventually import eventually
from tests.plane.support.objects import crd, delete, new_object
from unwind.api.meta import ObjectMeta
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.kube import decoding, informers
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer, InformerFactory
from unwind.local import plane_programs
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.kube.cache import Change
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


class ConfigMap(msgspec.Struct):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class Log:
    """What a handler was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, change: Change[Any]) -> None:
        kind = "added" if change.old is None else "deleted" if change.new is None else "changed"
        self.told.append((kind, change.key.name))


@asynccontextmanager
async def following(informer: Informer[Any]) -> AsyncIterator[Log]:
    log = Log()
    informer.subscribe(log)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        async with asyncio.timeout(30):
            await informer.until_synced()
        yield log
        task.cancel()


@asynccontextmanager
async def through_proxy(cluster: LocalCluster) -> AsyncIterator[tuple[Client, Proxy]]:
    async with Proxy(cluster.server) as proxy:
        direct = cluster.connection("admin", groups=("system:masters",))
        async with Client(msgspec.structs.replace(direct, server=proxy.url)) as client:
            yield client, proxy


async def create(cluster: LocalCluster, name: str, namespace: str, **data: str) -> None:
    await cluster.client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, name, namespace, data=data))


async def change(cluster: LocalCluster, name: str, namespace: str, value: str) -> None:
    await cluster.client.patch(CONFIG_MAPS, name, {"data": {"key": value}}, namespace=namespace)


@pytest.mark.parametrize("view", [decoding.raw, decoding.metadata])
async def test_what_is_there_and_what_changes_is_told_once_and_in_order(
    plane: Plane, namespace: str, view: Callable[[Resource], Any]
) -> None:
    cluster = plane.management
    await create(cluster, "first", namespace)
    informer = Informer(cluster.client, view(CONFIG_MAPS), namespace=namespace)
    async with following(informer) as log:
        await eventually(lambda: Key(namespace, "kube-root-ca.crt") in informer.cache)
        await create(cluster, "second", namespace)
        await change(cluster, "second", namespace, "1")
        await delete(cluster.client, CONFIG_MAPS, "first", namespace)
        await eventually(lambda: len(informer.cache) == 2)
    told = [entry for entry in log.told if entry[1] != "kube-root-ca.crt"]
    assert told == [("added", "first"), ("added", "second"), ("changed", "second"), ("deleted", "first")]


async def test_a_typed_informer_has_values_and_indexes(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    informer = Informer(
        cluster.client,
        decoding.typed(CONFIG_MAPS, ConfigMap),
        namespace=namespace,
        indexes={"colour": lambda it: [it.data["colour"]] if "colour" in it.data else []},
    )
    async with following(informer):
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            await create(cluster, name, namespace, colour=colour)
        await eventually(lambda: informer.cache.count("colour", "red") == 2)
        await cluster.client.patch(CONFIG_MAPS, "a", {"data": {"colour": "blue"}}, namespace=namespace)
        await eventually(lambda: informer.cache.count("colour", "red") == 1)
        assert [it.metadata.name for it in informer.cache.by("colour", "red")] == ["c"]
        assert {it.metadata.name for it in informer.cache.by("colour", "blue")} == {"a", "b"}


async def test_an_object_that_cannot_be_read_is_named_and_stops_nobody(plane: Plane, namespace: str) -> None:
    class Strict(msgspec.Struct):
        metadata: ObjectMeta
        data: dict[str, Literal["good"]] = {}

    cluster = plane.management
    informer = Informer(cluster.client, decoding.typed(CONFIG_MAPS, Strict), namespace=namespace)
    await create(cluster, "from-the-start", namespace, key="bad")
    async with following(informer):
        await create(cluster, "turning", namespace, key="good")
        await eventually(lambda: Key(namespace, "turning") in informer.cache)
        await change(cluster, "turning", namespace, "bad")
        await eventually(lambda: Key(namespace, "turning") in informer.broken)
        assert Key(namespace, "turning") in informer.cache, "it is not gone"
        assert Key(namespace, "from-the-start") in informer.broken
        await change(cluster, "turning", namespace, "good")
        await delete(cluster.client, CONFIG_MAPS, "from-the-start", namespace)
        await eventually(
            lambda: not {Key(namespace, "turning"), Key(namespace, "from-the-start")} & set(informer.broken)
        )


async def test_a_list_in_many_pages_is_whole(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    async with asyncio.TaskGroup() as group:
        for number in range(1100):
            group.create_task(create(cluster, f"many-{number}", namespace))
    informer = Informer(cluster.client, decoding.metadata(CONFIG_MAPS), namespace=namespace)
    async with following(informer) as log:
        assert len(informer.cache) >= 1100
        assert len(log.told) == len(set(log.told))


async def test_a_connection_that_breaks_loses_and_doubles_nothing(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    async with through_proxy(cluster) as (client, proxy):
        informer = Informer(client, decoding.raw(CONFIG_MAPS), namespace=namespace)
        async with following(informer) as log:
            await create(cluster, "before", namespace)
            await eventually(lambda: Key(namespace, "before") in informer.cache)
            proxy.close()
            await create(cluster, "during", namespace)
            await delete(cluster.client, CONFIG_MAPS, "before", namespace)
            proxy.reopen()
            await create(cluster, "after", namespace)
            await eventually(lambda: Key(namespace, "after") in informer.cache)
    told = [entry for entry in log.told if entry[1] != "kube-root-ca.crt"]
    assert told == [("added", "before"), ("added", "during"), ("deleted", "before"), ("added", "after")]


async def test_a_watch_that_goes_silent_is_noticed(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    async with through_proxy(cluster) as (client, proxy):
        informer = Informer(client, decoding.raw(CONFIG_MAPS), namespace=namespace, silence=1.0)
        async with following(informer):
            await create(cluster, "before", namespace)
            await eventually(lambda: Key(namespace, "before") in informer.cache)
            silent = proxy.accepted
            proxy.hold()
            await create(cluster, "unheard", namespace)
            await eventually(lambda: proxy.accepted > silent)
            assert Key(namespace, "unheard") not in informer.cache
            proxy.cut()
            proxy.resume()
            await eventually(lambda: Key(namespace, "unheard") in informer.cache)


async def test_an_api_server_killed_and_restarted_loses_and_doubles_nothing(fresh_member: LocalCluster) -> None:
    cluster = fresh_member
    await cluster.create_namespace("here")
    informer = Informer(cluster.client, decoding.raw(CONFIG_MAPS), namespace="here")
    async with following(informer) as log:
        await create(cluster, "before", "here")
        await eventually(lambda: Key("here", "before") in informer.cache)
        await cluster.api_server.stop()
        await cluster.api_server.start()
        await create(cluster, "after", "here")
        await eventually(lambda: Key("here", "after") in informer.cache)
    told = [entry for entry in log.told if entry[1] != "kube-root-ca.crt"]
    assert told == [("added", "before"), ("added", "after")]


async def test_what_happened_before_a_compaction_is_learned_from_the_list(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    cluster = fresh_member
    await cluster.create_namespace("here")
    for name in ("same", "changed", "gone", "replaced"):
        await create(cluster, name, "here")
    async with through_proxy(cluster) as (client, proxy):
        informer = Informer(client, decoding.raw(CONFIG_MAPS), namespace="here")
        async with following(informer) as log:
            await eventually(lambda: len(informer.cache) == 5)
            proxy.close()
            log.told.clear()
            await change(cluster, "changed", "here", "1")
            await delete(cluster.client, CONFIG_MAPS, "gone", "here")
            await delete(cluster.client, CONFIG_MAPS, "replaced", "here")
            await create(cluster, "replaced", "here")
            await create(cluster, "new", "here")
            await compact(plane.directory)
            # The API server remembers recent events by itself; only a new one has to ask etcd, which has forgotten.
            await cluster.api_server.stop()
            await cluster.api_server.start()
            proxy.reopen()
            await eventually(lambda: Key("here", "new") in informer.cache and Key("here", "gone") not in informer.cache)
    assert sorted(log.told) == [
        ("added", "new"),
        ("added", "replaced"),
        ("changed", "changed"),
        ("deleted", "gone"),
        ("deleted", "replaced"),
    ]
    assert log.told.index(("deleted", "replaced")) < log.told.index(("added", "replaced"))


async def test_a_kind_that_is_not_installed_yet_is_waited_for(plane: Plane, namespace: str) -> None:
    cluster, group = plane.management, f"{namespace}.example.com"
    widgets = Resource(group, "v1", "widgets", "Widget")
    informer = Informer(cluster.client, decoding.raw(widgets))
    async with asyncio.TaskGroup() as tasks:
        following_it = tasks.create_task(informer.run())
        # It was told that there is no such kind.
        await eventually(
            lambda: [entry for entry in cluster.audit.entries(containing=(group.encode(),)) if entry.code == 404]
        )
        assert not informer.synced
        await cluster.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(widgets))
        async with asyncio.timeout(30):
            await informer.until_synced()
        await cluster.client.create(widgets, new_object(widgets, "one", namespace))
        await eventually(lambda: Key(namespace, "one") in informer.cache)
        following_it.cancel()


async def test_an_optional_kind_waits_for_its_crd_without_a_failure_and_without_looking_again(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "_UNSERVED", 0.0)
    client, group = plane.management.client, f"{namespace}.example.com"
    widgets, gadgets = Resource(group, "v1", "widgets", "Widget"), Resource(group, "v1", "gadgets", "Gadget")
    failures = list[Exception]()
    informer = Informer(client, decoding.raw(widgets), troubled=failures.append, optional=True)
    other = Informer(client, decoding.raw(gadgets))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(item.run()) for item in (informer, other)]
        await eventually(lambda: informer.awaits_crd and other.lists >= 3, "the other one has looked again")
        assert (informer.synced, informer.lists) == (False, 1)
        made = await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(widgets))
        async with asyncio.timeout(30):
            await informer.until_synced()
        assert not informer.awaits_crd
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, made["metadata"]["name"], uid=made["metadata"]["uid"])
        await eventually(lambda: informer.awaits_crd, "it waits again")
        assert failures == []
        for task in running:
            task.cancel()


async def compact(plane: Path) -> None:
    """Have etcd forget everything but the present."""
    directory = os.open(plane, os.O_PATH)
    try:
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{directory}/{plane_programs.ETCD_SOCKET}")
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.post("http://etcd/v3/kv/range", json={"key": "Lw=="}) as answer:
                revision = (await answer.json())["header"]["revision"]
            compaction = {"revision": revision, "physical": True}
            async with session.post("http://etcd/v3/kv/compaction", json=compaction) as answer:
                assert answer.status == 200
    finally:
        os.close(directory)


async def test_users_of_one_resource_share_its_list_and_the_next_one_takes_over(plane: Plane, namespace: str) -> None:
    cluster, log, listed = plane.management, Log(), asyncio.Event()
    factory = InformerFactory(cluster.client)
    first = factory.metadata(CONFIG_MAPS, troubled=lambda _: None)
    second = factory.metadata(CONFIG_MAPS, troubled=lambda _: None, listed=listed.set)
    second.subscribe(log)
    async with asyncio.TaskGroup() as group:
        ending, following_on = group.create_task(first.run()), group.create_task(second.run())
        await asyncio.wait_for(listed.wait(), 30)
        ending.cancel()
        await create(cluster, "shared", namespace)
        await eventually(lambda: ("added", "shared") in log.told)
        following_on.cancel()
    assert (first.lists, second.lists) == (1, 1)
