"""Work that is under way when its shard is lost: it ends and writes nothing more. On a real control plane."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.owners import Owner
from tests.plane.support import cluster_teardowns, helm_steps, karmada_members, profiles, unjoins
from tests.plane.support.controllers import HOLD
from tests.plane.support.profiles import config_map, running
from tests.plane.support.transports import Delay, delayed
from unwind.api.karmada import CLUSTERS, RemoveStrategy
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.helm import release_secrets
from unwind.helm.program import Helm
from unwind.kube import object_watch
from unwind.kube.errors import AlreadyExistsError
from unwind.kube.fencing import FencedError, Fences
from unwind.local import build, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.kube.client import Client
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[profiles.ProfileScene]:
    await profiles.install(plane.management.client)
    async with profiles.playing(plane, namespace) as scene:
        yield scene


async def until_another_is_deployed(scene: profiles.ProfileScene) -> None:
    """A sign that the manager goes on, and has had its chance: something that comes later is deployed elsewhere."""
    labels = {"another": scene.namespace}
    await scene.register("other", labels=labels)
    await scene.source("later", config_map(scene.namespace, "later"))
    await scene.profile("later", "later", clusterSelector={"matchLabels": labels})
    await scene.until_provisioned("later", cluster="other")


async def test_a_deployment_ends_when_its_shard_is_lost(plane: Plane, scene: profiles.ProfileScene) -> None:
    await scene.register()
    await scene.source("web", config_map(scene.namespace, "web"))
    delay = Delay(lambda method, target, body: method == "POST" and "/inventories" in target and b'"web"' in body)
    owner = Owner()
    async with (
        delayed(plane.management, delay, namespace=scene.namespace) as client,
        running(client, scene.namespace, owner=owner, clock=SYSTEM),
    ):
        await scene.profile("web", "web")
        await delay.until_reached()
        owner.lose(f"{scene.namespace}/edge")
        delay.go.set()
        await until_another_is_deployed(scene)
        assert set(await scene.on_member()) == {"later"}
        owner.gain(f"{scene.namespace}/edge")
        await scene.until_provisioned("web")
        assert set(await scene.on_member()) == {"web", "later"}


async def test_a_prune_ends_when_its_shard_is_lost(scene: profiles.ProfileScene) -> None:
    await scene.register()
    inner = f"{scene.namespace}-inner"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inner}}
    kept, held = config_map(scene.namespace, "kept"), config_map(scene.namespace, "held")
    await scene.source("web", kept, held, namespace)
    owner = Owner()
    async with running(scene.client, scene.namespace, owner=owner, clock=SYSTEM):
        await scene.profile("web", "web")
        await scene.until_provisioned("web")
        await scene.block("held")
        await scene.edit("web", kept)
        # The ConfigMap goes first, and the Namespace waits for it.
        await scene.until_on_member("held", lambda it: bool(it["metadata"].get("deletionTimestamp")))
        await nothing_is_deleted_without_the_shard(scene, owner, inner)


async def nothing_is_deleted_without_the_shard(
    scene: profiles.ProfileScene, owner: Owner, inner: str, *, told: bool = True
) -> None:
    """Lose the shard while the ConfigMap "held" is being deleted; the Namespace goes when the shard is back."""
    owner.lose(f"{scene.namespace}/edge", told=told)
    await scene.unblock("held")
    await scene.until_off_member("held")
    await until_another_is_deployed(scene)
    there = await scene.member.client.get(NAMESPACES, inner)
    assert "deletionTimestamp" not in there["metadata"]
    owner.gain(f"{scene.namespace}/edge")
    await object_watch.until_absent(scene.member.client, NAMESPACES, inner, within=60)


TOLD = pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])


@TOLD
async def test_a_withdrawal_ends_when_its_shard_is_lost(scene: profiles.ProfileScene, told: bool) -> None:
    await scene.register()
    inner = f"{scene.namespace}-inner"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inner}}
    await scene.source("web", config_map(scene.namespace, "held"), namespace)
    owner = Owner()
    async with running(scene.client, scene.namespace, owner=owner, clock=SYSTEM):
        await scene.profile("web", "web")
        await scene.until_provisioned("web")
        await scene.block("held")
        await scene.delete_profile("web")
        # The ConfigMap is deleted first, and the Namespace waits for it.
        await scene.until_on_member("held", lambda it: bool(it["metadata"].get("deletionTimestamp")))
        await nothing_is_deleted_without_the_shard(scene, owner, inner, told=told)
        await scene.until_profile_gone("web")


@TOLD
async def test_a_teardown_ends_when_its_shard_is_lost(plane: Plane, namespace: str, told: bool) -> None:
    it = await cluster_teardowns.scene(plane, namespace)
    await it.add_ons_on_hold()
    another = await cluster_teardowns.scene(plane, namespace)
    await another.add_on("later")
    owner = Owner()
    async with cluster_teardowns.manager(it.client, owner=owner, clock=SYSTEM):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        owner.lose(f"{namespace}/{it.name}", told=told)
        await it.unblock()
        for name in ("top-0", "top-1", "top-2"):
            await object_watch.until_absent(it.member.client, CONFIG_MAPS, name, namespace=it.on_member)
        # The manager goes on with other clusters, and had its chance.
        await another.delete()
        assert (await another.ended()).phase is Phase.COMPLETE
        assert sorted(await it.objects()) == ["base-0", "base-1", "base-2"]
        assert not [name for name in it.deleted() if name.startswith("base")]
        owner.gain(f"{namespace}/{it.name}")
        ended = await it.ended()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "6/6")
    assert await it.objects() == set()
    await it.let_go()
    await another.let_go()


@TOLD
async def test_an_unjoin_ends_when_its_shard_is_lost(plane: Plane, namespace: str, told: bool) -> None:
    owner = Owner()
    async with (
        unjoins.scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it,
        unjoins.controllers(it.client, namespace, owner=owner, clock=SYSTEM),
    ):
        await it.put("base")
        await it.put("top", depends_on=("base",))
        await it.deployed("base", "top")
        await it.block("top-0")
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        owner.lose(it.name, told=told)
        await it.unblock("top-0")
        await object_watch.until_absent(it.cluster.client, CONFIG_MAPS, "top-0", namespace=namespace)
        await until_another_is_unjoined(it.client)
        assert sorted(await it.on_member()) == ["base-0", "base-1"]
        assert not [name for name in it.deleted() if name.startswith("base")]
        assert not (await it.record()).finished
        owner.gain(it.name)
        assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}


async def until_another_is_unjoined(client: Client) -> None:
    """A sign that the manager goes on with other members, and has had its chance."""
    metadata = {"name": karmada_members.a_name(), "finalizers": [HOLD]}
    body = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "metadata": metadata}
    made = await client.create(CLUSTERS, body | {"spec": {"syncMode": "Pull"}})
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    await client.delete(CLUSTERS, name, uid=uid)
    await object_watch.until(
        client,
        TEARDOWNS,
        uid,
        lambda it: it is not None and msgspec.convert(it, Teardown).finished,
        "finished",
        within=60,
    )
    await client.patch(CLUSTERS, name, {"metadata": {"finalizers": None}})


async def program() -> Path:
    return (await build.ensure([tools.HELM]))["helm"].path


async def test_helm_ends_when_its_shard_is_lost(
    plane: Plane, namespace: str, scene: profiles.ProfileScene, repository: ChartRepository
) -> None:
    await scene.register()
    owner = Owner()
    helm = Helm(await program())
    async with helm_steps.stepping(plane, namespace, repository) as step:
        await helm_steps.make_namespace(step)
        await helm_steps.no_pods(step)  # its hook never comes to an end
        chart = {
            "repositoryURL": repository.url,
            "repositoryName": "charts",
            "chartName": "greeting",
            "chartVersion": "1.0.0",
            "releaseName": "greeting",
            "releaseNamespace": step.namespace,
        }
        async with running(scene.client, scene.namespace, owner=owner, helm=helm, clock=SYSTEM):
            await scene.profile("chart", helmCharts=[chart])
            await eventually(lambda: step.releases("greeting"), "a release")
            assert helm_steps.helm_processes()
            owner.lose(f"{scene.namespace}/edge")
            await eventually(lambda: not helm_steps.helm_processes(), "the end of Helm", within=20)
            await until_another_is_deployed(scene)
            assert not helm_steps.helm_processes()


async def test_a_release_names_the_replica_that_works_on_it(
    plane: Plane, namespace: str, repository: ChartRepository
) -> None:
    async with helm_steps.stepping(plane, namespace, repository) as step:
        step.helm = Helm(await program(), replica="one")
        await step.deploy(step.chart("settings"))
        [revision] = await step.releases("settings")
        assert revision.replica == "one"
        step.releaser = HelmReleases(Helm(await program(), replica="two"))
        owner = ObjectRef(group="helm.sh", version="v1", kind="Release", namespace=step.namespace, name="settings")
        assert await step.releaser.reserve(step.member, owner, owner=step.owner) == ""
        [revision] = await step.releases("settings")
        assert (revision.release.status, revision.replica) == (release_secrets.HelmStatus.UNINSTALLING, "two")


async def test_nothing_is_written_for_a_lost_shard_by_whatever_it_started(plane: Plane, namespace: str) -> None:
    client, owner = plane.management.client, Owner()
    go, results = asyncio.Event(), []

    async def write() -> None:
        await go.wait()
        try:
            await client.create(CONFIG_MAPS, config_map(namespace, "late"))
        except FencedError as error:
            results.append(error)

    async def reconcile(_: str) -> float | None:
        started.append(asyncio.ensure_future(write()))
        await client.create(CONFIG_MAPS, config_map(namespace, "in-time"))
        return None

    started: list[asyncio.Future[None]] = []
    fenced = Fences(owner).around(reconcile, str)
    await fenced("one")
    owner.lose("one")
    owner.gain("one")  # it may have been another's in between: what was begun before stays fenced
    go.set()
    await started[0]
    assert len(results) == 1
    found = await client.list(CONFIG_MAPS, namespace=namespace)
    assert "late" not in {item["metadata"]["name"] for item in found}
    # What is begun anew may write.
    with pytest.raises(AlreadyExistsError):
        await fenced("one")
    await started[1]
    assert await client.get(CONFIG_MAPS, "late", namespace=namespace)
