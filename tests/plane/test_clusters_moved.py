"""Clusters that `clusterctl move` moves: never torn down where they leave, and adopted where they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import cluster_moves
from tests.plane.support.cluster_moves import Arrived, owners_recorded
from tests.plane.support.cluster_teardowns import (
    DeployedScene,
    TeardownScene,
    all_controllers,
    ensure_installed,
    manager,
    scene,
)
from tests.plane.support.controllers import HOLD
from tests.plane.support.extension_registration import serve
from tests.plane.support.profiles import config_map
from unwind.api.capi import CLUSTERS
from unwind.api.names import (
    CLUSTER_UID_ANNOTATION,
    DELETE_FOR_MOVE_ANNOTATION,
    OWNER_LABEL,
    OWNERS_ANNOTATION,
    Finalizer,
)
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Phase
from unwind.inventory.inventories import Inventories
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until, until_absent, until_true
from unwind.local import build, stubs, tools
from unwind.local.stubs import STUB_CLUSTERS, STUB_CONTROL_PLANES

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Inventory
    from unwind.kube.client import Client
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


def reasons(inventory: Inventory | None) -> set[str]:
    return {entry.ledger.reason for entry in inventory.spec.entries.values() if entry.ledger} if inventory else set()


async def deployed_by_a_manager(it: TeardownScene, ref: ObjectRef) -> None:
    """Mark the credentials and a summary as the manager does: the summary names its cluster also after that is gone."""
    held = {"metadata": {"finalizers": [Finalizer.CREDENTIALS]}}
    await it.client.patch(SECRETS, f"{it.name}-kubeconfig", held, namespace=it.namespace)
    mark = {"annotations": {CLUSTER_UID_ANNOTATION: it.uid}, "finalizers": [Finalizer.SUMMARY]}
    await it.client.patch(CLUSTER_SUMMARIES, ref.name, {"metadata": mark}, namespace=it.namespace)


async def clear(it: TeardownScene, ref: ObjectRef) -> None:
    """Remove the finalizers, so that the namespace can be deleted."""
    free = {"metadata": {"finalizers": None}}
    with contextlib.suppress(NotFoundError):
        await it.client.patch(SECRETS, f"{it.name}-kubeconfig", free, namespace=it.namespace)
    await it.client.patch(CLUSTER_SUMMARIES, ref.name, free, namespace=it.namespace)


async def test_a_cluster_that_is_moved_is_not_torn_down_and_keeps_its_credentials(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    ref = await it.add_on("web")
    await deployed_by_a_manager(it, ref)
    async with manager(it.client) as controller:
        await eventually(lambda: controller.ready, "synced caches")
        await cluster_moves.pause(it.client, it.name, namespace)
        await cluster_moves.delete(it.client, CLUSTERS, it.name, namespace)
        teardown = await it.ended()
        assert teardown.phase is Phase.MOVED
        assert [step.state for step in teardown.status.steps] == ["Left"]
        assert reasons(await it.inventory(ref)) == {"Moved"}
        assert len(await it.objects()) == 3
        assert it.deleted() == []
        assert Finalizer.CREDENTIALS in (await it.secret())["metadata"]["finalizers"]
    await clear(it, ref)


async def test_a_new_manager_knows_that_a_cluster_was_moved(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    await it.add_on("web")
    async with manager(it.client):
        await cluster_moves.pause(it.client, it.name, namespace)
        it.annotations = {DELETE_FOR_MOVE_ANNOTATION: ""}
        await it.delete()
        teardown = await it.teardown(lambda one: one.spec.plan is not None, "recorded")
        assert teardown.spec.cause == "Moved"
        assert not teardown.finished
    await it.client.patch(CLUSTERS, it.name, {"metadata": {"finalizers": []}}, namespace=namespace)
    await until_absent(it.client, CLUSTERS, it.name, namespace=namespace)
    async with manager(it.client):
        assert (await it.ended()).phase is Phase.MOVED
    assert it.deleted() == []


async def test_a_cluster_that_is_not_moved_any_more_is_torn_down_by_a_new_plan(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    await it.add_on("web")
    async with manager(it.client):
        await cluster_moves.pause(it.client, it.name, namespace)
        it.annotations = {DELETE_FOR_MOVE_ANNOTATION: ""}
        await it.delete()
        moved = await it.teardown(lambda one: one.spec.cause == "Moved", "recorded as moved")
        await it.annotate({DELETE_FOR_MOVE_ANNOTATION: None})
        planned = await it.teardown(lambda one: one.spec.cause == "ClusterDeleted", "planned anew")
        assert planned.metadata.uid == moved.metadata.uid, "at no time, the Cluster has no record"
        assert planned.spec.requested_at
        assert moved.spec.requested_at
        assert planned.spec.requested_at >= moved.spec.requested_at, "its deadline begins again"
        await cluster_moves.pause(it.client, it.name, namespace, paused=False)
        teardown = await it.ended()
        assert (teardown.phase, teardown.status.removed) == (Phase.COMPLETE, "3/3")
    await it.nothing_left()


async def test_a_teardown_in_progress_ends_as_moved_and_not_as_target_gone(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    ref = await it.add_on("web", finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        await it.teardown(lambda one: len(one.status.blockers) == 3, "waiting for its objects")
        await cluster_moves.pause(it.client, it.name, namespace)
        await cluster_moves.delete(it.client, CLUSTERS, it.name, namespace)
        teardown = await it.ended()
        assert teardown.phase is Phase.MOVED
        assert reasons(await it.inventory(ref)) == {"Moved"}
    await it.unblock()


async def traces_of_clusterctl(it: TeardownScene, ref: ObjectRef, trace: str) -> None:
    """Delete a Cluster, with some of what `clusterctl move` does beside."""
    if trace == "ledger entry":
        # A manager saw it, and ended before it had written the record.
        chunk = await it.inventory(ref)
        assert chunk
        note = {"ledger": {"reason": "Moved", "by": "clusterctl move"}}
        first = next(iter(chunk.spec.entries))
        await Inventories(it.client, namespace=HOME).write(chunk, {first: note})
    secret = f"{it.name}-kubeconfig"
    if trace == "credentials deleted":
        await cluster_moves.delete(it.client, SECRETS, secret, it.namespace)
    if trace == "credentials being deleted":
        await cluster_moves.delete(it.client, SECRETS, secret, it.namespace, interrupted=True)
    # Without the annotation: the manager does not see the Cluster any more.
    await it.client.delete(CLUSTERS, it.name, uid=it.uid, namespace=it.namespace)
    await it.client.patch(CLUSTERS, it.name, {"metadata": {"finalizers": []}}, namespace=it.namespace)
    await until_absent(it.client, CLUSTERS, it.name, namespace=it.namespace)


@pytest.mark.parametrize(
    ("trace", "phase", "held"),
    [
        ("credentials deleted", Phase.MOVED, False),
        ("credentials being deleted", Phase.MOVED, True),
        ("ledger entry", Phase.MOVED, True),
        ("none", Phase.TARGET_GONE, False),
    ],
)
async def test_a_cluster_that_was_moved_while_no_manager_ran_is_known_by_the_traces_of_that(
    plane: Plane, namespace: str, trace: str, phase: Phase, held: bool
) -> None:
    it = await scene(plane, namespace)
    ref = await it.add_on("web")
    await deployed_by_a_manager(it, ref)
    await traces_of_clusterctl(it, ref, trace)
    async with manager(it.client):
        assert (await it.ended()).phase is phase
        assert reasons(await it.inventory(ref)) == {phase.value}
        if not held:
            await until(
                it.client,
                SECRETS,
                f"{it.name}-kubeconfig",
                lambda one: one is None or Finalizer.CREDENTIALS not in one["metadata"].get("finalizers", ()),
                "released",
                namespace=namespace,
            )
    # Also a later manager does not release them.
    async with manager(it.client) as controller:
        await eventually(lambda: controller.ready, "synced caches")
        if held:
            assert Finalizer.CREDENTIALS in (await it.secret())["metadata"]["finalizers"]
    assert it.deleted() == []
    assert len(await it.objects()) == 3
    await clear(it, ref)


async def test_a_paused_cluster_that_vanished_while_no_manager_ran_was_moved(plane: Plane, namespace: str) -> None:
    it = DeployedScene(plane, namespace)
    await it.begin()
    await it.add_on("web")
    async with all_controllers(it.client, HOME):
        await it.deployed("web")
        await cluster_moves.pause(it.client, it.cluster.name, namespace)
        await it.until_summary(
            "web",
            lambda one: any(item.reason == "ClusterPaused" for item in one.status.conditions),
            "paused",
            cluster=it.cluster.name,
            type_="capi",
        )
    await cluster_moves.delete(it.client, CLUSTERS, it.cluster.name, namespace)
    async with all_controllers(it.client, HOME):
        assert (await it.cluster.ended()).phase is Phase.MOVED
        await it.until_summaries_gone("web")
        assert Finalizer.CREDENTIALS in (await it.cluster.secret())["metadata"]["finalizers"]
    assert it.deleted() == []
    assert set(await it.on_member()) == {"web-0", "web-1"}
    secret = f"{it.cluster.name}-kubeconfig"
    await it.client.patch(SECRETS, secret, {"metadata": {"finalizers": None}}, namespace=namespace)


@pytest_asyncio.fixture(loop_scope="session")
async def there(plane: Plane, namespace: str, fresh_member: LocalCluster) -> Arrived:
    """A Cluster with two objects of the profile `web`, moved to another management cluster."""
    source, client = DeployedScene(plane, namespace), fresh_member.client
    await serve(plane, client)
    await ensure_installed(client)
    await source.begin()
    await source.add_on("web")
    async with all_controllers(source.client, HOME):
        await source.deployed("web")
        await owners_recorded(source)
        made = await cluster_moves.move(source.client, client, source.cluster.name, source.namespace)
        assert (await source.cluster.ended()).phase is Phase.MOVED
        await source.until_summaries_gone("web")
        assert source.deleted() == []
        assert set(await source.on_member()) == {"web-0", "web-1"}
    return Arrived(client, source, made)


async def test_add_ons_of_a_moved_cluster_are_adopted_by_uid_in_the_new_management_cluster(
    there: Arrived, namespace: str
) -> None:
    name = there.cluster.name
    before = await there.on_member()
    # There, the profile has one object less.
    await there.source("web", config_map(namespace, "web-0", color="green"))
    await there.profile("web", "web", clusterDeletionBehavior="EnforceRemovePolicies")
    async with all_controllers(there.client, HOME):
        await there.until_summary("web", lambda it: bool(it.status.dependencies), "paused", cluster=name, type_="capi")
        assert await there.on_member() == before, "nothing changes while it is paused"
        await there.unpause()
        await there.until_provisioned("web", cluster=name, type_="capi")
        after = await there.on_member()
        summary = await there.until_summary("web", lambda _: True, cluster=name, type_="capi")
        uid = summary.metadata.uid
        assert set(after) == {"web-0"}, "what the profile does not have any more is pruned"
        assert after["web-0"]["metadata"]["uid"] == before["web-0"]["metadata"]["uid"]
        assert after["web-0"]["metadata"]["labels"][OWNER_LABEL] == uid
        assert after["web-0"]["data"] == {"color": "green"}
        [chunk] = await Inventories(there.client, namespace=HOME).of(uid)
        assert {entry.object.uid for entry in chunk.spec.entries.values()} == {after["web-0"]["metadata"]["uid"]}
        await there.torn_down("1/1")


async def test_a_moved_cluster_that_is_deleted_before_it_is_deployed_to_is_torn_down_by_the_adopted_inventory(
    there: Arrived,
) -> None:
    name = there.cluster.name
    await there.add_on("web")
    async with all_controllers(there.client, HOME):
        await there.until_summary("web", lambda it: bool(it.status.dependencies), "paused", cluster=name, type_="capi")
        await there.cluster.delete()
        await there.unpause()
        await there.ended("2/2")


async def test_objects_of_an_unknown_owner_are_not_adopted(there: Arrived, namespace: str) -> None:
    name = there.cluster.name
    # As if another management cluster, which has not given the cluster up, had deployed them.
    empty = {"metadata": {"annotations": {OWNERS_ANNOTATION: None}}}
    await there.client.patch(CLUSTERS, name, empty, namespace=namespace)
    before = await there.on_member()
    await there.add_on("web")
    async with all_controllers(there.client, HOME):
        await there.unpause()
        failed = await there.until_summary(
            "web",
            lambda it: "managed by" in msgspec.json.encode(it.status).decode(),
            "conflict",
            cluster=name,
            type_="capi",
        )
        assert failed.status.feature_summaries[0].status == "Failed"
        assert {key: it["metadata"]["uid"] for key, it in (await there.on_member()).items()} == {
            key: it["metadata"]["uid"] for key, it in before.items()
        }
        await there.cluster.delete()
        await there.cluster.ended()
        assert set(await there.on_member()) == {"web-0", "web-1"}


async def make_movable(client: Client) -> None:
    """Label the kinds of Cluster API as `clusterctl init` does."""
    label = {"metadata": {"labels": {"clusterctl.cluster.x-k8s.io": ""}}}
    for kind in (CLUSTERS, STUB_CLUSTERS, STUB_CONTROL_PLANES):
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, f"{kind.plural}.{kind.group}", label)


async def clusterctl_move(source: LocalCluster, target: LocalCluster, namespace: str) -> None:
    program = (await build.ensure([tools.CLUSTERCTL]))[tools.CLUSTERCTL.name].path
    run = await asyncio.create_subprocess_exec(
        program,
        "move",
        f"--kubeconfig={source.kubeconfig}",
        f"--to-kubeconfig={target.kubeconfig}",
        f"--namespace={namespace}",
        env={"CLUSTERCTL_DISABLE_VERSIONCHECK": "true", "HOME": str(source.files.directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    assert run.returncode == 0, output.decode()


@pytest.mark.soak
@pytest.mark.timeout(900)  # clusterctl is built first
@pytest.mark.parametrize("running", [True, False], ids=["with a manager", "without a manager"])
async def test_clusterctl_moves_a_cluster_whose_add_ons_are_adopted(
    plane: Plane, namespace: str, fresh_member: LocalCluster, running: bool
) -> None:
    source, target = DeployedScene(plane, namespace), fresh_member.client
    await ensure_installed(source.client)
    await serve(plane, target)
    for definition in stubs.custom_resource_definitions():
        await target.apply(CUSTOM_RESOURCE_DEFINITIONS, definition)
        await until_true(target, CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"], "Established")
    await ensure_installed(target)
    await make_movable(source.client)
    await source.begin(topology=False)
    await source.add_on("web")
    name = source.cluster.name

    async def move() -> None:
        await clusterctl_move(plane.management, fresh_member, namespace)
        await until_absent(source.client, CLUSTERS, name, namespace=namespace)
        await until_absent(source.client, SECRETS, f"{name}-kubeconfig", namespace=namespace)

    async with all_controllers(source.client, HOME):
        await source.deployed("web")
        await owners_recorded(source)
        if running:
            await move()
            assert (await source.cluster.ended()).phase is Phase.MOVED
    if not running:
        await move()
        async with all_controllers(source.client, HOME):
            assert (await source.cluster.ended()).phase is Phase.MOVED
    assert source.deleted() == []
    before = await source.on_member()
    assert set(before) == {"web-0", "web-1"}
    made = await target.get(CLUSTERS, name, namespace=namespace)
    assert not made["spec"].get("paused"), "clusterctl resumes it"
    there = Arrived(target, source, made)
    # Cluster API, which does not run there, would find out that the control plane is initialized.
    ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
    await target.patch(CLUSTERS, name, ready, namespace=namespace, subresource="status")
    await there.add_on("web")
    async with all_controllers(target, HOME):
        await there.until_provisioned("web", cluster=name, type_="capi")
        after = await there.on_member()
        assert {key: it["metadata"]["uid"] for key, it in after.items()} == {
            key: it["metadata"]["uid"] for key, it in before.items()
        }
        await there.cluster.delete()
        teardown = await there.cluster.ended()
        assert (teardown.phase, teardown.status.removed) == (Phase.COMPLETE, "2/2")
