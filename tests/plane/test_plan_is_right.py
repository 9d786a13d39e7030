"""What `unwind plan` predicts and what the teardown does are the same, object by object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.plane.support import cluster_teardowns, profiles
from tests.plane.support.random_plans import EVERY_RULE, PlanScene
from unwind.api.capi import CLUSTERS
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.api.rights import HOME
from unwind.api.unwind import Blocker, Phase, Teardown
from unwind.kube.errors import ApiError, NotFoundError
from unwind.kube.object_watch import until_absent

if TYPE_CHECKING:
    from tests.plane.support.requested_deletions import Command
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.local.plane import Plane

FEW, MANY = 7, 50
SEED = int(os.environ.get("UNWIND_PLAN_SEED", "1"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> str:
    await profiles.install(plane.management.client)
    return HOME


async def is_there(client: Client, resource: Resource, ref: ObjectRef) -> bool:
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return False
    except ApiError as error:
        if error.code != 404:
            raise
        return False  # its CRD is gone
    return bool(found["metadata"]["uid"] == ref.uid)


def uids(refs: list[dict[str, Any]]) -> set[str]:
    # An object whose creation was interrupted has none in the Inventory.
    return {ref["uid"] for ref in refs if ref.get("uid")}


HELD_BY_USERS = (Reason.PROTECTED, Reason.PAUSED)


async def ended_when_freed(it: PlanScene) -> tuple[Teardown, set[str]]:
    """The finished Teardown, and the uids of the protected objects and paused profiles that it waited for. Each is
    unprotected or unpaused then."""
    freed: set[str] = set()

    def held(teardown: Teardown) -> list[Blocker]:
        found = [blocker for blocker in teardown.status.blockers if blocker.reason in HELD_BY_USERS]
        return [blocker for blocker in found if blocker.object.uid not in freed]

    while True:
        teardown = await it.scene.teardown(lambda now: now.finished or bool(held(now)), "finished or held by a user")
        if teardown.finished:
            return teardown, freed
        for blocker in held(teardown):
            ref = blocker.object
            freed.add(ref.uid)
            if ref.uid in it.paused:
                await profiles.pause(it.scene.client, ref.name, paused=False)
                continue
            resource, _ = it.everything[ref.uid]
            patch = {"metadata": {"uid": ref.uid, "labels": {DELETE_PROTECTION_LABEL: None}}}
            await it.client.patch(resource, ref.name, patch, namespace=ref.namespace or None)


async def check(plane: Plane, namespace: str, planner: Command, seed: int, rule: str) -> set[str]:
    """Make a scene, compare its plan with what its teardown does, and return the rules that occurred."""
    scene = await cluster_teardowns.scene(plane, namespace)
    it = PlanScene(scene, seed, rule)
    await it.make()
    seen = await planner.foreseen(f"cluster/{scene.name}", namespace=scene.namespace)
    left = {step["name"] for step in seen["plan"]["steps"] if step["effort"] == "Leave"}
    going = set().union(*(uids(refs) for name, refs in seen["objects"].items() if name not in left))
    staying = uids([told["object"] for told in seen["staying"]])
    along = uids(seen["along"])
    assert not going & staying
    async with cluster_teardowns.manager(scene.client):
        await scene.delete()
        teardown, freed = await ended_when_freed(it)
    assert teardown.phase is Phase.COMPLETE
    blocked = {told["object"]["uid"]: told["object"] for told in seen["blocked"]}
    # A Namespace that is deleted with a protected object is free once that object is.
    assert freed == {uid for uid, ref in blocked.items() if uid in freed or ref["kind"] != NAMESPACES.kind}
    ours = {entry.object.uid for addon in it.addons for entry in addon.entries.values()}
    emptied = {ref.name for uid, (_, ref) in it.everything.items() if ref.kind == "Namespace" and uid in going}
    wrong: list[str] = []
    for uid, (resource, ref) in it.everything.items():
        goes = uid in going or uid in along or it.resources.get(uid) in going or it.children.get(uid) in going
        if goes and uid in it.children:
            await until_absent(
                it.client, resource, ref.name, namespace=ref.namespace
            )  # the garbage collector is slower
        there = await is_there(it.client, resource, ref)
        if there is goes:
            wrong.append(f"{ref}: predicted to {'go' if goes else 'stay'}, and did the opposite")
        if uid in ours and not goes and uid not in staying:
            wrong.append(f"{ref}: exists, and the plan says nothing about it")
        if not goes and ref.namespace in emptied:
            wrong.append(f"{ref}: predicted to stay in a Namespace that goes")
    for uid, (_, ref) in it.everything.items():
        if ref.kind == CUSTOM_RESOURCE_DEFINITIONS.kind and uid not in going:
            await it.client.delete(CUSTOM_RESOURCE_DEFINITIONS, ref.name, uid=uid)
    await scene.let_go()
    assert not wrong, f"seed {seed}, rule {rule or 'any'}, rules {sorted(it.rules)}: {wrong}"
    return it.rules


@pytest.mark.parametrize("number", range(FEW))
async def test_the_plan_predicts_what_the_teardown_does(
    plane: Plane, namespace: str, planner: Command, number: int
) -> None:
    few = ("foreign-content", "foreign-resources", "claims", "take-along", "protected", "cascading-namespace", "paused")
    await check(plane, namespace, planner, SEED + number, few[number])


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_fifty_plans_predict_what_their_teardowns_do(plane: Plane, namespace: str, planner: Command) -> None:
    occurred: set[str] = set()
    for number in range(MANY):
        occurred |= await check(plane, namespace, planner, SEED * 1000 + number, EVERY_RULE[number % len(EVERY_RULE)])
    assert occurred == set(EVERY_RULE)


async def test_a_namespace_with_foreign_content_is_kept_in_every_form_of_the_plan(
    plane: Plane, namespace: str, planner: Command
) -> None:
    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("web", objects=1, own_namespace=True)
    room = scene.namespace_of("web")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": room}}
    await scene.member.client.create(CONFIG_MAPS, body)
    seen = await planner.foreseen(f"cluster/{scene.name}", namespace=scene.namespace)
    assert (seen["plan"]["objects"], seen["radius"]["objects"], seen["radius"]["staying"]) == (1, 1, 1)
    assert [step["objects"] for step in seen["plan"]["steps"]] == [1]
    assert seen["radius"]["namespaces"] == []
    assert [(told["object"]["name"], told["why"]) for told in seen["staying"]] == [
        (room, f"it has foreign content: ConfigMap {room}/theirs")
    ]
    for output in ("table", "wide"):
        told = " ".join((await planner.plan(f"cluster/{scene.name}", namespace=scene.namespace, output=output)).split())
        assert "1 would be kept" in told
        assert "1 Namespace" not in told
        assert f"it has foreign content: ConfigMap {room}/theirs" in told
    async with cluster_teardowns.manager(scene.client):
        await scene.delete()
        assert (await scene.ended()).status.left == 1
    assert await scene.member.client.get(NAMESPACES, room)
    await scene.let_go()


async def test_what_a_paused_profile_leaves_stays_and_what_it_enforces_is_blocked_in_the_plan(
    plane: Plane, namespace: str, planner: Command
) -> None:
    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("tried", behaviour="RemovePolicies", objects=1)
    await scene.add_on("enforced", objects=1)
    for name in ("tried", "enforced"):
        await profiles.pause(scene.client, scene.profile(name))
    seen = await planner.foreseen(f"cluster/{scene.name}", namespace=scene.namespace)
    assert (seen["plan"]["objects"], seen["radius"]["objects"], seen["radius"]["staying"]) == (1, 1, 1)
    [stays] = seen["staying"]
    assert stays["object"]["name"] == "tried-0"
    assert f"ClusterProfile {scene.profile('tried')} is paused" in stays["why"]
    [blocked] = seen["blocked"]
    assert blocked["object"]["name"] == scene.profile("enforced")
    assert "paused" in blocked["why"]
    told = " ".join((await planner.plan(f"cluster/{scene.name}", namespace=scene.namespace)).split())
    assert "1 would be kept" in told
    assert f"Blocked, the deletion waits for these: ClusterProfile {scene.profile('enforced')}" in told
    seen = await planner.foreseen(f"clusterprofile/{scene.profile('enforced')}")
    assert [item["object"]["name"] for item in seen["blocked"]] == [scene.profile("enforced")]
    await scene.let_go()


async def test_the_plan_of_a_paused_cluster_is_blocked(plane: Plane, namespace: str, planner: Command) -> None:
    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("web", objects=1)
    await scene.client.patch(CLUSTERS, scene.name, {"spec": {"paused": True}}, namespace=scene.namespace)
    for target in (f"cluster/{scene.name}", f"clusterprofile/{scene.profile('web')}"):
        seen = await planner.foreseen(target, namespace=scene.namespace)
        [blocked] = seen["blocked"]
        assert (blocked["object"]["kind"], blocked["object"]["name"]) == ("Cluster", scene.name)
        assert "paused" in blocked["why"]
        assert seen["plan"]["objects"] == 1
    await scene.client.patch(CLUSTERS, scene.name, {"spec": {"paused": None}}, namespace=scene.namespace)
    await scene.let_go()
