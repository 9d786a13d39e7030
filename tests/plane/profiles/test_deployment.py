"""Profiles deploy add-ons to clusters: sources, dependencies, charts, conflicts and sync modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.plane.support.helm_steps import SETTINGS, VALUES
from tests.plane.support.profiles import ProfileScene, condition, config_map, feature, message, running
from unwind.api.names import OWNER_LABEL, Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES, PROFILES
from unwind.helm.program import Helm
from unwind.kube import object_watch
from unwind.local import build, tools
from unwind.testing.charts import pack, unpack_chart

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_profile_deploys_its_sources_to_a_matching_cluster(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    summary = await scene.summary("web")
    there = await scene.on_member()
    assert set(there) == {"a", "b"}
    assert there["a"]["metadata"]["labels"][OWNER_LABEL] == summary.metadata.uid
    assert summary.metadata.labels == {
        "projectsveltos.io/cluster-profile-name": scene.called("web"),
        "projectsveltos.io/cluster-name": "edge",
        "projectsveltos.io/cluster-type": "Sveltos",
    }
    [chunk] = await scene.inventories(summary.metadata.uid)
    assert {entry.object.name for entry in chunk.spec.entries.values()} == {"a", "b"}
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]


async def test_an_edited_source_is_deployed_at_once_and_removed_objects_are_pruned(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"), config_map(scene.namespace, "c"))
        await scene.until_on_member("a", lambda it: it["data"]["color"] == "blue")
        await scene.until_on_member("c")
        await scene.until_off_member("b")
    assert scene.deleted() == ["b"]


async def test_a_missing_source_is_reported_and_deployed_when_it_is_created(scene: ProfileScene) -> None:
    await scene.register()
    await scene.profile("web", "later")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/later" in message(failed)
        await scene.source("later", config_map(scene.namespace, "a"))
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"a"}


async def test_a_dependent_profile_is_deployed_after_its_dependencies_and_reports_the_wait(scene: ProfileScene) -> None:
    for name in ("base", "middle", "top"):
        await scene.source(name, config_map(scene.namespace, name))
    await scene.register()
    await scene.profile("top", "top", dependsOn=scene.needs("middle"))
    await scene.profile("middle", "middle", dependsOn=scene.needs("base"))
    async with running(scene.client, scene.namespace):
        absent = f"ClusterProfile {scene.called('base')} is not on this cluster"
        late = f"ClusterProfile {scene.called('middle')} is not Provisioned"
        waits = {
            "top": f"waiting for dependencies: {late}: see its ClusterSummary",
            "middle": f"waiting for dependencies: {absent}: check that it exists and selects the cluster",
        }
        for name, told in waits.items():
            await scene.until_summary(name, lambda it, told=told: it.status.dependencies == told, told)  # type: ignore[misc]
        await scene.profile("base", "base")
        await scene.until_provisioned("base", "middle", "top")
    assert scene.created() == ["base", "middle", "top"]
    assert (await scene.summary("top")).status.dependencies is None


async def test_an_unsupported_field_is_reported_and_nothing_is_applied(scene: ProfileScene) -> None:
    await scene.provide(reloader=True)
    async with running(scene.client, scene.namespace):
        found = await scene.until_profile("web", lambda it: condition(it, "Accepted").get("status") == "False")
        said = condition(found, "Accepted")
        assert (said["reason"], said["message"]) == (
            "NotSupported",
            "not supported: reloader; remove it from the profile",
        )
        assert await scene.on_member() == {}
        await scene.edit_profile("web", {"reloader": False})
        await scene.until_provisioned("web")
        found = await scene.until_profile("web", lambda it: condition(it, "Accepted").get("status") == "True")


async def test_a_dependency_cycle_is_reported_and_other_profiles_are_deployed(scene: ProfileScene) -> None:
    await scene.register()
    for name, needs in (("a", ["b"]), ("b", ["a"]), ("c", [])):
        await scene.source(name, config_map(scene.namespace, name))
        await scene.profile(name, name, dependsOn=scene.needs(*needs))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("c")
        found = await scene.until_profile("a", lambda it: condition(it, "Accepted").get("reason") == "Cycle")
        one, other = scene.called("a"), scene.called("b")
        told = f"dependency cycle: {one} → {other} → {one}; remove one of them from dependsOn"
        assert condition(found, "Accepted")["message"] == told
        assert set(await scene.on_member()) == {"c"}
        await scene.edit_profile("b", {"dependsOn": []})
        await scene.until_provisioned("a", "b")


async def test_a_failed_object_is_reported_and_the_others_are_deployed(scene: ProfileScene) -> None:
    broken = config_map(scene.namespace, "broken") | {"data": {"number": 1}}
    await scene.source("web", config_map(scene.namespace, "a"), broken, config_map(scene.namespace, "z"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/broken" in message(failed)
        assert failed.status.feature_summaries[0].consecutive_failures >= 1
        assert set(await scene.on_member()) == {"a", "z"}
        await scene.edit("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "broken"))
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"a", "broken"}
    assert (await scene.summary("web")).status.feature_summaries[0].consecutive_failures == 0


async def test_a_foreign_object_of_the_same_name_is_neither_changed_nor_deleted(scene: ProfileScene) -> None:
    theirs = await scene.member.client.create(CONFIG_MAPS, config_map(scene.namespace, "a", whose="theirs"))
    await scene.source("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
    await scene.register()
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        failed = await scene.until_summary("web", lambda it: feature(it) == "Failed", "Failed")
        assert f"ConfigMap {scene.namespace}/a" in message(failed)
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    there = await scene.on_member()
    assert set(there) == {"a"}
    assert there["a"]["metadata"] == theirs["metadata"]
    assert there["a"]["data"] == {"whose": "theirs"}


async def test_restarted_controllers_continue_an_interrupted_deployment(scene: ProfileScene) -> None:
    held = config_map(scene.namespace, "top")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await scene.source("base", config_map(scene.namespace, "base"))
    await scene.source("top", held)
    await scene.register()
    await scene.profile("base", "base")
    await scene.profile("top", "top", dependsOn=scene.needs("base"))
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base", "top")
        await scene.delete_profile("top")
        await scene.delete_profile("base")
        await scene.until_summary("top", lambda it: "example.dev/hold" in message(it), "waiting")
    async with running(scene.client, scene.namespace):
        free = {"metadata": {"finalizers": None}}
        await scene.member.client.patch(CONFIG_MAPS, "top", free, namespace=scene.namespace)
        await scene.until_profile_gone("base")
        await scene.until_profile_gone("top")
    assert await scene.on_member() == {}
    assert scene.deleted() == ["top", "base"]


async def test_restarted_controllers_do_not_touch_deployed_objects(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    before = list(scene.member.audit.entries(namespace=scene.namespace))
    async with running(scene.client, scene.namespace):
        await scene.source("new", config_map(scene.namespace, "n"))
        await scene.profile("new", "new")
        await scene.until_provisioned("new")
    after = list(scene.member.audit.entries(namespace=scene.namespace))[len(before) :]
    assert {item.object_ref.name for item in after if item.object_ref.resource == "configmaps"} <= {"n", ""}


async def test_a_dry_run_reports_the_changes_and_makes_none(scene: ProfileScene) -> None:
    await scene.provide(syncMode="DryRun")
    async with running(scene.client, scene.namespace):
        said = await scene.until_summary("web", lambda it: any(item.type == "DryRun" for item in it.status.conditions))
        [report] = [item.message for item in said.status.conditions if item.type == "DryRun"]
        assert f"ConfigMap {scene.namespace}/a: Created" in report
        assert await scene.on_member() == {}
        assert await scene.inventories(said.metadata.uid) == []
        await scene.edit_profile("web", {"syncMode": "Continuous"})
        await scene.until_provisioned("web")


async def test_sync_mode_one_time_deploys_once(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a", color="red"))
    await scene.source("other", config_map(scene.namespace, "z"))
    await scene.register()
    await scene.profile("web", "web", syncMode="OneTime")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await scene.edit("web", config_map(scene.namespace, "a", color="blue"))
        await scene.edit_profile(
            "web", {"policyRefs": scene.refs("web", "other"), "stopMatchingBehavior": "LeavePolicies"}
        )
        await scene.until_summary(
            "web", lambda it: it.spec.cluster_profile_spec.stop_matching_behavior == "LeavePolicies"
        )
        # Had it been deployed, it would have been before this one.
        await scene.profile("other", "other")
        await scene.until_provisioned("other")
    assert (await scene.on_member())["a"]["data"] == {"color": "red"}


async def test_a_namespaced_profile_selects_clusters_and_reads_secrets_of_its_namespace(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"), secret=True)
    await scene.register()
    reference = {"kind": "Secret", "namespace": "kube-system", "name": "web"}
    await scene.profile("web", kind=PROFILES, policyRefs=[reference])
    name = "p--web-sveltos-edge"
    async with running(scene.client, scene.namespace):
        await scene.until_on_member("a")
        found = await scene.client.get(CLUSTER_SUMMARIES, name, namespace=scene.namespace)
        assert found["metadata"]["labels"]["projectsveltos.io/profile-name"] == "web"
        assert found["spec"]["clusterProfileSpec"]["policyRefs"][0]["namespace"] == scene.namespace

        def matches(it: dict[str, Any] | None) -> bool:
            return [one["name"] for one in ((it or {}).get("status") or {}).get("matchingClusters") or ()] == ["edge"]

        await object_watch.until(scene.client, PROFILES, "web", matches, "matching", namespace=scene.namespace)
        await scene.delete_profile("web", PROFILES)
        await object_watch.until_absent(scene.client, PROFILES, "web", namespace=scene.namespace, within=30)
    assert await scene.on_member() == {}


async def test_a_chart_is_installed_and_uninstalled_with_its_profile(scene: ProfileScene, tmp_path: Path) -> None:
    directory = unpack_chart(pack("settings", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS}), tmp_path)
    helm = Helm((await build.ensure([tools.HELM]))["helm"].path, charts=tmp_path)
    chart = {
        "repositoryURL": directory.as_uri(),
        "releaseName": "app",
        "releaseNamespace": scene.namespace,
        "values": "colour: green",
    }
    await scene.register()
    await scene.profile("app", helmCharts=[chart])
    async with running(scene.client, scene.namespace, helm=helm):
        await scene.until_summary("app", lambda it: feature(it, "Helm") == "Provisioned", "Provisioned")
        there = await scene.on_member()
        assert there["app-settings"]["data"]["colour"] == "green"
        await scene.edit_profile("app", {"helmCharts": [chart | {"values": "colour: red"}]})
        await scene.until_on_member("app-settings", lambda it: it["data"]["colour"] == "red")
        await scene.delete_profile("app")
        await scene.until_off_member("app-settings")
        await scene.until_profile_gone("app")
