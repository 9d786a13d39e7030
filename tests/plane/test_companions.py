"""Steps of a deployer that runs beside Unwind: it deletes what it deployed, and Unwind orders, verifies and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.cluster_teardowns import TeardownScene, manager
from tests.plane.support.controllers import HOLD
from tests.plane.support.example_deployer import (
    CLEANUP,
    DEPLOYED_BY_LABEL,
    SUSPENDED,
    ExampleDeployer,
    deployed,
    running_deployer,
)
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.meta import is_true
from unwind.api.names import DELETE_PROTECTION_LABEL, Finalizer
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import TEARDOWNS, Effort, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube import kubeconfig
from unwind.kube.object_watch import until
from unwind.local.cluster import ALL_RIGHTS
from unwind.members import targets
from unwind.members.members import Members
from unwind.planning.waves import plan
from unwind.preview.companion_preview import preview_companions
from unwind.preview.removal_forecast import ForecastFate
from unwind.testing.clock import StillClock
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object


def _held_at(name: str) -> Callable[[Teardown], bool]:
    """Whether a Teardown is held at the object of this name, and says who must act."""
    return lambda one: (
        one.phase is Phase.HELD and any(item.object.name == name and item.actor for item in one.status.blockers)
    )


async def test_handles_go_in_the_reverse_of_their_dependencies_and_each_object_is_verified_absent(
    it: TeardownScene,
) -> None:
    await deployed(it, "base", objects=["base-0", "base-1"])
    await deployed(it, "apps", objects=["apps-0", "apps-1"], depends_on="base", finalizers=[HOLD])
    companion = ExampleDeployer(it)
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        # The deployer lets go of its handle at once, but its objects are still there.
        held = await it.teardown(_held_at("apps-0"), "held at apps-0")
        assert held.spec.plan
        steps = {step.object.name: step for step in held.spec.plan.steps}
        assert {name: (step.wave, step.objects) for name, step in steps.items()} == {"apps": (1, 2), "base": (2, 2)}
        assert steps["apps"].effort_from == "TeardownPolicy/example"
        handle = await it.member.client.get(CONFIG_MAPS, "apps", namespace=it.on_member)
        assert handle["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert {"base", "base-0", "base-1"} <= await it.objects()
        for name in ("apps-0", "apps-1"):
            free = {"metadata": {"finalizers": None}}
            await it.member.client.patch(CONFIG_MAPS, name, free, namespace=it.on_member)
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.objects() == set()
    order = it.deleted()
    assert max(order.index(name) for name in ("apps", "apps-0", "apps-1")) < order.index("base")
    await it.let_go()


async def test_a_handle_whose_deployer_does_not_run_holds_by_name(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0"])
    companion = ExampleDeployer(it)
    async with manager(it.client, sources=(companion.steps,)):
        await it.delete()
        held = await it.teardown(_held_at("apps"), "held at apps")
        [blocker] = held.status.blockers
        assert (blocker.message, blocker.actor) == ("the deployer is deleting", "the example deployer")
    # A manager that starts later continues: the handle is being deleted already.
    async with manager(it.client, sources=(companion.steps,)), running_deployer(it):
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_a_member_that_does_not_answer_after_the_deletion_of_a_handle_holds_until_it_is_back(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0"], finalizers=[HOLD])
    way = kubeconfig.load(it.member.kubeconfig)
    async with (
        Proxy(it.member.server) as proxy,
        running_deployer(it),
        manager(it.client, sources=(ExampleDeployer(it).steps,), clock=SYSTEM),
    ):
        await it.lead_to(msgspec.structs.replace(way, server=proxy.url))
        await it.delete()
        await it.teardown(_held_at("apps-0"), "held at apps-0")
        assert "apps" in it.deleted()
        proxy.close()
        held = await it.teardown(lambda one: is_true(one.status.conditions, "MemberUnreachable"), "unreachable")
        assert held.phase is Phase.HELD
        first = held.status.blockers[0]
        assert (first.reason, first.object.name) == ("Unreachable", it.name)
        assert "does not answer" in first.message
        # That its objects go meanwhile cannot be seen, and does not count.
        await it.member.client.patch(CONFIG_MAPS, "apps-0", {"metadata": {"finalizers": None}}, namespace=it.on_member)
        assert not (await it.client.get(TEARDOWNS, it.uid, type=Teardown)).finished
        proxy.reopen()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_an_object_that_the_deployer_did_not_delete_holds_and_the_owner_of_the_handle_must_act(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0"])
    client, where = it.member.client, it.on_member
    async with manager(it.client, sources=(ExampleDeployer(it).steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        await client.patch(CONFIG_MAPS, "apps", {"metadata": {"finalizers": [Finalizer.HANDLE.value]}}, namespace=where)
        held = await it.teardown(_held_at("apps-0"), "held at apps-0")
        [blocker] = held.status.blockers
        assert "the example deployer did not delete it" in blocker.message
        assert blocker.actor == f"the owner of ConfigMap {where}/apps"
        found = await client.get(CONFIG_MAPS, "apps-0", namespace=where)
        await client.delete(CONFIG_MAPS, "apps-0", uid=found["metadata"]["uid"], namespace=where)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_a_suspended_handle_holds_until_a_user_resumes_it(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0"], annotations={SUSPENDED: "true"})
    async with running_deployer(it), manager(it.client, sources=(ExampleDeployer(it).steps,)):
        await it.delete()
        held = await it.teardown(_held_at("apps"), "held at apps")
        assert "is suspended" in held.status.blocked_by
        assert await it.objects() == {"apps", "apps-0"}
        resumed = {"metadata": {"annotations": {SUSPENDED: None}}}
        await it.member.client.patch(CONFIG_MAPS, "apps", resumed, namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_what_the_deployer_of_a_suspended_handle_leaves_is_removed_by_unwind_after_the_handle_was_let_go_of(
    it: TeardownScene,
) -> None:
    await deployed(it, "base", objects=["base-0"])
    suspended = {SUSPENDED: "true"}
    await deployed(
        it, "apps", objects=["apps-0", "data", "foreign"], kept="data", depends_on="base", annotations=suspended
    )
    client, where = it.member.client, it.on_member
    await client.patch(
        CONFIG_MAPS, "foreign", {"metadata": {"labels": {DEPLOYED_BY_LABEL: "another"}}}, namespace=where
    )
    await client.patch(CONFIG_MAPS, "apps-0", {"metadata": {"finalizers": [HOLD]}}, namespace=where)
    companion = ExampleDeployer(it)
    companion.removes = True
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        held = await it.teardown(_held_at("apps-0"), "held at apps-0")
        assert HOLD in held.status.blocked_by
        handle = await client.get(CONFIG_MAPS, "apps", namespace=where)
        assert (handle["metadata"]["finalizers"], SUSPENDED in handle["metadata"]["annotations"]) == (
            [Finalizer.HANDLE.value],
            True,
        )
        assert "base-0" in await it.objects(), "it waits for what depends on it"
        await client.patch(CONFIG_MAPS, "apps-0", {"metadata": {"finalizers": None}}, namespace=where)
        ended = await it.ended()
    assert (ended.phase, ended.status.removed, ended.status.left) == (Phase.COMPLETE, "2/3", 1)
    assert await it.objects() == {"data", "foreign"}
    step = next(step for step in ended.spec.plan.steps if step.object.name == "apps") if ended.spec.plan else None
    assert step
    left = await it.inventory(step.object)
    assert left
    notes = {entry.object.name: entry.ledger.message for entry in left.spec.entries.values() if entry.ledger}
    assert notes == {"data": "it is marked as kept"}
    order = it.deleted()
    assert order.index("apps") < order.index("apps-0") < order.index("base")
    await it.let_go()


async def test_an_object_that_loses_its_mark_while_a_suspended_handle_goes_stays_and_is_in_the_ledger(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0", "apps-1"], annotations={SUSPENDED: "true"})
    companion = ExampleDeployer(it)
    companion.removes = True
    client, where = it.member.client, it.on_member
    async with manager(it.client, sources=(companion.steps,)):
        await it.delete()
        await it.teardown(lambda one: "the deployer is deleting" in one.status.blocked_by, "deleted")
        taken = {"metadata": {"labels": {DEPLOYED_BY_LABEL: "another"}}}
        await client.patch(CONFIG_MAPS, "apps-0", taken, namespace=where)
        async with running_deployer(it):
            ended = await it.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1)
    assert await it.objects() == {"apps-0"}
    assert ended.spec.plan
    left = await it.inventory(ended.spec.plan.steps[0].object)
    assert left
    [note] = [entry.ledger.message for entry in left.spec.entries.values() if entry.ledger]
    assert "no longer carries the mark" in note
    await it.let_go()


async def test_a_policy_that_says_hold_later_stops_unwind_from_removing_what_a_suspended_handle_deployed(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0"], annotations={SUSPENDED: "true"})
    companion = ExampleDeployer(it)
    companion.removes = True
    client, where = it.member.client, it.on_member
    async with manager(it.client, sources=(companion.steps,)):
        await it.delete()
        await it.teardown(lambda one: "the deployer is deleting" in one.status.blocked_by, "deleted")
        companion.removes = False
        async with running_deployer(it):
            held = await it.teardown(_held_at("apps-0"), "held at apps-0")
            assert "did not delete it" in held.status.blocked_by
            assert await it.objects() == {"apps", "apps-0"}
            found = await client.get(CONFIG_MAPS, "apps-0", namespace=where)
            await client.delete(CONFIG_MAPS, "apps-0", uid=found["metadata"]["uid"], namespace=where)
            assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_of_objects_that_are_newer_than_the_plan_unwind_removes_only_those_with_the_mark_of_the_deployer(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0"], annotations={SUSPENDED: "true"})
    companion = ExampleDeployer(it)
    client, where = it.member.client, it.on_member
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        for name, by in (("late", "apps"), ("strange", "another")):
            meta = {"name": name, "namespace": where, "labels": {DEPLOYED_BY_LABEL: by}}
            await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        companion.removes = True
        await client.patch(CONFIG_MAPS, "apps", {"data": {"entries": "apps-0 late strange"}}, namespace=where)
        ended = await it.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    assert await it.objects() == {"strange"}
    await it.let_go()


async def test_a_suspended_handle_with_a_protected_object_is_not_deleted(it: TeardownScene) -> None:
    labels = {DELETE_PROTECTION_LABEL: "Always"}
    await deployed(it, "apps", objects=["apps-0"], labels=labels, annotations={SUSPENDED: "true"})
    companion = ExampleDeployer(it)
    companion.removes = True
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        handle = await it.member.client.get(CONFIG_MAPS, "apps", namespace=it.on_member)
        assert "deletionTimestamp" not in handle["metadata"]
        free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
        await it.member.client.patch(CONFIG_MAPS, "apps-0", free, namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await it.objects() == set()
    await it.let_go()


async def test_objects_that_the_deployer_keeps_are_in_the_ledger_and_foreign_ones_are_not_waited_for(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["data", "foreign", "web"], kept="data")
    marks = {"metadata": {"labels": {DEPLOYED_BY_LABEL: "another"}}}
    await it.member.client.patch(CONFIG_MAPS, "foreign", marks, namespace=it.on_member)
    companion = ExampleDeployer(it)
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        ended = await it.ended()
    assert (ended.phase, ended.status.removed, ended.status.left) == (Phase.COMPLETE, "1/2", 1)
    assert ended.spec.plan
    assert any("foreign" in warning for warning in ended.spec.plan.warnings)
    assert await it.objects() == {"data", "foreign"}
    [step] = ended.spec.plan.steps
    left = await it.inventory(step.object)
    assert left
    notes = {entry.object.name: entry.ledger.message for entry in left.spec.entries.values() if entry.ledger}
    assert notes == {"data": "it is marked as kept"}
    await it.let_go()


async def test_a_handle_is_not_deleted_while_an_object_of_it_is_protected(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0", "apps-1"], labels={DELETE_PROTECTION_LABEL: "Always"})
    async with running_deployer(it), manager(it.client, sources=(ExampleDeployer(it).steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        assert await it.objects() == {"apps", "apps-0", "apps-1"}
        for name in ("apps-0", "apps-1"):
            free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
            await it.member.client.patch(CONFIG_MAPS, name, free, namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


@pytest.mark.parametrize("effort", [Effort.ENFORCE, Effort.TRY])
async def test_a_handle_that_is_protected_itself_is_not_deleted(it: TeardownScene, effort: Effort) -> None:
    await deployed(it, "apps", objects=["apps-0"])
    label = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
    await it.member.client.patch(CONFIG_MAPS, "apps", label, namespace=it.on_member)
    async with running_deployer(it), manager(it.client, sources=(ExampleDeployer(it, {"apps": effort}).steps,)):
        await it.delete()
        if effort is Effort.ENFORCE:
            held = await it.teardown(_held_at("apps"), "held at apps")
            assert "unwind unprotect configmaps/apps" in held.status.blockers[0].message
            assert await it.objects() == {"apps", "apps-0"}
            free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
            await it.member.client.patch(CONFIG_MAPS, "apps", free, namespace=it.on_member)
        ended = await it.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0 if effort is Effort.ENFORCE else 1)
    assert await it.objects() == (set() if effort is Effort.ENFORCE else {"apps", "apps-0"})
    await it.let_go()


async def test_a_tried_handle_with_a_protected_object_stays_and_does_not_block(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0"], labels={DELETE_PROTECTION_LABEL: "Always"})
    companion = ExampleDeployer(it, {"apps": Effort.TRY})
    async with running_deployer(it), manager(it.client, sources=(companion.steps,)):
        await it.delete()
        ended = await it.ended()
    assert await it.objects() == {"apps", "apps-0"}
    assert ended.status.left == 1
    await it.let_go()


async def test_the_plan_shows_protected_objects_of_a_handle_and_what_stays_with_them(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0"], labels={DELETE_PROTECTION_LABEL: "Always"})
    await deployed(it, "tried", objects=["tried-0"], labels={DELETE_PROTECTION_LABEL: "Always"})
    await deployed(it, "web", objects=["web-0"])
    label = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
    for name in ("itself", "tried-itself"):
        await deployed(it, name, objects=[f"{name}-0"])
        await it.member.client.patch(CONFIG_MAPS, name, label, namespace=it.on_member)
    deployer = ExampleDeployer(it, {"tried": Effort.TRY, "tried-itself": Effort.TRY})
    target = targets.of_capi(await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster))
    async with Members(it.client) as members:
        seen = await preview_companions((deployer,), deployer, members, target, selected=True)
    assert {item.object.name for item in seen.protection.values()} == {"apps-0", "tried-0", "itself", "tried-itself"}
    chunks = {chunk.spec.owner.name: chunk for chunk in seen.chunks}
    fates = {}
    for step in plan([item.draft for item in seen.steps.steps]).steps:
        found = seen.forecast(step, chunks[step.object.name].spec.entries.values())
        assert found
        [forecast] = found
        fates[step.object.name] = (forecast.fate, "which stays: ConfigMap" in forecast.why)
    goes, stays = (ForecastFate.GOES, False), (ForecastFate.STAYS, True)
    assert fates == {"apps": goes, "tried": stays, "web": goes, "itself": goes, "tried-itself": stays}


async def test_a_tried_handle_is_given_up_after_its_time_and_a_left_one_is_not_touched(it: TeardownScene) -> None:
    await deployed(it, "tried", objects=["tried-0"])
    await deployed(it, "left", objects=["left-0"])
    companion = ExampleDeployer(it, {"tried": Effort.TRY, "left": Effort.LEAVE})
    clock = StillClock()
    async with manager(it.client, sources=(companion.steps,), clock=clock):
        await it.delete()
        await it.teardown(lambda one: any(item.object.name == "tried" for item in one.status.blockers), "tried")
        clock.advance(60)
        ended = await it.ended()
    assert {step.name.rpartition("/")[2]: step.state for step in ended.status.steps} == {
        "tried": "GivenUp",
        "left": "Left",
    }
    left = await it.member.client.get(CONFIG_MAPS, "left", namespace=it.on_member)
    assert left["metadata"]["finalizers"] == [CLEANUP]
    assert "deletionTimestamp" not in left["metadata"]
    await it.let_go()


async def test_an_object_that_is_newer_than_the_plan_is_verified_by_a_manager_that_starts_when_the_deployer_is_done(
    it: TeardownScene,
) -> None:
    await deployed(it, "apps", objects=["apps-0"], annotations={SUSPENDED: "true"})
    client, where, companion = it.member.client, it.on_member, ExampleDeployer(it)
    async with manager(it.client, sources=(companion.steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        meta = {"name": "late", "namespace": where, "labels": {DEPLOYED_BY_LABEL: "apps"}, "finalizers": [HOLD]}
        await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        resumed = {"metadata": {"annotations": {SUSPENDED: None}}, "data": {"entries": "apps-0 late"}}
        await client.patch(CONFIG_MAPS, "apps", resumed, namespace=where)
        await it.teardown(lambda one: "the deployer is deleting" in one.status.blocked_by, "deleted")
    async with running_deployer(it):
        await until(client, CONFIG_MAPS, "apps", _only_held, "let go of by its deployer", namespace=where)
    async with manager(it.client, sources=(companion.steps,)):
        await it.teardown(_held_at("late"), "held at late")
        await client.patch(CONFIG_MAPS, "late", {"metadata": {"finalizers": None}}, namespace=where)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


def _only_held(handle: Object | None) -> bool:
    assert handle
    return bool(handle["metadata"]["finalizers"] == [Finalizer.HANDLE.value])


async def test_an_object_that_the_deployer_created_after_the_plan_is_verified_too(it: TeardownScene) -> None:
    await deployed(it, "apps", objects=["apps-0"], annotations={SUSPENDED: "true"})
    async with running_deployer(it), manager(it.client, sources=(ExampleDeployer(it).steps,)):
        await it.delete()
        await it.teardown(_held_at("apps"), "held at apps")
        meta = {"name": "late", "namespace": it.on_member, "labels": {DEPLOYED_BY_LABEL: "apps"}, "finalizers": [HOLD]}
        await it.member.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        resumed = {"metadata": {"annotations": {SUSPENDED: None}}, "data": {"entries": "apps-0 late"}}
        await it.member.client.patch(CONFIG_MAPS, "apps", resumed, namespace=it.on_member)
        await it.teardown(_held_at("late"), "held at late")
        free = {"metadata": {"finalizers": None}}
        await it.member.client.patch(CONFIG_MAPS, "late", free, namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_absence_is_verified_with_a_watch_for_each_kind_and_not_with_a_request_for_each_object(
    it: TeardownScene,
) -> None:
    objects = [f"apps-{number:02}" for number in range(40)]
    await deployed(it, "apps", objects=objects)
    user = f"counted-{it.namespace}"
    await it.lead_to(it.member.connection(user, groups=ALL_RIGHTS))
    async with running_deployer(it), manager(it.client, sources=(ExampleDeployer(it).steps,)):
        await it.delete()
        ended = await it.ended()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "40/40")
    reads = list(it.member.audit.entries(verbs=("get", "list"), resource="configmaps", user=user))
    assert [entry.object_ref.name for entry in reads if entry.object_ref.name in objects] == []
    # For the handles, for the snapshot, and for the watch. Each has a page for every 500 objects of the cluster, also
    # of other tests.
    lists = [entry for entry in reads if entry.verb == "list" and "continue=" not in entry.request_uri]
    assert len(lists) <= 4
    await it.let_go()
