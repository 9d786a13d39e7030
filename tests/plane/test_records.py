"""Teardowns that the manager did not write: they neither open a gate nor hold one, and nothing is deleted by them."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plane.support import unjoins
from tests.plane.support.cluster_teardowns import TeardownScene, manager, scene
from tests.plane.support.controllers import HOLD
from tests.plane.support.events import recording, until_event
from tests.plane.support.requested_deletions import manager as requests_manager
from unwind.api.karmada import CLUSTERS, RemoveStrategy
from unwind.api.meta import ObjectMeta, ObjectRef, manifest, ref_of
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import HOME
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Phase, Plan, Step, Teardown, TeardownSpec
from unwind.clock import SYSTEM
from unwind.kube import object_watch
from unwind.members.targets import karmada_ref
from unwind.teardown.requests import request_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.local.plane import Plane

KEY = "unwind-record-key"


def target(it: TeardownScene) -> ObjectRef:
    return ObjectRef(
        group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace=it.namespace, name=it.name, uid=it.uid
    )


async def plant(it: TeardownScene, **spec: Any) -> Teardown:
    """Write a Teardown that has the name of the cluster's record, as any user could who may create Teardowns, before
    there was a policy on them."""
    made = TeardownSpec(title=it.name, target=target(it), cause=Cause.CLUSTER_DELETED.value, **spec)
    body = manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=it.uid), spec=made))
    return msgspec.convert(await it.client.create(TEARDOWNS, body, field_manager="unwind"), Teardown)


async def record(it: TeardownScene, state: Callable[[Teardown], bool], *, but: str = "") -> Teardown:
    """The manager's record of the cluster, as soon as it is so. `but`: the uid of a Teardown that is not meant."""
    async with asyncio.timeout(60), aclosing(it.client.watch(TEARDOWNS)) as events:
        async for event in events:
            one = msgspec.convert(event.object, Teardown)
            if one.spec.target.uid == it.uid and one.metadata.uid != but and state(one):
                return one
    raise AssertionError("the watch ended")


async def delete_on_hold(it: TeardownScene) -> Teardown:
    """Delete a cluster whose add-on has a finalizer; its record."""
    await it.add_on("base", finalizers=(HOLD,))
    await it.delete()
    return await record(it, lambda one: one.phase is Phase.HELD)


@pytest.mark.parametrize(
    "planted",
    [
        {"plan": Plan()},
        {"deadline": "1s", "on_deadline": "Release", "requested_at": SYSTEM.now().replace(microsecond=0)},
    ],
    ids=["without steps", "with a deadline that is over"],
)
async def test_a_planted_record_does_not_keep_add_ons_from_being_removed(
    it: TeardownScene, planted: dict[str, Any]
) -> None:
    await it.add_on("base")
    forged = await plant(it, **planted)
    async with manager(it.client, clock=SYSTEM):
        await it.delete()
        ended = await record(it, lambda one: one.finished, but=forged.metadata.uid)
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "3/3")
    assert ended.metadata.name.startswith(f"{it.uid}-")
    assert ended.spec.deadline == ""
    assert ended.spec.plan
    assert f"Teardown {it.uid} was not written by this manager" in " ".join(ended.spec.plan.warnings)
    assert await it.objects() == set()
    now = await it.client.get(TEARDOWNS, it.uid, type=Teardown)
    assert now.metadata.labels == {"unwind.dev/set-aside": "true"}
    assert now.phase is Phase.PENDING
    await it.let_go()


async def test_a_record_that_was_planted_before_anything_is_deleted_is_set_aside_at_once(it: TeardownScene) -> None:
    planted = await plant(it, plan=Plan())
    async with recording(it.client) as recorder, manager(it.client, recorder=recorder):
        await record(it, lambda one: "unwind.dev/set-aside" in one.metadata.labels)
        event = await until_event(it.client, planted.metadata.uid)
    assert (event["type"], event["reason"]) == ("Warning", "RecordSetAside")
    assert event["regarding"]["name"] == it.uid
    assert event["note"].startswith(f"Teardown {it.uid} was not written by this manager")
    await it.delete()
    await it.let_go()


