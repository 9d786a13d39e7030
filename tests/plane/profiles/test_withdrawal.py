"""Profiles take add-ons back: in reverse order, or leave them, and say what they wait for."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.eventually import eventually
from tests.plane.support.profiles import ProfileScene, condition, config_map, feature, message, running
from unwind.api.names import OWNER_LABEL, Finalizer
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES, SVELTOS_CLUSTERS, StopMatchingBehavior
from unwind.api.unwind import INVENTORIES
from unwind.clock import SYSTEM
from unwind.kube import object_watch
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


async def test_a_profile_selects_clusters_by_name_and_removes_its_add_ons_when_deleted(scene: ProfileScene) -> None:
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


async def test_dependent_profiles_are_withdrawn_in_reverse_order_when_the_label_is_removed(
    scene: ProfileScene, plane: Plane
) -> None:
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


async def test_a_profile_that_others_depend_on_waits_for_them_and_reports_it(scene: ProfileScene) -> None:
    await scene.register()
    for name, needs in (("base", ()), ("top", scene.needs("base"))):
        await scene.source(name, config_map(scene.namespace, name))
        await scene.profile(name, name, dependsOn=list(needs))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base", "top")
        await scene.delete_profile("base")
        waits = await scene.until_summary("base", lambda it: bool(it.status.dependencies), "waiting")
        told = f"waiting for the removal of the profiles that depend on it: ClusterProfile {scene.called('top')}"
        assert waits.status.dependencies == told
        assert set(await scene.on_member()) == {"base", "top"}
        await scene.delete_profile("top")
        await scene.until_profile_gone("base")
        await scene.until_profile_gone("top")
    assert scene.deleted() == ["top", "base"]


async def held_add_on(scene: ProfileScene) -> None:
    """A profile whose only object has a finalizer."""
    held = config_map(scene.namespace, "held")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("web", held)
    await scene.register()
    await scene.profile("web", "web")


async def test_objects_deployed_during_a_withdrawal_are_removed_too(scene: ProfileScene) -> None:
    await held_add_on(scene)
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


async def test_left_objects_are_unmarked_and_recorded_in_the_ledger(scene: ProfileScene) -> None:
    await scene.provide(stopMatchingBehavior="LeavePolicies")
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


async def test_a_removal_blocked_by_a_finalizer_is_reported(scene: ProfileScene) -> None:
    await held_add_on(scene)
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.delete_profile("web")
        waits = await scene.until_summary("web", lambda it: bool(message(it)), "waiting")
        assert feature(waits) == "Removing"
        assert message(waits) == f"ConfigMap {scene.namespace}/held waits for finalizers example.dev/hold"
        free = {"metadata": {"finalizers": None}}
        await scene.member.client.patch(CONFIG_MAPS, "held", free, namespace=scene.namespace)
        await scene.until_profile_gone("web")


async def test_a_cluster_that_is_no_longer_managed_keeps_its_add_ons_and_the_ledger_lists_them(
    scene: ProfileScene,
) -> None:
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


async def test_an_unknown_stop_matching_behaviour_holds(scene: ProfileScene) -> None:
    await scene.provide()
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
async def any_word(scene: ProfileScene) -> AsyncIterator[None]:
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
        await eventually(lambda: _taken(scene), "a CRD that accepts any value", within=30)
        yield
    finally:
        for name, path in paths.items():
            add = [{"op": "add", "path": path, "value": words}]
            await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, add)


async def _taken(scene: ProfileScene) -> bool:
    try:
        await scene.edit_profile("web", {"stopMatchingBehavior": "Probe"})
        await scene.edit_profile("web", {"stopMatchingBehavior": "WithdrawPolicies"})
    except ApiError:
        return False
    return True


async def test_the_secret_is_freed_when_the_last_summaries_of_a_cluster_end_together(scene: ProfileScene) -> None:
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
            await object_watch.until_absent(
                scene.client, CLUSTER_SUMMARIES, scene.summary_name(name), namespace=scene.namespace, within=60
            )
    assert await scene.on_member() == {}
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert Finalizer.CREDENTIALS not in (secret["metadata"].get("finalizers") or [])
