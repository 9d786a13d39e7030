"""Objects deleted through the chain, on a real API server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from unwind.api import names
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.deleting.builtin import BUILTIN
from unwind.deleting.deletion import Deletions
from unwind.deleting.entering import Failed, Waiting
from unwind.deleting.memo import nowhere
from unwind.deleting.outcomes import Gone, Kept
from unwind.deleting.registry import Registry
from unwind.deleting.resolver import Resolver
from unwind.kube.errors import NotFoundError
from unwind.kube.watches import Watches
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


class Said:
    """What was said while a deletion waited."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.new = asyncio.Event()

    def __call__(self, _: ObjectRef, what: Waiting | Failed) -> None:
        self.words.append(what.reason if isinstance(what, Waiting) else what.message)
        self.new.set()


@asynccontextmanager
async def deletions(client: Client, said: Said | None = None, **more: Any) -> AsyncIterator[Deletions]:
    clock = StillClock()
    async with Watches(client, cluster=await client.cluster_uid(), clock=clock) as watches:
        yield Deletions(
            Registry(BUILTIN), watches, Resolver(client), clock=clock, say=said or (lambda *_: None), **more
        )


async def config_map(client: Client, namespace: str, name: str, **metadata: Any) -> tuple[Object, ObjectRef]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, **metadata}}
    made = await client.create(CONFIG_MAPS, body)
    return made, ObjectRef(kind="ConfigMap", version="v1", namespace=namespace, name=name, uid=made["metadata"]["uid"])


async def test_an_object_is_gone_when_the_watch_told_so(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "plain")
    async with deletions(client) as swarm:
        assert await swarm.delete(CONFIG_MAPS, ref, nowhere()) == Gone("the watch told of its end")
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, "plain", namespace=namespace)
    [sent] = plane.management.audit.deletions(resource="configmaps", namespace=namespace)
    assert sent.uid == ref.uid


async def test_a_finalizer_is_waited_for_and_named(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "held", finalizers=["example.dev/hold"])
    said = Said()
    async with deletions(client, said) as swarm, asyncio.TaskGroup() as group:
        deleting = group.create_task(swarm.delete(CONFIG_MAPS, ref, nowhere()))
        await said.new.wait()
        assert said.words == [f"ConfigMap {namespace}/held waits for example.dev/hold"]
        await client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=namespace)
        assert isinstance(await deleting, Gone)


async def test_another_object_of_the_same_name_is_left_alone(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "taken")
    await client.delete(CONFIG_MAPS, "taken", uid=ref.uid, namespace=namespace)
    other, _ = await config_map(client, namespace, "taken")
    async with deletions(client) as swarm:
        outcome = await swarm.delete(CONFIG_MAPS, ref, nowhere())
    assert isinstance(outcome, Gone)
    found = await client.get(CONFIG_MAPS, "taken", namespace=namespace)
    assert found["metadata"]["uid"] == other["metadata"]["uid"]


@pytest.mark.parametrize("annotation", [names.DELETE_POLICY_ANNOTATION, names.RECONCILE_POLICY_ANNOTATION])
@pytest.mark.parametrize("policy", ["skip", "detach-on-delete"])
async def test_a_policy_keeps_an_object(plane: Plane, namespace: str, annotation: str, policy: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, f"kept-{policy}", annotations={annotation: policy})
    async with deletions(client) as swarm:
        outcome = await swarm.delete(CONFIG_MAPS, ref, nowhere())
    assert outcome == Kept("KeptByPolicy", f"its policy is {policy}", by=f"the annotation {annotation}")
    assert await client.get(CONFIG_MAPS, ref.name, namespace=namespace)


async def test_a_policy_that_is_not_known_holds_until_it_is_put_right(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "typo", annotations={names.DELETE_POLICY_ANNOTATION: "Manage"})
    said = Said()
    async with deletions(client, said) as swarm, asyncio.TaskGroup() as group:
        deleting = group.create_task(swarm.delete(CONFIG_MAPS, ref, nowhere()))
        await said.new.wait()
        assert "'Manage' is not known" in said.words[0]
        assert not plane.management.audit.deletions(resource="configmaps", namespace=namespace)
        patch = {"metadata": {"annotations": {names.DELETE_POLICY_ANNOTATION: "manage"}}}
        await client.patch(CONFIG_MAPS, "typo", patch, namespace=namespace)
        assert isinstance(await deleting, Gone)


async def test_the_policy_of_the_namespace_holds_where_the_object_says_nothing(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    patch = {"metadata": {"annotations": {names.DELETE_POLICY_ANNOTATION: "skip"}}}
    await client.patch(NAMESPACES, namespace, patch)
    _, ref = await config_map(client, namespace, "quiet")
    _, own = await config_map(client, namespace, "own", annotations={names.DELETE_POLICY_ANNOTATION: "manage"})
    async with deletions(client) as swarm:
        assert isinstance(await swarm.delete(CONFIG_MAPS, ref, nowhere()), Kept)
        assert isinstance(await swarm.delete(CONFIG_MAPS, own, nowhere()), Gone)
