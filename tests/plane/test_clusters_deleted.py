"""Clusters deleted from under the add-ons that real profiles put on them, with all controllers at work."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers, until_let_go
from tests.plane.support.controllers import HOLD
from tests.plane.support.profiles import condition, config_map, feature
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.names import TAKE_ALONG_ANNOTATION, Finalizer
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.sveltos import CLUSTER_PROFILES, SVELTOS_CLUSTERS
from unwind.api.unwind import Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube import kubeconfig, object_watch
from unwind.kube.discovery import Named
from unwind.preview.cluster_preview import foresee
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

# Among the longest: they run with the soak tests.
pytestmark = pytest.mark.soak

BEHAVIOURS = ("LeavePolicies", "RemovePolicies", "EnforceRemovePolicies")


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[DeployedScene]:
    made = DeployedScene(plane, namespace)
    yield made
    await made.clear()


def blocked(teardown: Teardown) -> bool:
    return any(blocker.actor for blocker in teardown.status.blockers)


@pytest.mark.parametrize("topology", [True, False], ids=["ClusterClass", "no ClusterClass"])
async def test_each_profile_gets_what_it_says(scene: DeployedScene, topology: bool) -> None:
    await scene.begin(topology=topology)
    for behaviour in BEHAVIOURS:
        await scene.add_on(behaviour.lower(), behaviour=behaviour)
    names = [behaviour.lower() for behaviour in BEHAVIOURS]
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed(*names)
        secret = await scene.cluster.secret()
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]
        summaries = {name: (await scene.summary_of(name)).metadata.uid for name in names}
        await scene.cluster.delete()
        teardown = await scene.cluster.ended()
        assert teardown.phase is Phase.COMPLETE
        assert meta.is_true(teardown.status.conditions, "GateNotAvailable") is not topology
        assert {step.name.rpartition("-")[2]: step.state for step in teardown.status.steps} == {
            "leavepolicies": "Left",
            "removepolicies": "Removed",
            "enforceremovepolicies": "Removed",
        }
        assert set(await scene.on_member()) == {"leavepolicies-0", "leavepolicies-1"}
        await until_let_go(scene)
        await scene.cluster.go()
        await scene.until_summaries_gone(*names)
    for name in names:
        entries = [entry for chunk in await scene.inventories(summaries[name]) for entry in chunk.spec.entries.values()]
        told = [entry.ledger.reason for entry in entries if entry.ledger]
        assert told == (["KeptByPolicy"] * 2 if name == "leavepolicies" else [])
        assert len(entries) == len(told)
    left = await scene.on_member()
    assert not any("unwind.dev/owner" in (item["metadata"].get("labels") or {}) for item in left.values())


async def test_features_go_from_provisioned_by_removing_to_removed(scene: DeployedScene) -> None:
    await scene.begin()
    async with scene.deleting("web-0", "web"):
        for word in ("Removing", "Removed"):
            await scene.until_summary(
                "web",
                lambda it, word=word: feature(it) == word,  # type: ignore[misc]
                word,
                cluster=scene.cluster.name,
                type_="capi",
            )
            if word == "Removing":
                await scene.unblock("web-0")
        await scene.cluster.ended()
        await scene.cluster.go()


async def test_a_sveltos_cluster_that_is_deleted_is_merely_unmanaged(scene: DeployedScene) -> None:
    await scene.begin()  # another cluster with the same label, which stays as it is
    made = await scene.register()
    names = [behaviour.lower() for behaviour in BEHAVIOURS]
    for behaviour in BEHAVIOURS:
        await scene.add_on(behaviour.lower(), behaviour=behaviour, objects=1)
    refs = [{"apiVersion": SVELTOS_CLUSTERS.api_version, "kind": "SveltosCluster"}]
    for name in names:
        reference = refs[0] | {"namespace": scene.namespace, "name": "edge"}
        await scene.edit_profile(name, {"clusterSelector": None, "clusterRefs": [reference]})
    async with all_controllers(scene.client, scene.namespace):
        await scene.until_provisioned(*names)
        summaries = [(await scene.summary(name)).metadata.uid for name in names]
        await scene.client.delete(SVELTOS_CLUSTERS, "edge", uid=made["metadata"]["uid"], namespace=scene.namespace)
        await object_watch.until_absent(scene.client, SVELTOS_CLUSTERS, "edge", namespace=scene.namespace)
        for name in names:
            await scene.until_summary_gone(name)
        for uid in summaries:
            [chunk] = await scene.inventories(uid)
            assert [entry.ledger.reason for entry in chunk.spec.entries.values() if entry.ledger] == ["Unmanaged"]
        assert set(await scene.on_member()) == {f"{name}-0" for name in names}
        assert scene.deleted() == []
        await scene.cluster.delete()
        await scene.cluster.ended()
        await scene.cluster.go()


def dag(seed: int) -> dict[str, tuple[str, ...]]:
    chance = random.Random(seed)
    names = [f"p{number}" for number in range(7)]
    return {
        name: tuple(other for other in names[:number] if chance.random() < 0.4) for number, name in enumerate(names)
    }


GRAPHS = {
    "chain": {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)},
    "diamond": {"bottom": (), "left": ("bottom",), "right": ("bottom",), "top": ("left", "right")},
    **{f"random {seed}": dag(seed) for seed in (1, 2, 3)},
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
async def test_what_needs_another_is_gone_before_the_other_is_touched(
    scene: DeployedScene, graph: dict[str, tuple[str, ...]]
) -> None:
    await scene.begin()
    for name, needs in graph.items():
        await scene.add_on(name, depends_on=needs)
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed(*graph)
        await scene.cluster.delete()
        teardown = await scene.cluster.ended()
        assert teardown.status.removed == f"{2 * len(graph)}/{2 * len(graph)}"
        await scene.cluster.go()
    went = scene.deletion_times()
    assert set(went) == {f"{name}-{number}" for name in graph for number in range(2)}
    for name, needs in graph.items():
        gone = max(went[f"{name}-{number}"][1] for number in range(2))
        for need in needs:
            touched = min(went[f"{need}-{number}"][0] for number in range(2))
            assert gone <= touched, f"{need} was touched while {name} was there"


async def test_a_finalizer_that_nobody_serves_is_named_and_who_must_act(scene: DeployedScene) -> None:
    await scene.begin()
    async with scene.deleting("web-0", "web"):
        held = await scene.cluster.teardown(blocked, "blocked, with an actor")
        [blocker] = held.status.blockers
        assert held.phase is Phase.HELD
        assert (blocker.object.name, HOLD in blocker.message, blocker.since is not None) == ("web-0", True, True)
        assert set(await scene.on_member()) == {"web-0"}
        await scene.unblock("web-0")
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
        await scene.cluster.go()


async def test_a_profile_that_is_edited_during_a_teardown_does_not_change_it(scene: DeployedScene) -> None:
    await scene.begin()
    async with scene.deleting("top-0", "base", "top", chained=True):
        before = await scene.cluster.teardown(blocked, "blocked")
        await scene.edit_profile("base", {"clusterDeletionBehavior": "LeavePolicies"})
        await scene.edit_profile("top", {"clusterDeletionBehavior": "LeavePolicies", "dependsOn": []})
        await scene.until_profile("top", lambda it: bool(condition(it, "Accepted")))
        assert scene.deleted().count("base-0") == 0
        await scene.unblock("top-0")
        after = await scene.cluster.ended()
        await scene.cluster.go()
    assert after.spec.plan == before.spec.plan
    assert after.phase is Phase.COMPLETE
    assert await scene.on_member() == {}


def unreachable(teardown: Teardown) -> bool:
    return meta.is_true(teardown.status.conditions, "MemberUnreachable")


@pytest.mark.parametrize("behaviour", ["EnforceRemovePolicies", "RemovePolicies"])
async def test_a_member_that_does_not_answer_is_waited_for_as_long_as_the_profile_says(
    scene: DeployedScene, behaviour: str
) -> None:
    await scene.begin()
    await scene.add_on("web", behaviour=behaviour)
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
        uid = (await scene.summary_of("web")).metadata.uid
    best_effort = 3.0 if behaviour == "RemovePolicies" else 600.0
    async with (
        Proxy(scene.member.server) as proxy,
        all_controllers(scene.client, scene.namespace, clock=SYSTEM, best_effort=best_effort),
    ):
        way = kubeconfig.load(scene.member.kubeconfig)
        await scene.cluster.lead_to(msgspec.structs.replace(way, server=proxy.url))
        proxy.close()
        await scene.cluster.delete()
        held = await scene.cluster.teardown(unreachable, "unreachable")
        [blocker] = held.status.blockers
        assert blocker.reason == "Unreachable"
        assert blocker.since is not None
        assert "does not answer" in blocker.message
        if behaviour == "EnforceRemovePolicies":
            assert held.phase is Phase.HELD
            proxy.reopen()
        ended = await scene.cluster.ended()
        assert ended.phase is Phase.COMPLETE
        await until_let_go(scene)
        await scene.cluster.go()
    notes = [entry.ledger for chunk in await scene.inventories(uid) for entry in chunk.spec.entries.values()]
    if behaviour == "EnforceRemovePolicies":
        assert await scene.on_member() == {}
        assert notes == []
    else:
        assert set(await scene.on_member()) == {"web-0", "web-1"}
        assert [(note.reason, "does not answer" in note.message) for note in notes if note] == [("GaveUp", True)] * 2


async def test_another_way_to_a_member_is_taken_in_the_middle_of_its_teardown(scene: DeployedScene) -> None:
    await scene.begin()
    await scene.add_on("base")
    await scene.add_on("top", depends_on=("base",))
    direct = kubeconfig.load(scene.member.kubeconfig)
    # No clock moves: it goes on because the Secret has changed, and not because it is time to try again.
    async with Proxy(scene.member.server) as proxy, all_controllers(scene.client, scene.namespace):
        await scene.cluster.lead_to(msgspec.structs.replace(direct, server=proxy.url))
        await scene.deployed("base", "top")
        await scene.block("top-0")
        await scene.cluster.delete()
        await scene.cluster.teardown(blocked, "blocked")
        proxy.close()
        await scene.unblock("top-0")
        await scene.cluster.lead_to(direct)
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
        await scene.cluster.go()
    assert await scene.on_member() == {}


async def test_nothing_is_deleted_on_another_cluster_behind_the_same_address(
    scene: DeployedScene, fresh_member: LocalCluster
) -> None:
    await scene.begin()
    await scene.add_on("web")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
    await fresh_member.create_namespace(scene.namespace)
    for name, one in (await scene.on_member()).items():
        metadata = {"name": name, "namespace": scene.namespace, "labels": one["metadata"]["labels"]}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await fresh_member.client.create(CONFIG_MAPS, body)
    right = kubeconfig.load(scene.member.kubeconfig)
    async with all_controllers(scene.client, scene.namespace, clock=SYSTEM):
        await scene.cluster.lead_to(kubeconfig.load(fresh_member.kubeconfig))
        await scene.cluster.delete()
        held = await scene.cluster.teardown(unreachable, "unreachable")
        assert "another cluster answers" in held.status.blocked_by
        assert fresh_member.audit.deletions(resource="configmaps") == []
        await scene.cluster.lead_to(right)
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
        await scene.cluster.go()
    assert await scene.on_member() == {}
    assert fresh_member.audit.deletions(resource="configmaps") == []


async def test_a_cluster_that_gets_the_name_of_another_has_a_life_and_a_teardown_of_its_own(
    scene: DeployedScene,
) -> None:
    await scene.begin()
    await scene.add_on("web")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
        first = (await scene.summary_of("web")).metadata.uid
        await scene.cluster.delete()
        before = await scene.cluster.ended()
        await scene.cluster.go()
        await scene.until_summaries_gone("web")
        await scene.cluster.create(labels=scene.label)
        await scene.deployed("web")
        assert (await scene.summary_of("web")).metadata.uid != first
        assert scene.cluster.uid != before.spec.target.uid
        secret = await scene.cluster.secret()
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]
        await scene.cluster.delete()
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
        await scene.cluster.go()
    assert await scene.on_member() == {}
    assert sorted(scene.deleted()) == ["web-0", "web-0", "web-1", "web-1"]


@pytest.mark.parametrize("along", [True, False], ids=["take-along", "without"])
async def test_what_is_foreign_in_a_namespace_goes_along_only_where_the_profile_says_so(
    scene: DeployedScene, along: bool
) -> None:
    await scene.begin()
    room = f"{scene.namespace}-room"
    await scene.source("web", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": room}})
    await scene.profile("web", "web", clusterDeletionBehavior="EnforceRemovePolicies")
    if along:
        said = {"metadata": {"annotations": {TAKE_ALONG_ANNOTATION: "true"}}}
        await scene.client.patch(CLUSTER_PROFILES, scene.called("web"), said)
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
        uid = (await scene.summary_of("web")).metadata.uid
        await scene.member.client.create(CONFIG_MAPS, config_map(room, "theirs"))
        named = Named(resource=CLUSTERS, name=scene.cluster.name, namespace=scene.namespace)
        foreseen = await foresee(scene.client, named, home=scene.namespace)
        await scene.cluster.delete()
        teardown = await scene.cluster.ended()
        await scene.cluster.go()
    assert teardown.phase is Phase.COMPLETE
    step = f"ClusterProfile/{scene.called('web')}"
    warning = f"{step}: Namespace {room} is deleted with foreign content: ConfigMap {room}/theirs"
    assert teardown.spec.plan
    assert teardown.spec.plan.warnings == ((warning,) if along else ())
    assert (warning in foreseen.plan.warnings) is along
    there = {namespace["metadata"]["name"] for namespace in await scene.member.client.list(NAMESPACES)}
    assert (room in there) is not along
    notes = [entry.ledger for chunk in await scene.inventories(uid) for entry in chunk.spec.entries.values()]
    told = [(note.reason, "theirs" in note.message) for note in notes if note]
    assert told == ([] if along else [("ForeignContent", True)])
