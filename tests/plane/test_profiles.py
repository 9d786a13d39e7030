"""Profiles put add-ons on clusters and take them back, on real API servers and by a clock that stands still."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.plane.support.helm_steps import SETTINGS, VALUES
from tests.plane.support.profiles import Scene, condition, config_map, feature, install, message, playing, running
from unwind.addons.manifests import ADDONS
from unwind.api.capi import CLUSTERS
from unwind.api.names import OWNER_LABEL, Finalizer
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
)
from unwind.api.sveltos import (
    CLUSTER_CONFIGURATIONS,
    CLUSTER_SUMMARIES,
    PROFILES,
    SVELTOS_CLUSTERS,
    StopMatchingBehavior,
)
from unwind.api.unwind import INVENTORIES, TEARDOWNS
from unwind.clock import SYSTEM
from unwind.helm.program import Helm
from unwind.install.register import MACHINERY
from unwind.inventory.inventories import Inventories
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.local import building, tools, waiting
from unwind.local.capi import create_cluster
from unwind.teardown.manifests import RECORDS
from unwind.testing.charts import pack, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(plane: Plane) -> None:
    await install(plane.management.client)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str, installed: None) -> AsyncIterator[Scene]:
    async with playing(plane, namespace) as scene:
        yield scene


async def test_a_cluster_that_matches_gets_what_the_profile_says(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    summary = await scene.summary("web")
    there = await scene.on_member()
    assert set(there) == {"a", "b"}
    assert there["a"]["metadata"]["labels"][OWNER_LABEL] == summary.metadata.uid
    assert summary.metadata.labels == {
        "projectsveltos.io/cluster-profile-name": scene.called("web"),
        "projectsveltos.io/cluster-name": "edge",
        "projectsveltos.io/cluster-type": "Sveltos",
    }
    [chunk] = await scene.inventories(summary.metadata.uid)
    assert {entry.object.name for entry in chunk.spec.entries.values()} == {"a", "b"}
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]


async def test_an_edited_source_starts_towards_the_member_at_once_and_what_drops_out_goes(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"), config_map(scene.namespace, "c"))
        await scene.until_on_member("a", lambda it: it["data"]["color"] == "blue")
        await scene.until_on_member("c")
        await scene.until_off_member("b")
    assert scene.deleted() == ["b"]


async def test_a_source_that_is_missing_is_named_and_deployed_when_it_comes(scene: Scene) -> None:
    await scene.register()
    await scene.profile("web", "later")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/later" in message(failed)
        await scene.source("later", config_map(scene.namespace, "a"))
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"a"}


async def test_clusters_are_chosen_by_name_too_and_a_profile_that_is_deleted_takes_its_add_ons_back(
    scene: Scene,
) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register(labels={})
    reference = {
        "apiVersion": SVELTOS_CLUSTERS.api_version,
        "kind": "SveltosCluster",
        "namespace": scene.namespace,
        "name": "edge",
    }
    await scene.profile("web", "web", clusterSelector={}, clusterRefs=[reference])
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        found = await scene.until_profile("web", lambda it: bool((it.get("status") or {}).get("matchingClusters")))
        assert found["status"]["matchingClusters"] == [reference]
        uid = (await scene.summary("web")).metadata.uid
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    assert await scene.on_member() == {}
    assert await scene.inventories(uid) == []
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert "finalizers" not in secret["metadata"], "nothing is on the member that needs it"


async def test_what_depends_on_others_is_deployed_after_them_and_says_what_it_waits_for(scene: Scene) -> None:
    for name in ("base", "middle", "top"):
        await scene.source(name, config_map(scene.namespace, name))
    await scene.register()
    await scene.profile("top", "top", dependsOn=scene.needs("middle"))
    await scene.profile("middle", "middle", dependsOn=scene.needs("base"))
    async with running(scene.client, scene.namespace):
        waits = {
            "top": f"waiting for dependencies: ClusterProfile {scene.called('middle')} is not Provisioned",
            "middle": f"waiting for dependencies: ClusterProfile {scene.called('base')} is not on this cluster",
        }
        for name, told in waits.items():
            await scene.until_summary(name, lambda it, told=told: it.status.dependencies == told, told)  # type: ignore[misc]
        await scene.profile("base", "base")
        await scene.until_provisioned("base", "middle", "top")
    assert scene.created() == ["base", "middle", "top"]
    assert (await scene.summary("top")).status.dependencies is None


async def test_a_chain_is_withdrawn_in_reverse_order_when_the_label_goes(scene: Scene, plane: Plane) -> None:
    await scene.register()
    for number, name in enumerate(("base", "middle", "top")):
        await scene.source(name, *(config_map(scene.namespace, f"{name}-{number}") for number in range(3)))
        await scene.profile(name, name, dependsOn=scene.needs(*("base", "middle", "top")[:number][-1:]))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base", "middle", "top")
        uids = [(await scene.summary(name)).metadata.uid for name in ("base", "middle", "top")]
        await scene.client.patch(
            SVELTOS_CLUSTERS, "edge", {"metadata": {"labels": {"test": None}}}, namespace=scene.namespace
        )
        for name in ("base", "middle", "top"):
            await scene.until_summary_gone(name)
    assert await scene.on_member() == {}
    assert [name.partition("-")[0] for name in scene.deleted()] == ["top"] * 3 + ["middle"] * 3 + ["base"] * 3
    asked = plane.management.audit.deletions(resource="clustersummaries", namespace=scene.namespace)
    summaries = [scene.summary_name(name) for name in ("top", "middle", "base")]
    assert [item.object_ref.name for item in asked] == summaries, "what goes first is asked for first"
    assert [await scene.inventories(uid) for uid in uids] == [[], [], []]


async def test_what_others_still_need_waits_for_them_and_says_so(scene: Scene) -> None:
    await scene.register()
    for name, needs in (("base", ()), ("top", scene.needs("base"))):
        await scene.source(name, config_map(scene.namespace, name))
        await scene.profile(name, name, dependsOn=list(needs))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base", "top")
        await scene.delete_profile("base")
        waits = await scene.until_summary("base", lambda it: bool(it.status.dependencies), "waiting")
        told = f"waiting for removal of dependents: ClusterProfile {scene.called('top')}"
        assert waits.status.dependencies == told
        assert set(await scene.on_member()) == {"base", "top"}
        await scene.delete_profile("top")
        await scene.until_profile_gone("base")
        await scene.until_profile_gone("top")
    assert scene.deleted() == ["top", "base"]


async def test_what_another_deploys_during_a_withdrawal_goes_as_well(scene: Scene) -> None:
    held = config_map(scene.namespace, "held")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("web", held)
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.delete_profile("web")
        uid = (await scene.until_summary("web", lambda it: bool(message(it)), "waiting")).metadata.uid
        # As somebody does who does not know yet that it goes.
        late = config_map(scene.namespace, "late")
        late["metadata"]["labels"] = {OWNER_LABEL: uid}
        made = (await scene.member.client.create(CONFIG_MAPS, late))["metadata"]
        ref = {"version": "v1", "kind": "ConfigMap", **{key: made[key] for key in ("namespace", "name", "uid")}}
        entry = {"object": ref, "resource": "configmaps", "state": "Confirmed"}
        patch = {"spec": {"entries": {"late": entry}}}
        await scene.client.patch(INVENTORIES, f"{uid}-0", patch, namespace=scene.namespace)
        free = {"metadata": {"finalizers": None}}
        await scene.member.client.patch(CONFIG_MAPS, "held", free, namespace=scene.namespace)
        await scene.until_profile_gone("web")
    assert scene.deleted() == ["held", "late"]
    assert await scene.inventories(uid) == []


async def test_what_is_left_is_released_and_in_the_ledger(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web", stopMatchingBehavior="LeavePolicies")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        before, uid = await scene.on_member(), (await scene.summary("web")).metadata.uid
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    after = await scene.on_member()
    assert after["a"]["metadata"]["uid"] == before["a"]["metadata"]["uid"]
    assert after["a"]["data"] == before["a"]["data"]
    assert "labels" not in after["a"]["metadata"]
    assert "annotations" not in after["a"]["metadata"]
    [chunk] = await scene.inventories(uid)
    [entry] = chunk.spec.entries.values()
    assert entry.ledger
    assert (entry.kept, entry.ledger.reason, entry.object.name) == (True, "KeptByPolicy", "a")
    assert scene.deleted() == []


async def test_what_is_not_supported_yet_is_said_and_nothing_is_applied(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web", reloader=True)
    async with running(scene.client, scene.namespace):
        found = await scene.until_profile("web", lambda it: condition(it, "Accepted").get("status") == "False")
        said = condition(found, "Accepted")
        assert (said["reason"], said["message"]) == ("NotSupported", "not supported: reloader")
        assert await scene.on_member() == {}
        await scene.edit_profile("web", {"reloader": False})
        await scene.until_provisioned("web")
        found = await scene.until_profile("web", lambda it: condition(it, "Accepted").get("status") == "True")


async def test_profiles_that_depend_on_each_other_are_named_and_the_others_go_on(scene: Scene) -> None:
    await scene.register()
    for name, needs in (("a", ["b"]), ("b", ["a"]), ("c", [])):
        await scene.source(name, config_map(scene.namespace, name))
        await scene.profile(name, name, dependsOn=scene.needs(*needs))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("c")
        found = await scene.until_profile("a", lambda it: condition(it, "Accepted").get("reason") == "Cycle")
        one, other = scene.called("a"), scene.called("b")
        assert condition(found, "Accepted")["message"] == f"dependency cycle: {one} → {other} → {one}"
        assert set(await scene.on_member()) == {"c"}
        await scene.edit_profile("b", {"dependsOn": []})
        await scene.until_provisioned("a", "b")


async def test_an_object_that_fails_is_named_and_the_others_are_there(scene: Scene) -> None:
    broken = config_map(scene.namespace, "broken") | {"data": {"number": 1}}
    await scene.source("web", config_map(scene.namespace, "a"), broken, config_map(scene.namespace, "z"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/broken" in message(failed)
        assert failed.status.feature_summaries[0].consecutive_failures >= 1
        assert set(await scene.on_member()) == {"a", "z"}
        await scene.edit("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "broken"))
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"a", "broken"}
    assert (await scene.summary("web")).status.feature_summaries[0].consecutive_failures == 0


async def test_a_foreign_object_of_the_same_name_is_neither_changed_nor_deleted(scene: Scene) -> None:
    theirs = await scene.member.client.create(CONFIG_MAPS, config_map(scene.namespace, "a", whose="theirs"))
    await scene.source("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/a" in message(failed)
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    there = await scene.on_member()
    assert set(there) == {"a"}
    assert there["a"]["metadata"] == theirs["metadata"]
    assert there["a"]["data"] == {"whose": "theirs"}


async def test_a_removal_that_waits_for_a_finalizer_says_so(scene: Scene) -> None:
    held = config_map(scene.namespace, "held")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("web", held)
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.delete_profile("web")
        waits = await scene.until_summary("web", lambda it: bool(message(it)), "waiting")
        assert feature(waits) == "Removing"
        assert message(waits) == f"ConfigMap {scene.namespace}/held waits for finalizers example.dev/hold"
        free = {"metadata": {"finalizers": None}}
        await scene.member.client.patch(CONFIG_MAPS, "held", free, namespace=scene.namespace)
        await scene.until_profile_gone("web")


async def test_controllers_that_are_started_anew_go_on_where_the_others_were(scene: Scene) -> None:
    held = config_map(scene.namespace, "top")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("base", config_map(scene.namespace, "base"))
    await scene.source("top", held)
    await scene.register()
    await scene.profile("base", "base")
    await scene.profile("top", "top", dependsOn=scene.needs("base"))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base", "top")
        await scene.delete_profile("top")
        await scene.delete_profile("base")
        await scene.until_summary("top", lambda it: "example.dev/hold" in message(it), "waiting")
    async with running(scene.client, scene.namespace):
        free = {"metadata": {"finalizers": None}}
        await scene.member.client.patch(CONFIG_MAPS, "top", free, namespace=scene.namespace)
        await scene.until_profile_gone("base")
        await scene.until_profile_gone("top")
    assert await scene.on_member() == {}
    assert scene.deleted() == ["top", "base"]


async def test_what_is_deployed_already_is_not_touched_by_controllers_that_start_anew(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    before = list(scene.member.audit.entries(namespace=scene.namespace))
    async with running(scene.client, scene.namespace):
        await scene.source("new", config_map(scene.namespace, "n"))
        await scene.profile("new", "new")
        await scene.until_provisioned("new")
    after = list(scene.member.audit.entries(namespace=scene.namespace))[len(before) :]
    assert {item.object_ref.name for item in after if item.object_ref.resource == "configmaps"} <= {"n", ""}


async def test_a_dry_run_says_what_it_would_do_and_touches_nothing(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web", syncMode="DryRun")
    async with running(scene.client, scene.namespace):
        said = await scene.until_summary("web", lambda it: any(item.type == "DryRun" for item in it.status.conditions))
        [report] = [item.message for item in said.status.conditions if item.type == "DryRun"]
        assert f"ConfigMap {scene.namespace}/a: Created" in report
        assert await scene.on_member() == {}
        assert await scene.inventories(said.metadata.uid) == []
        await scene.edit_profile("web", {"syncMode": "Continuous"})
        await scene.until_provisioned("web")


async def test_what_is_deployed_once_is_not_changed_afterwards(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"))
    await scene.source("other", config_map(scene.namespace, "z"))
    await scene.register()
    await scene.profile("web", "web", syncMode="OneTime")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"))
        await scene.edit_profile(
            "web", {"policyRefs": scene.refs("web", "other"), "stopMatchingBehavior": "LeavePolicies"}
        )
        await scene.until_summary(
            "web", lambda it: it.spec.cluster_profile_spec.stop_matching_behavior == "LeavePolicies"
        )
        # Had it been deployed, it would have been before this one.
        await scene.profile("other", "other")
        await scene.until_provisioned("other")
    assert (await scene.on_member())["a"]["data"] == {"color": "red"}


async def test_a_cluster_that_is_managed_no_longer_keeps_its_add_ons_and_the_ledger_names_them(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    made = await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        uid = (await scene.summary("web")).metadata.uid
        await scene.client.delete(SVELTOS_CLUSTERS, "edge", uid=made["metadata"]["uid"], namespace=scene.namespace)
        await scene.until_summary_gone("web")
    assert set(await scene.on_member()) == {"a"}
    assert scene.deleted() == []
    [chunk] = await scene.inventories(uid)
    [entry] = chunk.spec.entries.values()
    assert entry.ledger
    assert entry.ledger.reason == "Unmanaged"
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert "finalizers" not in secret["metadata"]


async def test_a_cluster_that_is_not_ready_or_paused_gets_nothing_until_it_is(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register(ready=False)
    await scene.client.patch(SVELTOS_CLUSTERS, "edge", {"spec": {"paused": True}}, namespace=scene.namespace)
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_profile("web", lambda it: bool((it.get("status") or {}).get("matchingClusters")))
        ready = {"status": {"ready": True}}
        await scene.client.patch(SVELTOS_CLUSTERS, "edge", ready, namespace=scene.namespace, subresource="status")
        waits = await scene.until_summary("web", lambda it: bool(it.status.dependencies), "waiting")
        assert waits.status.dependencies == f"SveltosCluster {scene.namespace}/edge is paused"
        assert await scene.on_member() == {}
        await scene.client.patch(SVELTOS_CLUSTERS, "edge", {"spec": {"paused": False}}, namespace=scene.namespace)
        await scene.until_provisioned("web")


async def test_the_configuration_of_a_cluster_lists_what_is_there_by_profile(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.until_provisioned("web")
        found = await waiting.until(
            scene.client,
            CLUSTER_CONFIGURATIONS,
            "sveltos-edge",
            lambda it: bool(it and it.get("status")),
            "written",
            namespace=scene.namespace,
        )
        assert found
        [profile] = found["status"]["clusterProfileResources"]
        assert profile["clusterProfileName"] == scene.called("web")
        [deployed] = profile["Features"]
        assert [item["name"] for item in deployed["resources"]] == ["a"]
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
        await waiting.until_absent(scene.client, CLUSTER_CONFIGURATIONS, "sveltos-edge", namespace=scene.namespace)


async def test_a_cluster_api_cluster_gets_add_ons_once_its_control_plane_answers(scene: Scene) -> None:
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


async def test_a_cluster_that_is_deleted_is_left_to_its_teardown(scene: Scene) -> None:
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
        told = f"waiting for Teardown {uid} of the cluster"
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


async def test_a_cluster_that_is_deleted_during_a_withdrawal_is_left_to_its_teardown(scene: Scene) -> None:
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
        told = f"waiting for Teardown {uid} of the cluster"
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


async def cluster(scene: Scene, *, finalizers: list[str] | None = None) -> str:
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


async def test_a_stop_matching_behaviour_that_is_not_known_holds(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    # Somebody's CRD may let any word pass.
    async with any_word(scene), running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit_profile("web", {"stopMatchingBehavior": "Withdraw"})
        found = await scene.until_profile("web", lambda it: bool(condition(it, "UnknownValue")))
        assert "stopMatchingBehavior: 'Withdraw' is not known" in condition(found, "UnknownValue")["message"]
        await scene.client.patch(
            SVELTOS_CLUSTERS, "edge", {"metadata": {"labels": {"test": None}}}, namespace=scene.namespace
        )
        await scene.until_profile("web", lambda it: not (it["status"].get("matchingClusters")))
        assert not (await scene.summary("web")).metadata.terminating
        # Not even a person who deletes the summary has it removed.
        summary = await scene.summary("web")
        word = {"spec": {"clusterProfileSpec": {"stopMatchingBehavior": "Withdraw"}}}
        await scene.client.patch(CLUSTER_SUMMARIES, summary.metadata.name, word, namespace=scene.namespace)
        await scene.client.delete(
            CLUSTER_SUMMARIES, summary.metadata.name, uid=summary.metadata.uid, namespace=scene.namespace
        )
        await scene.until_summary("web", lambda it: "'Withdraw' is not known" in (it.status.dependencies or ""), "held")
        assert set(await scene.on_member()) == {"a"}
        right = {"spec": {"clusterProfileSpec": {"stopMatchingBehavior": "WithdrawPolicies"}}}
        await scene.client.patch(CLUSTER_SUMMARIES, summary.metadata.name, right, namespace=scene.namespace)
        await scene.until_summary_gone("web")
    assert await scene.on_member() == {}


@asynccontextmanager
async def any_word(scene: Scene) -> AsyncIterator[None]:
    """CRDs that do not say which words there are."""
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
    paths = {
        "clusterprofiles.config.projectsveltos.io": f"{schema}/stopMatchingBehavior/enum",
        "clustersummaries.config.projectsveltos.io": (
            f"{schema}/clusterProfileSpec/properties/stopMatchingBehavior/enum"
        ),
    }
    words = [word.value for word in StopMatchingBehavior]
    for name, path in paths.items():
        await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, [{"op": "remove", "path": path}])
    try:
        async with asyncio.timeout(30):
            while not await _taken(scene):
                await asyncio.sleep(0.1)
        yield
    finally:
        for name, path in paths.items():
            add = [{"op": "add", "path": path, "value": words}]
            await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, add)


async def _taken(scene: Scene) -> bool:
    try:
        await scene.edit_profile("web", {"stopMatchingBehavior": "Probe"})
        await scene.edit_profile("web", {"stopMatchingBehavior": "WithdrawPolicies"})
    except ApiError:
        return False
    return True


async def test_a_profile_is_for_its_namespace_and_reads_its_secrets(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"), secret=True)
    await scene.register()
    reference = {"kind": "Secret", "namespace": "kube-system", "name": "web"}
    await scene.profile("web", kind=PROFILES, policyRefs=[reference])
    name = "p--web-sveltos-edge"
    async with running(scene.client, scene.namespace):
        await scene.until_on_member("a")
        found = await scene.client.get(CLUSTER_SUMMARIES, name, namespace=scene.namespace)
        assert found["metadata"]["labels"]["projectsveltos.io/profile-name"] == "web"
        assert found["spec"]["clusterProfileSpec"]["policyRefs"][0]["namespace"] == scene.namespace
        await scene.delete_profile("web", PROFILES)
        await waiting.until_absent(scene.client, PROFILES, "web", namespace=scene.namespace, within=30)
    assert await scene.on_member() == {}


async def test_another_cluster_that_gets_the_name_gets_add_ons_of_its_own(scene: Scene) -> None:
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


async def test_who_does_not_own_a_cluster_does_nothing_for_it_until_it_does(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web")
    owner = Some()
    async with running(scene.client, scene.namespace, owner=owner):
        await scene.until_profile("web", lambda it: bool((it.get("status") or {}).get("matchingClusters")))
        assert not await scene.client.list(CLUSTER_SUMMARIES, namespace=scene.namespace)
        owner.gain(f"{scene.namespace}/edge")
        await scene.until_provisioned("web")


class Some:
    """Owns all profiles, and the clusters that it has gained."""

    def __init__(self) -> None:
        self._clusters: set[str] = set()
        self._told: list[Callable[[], None]] = []

    def owns(self, key: str) -> bool:
        return key in self._clusters or key.startswith("ClusterProfile ")

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._told.append(changed)

    def gain(self, cluster: str) -> None:
        self._clusters.add(cluster)
        for told in self._told:
            told()


async def test_the_rights_of_the_manager_are_enough(plane: Plane, scene: Scene) -> None:
    subject = await granted(scene)
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    await scene.profile("web", "web")
    connection = plane.management.connection(subject)
    async with Client(connection) as client, running(client, scene.namespace, clock=SYSTEM):
        await scene.until_provisioned("web")
        await waiting.until(
            scene.client,
            CLUSTER_CONFIGURATIONS,
            "sveltos-edge",
            lambda it: bool(it and it.get("status")),
            "written",
            namespace=scene.namespace,
        )
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
        await waiting.until_absent(scene.client, CLUSTER_CONFIGURATIONS, "sveltos-edge", namespace=scene.namespace)
    refused = [entry for entry in plane.management.audit.entries(user=subject) if entry.code == 403]
    assert refused == []


async def granted(scene: Scene) -> str:
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


async def test_a_kubeconfig_that_is_put_right_is_used_at_once(scene: Scene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    name, where = "edge-sveltos-kubeconfig", {"namespace": scene.namespace}
    right = (await scene.client.get(SECRETS, name, **where))["data"]["kubeconfig"]
    await scene.client.patch(SECRETS, name, {"data": {"kubeconfig": "bm9uZQ=="}}, **where)
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"cannot connect to SveltosCluster {scene.namespace}/edge" in message(failed)
        await scene.client.patch(SECRETS, name, {"data": {"kubeconfig": right}}, **where)
        await scene.until_provisioned("web")


async def test_a_chart_comes_and_goes_with_its_profile(scene: Scene, tmp_path: Path) -> None:
    directory = unpack(pack("settings", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS}), tmp_path)
    helm = Helm((await building.ensure([tools.HELM]))["helm"].path, charts=tmp_path)
    chart = {
        "repositoryURL": directory.as_uri(),
        "releaseName": "app",
        "releaseNamespace": scene.namespace,
        "values": "colour: green",
    }
    await scene.register()
    await scene.profile("app", helmCharts=[chart])
    async with running(scene.client, scene.namespace, helm=helm):
        await scene.until_summary("app", lambda it: feature(it, "Helm") == "Provisioned", "Provisioned")
        there = await scene.on_member()
        assert there["app-settings"]["data"]["colour"] == "green"
        await scene.edit_profile("app", {"helmCharts": [chart | {"values": "colour: red"}]})
        await scene.until_on_member("app-settings", lambda it: it["data"]["colour"] == "red")
        await scene.delete_profile("app")
        await scene.until_off_member("app-settings")
        await scene.until_profile_gone("app")


async def test_the_last_summaries_of_a_cluster_that_end_together_let_its_secret_go(scene: Scene) -> None:
    names = ["p1", "p2", "p3", "p4", "p5", "p6"]
    for name in names:
        await scene.source(name, config_map(scene.namespace, name))
    await scene.register()
    for name in names:
        await scene.profile(name, name)
    async with running(scene.client, scene.namespace):
        for name in names:
            await scene.until_provisioned(name)
        secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]
        # All of them stop matching in the same moment.
        await scene.client.patch(
            SVELTOS_CLUSTERS, "edge", {"metadata": {"labels": {"test": None}}}, namespace=scene.namespace
        )
        for name in names:
            await waiting.until_absent(
                scene.client, CLUSTER_SUMMARIES, scene.summary_name(name), namespace=scene.namespace, within=60
            )
    assert await scene.on_member() == {}
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert Finalizer.CREDENTIALS not in (secret["metadata"].get("finalizers") or [])
