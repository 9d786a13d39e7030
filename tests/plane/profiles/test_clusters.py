"""Which clusters get add-ons, when, and through which credentials and replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.owners import Owner
from tests.plane.support.objects import until_there
from tests.plane.support.profiles import ProfileScene, config_map, feature, message, running
from unwind.addons.manifests import ADDONS
from unwind.api.capi import CLUSTERS
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CONFIG_MAPS, ROLE_BINDINGS, ROLES, SECRETS
from unwind.api.sveltos import CLUSTER_CONFIGURATIONS, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.api.unwind import INVENTORIES, TEARDOWNS
from unwind.clock import SYSTEM
from unwind.install.contributions import MACHINERY
from unwind.inventory.inventories import Inventories
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.local.capi import create_cluster
from unwind.teardown.manifests import RECORDS

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane


async def test_nothing_is_deployed_to_a_cluster_that_is_paused_or_not_ready(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register(ready=False)
    await scene.client.patch(SVELTOS_CLUSTERS, "edge", {"spec": {"paused": True}}, namespace=scene.namespace)
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_profile("web", lambda it: bool((it.get("status") or {}).get("matchingClusters")))
        ready = {"status": {"ready": True}}
        await scene.client.patch(SVELTOS_CLUSTERS, "edge", ready, namespace=scene.namespace, subresource="status")
        waits = await scene.until_summary("web", lambda it: bool(it.status.dependencies), "waiting")
        assert (
            waits.status.dependencies
            == f"SveltosCluster {scene.namespace}/edge is paused: nothing is deployed until it is unpaused"
        )
        assert await scene.on_member() == {}
        await scene.client.patch(SVELTOS_CLUSTERS, "edge", {"spec": {"paused": False}}, namespace=scene.namespace)
        await scene.until_provisioned("web")


async def configuration(scene: ProfileScene) -> Object:
    """The ClusterConfiguration of the cluster, once it has a status."""
    client, name = scene.client, "sveltos-edge"
    return await until_there(
        client, CLUSTER_CONFIGURATIONS, name, lambda it: bool(it.get("status")), namespace=scene.namespace
    )


async def test_the_cluster_configuration_lists_deployed_objects_by_profile(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.until_provisioned("web")
        found = await configuration(scene)
        [profile] = found["status"]["clusterProfileResources"]
        assert profile["clusterProfileName"] == scene.called("web")
        [deployed] = profile["Features"]
        assert [item["name"] for item in deployed["resources"]] == ["a"]
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
        await object_watch.until_absent(scene.client, CLUSTER_CONFIGURATIONS, "sveltos-edge", namespace=scene.namespace)


async def test_add_ons_are_deployed_once_the_control_plane_of_a_capi_cluster_answers(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        name = await cluster(scene)
        await scene.until_provisioned("web", cluster=name, type_="capi")
        labels = {"metadata": {"labels": {"test": None}}}
        await scene.client.patch(CLUSTERS, name, labels, namespace=scene.namespace)
        await scene.until_summary_gone("web", cluster=name, type_="capi")
    assert await scene.on_member() == {}
    assert scene.deleted() == ["a"]


async def test_a_deleted_cluster_is_left_to_its_teardown(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"))
    await scene.profile("web", "web")
    await scene.source("other", config_map(scene.namespace, "z"))
    async with running(scene.client, scene.namespace):
        name = await cluster(scene, finalizers=["example.dev/hold"])
        await scene.until_provisioned("web", cluster=name, type_="capi")
        found = await scene.client.get(CLUSTERS, name, namespace=scene.namespace)
        uid = found["metadata"]["uid"]
        await scene.client.delete(CLUSTERS, name, uid=uid, namespace=scene.namespace)
        # Neither a change nor a new profile reaches it any more, and a profile that goes takes nothing from it.
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"))
        await scene.profile("new", "other")
        await scene.delete_profile("web")
        told = f"waiting for Teardown {uid} of the cluster; see `unwind status`"
        held = await scene.until_summary(
            "web", lambda it: it.status.dependencies == told, "left to the teardown", cluster=name, type_="capi"
        )
        assert (await scene.on_member())["a"]["data"] == {"color": "red"}
        assert set(await scene.on_member()) == {"a"}
        # What the teardown does: it removes, writes that down, and says so.
        [chunk] = await scene.inventories(held.metadata.uid)
        [entry] = chunk.spec.entries
        removed = {"spec": {"entries": {entry: {"state": "Removed"}}}}
        await scene.client.patch(INVENTORIES, chunk.metadata.name, removed, namespace=scene.namespace)
        target = {"kind": "Cluster", "namespace": scene.namespace, "name": name, "uid": uid}
        await scene.client.create(
            TEARDOWNS,
            {
                "apiVersion": TEARDOWNS.api_version,
                "kind": "Teardown",
                "metadata": {"name": uid},
                "spec": {"title": name, "target": target, "cause": "ClusterDeleted"},
            },
        )
        await scene.until_summary_gone("web", cluster=name, type_="capi")
        await scene.until_profile_gone("web")
    assert scene.deleted() == []
    free = {"metadata": {"finalizers": None}}
    await scene.client.patch(CLUSTERS, name, free, namespace=scene.namespace)


async def test_a_cluster_deleted_during_a_withdrawal_is_left_to_its_teardown(scene: ProfileScene) -> None:
    held = config_map(scene.namespace, "held")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("web", held)
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        name = await cluster(scene, finalizers=["example.dev/hold"])
        await scene.until_provisioned("web", cluster=name, type_="capi")
        await scene.delete_profile("web")
        waits = await scene.until_summary("web", lambda it: bool(message(it)), "waiting", cluster=name, type_="capi")
        found = await scene.client.get(CLUSTERS, name, namespace=scene.namespace)
        uid = found["metadata"]["uid"]
        await scene.client.delete(CLUSTERS, name, uid=uid, namespace=scene.namespace)
        told = f"waiting for Teardown {uid} of the cluster; see `unwind status`"
        await scene.until_summary(
            "web", lambda it: it.status.dependencies == told, "left to the teardown", cluster=name, type_="capi"
        )
        inventories = Inventories(scene.client, namespace=scene.namespace)
        # It was open while it was withdrawn; and it is closed for whoever comes second, too.
        for teardown in (uid, "another"):
            [chunk] = await inventories.sealed(waits.metadata.uid, teardown)
            assert chunk.spec.sealed_for == uid
    free = {"metadata": {"finalizers": None}}
    await scene.member.client.patch(CONFIG_MAPS, "held", free, namespace=scene.namespace)
    await scene.client.patch(CLUSTERS, name, free, namespace=scene.namespace)


async def cluster(scene: ProfileScene, *, finalizers: list[str] | None = None) -> str:
    """A Cluster of Cluster API's that is the member; returns its name."""
    name = f"c-{scene.namespace}"
    await create_cluster(
        scene.client, name=name, namespace=scene.namespace, member="member-1", topology=False, labels=scene.label
    )
    if finalizers:
        found = await scene.client.get(CLUSTERS, name, namespace=scene.namespace)
        both = [*(found["metadata"].get("finalizers") or ()), *finalizers]
        await scene.client.patch(CLUSTERS, name, {"metadata": {"finalizers": both}}, namespace=scene.namespace)
    return name


