"""Cluster API's hooks over the life of a cluster, asked by a real version change, with rules of another package."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.e2e.gated_clusters import MEMBER, GatedCluster
from tests.eventually import eventually
from tests.plane.support.profiles import condition
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import Hook
from unwind.api.resources import Resource
from unwind.local import capi, stubs, waiting
from unwind.manager.feature_gates import FEATURES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Client, Object

# Long: `make soak` runs it.
pytestmark = pytest.mark.soak

# A package that holds each cluster once at every hook, and writes down when it was asked.
RULES = """
import os
from pathlib import Path

from unwind.api.hooks import Hook
from unwind.hooks import Wait, hook

ASKED = Path(os.environ["ONCE_ASKED"])


def rule(which):
    @hook(which, name="once")
    async def once(request, ctx):
        first = which.value not in ASKED.read_text().split()
        with ASKED.open("a") as asked:
            print(which.value, file=asked)
        return Wait(f"once at {which.value}", seconds=1) if first else None

    return once


rules = [rule(which) for which in Hook]
"""
UPGRADE = (
    Hook.BEFORE_CLUSTER_UPGRADE,
    Hook.BEFORE_CONTROL_PLANE_UPGRADE,
    Hook.AFTER_CONTROL_PLANE_UPGRADE,
    Hook.BEFORE_WORKERS_UPGRADE,
    Hook.AFTER_WORKERS_UPGRADE,
    Hook.AFTER_CLUSTER_UPGRADE,
)


def package(directory: Path) -> None:
    """Have it installed, for whoever has the directory on their path."""
    (directory / "once_rules.py").write_text(RULES)
    about = directory / "once_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: once-rules\nVersion: 1.0\n")
    points = "\n".join(f"{which.value} = once_rules:rules" for which in Hook)
    (about / "entry_points.txt").write_text(f"[unwind.hooks]\n{points}\n")


BOOTSTRAPS = Resource("bootstrap.cluster.x-k8s.io", "v1beta2", "stubbootstraptemplates", "StubBootstrapTemplate")
MACHINES = Resource("infrastructure.cluster.x-k8s.io", "v1beta2", "stubmachinetemplates", "StubMachineTemplate")
WITH_WORKERS = "stub-workers"


async def have_workers(client: Client) -> None:
    """A ClusterClass as the plane's own, with workers. There are none of them, so nobody has to provide any: Cluster
    API goes by the version that they should have."""
    for resource in (BOOTSTRAPS, MACHINES):
        await capi._install(client, stubs._definition(resource, {"spec": stubs._template({})}))
        # What would be made of the template: Cluster API looks for such that were left over.
        made_of_it = Resource(
            resource.group, resource.version, resource.plural.replace("template", ""), resource.kind[:-8]
        )
        await capi._install(client, stubs._definition(made_of_it, {"spec": stubs._object({})}))
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": {"template": {"spec": {}}}}
        await client.apply(resource, body | {"metadata": {"name": WITH_WORKERS, "namespace": stubs.CLASS_NAMESPACE}})
    bootstrap, machine = (
        {"templateRef": {"apiVersion": item.api_version, "kind": item.kind, "name": WITH_WORKERS}}
        for item in (BOOTSTRAPS, MACHINES)
    )
    workers = {"machineDeployments": [{"class": "workers", "bootstrap": bootstrap, "infrastructure": machine}]}
    [made] = [it for resource, it in stubs.cluster_class() if resource == stubs.CLUSTER_CLASSES]
    made["metadata"]["name"] = WITH_WORKERS
    await client.apply(stubs.CLUSTER_CLASSES, made | {"spec": made["spec"] | {"workers": workers}})


async def create(scene: GateScene) -> GatedCluster:
    """A cluster whose control plane and workers have a version."""
    [(_, manifest)] = stubs.cluster_of_class(
        "prod", scene.namespace, member=MEMBER, version="v1.35.4", labels=scene.label
    )
    topology = manifest["spec"]["topology"]
    topology["classRef"]["name"] = WITH_WORKERS
    # What Cluster API's admission webhook would fill in.
    rollout = {"strategy": {"type": "OnDelete"}}
    few = {"class": "workers", "name": "few", "replicas": 0, "rollout": rollout}
    topology["workers"] = {"machineDeployments": [few]}
    made = await scene.client.create(CLUSTERS, manifest)
    await capi.until_available(scene.client, name="prod", namespace=scene.namespace)
    return GatedCluster(scene, "prod", made["metadata"]["uid"])


class Asked:
    """What the rules were asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def times(self, which: Hook) -> int:
        return self.path.read_text().split().count(which.value)

    def order(self) -> list[str]:
        """The hooks, as they were first asked."""
        return list(dict.fromkeys(self.path.read_text().split()))


async def test_every_hook_of_a_clusters_life_is_asked_in_order_and_blocks_once(
    ground: Ground, scene: GateScene, tmp_path: Path
) -> None:
    package(tmp_path)
    asked = Asked(tmp_path / "asked")
    hooks = {hook.value for hook in Hook}
    gates = ",".join(f"{feature.name}=true" for feature in FEATURES if feature.name in hooks)
    ground.plane.provider.upgrading = 1.0
    await have_workers(scene.client)
    await scene.add_on("web")
    said: set[str] = set()

    async def listen() -> None:
        """Note all that the Cluster says it waits for."""

        def note(it: Object | None) -> bool:
            said.add(condition(it or {}, "TopologyReconciled").get("message", ""))
            return False

        await waiting.until(scene.client, CLUSTERS, "prod", note, "over", namespace=scene.namespace, within=3600)

    async with ground.manager(
        "--feature-gates", gates, PYTHONPATH=str(tmp_path), ONCE_ASKED=str(asked.path)
    ) as manager:
        await ground.until_discovered(*(which.value for which in Hook))
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            cluster = await create(scene)
            await scene.until_on(cluster, "web")
            upgrade = {"spec": {"topology": {"version": "v1.36.1"}}}
            await scene.client.patch(CLUSTERS, cluster.name, upgrade, namespace=scene.namespace)
            await cluster.until(upgraded, "upgraded")
            # The last one is asked when all is done, and nothing on the Cluster waits for it.
            await eventually(lambda: asked.times(UPGRADE[-1]) >= 2, "the second call of the last hook")
            await cluster.delete()
            await cluster.until_gone()
            listening.cancel()
        assert await manager.stop() == 0
    assert asked.order() == [
        Hook.BEFORE_CLUSTER_CREATE.value,
        Hook.AFTER_CONTROL_PLANE_INITIALIZED.value,
        *(which.value for which in UPGRADE),
        Hook.BEFORE_CLUSTER_DELETE.value,
    ]
    # First it was told to wait, and then that it may go on.
    for which in (Hook.BEFORE_CLUSTER_CREATE, *UPGRADE, Hook.BEFORE_CLUSTER_DELETE):
        assert asked.times(which) >= 2, which
        assert any(f"{which.value}: once at {which.value}" in item for item in said), (which, said)
    assert await scene.on_member() == {}


def upgraded(cluster: Object | None) -> bool:
    versions = ((cluster or {}).get("status") or {}).get("controlPlane", {}).get("versions")
    return bool(versions == [{"version": "v1.36.1"}]) and waiting.is_true(cluster, "TopologyReconciled")
