"""Paused profiles: nothing of them is deployed, changed or withdrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support import profiles
from tests.plane.support.profiles import config_map, pause, running
from unwind.api.meta import find

if TYPE_CHECKING:
    from tests.plane.support.profiles import ProfileScene
    from unwind.api.sveltos import ClusterSummary


async def test_nothing_of_a_paused_profile_is_deployed_changed_or_withdrawn(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"))
    await scene.source("other", config_map(scene.namespace, "z", color="red"))
    await scene.register()
    await scene.profile("web", "web")
    await scene.profile("other", "other")
    name = scene.called("web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web", "other")
        await pause(scene.client, name)
        said = await scene.until_profile("web", lambda it: bool(profiles.condition(it, "Paused")), "paused")
        assert profiles.condition(said, "Paused")["status"] == "True"
        await scene.until_summary("web", is_paused, "paused")
        # A change of a source, a change of the profile, and its deletion: none reaches the cluster.
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"))
        await scene.edit_profile("web", {"policyRefs": scene.refs("web", "other")})
        await scene.delete_profile("web")
        await barrier(scene)
        assert (await scene.on_member())["a"]["data"] == {"color": "red"}
        assert (await scene.summary("web")).metadata.deletion_timestamp is None
        assert scene.deleted() == []
        await pause(scene.client, name, paused=False)
        await scene.until_summary_gone("web")
        await scene.until_profile_gone("web")
    assert "a" not in await scene.on_member()


async def test_a_withdrawal_stops_while_its_profile_is_paused(scene: ProfileScene) -> None:
    await scene.provide()
    await scene.source("other", config_map(scene.namespace, "z", color="red"))
    await scene.profile("other", "other")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web", "other")
        await scene.block("a")
        await scene.delete_profile("web")
        await scene.until_summary("web", lambda it: bool(find(it.status.conditions, "Removing")), "being removed")
        await pause(scene.client, scene.called("web"))
        held = await scene.until_summary("web", is_paused, "paused")
        assert find(held.status.conditions, "Removing") is None, "nothing of it is being removed"
        await scene.unblock("a")
        await scene.until_off_member("a")
        await barrier(scene)
        assert is_paused(await scene.summary("web"))
        await pause(scene.client, scene.called("web"), paused=False)
        await scene.until_profile_gone("web")


def is_paused(summary: ClusterSummary) -> bool:
    blocked = find(summary.status.conditions, "Blocked")
    return blocked is not None and blocked.reason == "Paused" and "ClusterProfile" in blocked.message


async def barrier(scene: ProfileScene) -> None:
    """The controllers have worked through their queues: a later change of another profile is deployed."""
    await scene.edit("other", config_map(scene.namespace, "z", color="green"))
    await scene.until_on_member("z", lambda it: it["data"] == {"color": "green"})
