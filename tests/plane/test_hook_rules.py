"""What clusters wait for at the hooks besides their deletion, asked as Cluster API asks, on real objects."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support import profiles
from tests.plane.support.cluster_teardowns import DeployedScene
from tests.plane.support.profiles import config_map
from tests.plane.support.runtime_hooks import answering
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import Hook
from unwind.api.names import KUBERNETES_VERSIONS_ANNOTATION
from unwind.api.resources import CONFIG_MAPS
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, PROFILES
from unwind.helm.program import Helm
from unwind.hooks import rules
from unwind.kube.client import Client
from unwind.local import build, tools
from unwind.local.capi import create_cluster
from unwind.testing.charts import ChartRepository
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

# Long: `make soak` runs it. `make test` runs the others: one test for each rule of creation and upgrade.
soak = pytest.mark.soak

DOCS = Path(__file__).parents[2] / "docs"
MEMBER = "member-1"
UPGRADE = {"fromKubernetesVersion": "v1.30.2", "toKubernetesVersion": "v1.31.0"}
BEFORE_UPGRADE = (Hook.BEFORE_CLUSTER_UPGRADE, Hook.BEFORE_CONTROL_PLANE_UPGRADE, Hook.BEFORE_WORKERS_UPGRADE)
UPGRADED = {"kubernetesVersion": "v1.31.0"}
AFTER_UPGRADE = (Hook.AFTER_CONTROL_PLANE_UPGRADE, Hook.AFTER_WORKERS_UPGRADE, Hook.AFTER_CLUSTER_UPGRADE)
VERSIONS = dict.fromkeys(BEFORE_UPGRADE, UPGRADE) | dict.fromkeys(AFTER_UPGRADE, UPGRADED)
"""The upgrade hooks, each with the versions that Cluster API sends."""


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[profiles.ProfileScene]:
    client = plane.management.client
    await profiles.install(client)
    made = profiles.ProfileScene(client, plane.members[MEMBER], namespace)
    yield made
    await made.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def deployed(plane: Plane, namespace: str) -> AsyncIterator[DeployedScene]:
    made = DeployedScene(plane, namespace)
    await made.begin()
    yield made
    await made.cluster.let_go()
    await made.clear()


def new_cluster(
    scene: profiles.ProfileScene, name: str = "new", *, uid: str = "11111111-2222-3333-4444-555555555555"
) -> Object:
    """A Cluster that nobody has seen yet."""
    return {"metadata": {"name": name, "namespace": scene.namespace, "uid": uid, "labels": scene.label}}


async def in_the_way(deployed: DeployedScene, name: str) -> Object:
    """Somebody's own object on the member, where an add-on's should be."""
    return await deployed.member.client.create(CONFIG_MAPS, config_map(deployed.namespace, name))


# Before a cluster is made


async def test_a_cluster_is_made_only_when_everything_that_its_profiles_refer_to_exists(
    scene: profiles.ProfileScene,
) -> None:
    refs = [
        {"kind": "ConfigMap", "name": "base"},
        {"kind": "Secret", "name": "keys"},
        {"kind": "Secret", "name": "perhaps", "optional": True},
    ]
    await scene.profile("shop", policyRefs=refs)
    cluster = new_cluster(scene)
    async with answering(scene.client) as asked:
        why = await asked.until_held("Secret", Hook.BEFORE_CLUSTER_CREATE, cluster)
        assert f"ClusterProfile {scene.called('shop')} needs ConfigMap {scene.namespace}/base" in why
        assert f"needs Secret {scene.namespace}/keys: not found" in why
        assert "perhaps" not in why
        await scene.source("base", config_map(scene.namespace, "a"))
        answer = await asked.until(lambda it: "base" not in it[1], Hook.BEFORE_CLUSTER_CREATE, cluster)
        assert "keys" in answer[1]
        await scene.source("keys", config_map(scene.namespace, "b"), secret=True)
        await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)


@soak
async def test_a_profile_refers_to_what_is_in_its_own_namespace(scene: profiles.ProfileScene) -> None:
    refs = [{"kind": "ConfigMap", "namespace": "elsewhere", "name": "base"}]
    await scene.profile("shop", kind=PROFILES, policyRefs=refs)
    cluster = new_cluster(scene)
    async with answering(scene.client) as asked:
        await asked.until_held(f"needs ConfigMap {scene.namespace}/base", Hook.BEFORE_CLUSTER_CREATE, cluster)
        await scene.source("base", config_map(scene.namespace, "a"))
        await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)


@soak
async def test_a_cluster_that_no_profile_is_for_is_made_at_once(scene: profiles.ProfileScene) -> None:
    await scene.profile("shop", "missing")
    cluster = new_cluster(scene)
    async with answering(scene.client) as asked:
        await asked.until_held("missing", Hook.BEFORE_CLUSTER_CREATE, cluster)
        cluster["metadata"]["labels"] = {"test": "another"}
        assert await asked.ask(Hook.BEFORE_CLUSTER_CREATE, cluster) == (0, "")


@soak
async def test_what_would_not_be_deployed_is_not_waited_for(scene: profiles.ProfileScene) -> None:
    await scene.profile("rehearsed", "missing", syncMode="DryRun")
    await scene.profile("refused", "missing", setRefs=["some"])
    async with answering(scene.client) as asked:
        assert await asked.ask(Hook.BEFORE_CLUSTER_CREATE, new_cluster(scene)) == (0, "")


@soak
async def test_that_something_exists_is_not_believed_to_a_cache(plane: Plane, scene: profiles.ProfileScene) -> None:
    await scene.profile("shop", "base")
    source = await scene.source("base", config_map(scene.namespace, "a"))
    cluster, way = new_cluster(scene), plane.management.client.connection
    async with (
        Proxy(way.server) as proxy,
        Client(msgspec.structs.replace(way, server=proxy.url)) as followed,
        answering(scene.client, followed=followed) as asked,
    ):
        await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)
        proxy.hold()
        meta = source["metadata"]
        await scene.client.delete(CONFIG_MAPS, "base", uid=meta["uid"], namespace=scene.namespace)
        seconds, why = await asked.ask(Hook.BEFORE_CLUSTER_CREATE, cluster)
        assert seconds > 0
        assert "base: not found" in why
        await scene.source("base", config_map(scene.namespace, "a"))
        await scene.profile("late", "missing")  # the caches do not know of it
        seconds, why = await asked.ask(Hook.BEFORE_CLUSTER_CREATE, cluster)
        assert seconds > 0
        assert scene.called("late") in why
        proxy.resume()


def chart(name: str, version: str, url: str, **more: Any) -> Object:
    release = {"releaseName": name, "releaseNamespace": "web"}
    return {"repositoryURL": url, "chartName": name, "chartVersion": version, **release, **more}


@soak
async def test_charts_are_looked_for_where_they_should_be_in_their_version(scene: profiles.ProfileScene) -> None:
    program = (await build.ensure([tools.HELM]))["helm"].path
    async with ChartRepository() as repository:
        repository.add("web", {"templates/a.yaml": "a: b"})
        await scene.profile("web", policyRefs=[], helmCharts=[chart("web", "2.0.0", repository.url)])
        cluster = new_cluster(scene)
        async with answering(scene.client, helm=Helm(program)) as asked:
            why = await asked.until_held("2.0.0", Hook.BEFORE_CLUSTER_CREATE, cluster)
            assert f"needs chart web 2.0.0 of {repository.url}" in why
            why = await asked.until_held("not found", Hook.BEFORE_CLUSTER_CREATE, cluster)
            await scene.edit_profile("web", {"helmCharts": [chart("web", "1.0.0", repository.url)]})
            await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)
            fetched = len(repository.asked)
            for _ in range(3):
                await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)
            assert len(repository.asked) == fetched  # it is remembered
            await scene.edit_profile("web", {"helmCharts": [chart("web", "1.0.0", "http://127.0.0.1:1")]})
            why = await asked.until_held("refused", Hook.BEFORE_CLUSTER_CREATE, cluster)
            assert "chart web 1.0.0 of http://127.0.0.1:1" in why


@soak
async def test_a_registry_and_a_range_of_versions_are_asked_for_as_by_a_deployment(
    scene: profiles.ProfileScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (await build.ensure([tools.HELM]))["helm"].path
    async with ChartRepository() as repository:
        monkeypatch.setenv("SSL_CERT_FILE", str(repository.authority))
        repository.add("web", {"templates/a.yaml": "a: b"}, version="1.4.0")
        charts = [chart("web", "1.4.0", repository.registry), chart("web", "~1.4", repository.url)]
        await scene.profile("web", policyRefs=[], helmCharts=charts)
        cluster = new_cluster(scene)
        async with answering(scene.client, helm=Helm(program)) as asked:
            await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)
            await scene.edit_profile("web", {"helmCharts": [chart("web", "1.5.0", repository.registry)]})
            await asked.until_held(f"chart {repository.registry}/web 1.5.0", Hook.BEFORE_CLUSTER_CREATE, cluster)
            await scene.edit_profile("web", {"helmCharts": [chart("web", "~1.5", repository.url)]})
            await asked.until_held("chart web ~1.5 of", Hook.BEFORE_CLUSTER_CREATE, cluster)
            leaving = chart("web", "~1.5", repository.url, helmChartAction="Uninstall")
            await scene.edit_profile("web", {"helmCharts": [leaving]})
            await asked.until_open(Hook.BEFORE_CLUSTER_CREATE, cluster)


@soak
async def test_without_helm_a_cluster_with_charts_waits_and_says_why(scene: profiles.ProfileScene) -> None:
    await scene.profile("web", policyRefs=[], helmCharts=[chart("web", "1.0.0", "http://127.0.0.1:1")])
    async with answering(scene.client) as asked:
        await asked.until_held("helm program is not installed", Hook.BEFORE_CLUSTER_CREATE, new_cluster(scene))


# When its control plane answers for the first time


@soak
async def test_add_ons_are_deployed_at_once_though_no_event_of_the_cluster_has_come(
    plane: Plane, scene: profiles.ProfileScene
) -> None:
    await scene.member.create_namespace(scene.namespace)
    await scene.source("shop", config_map(scene.namespace, "a"))
    await scene.profile("shop", "shop")
    way = plane.management.client.connection
    async with (
        Proxy(way.server) as proxy,
        Client(msgspec.structs.replace(way, server=proxy.url)) as followed,
        answering(scene.client, followed=followed, controllers=scene.namespace) as asked,
    ):
        await scene.until_profile("shop", lambda it: bool(it["metadata"].get("finalizers")), "claimed")
        # That the caches know of that, too: nothing is put anywhere for a profile that can vanish.
        await asked.until_held("is not deployed yet", Hook.AFTER_CLUSTER_UPGRADE, new_cluster(scene), **UPGRADED)
        proxy.hold()
        made = await create_cluster(
            scene.client, name="late", namespace=scene.namespace, member=MEMBER, labels=scene.label
        )
        assert await asked.ask(Hook.AFTER_CONTROL_PLANE_INITIALIZED, made) == (0, "")
        await scene.until_provisioned("shop", cluster="late", type_="capi")
        proxy.resume()


@soak
async def test_what_waits_for_its_next_try_is_tried_at_once(deployed: DeployedScene) -> None:
    foreign = await in_the_way(deployed, "a")
    await deployed.source("shop", config_map(deployed.namespace, "a"))
    await deployed.profile("shop", "shop")
    cluster = await deployed.client.get(CLUSTERS, deployed.cluster.name, namespace=deployed.namespace)
    # By a clock that stands still, nothing is ever tried again by itself.
    async with answering(deployed.client, controllers=deployed.namespace) as asked:
        await deployed.until_summary(
            "shop",
            lambda it: profiles.feature(it) == "Failed",
            "Failed",
            cluster=deployed.cluster.name,
            type_="capi",
        )
        await deployed.member.client.delete(
            CONFIG_MAPS, "a", uid=foreign["metadata"]["uid"], namespace=deployed.namespace
        )
        await asked.ask(Hook.AFTER_CONTROL_PLANE_INITIALIZED, cluster)
        await deployed.deployed("shop")


@soak
async def test_a_cluster_that_is_gone_by_then_is_answered_all_the_same(scene: profiles.ProfileScene) -> None:
    async with answering(scene.client) as asked:
        assert await asked.ask(Hook.AFTER_CONTROL_PLANE_INITIALIZED, new_cluster(scene)) == (0, "")


# Before and after an upgrade


async def test_add_ons_that_fail_hold_an_upgrade_and_those_that_come_back_end_it(deployed: DeployedScene) -> None:
    await in_the_way(deployed, "a")
    await deployed.source("shop", config_map(deployed.namespace, "a"))
    await deployed.profile("shop", "shop")
    cluster = await deployed.client.get(CLUSTERS, deployed.cluster.name, namespace=deployed.namespace)
    async with answering(deployed.client, controllers=deployed.namespace) as asked:
        for hook in BEFORE_UPGRADE:
            why = await asked.until_held("fails", hook, cluster, **UPGRADE)
            assert f"ClusterProfile {deployed.called('shop')} fails (Resources: " in why
            assert "fix the profile" in why
        # Another cluster that has got the name has nothing to do with it.
        other = cluster | {"metadata": cluster["metadata"] | {"uid": "11111111-2222-3333-4444-555555555555"}}
        assert await asked.ask(Hook.BEFORE_CLUSTER_UPGRADE, other, **UPGRADE) == (0, "")
        for hook in AFTER_UPGRADE:
            await asked.until_held("fails", hook, cluster, **UPGRADED)

        await deployed.edit("shop", config_map(deployed.namespace, "b"))
        for hook in BEFORE_UPGRADE:
            await asked.until_open(hook, cluster, **UPGRADE)
        for hook in AFTER_UPGRADE:
            await asked.until_open(hook, cluster, **UPGRADED)
        await deployed.deployed("shop")


@soak
async def test_what_is_provisioned_as_its_sources_were_before_is_waited_for(deployed: DeployedScene) -> None:
    await deployed.add_on("shop")
    cluster = await deployed.client.get(CLUSTERS, deployed.cluster.name, namespace=deployed.namespace)
    hook, version = Hook.AFTER_CLUSTER_UPGRADE, UPGRADED
    async with answering(deployed.client, controllers=deployed.namespace) as asked:
        await deployed.deployed("shop")
        await asked.until_open(hook, cluster, **version)
    async with answering(deployed.client) as asked:  # nobody deploys
        await asked.until_open(hook, cluster, **version)
        await deployed.edit("shop", config_map(deployed.namespace, "shop-0", colour="red"))
        await asked.until_held("has changed and is not deployed yet", hook, cluster, **version)
        await deployed.profile("second", "shop")
        await asked.until_held(f"{deployed.called('second')} is not deployed yet", hook, cluster, **version)
        paused = cluster | {"spec": cluster["spec"] | {"paused": True}}
        assert await asked.ask(hook, paused, **version) == (0, "")
        await deployed.edit_profile("second", {"syncMode": "DryRun"})
        await asked.until(lambda it: "second" not in it[1], hook, cluster, **version)
    async with answering(deployed.client, controllers=deployed.namespace) as asked:
        await asked.until_open(hook, cluster, **version)
        await deployed.until_on_member("shop-0", lambda it: it["data"] == {"colour": "red"})


@soak
async def test_that_add_ons_are_well_is_not_believed_to_a_cache(plane: Plane, deployed: DeployedScene) -> None:
    await deployed.add_on("shop")
    cluster = await deployed.client.get(CLUSTERS, deployed.cluster.name, namespace=deployed.namespace)
    async with answering(deployed.client, controllers=deployed.namespace):
        await deployed.deployed("shop")
    way = plane.management.client.connection
    async with (
        Proxy(way.server) as proxy,
        Client(msgspec.structs.replace(way, server=proxy.url)) as followed,
        answering(deployed.client, followed=followed) as asked,
    ):
        await asked.until_open(Hook.BEFORE_CLUSTER_UPGRADE, cluster, **UPGRADE)
        proxy.hold()
        name = deployed.summary_name("shop", deployed.cluster.name, "capi")
        failed = {"featureID": "Resources", "status": "Failed", "failureMessage": "quota"}
        await deployed.client.patch(
            CLUSTER_SUMMARIES,
            name,
            {"status": {"featureSummaries": [failed]}},
            namespace=deployed.namespace,
            subresource="status",
        )
        for hook, versions in VERSIONS.items():
            seconds, why = await asked.ask(hook, cluster, **versions)
            assert seconds > 0
            assert "fails (Resources: quota)" in why
        proxy.resume()


async def test_a_cluster_becomes_no_version_that_an_add_on_is_not_for(scene: profiles.ProfileScene) -> None:
    await scene.profile("shop", policyRefs=[])
    name, cluster = scene.called("shop"), new_cluster(scene)

    async def say(text: str | None) -> None:
        patch = {"metadata": {"annotations": {KUBERNETES_VERSIONS_ANNOTATION: text}}}
        await scene.client.patch(CLUSTER_PROFILES, name, patch)

    on_the_way = {"controlPlaneUpgrades": [{"version": "v1.30.9"}, {"version": "v1.31.0"}], **UPGRADE}
    async with answering(scene.client) as asked:
        await asked.until_open(Hook.BEFORE_CLUSTER_UPGRADE, cluster, **on_the_way)
        await say(">=1.29 <1.31")
        for hook in BEFORE_UPGRADE:
            why = await asked.until_held("not v1.31.0", hook, cluster, **on_the_way)
            assert f"ClusterProfile {name} supports Kubernetes >=1.29 <1.31" in why
        await say("!=1.30")
        await asked.until_held("not v1.30.9", Hook.BEFORE_CLUSTER_UPGRADE, cluster, **on_the_way)
        await say("from 1.29 on")
        await asked.until_held("invalid value", Hook.BEFORE_CLUSTER_UPGRADE, cluster, **on_the_way)
        await say(">=1.29 <1.32")
        await asked.until_open(Hook.BEFORE_CLUSTER_UPGRADE, cluster, **on_the_way)


async def test_a_request_that_does_not_say_which_cluster_it_is_about_is_held(scene: profiles.ProfileScene) -> None:
    async with answering(scene.client) as asked:
        for hook, versions in VERSIONS.items():
            assert await asked.ask(hook, new_cluster(scene), **versions) == (0, "")
            seconds, why = await asked.ask(hook, new_cluster(scene, uid=""), **versions)
            assert seconds > 0
            assert "names no Cluster uid" in why


# A rule of another package


def example() -> ModuleType:
    """The module that docs/hooks.md shows."""
    [code] = re.findall(
        r"^```python\n(# freeze_rules\.py\n.*?)^```", (DOCS / "hooks.md").read_text(), re.MULTILINE | re.DOTALL
    )
    module = ModuleType("freeze_rules")
    exec(compile(code, "freeze_rules.py", "exec"), vars(module))  # noqa: S102 - it is ours
    return module


@soak
async def test_the_rule_that_the_documentation_shows_holds_an_upgrade_as_its_settings_say(
    scene: profiles.ProfileScene,
) -> None:
    cluster, hook = new_cluster(scene), Hook.BEFORE_CLUSTER_UPGRADE
    async with answering(scene.client, more=rules(example(), source="freeze-rules 1.0")) as asked:
        assert await asked.ask(hook, cluster, **UPGRADE) == (0, "")
        asked.settings = {"frozen": "true"}
        assert await asked.ask(hook, cluster, **UPGRADE) == (10, "all upgrades are frozen: ask the platform team")
        asked.settings = {"frozen": "true", "frozen-except": scene.namespace}
        assert await asked.ask(hook, cluster, **UPGRADE) == (0, "")
        asked.settings = {"frozen": "perhaps"}
        seconds, why = await asked.ask(hook, cluster, **UPGRADE)
        assert seconds > 0
        assert "cannot read its settings" in why
