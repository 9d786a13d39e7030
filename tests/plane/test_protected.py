"""Every way of deleting on a member respects the protection label."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.plane.support import cluster_teardowns, profiles, unjoins
from tests.plane.support.profiles import ProfileScene, config_map, feature, message, playing
from unwind.api.capi import CLUSTERS
from unwind.api.karmada import WORKS, RemoveStrategy
from unwind.api.names import DELETE_PROTECTION_LABEL, FORCE_RELEASE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import Phase
from unwind.cli.plan import plan
from unwind.cli.protect import protect as protect_command
from unwind.cli.protect import unprotect as unprotect_command
from unwind.cli.status import status
from unwind.cli.why import why
from unwind.clock import SYSTEM
from unwind.local.waiting import until, until_absent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, LedgerNote, Teardown
    from unwind.kube.client import Client
    from unwind.local.plane import Plane

LABEL = f"{DELETE_PROTECTION_LABEL}=Always"


async def protect(client: Client, namespace: str, name: str, value: str | None = "Always") -> None:
    patch = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: value}}}
    await client.patch(CONFIG_MAPS, name, patch, namespace=namespace, field_manager="jane")


async def unprotect(client: Client, namespace: str, name: str) -> None:
    await protect(client, namespace, name, None)


def protected(teardown: Teardown) -> list[Blocker]:
    return [blocker for blocker in teardown.status.blockers if blocker.reason == "Protected"]


async def ledger_of(it: cluster_teardowns.TeardownScene, owner: ObjectRef) -> dict[str, LedgerNote]:
    inventory = await it.inventory(owner)
    assert inventory
    return {entry.object.name: entry.ledger for entry in inventory.spec.entries.values() if entry.ledger}


# Deletion of a cluster


async def test_an_enforced_step_holds_the_cluster_and_names_who_protects_what(plane: Plane, namespace: str) -> None:
    it = await cluster_teardowns.scene(plane, namespace)
    await it.add_on("base")
    await protect(it.member.client, it.on_member, "base-1")
    async with cluster_teardowns.manager(it.client):
        await it.delete()
        teardown = await it.teardown(lambda one: bool(protected(one)), "blocked by protection")
        [blocker] = protected(teardown)
        assert blocker.object.name == "base-1"
        assert blocker.actor == "the user who protected it"
        assert f"blocked by label {LABEL}, set by jane" in blocker.message
        command = f"unwind unprotect configmaps/base-1 -n {it.on_member} --cluster {namespace}/{it.name}"
        assert command in blocker.message
        held = await it.teardown(lambda one: one.status.removed == "2/3", "the others gone")
        assert held.phase is Phase.HELD
        assert await it.objects() == {"base-1"}
        assert "base-1" not in it.deleted()
        await unprotect(it.member.client, it.on_member, "base-1")
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await it.objects() == set()
    await it.let_go()


async def test_a_step_that_is_only_tried_leaves_the_object_and_the_ledger_says_so(plane: Plane, namespace: str) -> None:
    it = await cluster_teardowns.scene(plane, namespace)
    owner = await it.add_on("base", behaviour="RemovePolicies")
    await protect(it.member.client, it.on_member, "base-1")
    async with cluster_teardowns.manager(it.client):
        await it.delete()
        teardown = await it.ended()  # the clock stands still: it waits for nothing
    assert teardown.phase is Phase.COMPLETE
    assert teardown.status.left == 1
    assert await it.objects() == {"base-1"}
    notes = await ledger_of(it, owner)
    assert {name: (note.reason, note.by) for name, note in notes.items()} == {
        "base-1": ("Protected", "field manager jane")
    }
    await unprotect(it.member.client, it.on_member, "base-1")
    await it.let_go()


async def test_a_force_release_leaves_the_protected_object_with_a_ledger(plane: Plane, namespace: str) -> None:
    it = await cluster_teardowns.scene(plane, namespace)
    owner = await it.add_on("base")
    await protect(it.member.client, it.on_member, "base-1")
    async with cluster_teardowns.manager(it.client):
        await it.delete()
        await it.teardown(lambda one: bool(protected(one)) and one.status.removed == "2/3", "blocked by protection")
        patch = {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "the platform team decided"}}}
        await it.client.patch(CLUSTERS, it.name, patch, namespace=namespace)
        assert (await it.ended()).phase is Phase.RELEASED
    assert await it.objects() == {"base-1"}
    notes = await ledger_of(it, owner)
    assert {name: (note.reason, note.message) for name, note in notes.items()} == {
        "base-1": ("Forced", "the platform team decided")
    }
    await it.let_go()


# Withdrawal and prune


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[ProfileScene]:
    await profiles.install(plane.management.client)
    async with playing(plane, namespace) as it:
        yield it


async def test_a_withdrawn_profile_waits_for_a_protected_object(scene: ProfileScene) -> None:
    await scene.register()
    await scene.source("s", config_map(scene.namespace, "one"), config_map(scene.namespace, "two"))
    await scene.profile("web", "s")
    async with profiles.running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await protect(scene.member.client, scene.namespace, "one")
        await scene.delete_profile("web")
        summary = await scene.until_summary("web", lambda it: LABEL in message(it), "blocked by protection")
        assert "set by jane" in message(summary)
        assert f"--cluster {scene.namespace}/edge" in message(summary)
        await scene.until_off_member("two")
        assert "one" not in scene.deleted()
        await unprotect(scene.member.client, scene.namespace, "one")
        await scene.until_profile_gone("web")
        await scene.until_off_member("one")


async def test_an_object_that_drops_out_of_a_profile_stays_while_it_is_protected(scene: ProfileScene) -> None:
    await scene.register()
    await scene.source("s", config_map(scene.namespace, "one"), config_map(scene.namespace, "two"))
    await scene.profile("web", "s")
    async with profiles.running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await protect(scene.member.client, scene.namespace, "one")
        await scene.edit("s", config_map(scene.namespace, "two"))
        await scene.until_summary("web", lambda it: LABEL in message(it), "blocked by protection")
        assert "one" not in scene.deleted()
        await unprotect(scene.member.client, scene.namespace, "one")
        await scene.until_off_member("one")
        await scene.until_summary("web", lambda it: feature(it) == "Provisioned", "provisioned")


# Works and unjoin


async def test_a_deleted_work_waits_for_a_protected_object(plane: Plane, namespace: str) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        await it.put("shop")
        await it.deployed("shop")
        await protect(it.cluster.client, namespace, "shop-0")
        found = await it.client.get(WORKS, "shop", namespace=it.execution)
        await it.client.delete(WORKS, "shop", uid=found["metadata"]["uid"], namespace=it.execution)
        await until_absent(it.cluster.client, CONFIG_MAPS, "shop-1", namespace=namespace)
        await until(
            it.client, WORKS, "shop", lambda obj: LABEL in str(obj and obj["status"]), "blocked", namespace=it.execution
        )
        assert "shop-0" not in it.deleted()
        await unprotect(it.cluster.client, namespace, "shop-0")
        await until_absent(it.client, WORKS, "shop", namespace=it.execution)
        assert await it.on_member() == {}


async def test_an_object_that_drops_out_of_a_work_stays_while_it_is_protected(plane: Plane, namespace: str) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        await it.put("shop")
        await it.deployed("shop")
        await protect(it.cluster.client, namespace, "shop-0")
        left = [config_map(namespace, "shop-1")]
        await it.client.patch(WORKS, "shop", {"spec": {"workload": {"manifests": left}}}, namespace=it.execution)
        await until(
            it.client, WORKS, "shop", lambda obj: LABEL in str(obj and obj["status"]), "blocked", namespace=it.execution
        )
        assert "shop-0" not in it.deleted()
        await unprotect(it.cluster.client, namespace, "shop-0")
        await until_absent(it.cluster.client, CONFIG_MAPS, "shop-0", namespace=namespace)


async def test_a_required_unjoin_waits_for_a_protected_object(plane: Plane, namespace: str) -> None:
    required = RemoveStrategy.REQUIRED
    async with (
        unjoins.scene(plane, namespace, remove_strategy=required) as it,
        unjoins.controllers(it.client, namespace),
    ):
        await it.put("shop")
        await it.deployed("shop")
        await protect(it.cluster.client, namespace, "shop-0")
        await it.delete()
        teardown = await it.teardown(lambda one: bool(protected(one)), "blocked by protection")
        [blocker] = protected(teardown)
        assert f"unwind unprotect configmaps/shop-0 -n {namespace} --cluster {it.name}" in blocker.message
        assert "shop-0" not in it.deleted()
        await unprotect(it.cluster.client, namespace, "shop-0")
        await it.gone()
        assert await it.on_member() == {}


# Commands


async def test_a_user_protects_an_object_on_a_member_and_every_command_shows_it(
    plane: Plane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    it = await cluster_teardowns.scene(plane, namespace)
    await it.add_on("base", objects=1)
    member, kubeconfig = f"{namespace}/{it.name}", plane.management.kubeconfig
    where: dict[str, Any] = {"namespace": it.on_member, "cluster": member, "kubeconfig": kubeconfig}
    held = f"unwind unprotect configmaps/base-0 -n {it.on_member} --cluster {member}"
    told = f"blocked by label {LABEL}, set by unwind-protect; to allow its deletion: {held}"

    def printed() -> str:
        return capsys.readouterr().out

    printed()
    await protect_command("cm/base-0", output="json", **where)
    said = json.loads(printed())
    assert (said["label"], said["enforced"]["way"]) == ("Always", "removals")
    assert "now" not in said, "the API server of the member does not refuse it"
    await plan(f"cluster/{it.name}", namespace=namespace, output="json", kubeconfig=kubeconfig)
    assert told in printed()
    await why("cm/base-0", output="json", **where)
    assert f"Unwind does not delete it: {told}" in printed()
    async with cluster_teardowns.manager(it.client):
        await it.delete()
        await it.teardown(lambda one: bool(protected(one)), "blocked by protection")
        printed()
        await status(it.name, output="json", kubeconfig=kubeconfig)
        assert told in printed()
        await why(f"teardown/{it.uid}", output="json", kubeconfig=kubeconfig)
        answer = json.loads(printed())
        assert [link["depth"] for link in answer["chain"] if told in link["message"]] == [0, 1]
        await unprotect_command("cm/base-0", **where)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()
