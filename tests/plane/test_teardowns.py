"""Clusters taken apart, on a real management cluster with the real Cluster API and a real member."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.cluster_teardowns import manager, scene
from tests.plane.support.controllers import HOLD
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.names import FORCE_RELEASE_ANNOTATION, ConditionType, Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.unwind import Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube import kubeconfig
from unwind.kube.object_watch import until, until_absent
from unwind.testing.clock import StillClock
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.local.plane import Plane

JANE = "unknown, see the audit log (field manager jane)"
"""Nobody saw the user: no webhook runs here, and a field manager can be anything."""


async def test_a_chain_goes_in_reverse_of_what_depends_on_what(it: TeardownScene) -> None:
    await it.add_on("base")
    await it.add_on("middle", depends_on=("base",))
    await it.add_on("top", depends_on=("middle",))
    async with manager(it.client):
        await it.delete()
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert teardown.status.removed == "9/9"
    assert teardown.status.wave == "3/3"
    assert meta.is_true(teardown.status.conditions, "Complete")
    assert [name.partition("-")[0] for name in it.deleted()] == ["top"] * 3 + ["middle"] * 3 + ["base"] * 3
    await it.nothing_left()


async def test_the_plan_is_written_before_the_first_deletion(it: TeardownScene) -> None:
    await it.add_on("base", finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        teardown = await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        assert teardown.spec.plan
        assert [(step.name, step.wave, step.objects) for step in teardown.spec.plan.steps] == [
            (f"ClusterProfile/{it.profile('base')}", 1, 3)
        ]
        assert teardown.phase is Phase.HELD
        assert HOLD in teardown.status.blocked_by
        await it.unblock()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_leave_leaves_everything_and_takes_the_marks_off(it: TeardownScene) -> None:
    summary = await it.add_on("stays", behaviour="LeavePolicies")
    async with manager(it.client):
        await it.delete()
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert teardown.status.left == 3
    assert it.deleted() == []
    found = await it.member.client.list(CONFIG_MAPS, namespace=it.on_member)
    ours = [item for item in found if item["metadata"]["name"].startswith("stays")]
    assert len(ours) == 3
    assert not any(item["metadata"].get("labels") for item in ours)
    inventory = await it.inventory(summary)
    assert inventory
    notes = [entry.ledger for entry in inventory.spec.entries.values()]
    assert {(note.reason, note.by) for note in notes if note} == {
        ("KeptByPolicy", f"clusterDeletionBehavior of ClusterProfile/{it.profile('stays')}")
    }
    await it.let_go()


async def test_remove_is_given_up_after_its_time_and_what_it_needed_goes_ahead(it: TeardownScene) -> None:
    await it.add_on("base")
    tried = await it.add_on("tried", behaviour="RemovePolicies", depends_on=("base",), finalizers=(HOLD,))
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        assert not [name for name in it.deleted() if name.startswith("base")]
        clock.advance(61)
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert {step.name: step.state for step in teardown.status.steps} == {
        f"ClusterProfile/{it.profile('tried')}": "GivenUp",
        f"ClusterProfile/{it.profile('base')}": "Removed",
    }
    inventory = await it.inventory(tried)
    assert inventory
    assert all(entry.ledger and entry.ledger.reason == "GaveUp" for entry in inventory.spec.entries.values())
    assert set(await it.objects()) == {"tried-0", "tried-1", "tried-2"}
    await it.unblock()
    await it.let_go()


async def test_a_person_may_let_the_cluster_go_and_is_named_with_each_object_left(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    held = await it.add_on("held", finalizers=(HOLD,), objects=2)
    async with manager(it.client):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        patch = {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "the datacentre is closed"}}}
        await it.client.patch(CLUSTERS, it.name, patch, namespace=namespace, field_manager="jane")
        teardown = await it.ended()
    assert teardown.phase is Phase.RELEASED
    release = teardown.status.release
    assert release
    assert (release.reason, release.message, release.by) == ("Forced", "the datacentre is closed", JANE)
    inventory = await it.inventory(held)
    assert inventory
    notes = [entry.ledger for entry in inventory.spec.entries.values()]
    assert [(note.reason, note.by) for note in notes if note] == [("Forced", JANE)] * 2
    await it.unblock()
    await it.let_go()


async def test_the_target_that_vanishes_ends_the_teardown(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace, topology=False)
    held = await it.add_on("held", finalizers=(HOLD,))
    async with manager(it.client):
        await it.delete()
        waiting = await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        assert meta.is_true(waiting.status.conditions, "GateNotAvailable")
        await it.let_go()
        await until_absent(it.client, CLUSTERS, it.name, namespace=namespace)
        teardown = await it.ended()
    assert teardown.phase is Phase.TARGET_GONE
    inventory = await it.inventory(held)
    assert inventory
    assert all(entry.ledger and entry.ledger.reason == "TargetGone" for entry in inventory.spec.entries.values())
    await it.unblock()


def unreachable(teardown: Teardown) -> bool:
    return meta.is_true(teardown.status.conditions, ConditionType.UNREACHABLE)


async def test_a_member_that_is_cut_off_during_a_removal_is_the_first_blocker_until_it_answers_again(
    plane: Plane, namespace: str
) -> None:
    it = await scene(plane, namespace)
    await it.add_on("held", finalizers=(HOLD,))
    way = kubeconfig.load(it.member.kubeconfig)
    async with Proxy(way.server) as proxy:
        await it.lead_to(msgspec.structs.replace(way, server=proxy.url))
        async with manager(it.client, clock=SYSTEM):
            await it.delete()
            before = await it.teardown(
                lambda one: len(one.status.blockers) == 3 and all(item.actor for item in one.status.blockers), "blocked"
            )
            proxy.close()
            cut_off = await it.teardown(unreachable, "cut off")
            [first, *others] = cut_off.status.blockers
            assert (first.object.kind, first.object.name, first.reason) == ("Cluster", it.name, "Unreachable")
            assert first.actor == "the administrator of the member cluster"
            assert first.since
            assert first.since >= max(item.since for item in before.status.blockers if item.since)
            assert cut_off.status.blocked_by.startswith(f"Cluster {namespace}/{it.name} does not answer: ")
            assert cut_off.status.blocked_by.endswith(" and 3 more")
            # What was known about the objects is not forgotten.
            assert tuple(others) == before.status.blockers
            proxy.reopen()
            back = await it.teardown(lambda one: not unreachable(one), "back")
            assert back.status.blockers == before.status.blockers
            await it.unblock()
            assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


def overdue(teardown: Teardown) -> bool:
    return meta.is_true(teardown.status.conditions, "DeadlineExceeded")


@pytest.mark.parametrize(("on_deadline", "phase"), [("Hold", Phase.HELD), ("Release", Phase.RELEASED)])
async def test_a_deadline_holds_or_releases(plane: Plane, namespace: str, on_deadline: str, phase: Phase) -> None:
    annotations = {"unwind.dev/deadline": "30m", "unwind.dev/on-deadline": on_deadline}
    it = await scene(plane, namespace, annotations=annotations)
    await it.add_on("held", finalizers=(HOLD,))
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        # The clock began in the past: it is told to go on to well after the deletion.
        clock.advance(400 * 24 * 3600.0)
        teardown = await it.teardown(lambda one: one.phase is phase and overdue(one), "overdue")
        assert teardown.status.left == (3 if phase is Phase.RELEASED else 0)
        await it.unblock()
        await it.ended()
    await it.let_go()


async def test_the_credentials_outlast_the_teardown_and_are_let_go_then(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    await it.add_on("base")
    secret = await it.secret()
    patch = {"metadata": {"finalizers": [Finalizer.CREDENTIALS.value]}}

    await it.client.patch(SECRETS, secret["metadata"]["name"], patch, namespace=namespace)
    async with manager(it.client):
        await it.delete()
        await it.ended()

        await until(
            it.client,
            SECRETS,
            secret["metadata"]["name"],
            lambda one: one is None or not one["metadata"].get("finalizers"),
            "let go",
            namespace=namespace,
        )
    await it.let_go()
