"""Paused profiles on a cluster that is deleted: the cluster waits for an enforced one, and the objects of any other one
are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support import profiles
from tests.plane.support.cluster_teardowns import TeardownScene, manager, stopped_midway
from tests.plane.support.controllers import HOLD
from tests.plane.support.profiles import pause
from unwind.api.names import FORCE_RELEASE_ANNOTATION, SVELTOS_PAUSED_ANNOTATION
from unwind.api.resources import CONFIG_MAPS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Phase
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from unwind.api.unwind import Teardown
    from unwind.kube.client import Object


def held_by(it: TeardownScene, profile: str, teardown: Teardown) -> bool:
    return any(
        (blocker.reason, blocker.object.kind, blocker.object.name) == ("Paused", "ClusterProfile", it.profile(profile))
        for blocker in teardown.status.blockers
    )


async def test_an_enforced_step_of_a_paused_profile_holds_until_it_is_unpaused(it: TeardownScene) -> None:
    await it.add_on("base")
    top = await it.add_on("top", depends_on=("base",))
    await it.add_on("other")
    await pause(it.client, it.profile("top"))
    async with manager(it.client):
        await it.delete()
        teardown = await it.teardown(lambda one: held_by(it, "top", one), "held by the paused profile")
        [blocker] = teardown.status.blockers
        assert "is paused" in blocker.message
        assert blocker.actor == "the user who paused it"
        assert any("is paused" in warning for warning in (teardown.spec.plan.warnings if teardown.spec.plan else ()))
        teardown = await it.teardown(lambda one: one.phase is Phase.HELD, "held")

        def told(obj: Object | None) -> bool:
            blocked = profiles.condition(obj or {}, "Blocked")
            return blocked.get("reason") == "Paused" and "must act: the user who paused it" in blocked["message"]

        summary = await until(it.client, CLUSTER_SUMMARIES, top.name, told, "paused", namespace=top.namespace)
        assert not profiles.condition(summary or {}, "Removing"), "nothing of it is being removed"
        # Nothing that it depends on is removed either.
        assert {name.partition("-")[0] for name in it.deleted()} == {"other"}
        await pause(it.client, it.profile("top"), paused=False)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_a_profile_paused_midway_gets_no_further_delete(it: TeardownScene) -> None:
    async with stopped_midway(it):
        await pause(it.client, it.profile("top"))
        await it.teardown(lambda one: held_by(it, "top", one) and len(one.status.blockers) == 1, "held by the profile")
        await it.unblock()
        await until_gone(it)
        # Its objects are gone, but that is verified only after it is unpaused.
        teardown = await it.teardown(lambda one: held_by(it, "top", one), "held by the profile")
        assert not teardown.finished
        assert {name.partition("-")[0] for name in it.deleted()} == {"top"}
        await pause(it.client, it.profile("top"), paused=False)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def until_gone(it: TeardownScene) -> None:
    for name in await it.objects():
        if not name.startswith("top-"):
            continue
        await until(it.member.client, CONFIG_MAPS, name, lambda one: one is None, "gone", namespace=it.on_member)


async def test_the_objects_of_a_paused_best_effort_profile_are_left_and_in_the_ledger(it: TeardownScene) -> None:
    await it.add_on("base")
    ref = await it.add_on("web", behaviour="RemovePolicies", depends_on=("base",))
    await pause(it.client, it.profile("web"))
    async with manager(it.client):
        await it.delete()
        teardown = await it.ended()
        assert teardown.phase is Phase.COMPLETE
        step = next(step for step in teardown.status.steps if step.name == f"ClusterProfile/{it.profile('web')}")
        assert (step.state, step.reason) == ("Left", "Paused")
        inventory = await it.inventory(ref)
        assert inventory
        for entry in inventory.spec.entries.values():
            assert entry.ledger
            assert entry.ledger.reason == "Paused"
            assert SVELTOS_PAUSED_ANNOTATION in entry.ledger.by
        left = {f"web-{number}" for number in range(3)}
        assert await it.objects() == left
        assert not left & set(it.deleted())

        def told(obj: Object | None) -> bool:
            return profiles.condition(obj or {}, "Left").get("reason") == "Paused"

        await until(it.client, CLUSTER_SUMMARIES, ref.name, told, "left", namespace=ref.namespace)
    await it.let_go()


async def test_a_best_effort_profile_that_is_paused_midway_leaves_the_rest(it: TeardownScene) -> None:
    ref = await it.add_on("web", behaviour="RemovePolicies", finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        await it.teardown(lambda one: len(one.status.blockers) == 3, "waiting for the objects of web")
        await pause(it.client, it.profile("web"))
        assert (await it.ended()).phase is Phase.COMPLETE
        inventory = await it.inventory(ref)
        assert inventory
        assert {entry.ledger.reason for entry in inventory.spec.entries.values() if entry.ledger} == {"Paused"}
    await it.unblock()
    await it.let_go()


async def test_a_cluster_held_by_a_paused_profile_can_be_released(it: TeardownScene) -> None:
    await it.add_on("web")
    await pause(it.client, it.profile("web"))
    async with manager(it.client):
        await it.delete()
        await it.teardown(lambda one: held_by(it, "web", one), "held by the paused profile")
        await it.annotate({FORCE_RELEASE_ANNOTATION: "not needed"})
        teardown = await it.ended()
    assert (teardown.phase, teardown.status.left, it.deleted()) == (Phase.RELEASED, 3, [])
    await it.let_go()
