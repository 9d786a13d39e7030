"""A Namespace that only waits for Kubernetes to finalize it does not hold what comes next in the order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.eventually import eventually
from tests.plane.support.removals import RemovalLog, RemovalScene
from unwind.api.resources import API_SERVICES, CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from unwind.kube import object_watch
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.members import contents
from unwind.removal import empty_namespaces

if TYPE_CHECKING:
    import pytest

    from unwind.kube.client import Client, Object
    from unwind.members.contents import Content
    from unwind.removal.removal import Removal

HOLD = "example.dev/hold"


async def until_passed(told: RemovalLog) -> None:
    """Return when the steps that come next may start."""
    async with asyncio.timeout(60):
        while True:
            told.news.clear()
            if removal_of(told).progress.passed:
                return
            await told.news.wait()


def removal_of(told: RemovalLog) -> Removal:
    assert told.removal
    return told.removal


async def found(scene: RemovalScene, name: str) -> Object | None:
    try:
        return await scene.client.get(NAMESPACES, name)
    except NotFoundError:
        return None


async def foreign(scene: RemovalScene, namespace: str, name: str, **metadata: object) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, **metadata}}
    await scene.client.create(CONFIG_MAPS, body)


async def release(scene: RemovalScene, namespace: str, name: str) -> None:
    await scene.client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, namespace=namespace)


def lists(scene: RemovalScene, namespace: str) -> int:
    """How often something in a namespace was listed by this test."""
    return len(
        [
            entry
            for entry in scene.cluster.audit.entries(verbs=("list",))
            if entry.object_ref.namespace == namespace and not entry.username.startswith("system:")
        ]
    )


async def test_an_empty_namespace_passes_before_it_is_gone_and_is_removed_when_it_is(
    scene: RemovalScene, room: str
) -> None:
    await scene.namespace(room)
    await scene.config_map(room, "one")
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told, awaited=True) as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await until_passed(told)
        terminating = await found(scene, room)
        assert terminating
        assert terminating["metadata"]["deletionTimestamp"]
        assert (removal.progress.removed, removal.progress.over) == (1, False)
        assert "is empty" in await told.until(room)
        await running
    assert removal.progress.over
    assert removal.progress.removed == 2
    assert await found(scene, room) is None


async def test_a_namespace_that_nothing_waits_for_is_not_listed_again(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    awaited = f"{room}-awaited"
    other = scene.another()
    await other.namespace(awaited)
    await scene.remove()
    await other.remove(awaited=True)
    assert 0 < lists(scene, room) < lists(scene, awaited)


async def test_namespaces_of_several_sources_wait_for_kubernetes_only_once(scene: RemovalScene, room: str) -> None:
    first, second = f"{room}-1", f"{room}-2"
    await scene.namespace(second, order=2)
    await scene.namespace(first, order=1)
    await scene.write()
    async with scene.removal() as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await object_watch.until(
            scene.client,
            NAMESPACES,
            first,
            lambda it: bool(it and it["metadata"].get("deletionTimestamp")),
            "terminating",
        )
        assert await found(scene, second)
        await running
    assert scene.order() == [f"namespaces/{second}", f"namespaces/{first}"]
    assert await found(scene, first) is await found(scene, second) is None


async def test_a_namespace_with_content_does_not_pass(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    await foreign(scene, room, "theirs", finalizers=[HOLD])
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told, awaited=True, take_along=True) as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await object_watch.until_true(scene.client, NAMESPACES, room, "NamespaceFinalizersRemaining")
        assert not removal.progress.passed
        await release(scene, room, "theirs")
        await running
    assert removal.progress.over


async def test_a_namespace_with_another_finalizer_does_not_pass(scene: RemovalScene, room: str) -> None:
    await scene.put(NAMESPACES, {"metadata": {"name": room, "finalizers": [HOLD]}})
    await scene.write()
    async with scene.waiting(HOLD, awaited=True) as (removal, running):
        # Kubernetes has finished with it: its five seconds are over.
        await object_watch.until(
            scene.client, NAMESPACES, room, lambda it: bool(it and not it["spec"].get("finalizers")), "finalized"
        )
        assert not removal.progress.passed
        await scene.client.patch(NAMESPACES, room, {"metadata": {"finalizers": None}})
        await running
    assert removal.progress.over


async def test_a_default_service_account_with_a_finalizer_is_content(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    await object_watch.until(
        scene.client, SERVICE_ACCOUNTS, "default", lambda it: it is not None, "created", namespace=room
    )
    held = {"metadata": {"finalizers": [HOLD]}}
    await scene.client.patch(SERVICE_ACCOUNTS, "default", held, namespace=room)
    await scene.write()
    async with scene.removal(awaited=True) as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await object_watch.until_true(scene.client, NAMESPACES, room, "NamespaceFinalizersRemaining")
        assert not removal.progress.passed
        await scene.client.patch(SERVICE_ACCOUNTS, "default", {"metadata": {"finalizers": None}}, namespace=room)
        await running


async def until_discovered(client: Client, *, complete: bool) -> None:
    """Return when every group has a server that answers, or when one has none."""

    async def discovered() -> bool:
        return complete is not bool(await Discovery(client).silent())

    await eventually(discovered, "the answers of API groups", within=30)


async def test_a_namespace_does_not_pass_while_part_of_the_api_is_unavailable(scene: RemovalScene, room: str) -> None:
    ref = await scene.namespace(room)
    spec = {
        "group": f"{room}.dev",
        "version": "v1",
        "groupPriorityMinimum": 1,
        "versionPriority": 1,
        "service": {"namespace": "default", "name": "nowhere"},
        "insecureSkipTLSVerify": True,
    }
    name = f"v1.{room}.dev"
    body = {"apiVersion": API_SERVICES.api_version, "kind": "APIService", "metadata": {"name": name}, "spec": spec}
    made = await scene.client.create(API_SERVICES, body)
    try:
        await until_discovered(scene.client, complete=False)
        # Not by the removal, which would list its content before the DELETE.
        await scene.client.delete(NAMESPACES, room, uid=ref.uid)
        await scene.write()
        async with scene.removal(awaited=True) as removal, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(removal.run())
            await object_watch.until_true(scene.client, NAMESPACES, room, "NamespaceDeletionDiscoveryFailure")
            assert not removal.progress.passed
            await scene.client.delete(API_SERVICES, name, uid=made["metadata"]["uid"])
            await running
    finally:
        with suppress(NotFoundError):
            await scene.client.delete(API_SERVICES, name, uid=made["metadata"]["uid"])
        await until_discovered(scene.client, complete=True)  # it would hold the namespaces of other tests
    assert removal.progress.over


async def test_an_object_that_appears_after_the_namespace_passed_is_named(
    scene: RemovalScene, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has not seen the deletion yet accepts new objects for a moment. Here the lists miss one."""
    await scene.namespace(room)
    await foreign(scene, room, "late", finalizers=[HOLD])
    await scene.write()
    told = RemovalLog()
    passed = asyncio.Event()

    async def in_namespace(client: Client, discovery: Discovery, namespace: str) -> list[Content]:
        everything = await contents.in_namespace(client, discovery, namespace)
        return [item for item in everything if passed.is_set() or item.metadata.name != "late"]

    monkeypatch.setattr(empty_namespaces, "in_namespace", in_namespace)
    async with scene.removal(told=told, awaited=True, take_along=True) as removal, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(removal.run())
        await until_passed(told)
        passed.set()
        message = await told.until(f"ConfigMap {room}/late", "after the deletion")
        late = await scene.client.get(CONFIG_MAPS, "late", namespace=room)
        assert late["metadata"]["uid"] in {ref.uid for ref in removal.progress.waits}
        assert room in message
        await release(scene, room, "late")
        await running
    assert not removal.progress.waits