async def test_another_cluster_with_the_same_name_gets_its_own_add_ons(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    made = await scene.register()
    await scene.profile("web", "web", stopMatchingBehavior="LeavePolicies")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        before = (await scene.summary("web")).metadata.uid
    # While nobody looks.
    await scene.client.delete(SVELTOS_CLUSTERS, "edge", uid=made["metadata"]["uid"], namespace=scene.namespace)
    again = await scene.register_again()
    async with running(scene.client, scene.namespace):
        found = await scene.until_summary("web", lambda it: it.metadata.uid != before, "another one")
        assert found.metadata.annotations["unwind.dev/cluster-uid"] == again["metadata"]["uid"]
    [chunk] = await scene.inventories(before)
    assert [entry.ledger.reason for entry in chunk.spec.entries.values() if entry.ledger] == ["Unmanaged"]
    assert scene.deleted() == []


async def test_a_replica_deploys_to_a_cluster_only_while_it_owns_it(scene: ProfileScene) -> None:
    await scene.provide()
    owner = Owner(f"{scene.namespace}/edge")
    async with running(scene.client, scene.namespace, owner=owner):
        await scene.until_profile("web", lambda it: bool((it.get("status") or {}).get("matchingClusters")))
        assert not await scene.client.list(CLUSTER_SUMMARIES, namespace=scene.namespace)
        owner.gain(f"{scene.namespace}/edge")
        await scene.until_provisioned("web")


async def test_the_rights_of_the_manager_are_enough(plane: Plane, scene: ProfileScene) -> None:
    subject = await granted(scene)
    await scene.provide()
    connection = plane.management.connection(subject)
    async with Client(connection) as client, running(client, scene.namespace, clock=SYSTEM):
        await scene.until_provisioned("web")
        await configuration(scene)
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
        await object_watch.until_absent(scene.client, CLUSTER_CONFIGURATIONS, "sveltos-edge", namespace=scene.namespace)
    refused = [entry for entry in plane.management.audit.entries(user=subject) if entry.code == 403]
    assert refused == []


async def granted(scene: ProfileScene) -> str:
    """A user that has the rights of the manager and no others; returns its name."""
    user = f"manager-{scene.namespace}"
    register = (MACHINERY, RECORDS, ADDONS)
    subjects = [{"kind": "User", "name": user, "apiGroup": CLUSTER_ROLES.group}]
    for role, binding, namespace, rights in (
        (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, None, [right for item in register for right in item.everywhere]),
        (ROLES, ROLE_BINDINGS, scene.namespace, [right for item in register for right in item.at_home]),
    ):
        metadata = {"name": user} | ({"namespace": namespace} if namespace else {})
        rules = [right.rule() for right in rights]
        head = {"apiVersion": role.api_version, "metadata": metadata}
        await scene.client.create(role, head | {"kind": role.kind, "rules": rules})
        reference = {"apiGroup": role.group, "kind": role.kind, "name": user}
        await scene.client.create(binding, head | {"kind": binding.kind, "roleRef": reference, "subjects": subjects})
    return user


async def test_a_corrected_kubeconfig_is_used_at_once(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    name, namespace = "edge-sveltos-kubeconfig", scene.namespace
    right = (await scene.client.get(SECRETS, name, namespace=namespace))["data"]["kubeconfig"]
    await scene.client.patch(SECRETS, name, {"data": {"kubeconfig": "bm9uZQ=="}}, namespace=namespace)
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"cannot connect to SveltosCluster {scene.namespace}/edge" in message(failed)
        await scene.client.patch(SECRETS, name, {"data": {"kubeconfig": right}}, namespace=namespace)
        await scene.until_provisioned("web")
