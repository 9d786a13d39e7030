"""A management cluster is lost, and its objects are restored into another one, as Velero does it.

Velero creates the objects again: with new uids, without status and ownerReferences, with their labels, annotations and
finalizers (read from its `resetMetadata` and `resetStatus`). The members have gone on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.eventually import eventually
from tests.plane.support.cluster_moves import Arrived, owners_recorded
from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers, ensure_installed
from tests.plane.support.extension_registration import serve
from tests.plane.support.profiles import condition
from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectRef
from unwind.api.names import MEMBER_LABEL, OWNER_LABEL, RECORD_KEY_SECRET, ConditionType
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Cause, Phase, Plan, Step, Teardown, TeardownSpec
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

_DROPPED = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "managedFields",
)
_DEPLOYED_BY_KUBERNETES = "kube-root-ca.crt"


def as_restored(obj: Object) -> Object:
    """An object of a backup, as Velero creates it."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _DROPPED}
    labels = {**metadata.get("labels", {}), "velero.io/backup-name": "daily", "velero.io/restore-name": "daily-1"}
    body = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    return body | {"metadata": metadata | {"labels": labels}}


async def backup(it: DeployedScene, *, records: bool) -> list[tuple[Resource, Object]]:
    """Everything about a cluster and its add-ons. `records`: also what the manager wrote."""
    client, namespace = it.client, it.namespace
    found = [(SECRETS, await client.get(SECRETS, RECORD_KEY_SECRET, namespace=HOME))]
    found += [
        (kind, obj) for kind in (SECRETS, CONFIG_MAPS, CLUSTERS) for obj in await client.list(kind, namespace=namespace)
    ]
    profiles = await client.list(CLUSTER_PROFILES)
    found += [(CLUSTER_PROFILES, obj) for obj in profiles if obj["metadata"]["name"].startswith(namespace)]
    if records:
        found += [(CLUSTER_SUMMARIES, obj) for obj in await client.list(CLUSTER_SUMMARIES, namespace=namespace)]
        member = f"{MEMBER_LABEL}={it.cluster.uid}"
        found += [(INVENTORIES, obj) for obj in await client.list(INVENTORIES, namespace=HOME, labels=member)]
        teardowns = await client.list(TEARDOWNS)
        found += [(TEARDOWNS, obj) for obj in teardowns if obj["spec"]["target"].get("namespace") == namespace]
    return [
        (kind, {"apiVersion": kind.api_version, "kind": kind.kind} | obj)
        for kind, obj in found
        if obj["metadata"]["name"] != _DEPLOYED_BY_KUBERNETES
    ]


async def restored(plane: Plane, it: DeployedScene, client: Client, *, records: bool) -> Arrived:
    """The cluster in another management cluster, after its own was lost."""
    saved = await backup(it, records=records)
    await serve(plane, client)
    await ensure_installed(client)
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": it.namespace}})
    made: dict[str, Object] = {}
    for kind, obj in saved:
        if kind is not CLUSTERS:
            made[kind.kind] = await client.create(kind, as_restored(obj))
    # Velero restores Clusters last. creationTimestamps are whole seconds, so wait until theirs is later.
    newest = max(obj["metadata"]["creationTimestamp"] for obj in made.values())
    await eventually(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > newest, "a later second")
    [cluster] = [as_restored(obj) for kind, obj in saved if kind is CLUSTERS]
    made[CLUSTERS.kind] = await client.create(CLUSTERS, cluster)
    # Cluster API would find out that the control plane is initialized.
    ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
    await client.patch(CLUSTERS, it.cluster.name, ready, namespace=it.namespace, subresource="status")
    return Arrived(client, it, made[CLUSTERS.kind])


async def deployed(plane: Plane, namespace: str) -> DeployedScene:
    await ensure_installed(plane.management.client)
    it = DeployedScene(plane, namespace)
    await it.begin()
    await it.add_on("web")
    async with all_controllers(it.client, HOME):
        await it.deployed("web")
        await owners_recorded(it)
    return it


async def test_add_ons_are_adopted_if_the_records_of_the_manager_are_not_restored(
    plane: Plane, namespace: str, fresh_member: LocalCluster
) -> None:
    it = await deployed(plane, namespace)
    before = {name: obj["metadata"]["uid"] for name, obj in (await it.on_member()).items()}
    there = await restored(plane, it, fresh_member.client, records=False)
    name = there.cluster.name
    async with all_controllers(there.client, HOME):
        await there.until_provisioned("web", cluster=name, type_="capi")
        assert {name: obj["metadata"]["uid"] for name, obj in (await there.on_member()).items()} == before
        await there.torn_down("2/2")


