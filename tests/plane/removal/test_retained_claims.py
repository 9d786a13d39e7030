"""The claims of a StatefulSet stay unless it owns them, or the deletion of volumes was asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.removals import RemovalLog, stateful_set, until_claimed
from unwind.api.annotation_values import VolumePolicy, volume_policy
from unwind.api.names import DELETE_POLICY_ANNOTATION, OWNER_LABEL, VOLUMES_ANNOTATION, Reason
from unwind.api.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STATEFUL_SETS
from unwind.clock import SYSTEM
from unwind.kube import object_watch

if TYPE_CHECKING:
    from tests.plane.support.removals import RemovalScene
    from unwind.kube.client import Object


async def put_set(scene: RemovalScene, room: str, *, when_deleted: str = "") -> set[str]:
    """A StatefulSet of one replica: a claim that was there before it, its own, and one of a replica that never was.
    Returns their uids."""
    body = stateful_set(room, "db", replicas=2)
    if when_deleted:
        body["spec"]["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": when_deleted}
    spec = body["spec"]["volumeClaimTemplates"][0]["spec"]
    for ordinal in (0, 7):
        metadata = {"name": f"data-db-{ordinal}", "namespace": room, "labels": {"app": "db"}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        await scene.client.create(PERSISTENT_VOLUME_CLAIMS, claim)
    await scene.put(STATEFUL_SETS, body)
    return {(await until_claimed(scene.client, room, f"data-db-{n}"))["metadata"]["uid"] for n in (0, 1, 7)}


async def names_left(scene: RemovalScene, room: str) -> list[str]:
    found = await scene.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=room)
    return sorted(item["metadata"]["name"] for item in found)


@pytest.mark.parametrize("when_deleted", ["", "Retain"])
async def test_claims_stay_and_are_named_in_the_ledger(scene: RemovalScene, room: str, when_deleted: str) -> None:
    await scene.cluster.create_namespace(room)
    uids = await put_set(scene, room, when_deleted=when_deleted)
    removal = await scene.remove()
    assert (removal.progress.removed, removal.progress.left) == (1, 3)
    account = await scene.account()
    assert {account[f"pvc-{uid}"].ledger.reason for uid in uids} == {Reason.KEPT_BY_POLICY}  # type: ignore[union-attr]
    assert await names_left(scene, room) == ["data-db-0", "data-db-1", "data-db-7"]
    # Nothing of them was deleted, also when it is begun again.
    await scene.remove()
    assert await names_left(scene, room) == ["data-db-0", "data-db-1", "data-db-7"]
    assert not [deletion for deletion in scene.cluster.audit.deletions(namespace=room) if deletion.uid in uids]


async def test_with_when_deleted_those_go_that_the_set_owns(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await put_set(scene, room, when_deleted="Delete")

    def owned(it: Object | None) -> bool:
        return bool(it and it["metadata"].get("ownerReferences"))

    for name in ("data-db-0", "data-db-1"):
        await object_watch.until(scene.client, PERSISTENT_VOLUME_CLAIMS, name, owned, "owned", namespace=room)
    removal = await scene.remove()
    assert (removal.progress.removed, removal.progress.left) == (3, 1)
    assert await names_left(scene, room) == ["data-db-7"]


async def test_where_it_is_asked_for_all_go(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await put_set(scene, room)
    removal = await scene.remove(volumes=VolumePolicy.DELETE)
    assert (removal.progress.removed, removal.progress.left) == (4, 0)
    assert await names_left(scene, room) == []


async def test_a_claim_that_is_a_manifest_goes_like_any_object(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    spec = stateful_set(room, "db", replicas=1)["spec"]["volumeClaimTemplates"][0]["spec"]
    await scene.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data-db-0", "namespace": room}, "spec": spec})
    await scene.put(STATEFUL_SETS, stateful_set(room, "db", replicas=1))
    removal = await scene.remove()
    assert (removal.progress.removed, removal.progress.left) == (2, 0)
    assert await names_left(scene, room) == []


async def test_a_namespace_with_such_a_claim_is_kept_unless_it_takes_things_along(
    scene: RemovalScene, room: str
) -> None:
    await scene.namespace(room, key="namespace")
    await put_set(scene, room)
    await scene.remove()
    ledger = (await scene.account())["namespace"].ledger
    assert ledger
    assert f"PersistentVolumeClaim {room}/data-db-0" in ledger.message
    assert len(await names_left(scene, room)) == 3

    other = scene.another()
    mark = {"metadata": {"labels": {OWNER_LABEL: other.owner.uid}}}
    other.enter(NAMESPACES, await scene.client.patch(NAMESPACES, room, mark))
    await other.remove(take_along=True, clock=SYSTEM)
    await object_watch.until_absent(scene.client, NAMESPACES, room)


async def test_an_unknown_word_deletes_nothing_until_it_is_corrected(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await put_set(scene, room)
    other = await scene.config_map(room, "other")
    await scene.write()
    annotations = {VOLUMES_ANNOTATION: "delete"}
    told = RemovalLog()
    async with (
        scene.removal(told=told, clock=SYSTEM, volumes=lambda: volume_policy(annotations)) as removal,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(removal.run())
        await told.until(VOLUMES_ANNOTATION)
        assert scene.deleted() == []
        annotations[VOLUMES_ANNOTATION] = "Delete"
        await running
    assert not await scene.there(STATEFUL_SETS, other)
    assert await names_left(scene, room) == []


async def test_claims_of_a_set_that_a_policy_keeps_stay_whatever_the_volume_policy_says(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    body = stateful_set(room, "db", replicas=0)
    claim = body["spec"]["volumeClaimTemplates"][0]["spec"]
    metadata = {"name": "data-db-0", "namespace": room, "labels": {"app": "db"}}
    await scene.client.create(
        PERSISTENT_VOLUME_CLAIMS,
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
    )
    body["metadata"]["annotations"] = {DELETE_POLICY_ANNOTATION: "skip"}
    kept = await scene.put(STATEFUL_SETS, body)
    for _ in range(2):  # also when it is started again
        removal = await scene.remove(volumes=VolumePolicy.DELETE)
        assert (removal.progress.removed, removal.progress.left) == (0, 2)
        assert await names_left(scene, room) == ["data-db-0"]
    assert await scene.there(STATEFUL_SETS, kept)
