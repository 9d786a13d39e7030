"""Protected objects in a removal on a real member without admission policies: the chain does not delete them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.removals import RemovalLog, RemovalScene, everything_by, stateful_set, until_claimed
from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import DELETE_PROTECTION_LABEL, SCALE_TO_ZERO_ANNOTATION
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STATEFUL_SETS,
)
from unwind.deleters.registration import LATE, Kinds, Registration
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object
    from unwind.removal.removal import Removal

ALWAYS = {"labels": {DELETE_PROTECTION_LABEL: "Always"}}


async def label(
    scene: RemovalScene, resource: Resource, ref: ObjectRef, value: str | None, *, by: str = "jane"
) -> None:
    patch = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: value}}}
    await scene.client.patch(resource, ref.name, patch, namespace=ref.namespace or None, field_manager=by)


@asynccontextmanager
async def held(scene: RemovalScene, *parts: str, **more: Any) -> AsyncIterator[tuple[Removal, str]]:
    """A removal that waits and says all of this. When the body has ended, it is expected to complete."""
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told, **more) as removal, asyncio.timeout(90), asyncio.TaskGroup() as group:
        running = group.create_task(removal.run())
        said = await told.until(*parts)
        assert not running.done()
        yield removal, said
        await running


def sent(scene: RemovalScene, ref: ObjectRef) -> list[Any]:
    """All DELETE requests for an object, including those that the API server did not accept."""
    entries = scene.cluster.audit.entries(verbs=("delete",))
    return [it for it in entries if (it.object_ref.namespace, it.object_ref.name) == (ref.namespace, ref.name)]


async def test_a_protected_object_holds_the_removal_by_name_until_its_label_is_removed(
    scene: RemovalScene, room: str
) -> None:
    namespace = await scene.namespace(room)
    precious = await scene.config_map(room, "precious")
    other = await scene.config_map(room, "other")
    await label(scene, CONFIG_MAPS, precious, "Always")
    async with held(scene, "precious", "blocked by") as (removal, said):
        assert said == (
            f"ConfigMap {room}/precious: blocked by label {DELETE_PROTECTION_LABEL}=Always, set by jane;"
            f" to allow its deletion: unwind unprotect configmaps/precious -n {room} --cluster fleet/m"
        )
        await scene.client.get(CONFIG_MAPS, "precious", namespace=room)
        [wait] = [it for ref, it in removal.progress.waits.items() if ref == precious]
        assert getattr(wait, "code", "") == "Protected"
        assert sent(scene, precious) == []
        await label(scene, CONFIG_MAPS, precious, None)
    assert removal.removed == {namespace.uid, precious.uid, other.uid}


async def test_a_removal_that_only_tries_leaves_a_protected_object_and_records_it(
    scene: RemovalScene, room: str
) -> None:
    namespace = await scene.namespace(room, key="namespace")
    precious = await scene.config_map(room, "precious", key="precious")
    await scene.config_map(room, "other", key="other")
    await label(scene, CONFIG_MAPS, precious, "Always")
    removal = await scene.remove(keep_protected=True)
    assert (removal.progress.removed, removal.progress.left) == (1, 2)
    assert await scene.there(CONFIG_MAPS, precious)
    assert await scene.there(NAMESPACES, namespace)
    assert sent(scene, precious) == []
    note = (await scene.account())["precious"].ledger
    assert note
    assert (note.reason, note.by) == ("Protected", "field manager jane")
    assert f"{DELETE_PROTECTION_LABEL}=Always" in note.message


@pytest.mark.parametrize("keep", [False, True])
async def test_an_unknown_value_protects(scene: RemovalScene, room: str, keep: bool) -> None:
    await scene.cluster.create_namespace(room)
    precious = await scene.config_map(
        room, "precious", metadata={"labels": {DELETE_PROTECTION_LABEL: "alwys"}}, key="p"
    )
    if keep:
        await scene.remove(keep_protected=True)
        note = (await scene.account())["p"].ledger
        assert note
        assert note.reason == "UnknownValue"
        assert "unknown value" in note.message
    else:
        async with held(scene, "alwys: unknown value (valid: Always, Cascading)"):
            assert sent(scene, precious) == []
            await label(scene, CONFIG_MAPS, precious, None)
    assert await scene.there(CONFIG_MAPS, precious) is keep


async def test_a_label_that_is_set_between_the_decision_and_the_delete_is_seen(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    precious = await scene.config_map(room, "precious")
    set_once: list[bool] = []

    async def label_first(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        # Every earlier link has decided by the object without the label.
        if not set_once:
            set_once.append(True)
            await label(scene, CONFIG_MAPS, precious, "Always")
        return await next(ctx, obj)

    last = Registration(
        name="z-last", kinds=(Kinds("v1", "ConfigMap"),), delete=label_first, order=LATE, metadata_only=True
    )
    async with held(scene, f"{DELETE_PROTECTION_LABEL}=Always", deleters=[last]):
        assert [it.response_status.code for it in sent(scene, precious)] == [409]
        assert await scene.there(CONFIG_MAPS, precious)
        await label(scene, CONFIG_MAPS, precious, None)
    assert not await scene.there(CONFIG_MAPS, precious)


async def test_nothing_of_a_protected_workload_is_changed(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    web = await scene.deployment(room, "web", replicas=2)
    patch = {"metadata": {"annotations": {SCALE_TO_ZERO_ANNOTATION: "true"}}}
    await scene.client.patch(DEPLOYMENTS, "web", patch, namespace=room)
    await label(scene, DEPLOYMENTS, web, "Cascading")
    async with held(scene, f"{DELETE_PROTECTION_LABEL}=Cascading and replicas 2>0"):
        found = await scene.client.get(DEPLOYMENTS, "web", namespace=room)
        assert found["spec"]["replicas"] == 2
        await scene.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, namespace=room)
    assert not await scene.there(DEPLOYMENTS, web)


async def test_a_cascading_namespace_waits_for_its_pods(scene: RemovalScene, room: str) -> None:
    namespace = await scene.namespace(room)
    await label(scene, NAMESPACES, namespace, "Cascading")
    pod = {"metadata": {"name": "theirs", "namespace": room}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    theirs = await scene.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod})
    clock = StillClock()
    async with held(scene, f"{DELETE_PROTECTION_LABEL}=Cascading and active pods 1>0", clock=clock):
        await scene.client.delete(PODS, "theirs", uid=theirs["metadata"]["uid"], namespace=room)
        clock.advance(31)
    assert not await scene.there(NAMESPACES, namespace)


async def test_a_cascading_definition_goes_after_the_resources_of_the_same_step(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    group = f"{room}.dev"
    gadgets = await scene.definition(group, key="crd")
    definition = scene.entries["crd"].object
    await label(scene, CUSTOM_RESOURCE_DEFINITIONS, definition, "Cascading")
    await scene.put(gadgets, {"metadata": {"name": "g", "namespace": room}})
    removal = await scene.remove()
    assert (removal.progress.removed, removal.progress.left) == (2, 0)


async def test_a_namespace_is_not_deleted_along_with_a_protected_object(scene: RemovalScene, room: str) -> None:
    namespace = await scene.namespace(room)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": room, **ALWAYS}}
    theirs = scene.enter(CONFIG_MAPS, await scene.client.create(CONFIG_MAPS, body), key="theirs")
    del scene.entries["theirs"]
    clock = StillClock()
    async with held(scene, f"ConfigMap {room}/theirs", take_along=True, clock=clock):
        assert await scene.there(NAMESPACES, namespace)
        await label(scene, CONFIG_MAPS, theirs, None)
        clock.advance(31)
    assert not await scene.there(NAMESPACES, namespace)


async def test_objects_without_the_label_are_not_read(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await everything_by([scene.config_map(room, f"c-{number}") for number in range(200)])
    precious = await scene.config_map(room, "precious", metadata=ALWAYS)
    await scene.remove(keep_protected=True)
    requests = [it for it in scene.cluster.audit.entries(resource="configmaps", namespace=room) if it.verb != "create"]
    assert sum(it.verb == "delete" for it in requests) == 200
    assert [it.object_ref.name for it in requests if it.verb == "get"] == [precious.name]


async def test_the_claims_of_a_protected_set_stay_with_it(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    db = await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=1), key="db")
    await until_claimed(scene.client, room, "data-db-0")
    await label(scene, STATEFUL_SETS, db, "Always")
    removal = await scene.remove(keep_protected=True, volumes=VolumePolicy.DELETE)
    assert (removal.progress.removed, removal.progress.left) == (0, 2)
    claim = await scene.client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-0", namespace=room)
    assert "deletionTimestamp" not in claim["metadata"]
    notes = {entry.object.name: entry.ledger.message for entry in (await scene.account()).values() if entry.ledger}
    assert notes["data-db-0"] == "StatefulSet db stays and uses it"
    assert f"{DELETE_PROTECTION_LABEL}=Always" in notes["db"]
