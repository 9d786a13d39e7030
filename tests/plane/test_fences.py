"""Work that is under way when its shard is lost: it ends and writes nothing more. On a real control plane."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane import charting, profiles
from tests.plane.delaying import Delay, delayed
from tests.plane.profiles import config_map, running
from unwind.addons import helm_releases
from unwind.addons.helm import Helm
from unwind.addons.helm_removing import HelmReleases
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.clock import SYSTEM
from unwind.kube.errors import AlreadyExistsError
from unwind.kube.fencing import FencedError, Fences
from unwind.local import building, tools, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

HOLD = "example.dev/hold"


class Owner:
    """Owns all keys but those that it has lost."""

    def __init__(self) -> None:
        self._lost: set[str] = set()
        self._told: list[Callable[[], None]] = []

    def owns(self, key: str) -> bool:
        return key not in self._lost

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._told.append(changed)

    def lose(self, key: str) -> None:
        self._lost.add(key)
        self._tell()

    def gain(self, key: str) -> None:
        self._lost.discard(key)
        self._tell()

    def _tell(self) -> None:
        for told in self._told:
            told()


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[profiles.Scene]:
    await profiles.install(plane.management.client)
    async with profiles.playing(plane, namespace) as scene:
        yield scene


async def until_another_is_deployed(scene: profiles.Scene) -> None:
    """A sign that the manager goes on, and has had its chance: something that comes later is deployed elsewhere."""
    labels = {"another": scene.namespace}
    await scene.register("other", labels=labels)
    await scene.source("later", config_map(scene.namespace, "later"))
    await scene.profile("later", "later", clusterSelector={"matchLabels": labels})
    await scene.until_provisioned("later", cluster="other")


async def test_a_deployment_ends_when_its_shard_is_lost(plane: Plane, scene: profiles.Scene) -> None:
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


async def test_a_prune_ends_when_its_shard_is_lost(scene: profiles.Scene) -> None:
    await scene.register()
    inner = f"{scene.namespace}-inner"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inner}}
    kept, held = config_map(scene.namespace, "kept"), config_map(scene.namespace, "held")
    await scene.source("web", kept, held, namespace)
    owner = Owner()
    async with running(scene.client, scene.namespace, owner=owner, clock=SYSTEM):
        await scene.profile("web", "web")
        await scene.until_provisioned("web")
        held_by = {"metadata": {"finalizers": [HOLD]}}
        await scene.member.client.patch(CONFIG_MAPS, "held", held_by, namespace=scene.namespace)
        await scene.edit("web", kept)
        # The ConfigMap goes first, and the Namespace waits for it.
        await scene.until_on_member("held", lambda it: bool(it["metadata"].get("deletionTimestamp")))
        owner.lose(f"{scene.namespace}/edge")
        await scene.member.client.patch(
            CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=scene.namespace
        )
        await scene.until_off_member("held")
        await until_another_is_deployed(scene)
        there = await scene.member.client.get(NAMESPACES, inner)
        assert "deletionTimestamp" not in there["metadata"]
        owner.gain(f"{scene.namespace}/edge")
        await waiting.until_absent(scene.member.client, NAMESPACES, inner, within=60)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def repository() -> AsyncIterator[ChartRepository]:
    async with charting.serving() as repository:
        yield repository


async def program() -> Path:
    return (await building.ensure([tools.HELM]))["helm"].path


async def test_helm_ends_when_its_shard_is_lost(
    plane: Plane, namespace: str, scene: profiles.Scene, repository: ChartRepository
) -> None:
    await scene.register()
    owner = Owner()
    helm = Helm(await program())
    async with charting.stepping(plane, namespace, repository) as step:
        await charting.make_namespace(step)
        await charting.no_pods(step)  # its hook never comes to an end
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
            async with asyncio.timeout(60):
                while not await step.releases("greeting"):
                    await asyncio.sleep(0.1)
            assert charting.helm_processes()
            owner.lose(f"{scene.namespace}/edge")
            async with asyncio.timeout(20):
                while charting.helm_processes():
                    await asyncio.sleep(0.1)
            await until_another_is_deployed(scene)
            assert not charting.helm_processes()


async def test_a_release_names_the_replica_that_works_on_it(
    plane: Plane, namespace: str, repository: ChartRepository
) -> None:
    async with charting.stepping(plane, namespace, repository) as step:
        step.helm = Helm(await program(), replica="one")
        await step.deploy(step.chart("settings"))
        [revision] = await step.releases("settings")
        assert revision.replica == "one"
        step.releaser = HelmReleases(Helm(await program(), replica="two"))
        owner = ObjectRef(group="helm.sh", version="v1", kind="Release", namespace=step.namespace, name="settings")
        assert await step.releaser.reserve(step.member, owner, owner=step.owner) == ""
        [revision] = await step.releases("settings")
        assert (revision.release.status, revision.replica) == (helm_releases.Status.UNINSTALLING, "two")


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
    assert "late" not in {one["metadata"]["name"] for one in found}
    # What is begun anew may write.
    with pytest.raises(AlreadyExistsError):
        await fenced("one")
    await started[1]
    assert await client.get(CONFIG_MAPS, "late", namespace=namespace)