async def test_restored_records_delete_nothing_and_hold_the_cluster_by_name(
    plane: Plane, namespace: str, fresh_member: LocalCluster
) -> None:
    it = await deployed(plane, namespace)
    await it.block("web-0")
    await it.cluster.delete()
    async with all_controllers(it.client, HOME):
        await it.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
    deleted, before = it.deleted(), set(await it.on_member())
    there = await restored(plane, it, fresh_member.client, records=True)
    stale = it.summary_name("web", it.cluster.name, "capi")
    async with all_controllers(there.client, HOME):
        # The Teardown is genuine, but its target does not exist any more.
        record = await until(there.client, TEARDOWNS, it.cluster.uid, _finished, "finished", within=30)
        assert record
        assert record["status"]["phase"] == Phase.MOVED
        taken = await there.until_profile("web", lambda it: condition(it, "Accepted").get("reason") == "NameTaken")
        assert stale in condition(taken, "Accepted")["message"]
        # The objects on the member are not known here: the deletion of the Cluster is held until a person decides.
        await there.cluster.delete()
        held = await there.cluster.teardown(lambda it: bool(it.status.conditions), "held")
        assert held.spec.plan is None
        [told] = [one for one in held.status.conditions if one.type == ConditionType.UNKNOWN_VALUE]
        assert stale in told.message
        assert "from a backup" in told.message
        assert (it.deleted(), set(await it.on_member())) == (deleted, before)
        found = await there.client.get(CLUSTER_SUMMARIES, stale, namespace=namespace)
        await there.client.delete(CLUSTER_SUMMARIES, stale, uid=found["metadata"]["uid"], namespace=namespace)
        assert (await there.cluster.ended()).phase is Phase.COMPLETE
    assert (it.deleted(), set(await it.on_member())) == (deleted, before)
    await it.unblock("web-0")


async def test_add_ons_are_adopted_when_the_restored_records_are_deleted(
    plane: Plane, namespace: str, fresh_member: LocalCluster
) -> None:
    it = await deployed(plane, namespace)
    before = {name: obj["metadata"]["uid"] for name, obj in (await it.on_member()).items()}
    former = (await it.summary_of("web")).metadata.uid
    there = await restored(plane, it, fresh_member.client, records=True)
    async with all_controllers(there.client, HOME):
        await there.until_profile("web", lambda it: condition(it, "Accepted").get("reason") == "NameTaken")
        for chunk in await there.client.list(INVENTORIES, namespace=HOME, labels=f"{OWNER_LABEL}={former}"):
            name, uid = chunk["metadata"]["name"], chunk["metadata"]["uid"]
            await there.client.delete(INVENTORIES, name, uid=uid, namespace=HOME)
            await there.client.patch(INVENTORIES, name, {"metadata": {"finalizers": None}}, namespace=HOME)
        stale = it.summary_name("web", it.cluster.name, "capi")
        found = await there.client.get(CLUSTER_SUMMARIES, stale, namespace=namespace)
        await there.client.delete(CLUSTER_SUMMARIES, stale, uid=found["metadata"]["uid"], namespace=namespace)
        await there.until_provisioned("web", cluster=it.cluster.name, type_="capi")
        assert {name: obj["metadata"]["uid"] for name, obj in (await there.on_member()).items()} == before
        await there.torn_down("2/2")


async def test_a_request_for_deletion_cannot_be_restored(plane: Plane, namespace: str) -> None:
    await ensure_installed(plane.management.client)
    target = ObjectRef(kind="Namespace", version="v1", name=namespace, uid="1d0b3a43-4e0c-4a63-8a21-1b7cf1d2c2b5")
    plan = Plan(steps=(Step(name="Namespace", object=target, effort="Enforce", wave=1),), waves=1)
    spec = TeardownSpec(title=str(target), target=target, cause=Cause.REQUESTED.value, requested_by="jane", plan=plan)
    backup = {"metadata": {"name": f"request-{target.uid}"}, "spec": msgspec.to_builtins(spec)}
    body = {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind} | backup
    with pytest.raises(ApiError, match=r"only the manager writes spec\.plan"):
        await plane.management.client.create(TEARDOWNS, body)


def _finished(teardown: Object | None) -> bool:
    return teardown is not None and msgspec.convert(teardown, Teardown).finished
