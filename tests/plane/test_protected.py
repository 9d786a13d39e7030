"""The protection label in removals: efforts, force-release and commands. `test_ways_of_deleting` has every way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.plane.support import cluster_teardowns
from unwind.api.capi import CLUSTERS
from unwind.api.names import DELETE_PROTECTION_LABEL, FORCE_RELEASE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import Phase
from unwind.cli.plan import plan
from unwind.cli.protect import protect as protect_command
from unwind.cli.protect import unprotect as unprotect_command
from unwind.cli.status import status
from unwind.cli.why import why

if TYPE_CHECKING:
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
        # The status names the blocker first, and who must act as soon as that is known.
        teardown = await it.teardown(lambda one: any(item.actor for item in protected(one)), "blocked by protection")
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