async def test_a_planted_record_does_not_keep_works_from_being_removed(plane: Plane, namespace: str) -> None:
    async with (
        unjoins.scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it,
        unjoins.controllers(it.client, namespace),
    ):
        await it.put("web")
        await it.deployed("web")
        cluster = karmada_ref(it.name, it.uid)
        spec = TeardownSpec(title=it.name, target=cluster, cause=Cause.UNJOINED.value, plan=Plan())
        body = manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=it.uid), spec=spec))
        planted = await it.client.create(TEARDOWNS, body, field_manager="unwind")
        # Without a step, and over: by its own words there is nothing to remove.
        over = {"status": {"phase": Phase.COMPLETE.value}}
        await it.client.patch(TEARDOWNS, it.uid, over, subresource="status")
        await it.delete()
        await object_watch.until_absent(it.client, CLUSTERS, it.name)
        assert await it.on_member() == {}
        assert sorted(it.deleted()) == ["web-0", "web-1"]
        found = msgspec.convert(await it.client.list(TEARDOWNS), list[Teardown])
        about_it = [item for item in found if item.spec.target.uid == it.uid]
        [record] = [item for item in about_it if item.metadata.uid != planted["metadata"]["uid"]]
        assert (record.phase, record.status.removed) == (Phase.COMPLETE, "2/2")
        assert record.metadata.name.startswith(f"{it.uid}-")
        assert record.spec.plan
        assert f"Teardown {it.uid} was not written by this manager" in " ".join(record.spec.plan.warnings)
        [aside] = [item for item in about_it if item.metadata.uid == planted["metadata"]["uid"]]
        assert aside.metadata.labels == {"unwind.dev/set-aside": "true"}


async def test_a_request_that_brings_its_own_plan_is_refused_and_touches_nobody_elses_inventory(
    plane: Plane, namespace: str
) -> None:
    it = await scene(plane, namespace)
    owner = await it.add_on("base")
    inventory = await it.inventory(owner)
    assert inventory
    bait = await it.client.create(
        CONFIG_MAPS,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bait", "namespace": namespace}},
    )
    ref = ref_of(CONFIG_MAPS, msgspec.convert(bait["metadata"], ObjectMeta))
    asked = request_manifest(ref, name=f"request-{ref.uid}", by="admin", plural="configmaps", now=SYSTEM.now())
    made = await it.client.create(TEARDOWNS, manifest(TEARDOWNS, asked))
    step = Step(name="mine", object=owner, effort=Effort.ENFORCE.value, wave=1, objects=3)
    plan = Plan(steps=(step,), waves=1, objects=3)
    await it.client.patch(TEARDOWNS, made["metadata"]["name"], {"spec": {"plan": msgspec.to_builtins(plan)}})

    def over(one: Any) -> bool:
        return one is not None and msgspec.convert(one, Teardown).finished

    async with requests_manager(it.client, HOME):
        found = await object_watch.until(it.client, TEARDOWNS, made["metadata"]["name"], over, "finished")
    refused = msgspec.convert(found, Teardown)
    assert refused.phase is Phase.REFUSED
    assert "spec.plan was not written by this manager" in refused.status.blocked_by
    assert (await it.inventory(owner)) == inventory
    assert len(await it.objects()) == 3
    await it.client.delete(TEARDOWNS, made["metadata"]["name"], uid=made["metadata"]["uid"])


async def test_a_deleted_key_is_restored_by_a_manager_that_knows_it(it: TeardownScene) -> None:
    async with manager(it.client):
        held = await delete_on_hold(it)
        before = await it.client.get(SECRETS, KEY, namespace=HOME)
        await it.client.delete(SECRETS, KEY, uid=before["metadata"]["uid"], namespace=HOME)

        def anew(one: Any) -> bool:
            return one is not None and one["metadata"]["uid"] != before["metadata"]["uid"]

        after = await object_watch.until(it.client, SECRETS, KEY, anew, "restored", namespace=HOME)
        assert after
        assert after["data"] == before["data"]
        await it.unblock()
        ended = await record(it, lambda one: one.finished)
    assert (ended.metadata.uid, ended.phase) == (held.metadata.uid, Phase.COMPLETE)
    await it.let_go()


async def test_where_the_key_is_lost_the_plan_is_made_anew_and_nothing_is_let_go(it: TeardownScene) -> None:
    async with manager(it.client):
        held = await delete_on_hold(it)
    key = await it.client.get(SECRETS, KEY, namespace=HOME)
    await it.client.delete(SECRETS, KEY, uid=key["metadata"]["uid"], namespace=HOME)
    async with manager(it.client):
        again = await record(it, lambda one: one.phase is Phase.HELD, but=held.metadata.uid)
        assert again.spec.plan
        assert held.spec.plan
        assert again.spec.plan.steps == held.spec.plan.steps
        await it.unblock()
        ended = await record(it, lambda one: one.finished, but=held.metadata.uid)
    assert (ended.metadata.uid, ended.phase) == (again.metadata.uid, Phase.COMPLETE)
    await it.nothing_left()


async def test_a_key_is_rotated_while_a_teardown_goes_on(it: TeardownScene) -> None:
    async with manager(it.client):
        held = await delete_on_hold(it)
        data = {"key-2": base64.b64encode(b"x" * 32).decode()}
        await it.client.patch(SECRETS, KEY, {"data": data}, namespace=HOME)
    async with manager(it.client):
        await it.unblock()
        ended = await record(it, lambda one: one.finished)
        assert (ended.metadata.uid, ended.phase) == (held.metadata.uid, Phase.COMPLETE)
    await it.client.patch(SECRETS, KEY, {"data": {"key-2": None}}, namespace=HOME)
    await it.let_go()
