"""Objects deleted through the chain, on a real API server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from unwind.api import names
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.context import Resolver
from unwind.deleters.deletion import Deletions
from unwind.deleters.memo import Memo, nowhere
from unwind.deleters.outcomes import Gone, Kept
from unwind.deleters.registration import LATE, Kinds, Registration
from unwind.deleters.registry import DeleterRegistry
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until
from unwind.kube.watches import Watches
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
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
async def deletions(
    client: Client, said: Said | None = None, *, links: tuple[Registration, ...] = (), cluster: str = ""
) -> AsyncIterator[Deletions]:
    clock = StillClock()
    async with Watches(client, cluster=cluster or await client.cluster_uid(), clock=clock) as watches:
        registry = DeleterRegistry([*BUILTIN, *links])
        yield Deletions(registry, watches, Resolver(client), clock=clock, say=said or (lambda *_: None))


async def config_map(client: Client, namespace: str, name: str, **metadata: Any) -> tuple[Object, ObjectRef]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, **metadata}}
    made = await client.create(CONFIG_MAPS, body)
    return made, ObjectRef(kind="ConfigMap", version="v1", namespace=namespace, name=name, uid=made["metadata"]["uid"])


async def test_an_object_is_gone_when_the_watch_told_so(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "plain")
    async with deletions(client) as swarm:
        assert await swarm.delete(CONFIG_MAPS, ref, nowhere()) == Gone("the watch reported its deletion")
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
        assert said.words == [f"ConfigMap {namespace}/held waits for finalizers example.dev/hold"]
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
    assert outcome == Kept(
        "KeptByPolicy", f"its policy is {policy}, so it is left in place", by=f"the annotation {annotation}"
    )
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


async def test_nothing_is_deleted_when_another_cluster_answers(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "elsewhere")
    said = Said()
    async with deletions(client, said, cluster="another-uid") as swarm, asyncio.TaskGroup() as group:
        deleting = group.create_task(swarm.delete(CONFIG_MAPS, ref, nowhere()))
        await said.new.wait()
        assert "another cluster answers at " in said.words[0]
        deleting.cancel()
    assert await client.get(CONFIG_MAPS, "elsewhere", namespace=namespace)


async def test_what_changed_since_it_was_looked_at_is_looked_at_again(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "changing")
    looked = 0

    async def somebody_saves_it(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        nonlocal looked
        looked += 1
        if looked == 1:
            patch = {"metadata": {"annotations": {names.DELETE_POLICY_ANNOTATION: "skip"}}}
            await client.patch(CONFIG_MAPS, "changing", patch, namespace=namespace)
        return await next(ctx, obj)

    link = Registration(name="saved", kinds=(Kinds("v1", "ConfigMap"),), delete=somebody_saves_it, metadata_only=True)
    async with deletions(client, links=(link,)) as swarm:
        assert isinstance(await swarm.delete(CONFIG_MAPS, ref, nowhere()), Kept)
    assert await client.get(CONFIG_MAPS, "changing", namespace=namespace)


async def test_after_a_crash_the_purge_is_done_with_what_was_remembered(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "soft")
    kept: dict[str, str] = {}
    purged: list[str] = []
    crashes = True

    async def save(values: Mapping[str, str | None]) -> None:
        kept.update({key: value for key, value in values.items() if value is not None})

    async def purge(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if not ctx.absent:
            await ctx.memo.put("mode", obj["data"]["deleteMode"])
        outcome = await next(ctx, obj)
        if crashes:
            deletion.cancel()
            await asyncio.sleep(0)
        if ctx.memo["mode"] == "Purge":
            purged.append(ctx.ref.uid)
        return outcome

    await client.patch(CONFIG_MAPS, "soft", {"data": {"deleteMode": "Purge"}}, namespace=namespace)
    link = Registration(
        name="purge", kinds=(Kinds("v1", "ConfigMap"),), delete=purge, when=lambda obj: "deleteMode" in obj["data"]
    )
    async with deletions(client, links=(link,)) as swarm:
        deletion = asyncio.create_task(swarm.delete(CONFIG_MAPS, ref, Memo(dict(kept), save)))
        with pytest.raises(asyncio.CancelledError):
            await deletion
    assert kept == {"purge.joined": "true", "purge.mode": "Purge"}
    assert purged == []
    crashes = False
    async with deletions(client, links=(link,)) as swarm:
        assert isinstance(await swarm.delete(CONFIG_MAPS, ref, Memo(dict(kept), save)), Gone)
    assert purged == [ref.uid]
    assert len(plane.management.audit.deletions(resource="configmaps", namespace=namespace)) == 1


async def test_a_workload_goes_with_its_pods(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    labels = {"app": "web"}
    held = {"labels": labels, "finalizers": ["example.dev/hold"]}
    template = {"metadata": held, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace}}
    made = await client.create(DEPLOYMENTS, body | {"spec": spec})
    await until(
        client,
        DEPLOYMENTS,
        "web",
        lambda it: bool(it and it.get("status", {}).get("replicas") == 2),
        "created",
        namespace=namespace,
    )
    ref = ObjectRef(group="apps", kind="Deployment", namespace=namespace, name="web", uid=made["metadata"]["uid"])
    said = Said()
    async with deletions(client, said) as swarm, asyncio.TaskGroup() as group:
        deleting = group.create_task(swarm.delete(DEPLOYMENTS, ref, nowhere()))
        while f"Deployment {namespace}/web waits for finalizers foregroundDeletion" not in said.words:
            said.new.clear()
            await said.new.wait()  # it may have changed since it was looked at, and is looked at again
        for pod in await client.list(PODS, namespace=namespace):
            name = pod["metadata"]["name"]
            await client.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=namespace)
        assert isinstance(await deleting, Gone)
    assert await client.list(PODS, namespace=namespace) == []


async def test_the_audit_log_shows_no_deletion_that_the_chain_did_not_send(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    managed = [(await config_map(client, namespace, f"managed-{number}"))[1] for number in range(20)]
    kept = [
        (await config_map(client, namespace, f"kept-{n}", annotations={names.DELETE_POLICY_ANNOTATION: "skip"}))[1]
        for n in range(5)
    ]
    _, taken = await config_map(client, namespace, "taken")
    await client.delete(CONFIG_MAPS, "taken", uid=taken.uid, namespace=namespace)
    before = len(plane.management.audit.deletions(resource="configmaps", namespace=namespace))
    _, stranger = await config_map(client, namespace, "taken")
    sent: list[str] = []

    async def witness(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        sent.append(ctx.ref.uid)
        return await next(ctx, obj)

    link = Registration(name="witness", kinds=(Kinds("v1", "ConfigMap"),), delete=witness, metadata_only=True)
    async with deletions(client, links=(link,)) as swarm, asyncio.TaskGroup() as group:
        for ref in (*managed, *kept, taken):
            group.create_task(swarm.delete(CONFIG_MAPS, ref, nowhere()))
    asked = [
        entry
        for entry in plane.management.audit.entries(verbs=("delete", "deletecollection"), namespace=namespace)
        if entry.object_ref.resource == "configmaps"
    ][before:]
    assert {entry.verb for entry in asked} == {"delete"}
    assert sorted(entry.uid for entry in asked) == sorted(ref.uid for ref in managed)
    assert {entry.uid for entry in asked} <= set(sent)
    left = await client.list(CONFIG_MAPS, namespace=namespace)
    assert {item["metadata"]["uid"] for item in left} >= {stranger.uid, *(ref.uid for ref in kept)}


async def test_the_deletion_of_an_object_that_changes_all_the_time_backs_off(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    _, ref = await config_map(client, namespace, "busy")
    said, busy = Said(), True

    async def change(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        # Always between the decision and the DELETE.
        if busy:
            patch = {"metadata": {"annotations": {"changed": str(len(said.words))}}}
            await client.patch(CONFIG_MAPS, "busy", patch, namespace=namespace)
        return await next(ctx, obj)

    link = Registration(name="change", kinds=(Kinds("v1", "ConfigMap"),), delete=change, order=LATE)
    async with deletions(client, said, links=(link,)) as swarm, asyncio.timeout(60), asyncio.TaskGroup() as group:
        deleting = group.create_task(swarm.delete(CONFIG_MAPS, ref, nowhere()))
        while len(said.words) < 6:
            said.new.clear()
            await said.new.wait()
        clock = swarm.clock
        assert isinstance(clock, StillClock)
        while not clock._timers:
            await asyncio.sleep(0)
        assert len(said.words) == 6, "it waits for the clock"
        assert all("was changed meanwhile" in word for word in said.words)
        busy = False
        clock.advance(2)
        assert isinstance(await deleting, Gone)
    sent = plane.management.audit.entries(verbs=("delete",), resource="configmaps", namespace=namespace)
    assert [it.code for it in sent] == [409] * 6 + [200]
