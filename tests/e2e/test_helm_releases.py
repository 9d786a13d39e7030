"""Plain Helm releases on a member, with the real Helm, the real Cluster API and `unwind run`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.e2e.gated_clusters import GateScene, Ground, grounds, path_with_helm
from tests.plane.support.helm_steps import SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import Phase
from unwind.local import build, tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.testing.charts import ChartRepository

_HELD = {"metadata": {"finalizers": ["example.dev/hold"]}}
_FREE = {"metadata": {"finalizers": None}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    async with grounds(features="capi,helm") as ground:
        yield ground


@pytest_asyncio.fixture(loop_scope="session")
async def it(ground: Ground) -> GateScene:
    scene = GateScene(ground, f"helm-{uuid.uuid4().hex[:6]}")
    await scene.begin()
    return scene


def _source(effort: str, namespace: str, *names: str) -> dict[str, Any]:
    return {"kind": "Helm", "effort": effort, "selector": {"namespaces": [namespace], "names": list(names)}}


async def test_a_cluster_waits_until_its_release_is_verified_absent_although_the_manager_is_killed(
    it: GateScene, ground: Ground, repository: ChartRepository
) -> None:
    program = (await build.ensure([tools.HELM]))["helm"].path
    path = await path_with_helm()
    user = HelmUser(ground.member, it.namespace, program, repository)
    repository.add("proxy", {"values.yaml": VALUES, "templates/a.yaml": SETTINGS})
    await user.install("db", "settings")
    await user.install("left", "settings")
    await user.install(it.namespace, "proxy", namespace="kube-system")
    await user.client.patch(CONFIG_MAPS, "db-settings", _HELD, namespace=user.namespace)
    await it.policy(
        _source("Enforce", it.namespace, "db"), _source("Leave", it.namespace, "left"), _source("Try", "*", "*")
    )
    async with ground.registered_manager(PATH=path) as manager:
        cluster = await it.cluster()
        await cluster.delete()
        await cluster.until_held(f"Release/{it.namespace}/db")
        await cluster.teardown(lambda one: any(item.object.name == "db-settings" for item in one.status.blockers))
        manager.process.kill()
    async with ground.manager(PATH=path):
        held = await cluster.teardown(lambda one: one.phase is Phase.HELD)
        assert held.spec.plan
        steps = {step.object.name: (step.effort, step.effort_from) for step in held.spec.plan.steps}
        by = f"TeardownPolicy/{it.namespace}"
        assert steps == {"db": ("Enforce", by), "left": ("Leave", by)}
        assert cluster.taken_apart() == []
        await user.client.patch(CONFIG_MAPS, "db-settings", _FREE, namespace=user.namespace)
        ended = await cluster.teardown()
        await cluster.until_gone()
    assert ended.phase is Phase.COMPLETE
    assert await user.secrets("db") == []
    assert await user.config_map("left-settings")
    assert await user.secrets(it.namespace, namespace="kube-system")
