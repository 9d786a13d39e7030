"""Profiles that want the same: who loses it says so at once, and has it again when it is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support.helm_steps import SETTINGS, VALUES
from tests.plane.support.profiles import ProfileScene, config_map, feature, message, running
from unwind.api.names import OWNER_LABEL
from unwind.helm.program import Helm
from unwind.local import build, tools
from unwind.testing.charts import pack, unpack_chart

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.kube.client import Object


async def test_a_profile_that_loses_an_object_reports_it_and_deploys_it_again_when_it_is_free(
    scene: ProfileScene,
) -> None:
    await scene.source("one", config_map(scene.namespace, "a", by="first"))
    await scene.source("two", config_map(scene.namespace, "a", by="second"))
    await scene.register()
    await scene.profile("first", "one")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("first")
        await scene.profile("second", "two", tier=50)
        await scene.until_provisioned("second")
        failed = await scene.until_summary("first", lambda it: feature(it) == "Failed", "Failed")
        said = (
            f"managed by ClusterProfile {scene.called('second')} (tier 50); remove it from one of them, or use a"
            " lower tier here"
        )
        assert message(failed).endswith(said)
        assert (await scene.on_member())["a"]["data"]["by"] == "second"
        await scene.delete_profile("second")
        await scene.until_provisioned("first")
        assert (await scene.on_member())["a"]["data"]["by"] == "first"


async def test_an_object_that_one_profile_drops_is_deployed_by_the_waiting_one(scene: ProfileScene) -> None:
    await scene.source("one", config_map(scene.namespace, "a", by="first"))
    await scene.source("two", config_map(scene.namespace, "a", by="second"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("second", "two", tier=50)
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("second")
        await scene.profile("first", "one")
        await scene.until_summary("first", lambda it: feature(it) == "Failed", "Failed")
        await scene.edit("two", config_map(scene.namespace, "b"))
        await scene.until_provisioned("first")
        assert (await scene.on_member())["a"]["data"]["by"] == "first"


async def test_a_profile_that_loses_a_release_reports_it_and_installs_it_again_when_it_is_free(
    scene: ProfileScene, tmp_path: Path
) -> None:
    directory = unpack_chart(pack("settings", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS}), tmp_path)
    helm = Helm((await build.ensure([tools.HELM]))["helm"].path, charts=tmp_path)

    def chart(colour: str) -> list[Object]:
        where = {"repositoryURL": directory.as_uri(), "releaseName": "app", "releaseNamespace": scene.namespace}
        return [where | {"values": f"colour: {colour}"}]

    await scene.register()
    await scene.profile("first", helmCharts=chart("green"))
    async with running(scene.client, scene.namespace, helm=helm):
        await scene.until_summary("first", lambda it: feature(it, "Helm") == "Provisioned", "Provisioned")
        await scene.profile("second", helmCharts=chart("red"), tier=50, syncMode="DryRun")
        dry = await scene.until_summary("second", lambda it: bool(it.status.conditions), "previewed")
        said = f"would be taken over from ClusterProfile {scene.called('first')}"
        assert any(said in condition.message for condition in dry.status.conditions)
        await scene.edit_profile("second", {"syncMode": "Continuous"})
        failed = await scene.until_summary("first", lambda it: feature(it, "Helm") == "Failed", "Failed")
        said = f"managed by ClusterProfile {scene.called('second')} (tier 50)"
        assert said in message(failed, "Helm")
        [release] = failed.status.helm_release_summaries
        assert (release.status, release.release_name) == ("Conflict", "app")
        assert said in release.conflict_message
        there = (await scene.on_member())["app-settings"]
        assert there["data"]["colour"] == "red"
        assert [inventory.spec.entries for inventory in await scene.inventories(failed.metadata.uid)] in ([], [{}])
        await scene.delete_profile("second")
        await scene.until_summary("first", lambda it: feature(it, "Helm") == "Provisioned", "Provisioned")
        assert (await scene.on_member())["app-settings"]["data"]["colour"] == "green"


async def test_a_profile_that_lost_an_object_does_not_remove_its_labels_when_leaving(scene: ProfileScene) -> None:
    await scene.source("one", config_map(scene.namespace, "a", by="first"))
    await scene.source("two", config_map(scene.namespace, "a", by="second"))
    await scene.register()
    # It is deployed once, and so it does not look again.
    await scene.profile("first", "one", syncMode="OneTime", stopMatchingBehavior="LeavePolicies")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("first")
        await scene.profile("second", "two", tier=50)
        await scene.until_provisioned("second")
        second = (await scene.summary("second")).metadata.uid
        assert feature(await scene.summary("first")) == "Provisioned"
        await scene.delete_profile("first")
        await scene.until_summary_gone("first")
        assert (await scene.on_member())["a"]["metadata"]["labels"][OWNER_LABEL] == second
