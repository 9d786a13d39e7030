"""Cluster API's hooks over the life of a cluster, asked by a real chained upgrade, with rules of another package."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tests.e2e.gated_clusters import MEMBER, GatedCluster
from tests.eventually import eventually
from tests.plane.support.profiles import condition
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import Hook
from unwind.api.resources import Resource
from unwind.kube import object_watch
from unwind.local import capi, stubs
from unwind.manager.feature_gates import FEATURE_GATES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Client, Object

# A package that holds each cluster once at every hook and version, and writes down what it was asked.
RULES = """
import os
from pathlib import Path

import msgspec

from unwind.api.hooks import Hook
from unwind.hooks import Wait, hook

ASKED = Path(os.environ["ONCE_ASKED"])


def rule(which):
    @hook(which, name="once")
    async def once(request, ctx):
        versions = msgspec.to_builtins(request)
        for field in ("apiVersion", "kind", "cluster", "settings"):
            versions.pop(field, None)
        line = msgspec.json.encode({"hook": which.value} | versions).decode()
        first = line not in ASKED.read_text().splitlines()
        with ASKED.open("a") as asked:
            print(line, file=asked)
        return Wait(f"once at {which.value}", seconds=1) if first else None

    return once


rules = [rule(which) for which in Hook]
"""
OLD, NEXT, NEW = "v1.34.8", "v1.35.4", "v1.36.1"


def steps(**upgrades: tuple[str, ...]) -> Object:
    """The steps that are still to be done, as Cluster API sends them."""
    names = {"control_plane": "controlPlaneUpgrades", "workers": "workersUpgrades"}
    return {names[which]: [{"version": version} for version in versions] for which, versions in upgrades.items()}


# Workers may be three minors behind, so they are upgraded once, at the end.
CHAINED: list[tuple[Hook, Object]] = [
    (
        Hook.BEFORE_CLUSTER_UPGRADE,
        {"fromKubernetesVersion": OLD, "toKubernetesVersion": NEW} | steps(control_plane=(NEXT, NEW), workers=(NEW,)),
    ),
    (
        Hook.BEFORE_CONTROL_PLANE_UPGRADE,
        {"fromKubernetesVersion": OLD, "toKubernetesVersion": NEXT} | steps(control_plane=(NEXT, NEW), workers=(NEW,)),
    ),
    (Hook.AFTER_CONTROL_PLANE_UPGRADE, {"kubernetesVersion": NEXT} | steps(control_plane=(NEW,), workers=(NEW,))),
    (
        Hook.BEFORE_CONTROL_PLANE_UPGRADE,
        {"fromKubernetesVersion": NEXT, "toKubernetesVersion": NEW} | steps(control_plane=(NEW,), workers=(NEW,)),
    ),
    (Hook.AFTER_CONTROL_PLANE_UPGRADE, {"kubernetesVersion": NEW} | steps(workers=(NEW,))),
    (
        Hook.BEFORE_WORKERS_UPGRADE,
        {"fromKubernetesVersion": OLD, "toKubernetesVersion": NEW} | steps(workers=(NEW,)),
    ),
    (Hook.AFTER_WORKERS_UPGRADE, {"kubernetesVersion": NEW}),
    (Hook.AFTER_CLUSTER_UPGRADE, {"kubernetesVersion": NEW}),
]


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
    """A ClusterClass as the plane's own, with workers and the versions of a chained upgrade. There are no machines, so
    nobody has to provide any: Cluster API goes by the version that they should have."""
    for resource in (BOOTSTRAPS, MACHINES):
        await capi.install_definition(client, stubs._definition(resource, {"spec": stubs._template({})}))
        # What would be made of the template: Cluster API looks for such that were left over.
        made_of_it = Resource(
            resource.group, resource.version, resource.plural.replace("template", ""), resource.kind[:-8]
        )
        await capi.install_definition(client, stubs._definition(made_of_it, {"spec": stubs._object({})}))
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": {"template": {"spec": {}}}}
        await client.apply(resource, body | {"metadata": {"name": WITH_WORKERS, "namespace": stubs.CLASS_NAMESPACE}})
    bootstrap, machine = (
        {"templateRef": {"apiVersion": item.api_version, "kind": item.kind, "name": WITH_WORKERS}}
        for item in (BOOTSTRAPS, MACHINES)
    )
    workers = {"machineDeployments": [{"class": "workers", "bootstrap": bootstrap, "infrastructure": machine}]}
    [made] = [it for resource, it in stubs.cluster_class() if resource == stubs.CLUSTER_CLASSES]
    made["metadata"]["name"] = WITH_WORKERS
    await client.apply(
        stubs.CLUSTER_CLASSES,
        made | {"spec": made["spec"] | {"workers": workers, "kubernetesVersions": [OLD, NEXT, NEW]}},
    )


async def create(scene: GateScene) -> GatedCluster:
    """A cluster whose control plane and workers have a version."""
    [(_, manifest)] = stubs.cluster_of_class("prod", scene.namespace, member=MEMBER, version=OLD, labels=scene.label)
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
        return sum(hook is which for hook, _ in map(_read, self.path.read_text().splitlines()))

    def order(self) -> list[tuple[Hook, Object]]:
        """The hooks with their versions, as they were first asked."""
        return [_read(line) for line in dict.fromkeys(self.path.read_text().splitlines())]


def _read(line: str) -> tuple[Hook, Object]:
    asked = msgspec.json.decode(line)
    return Hook(asked.pop("hook")), asked


async def test_every_hook_of_a_clusters_life_is_asked_in_order_over_two_minor_versions_and_blocks_once(
    ground: Ground, scene: GateScene, tmp_path: Path
) -> None:
    package(tmp_path)
    asked = Asked(tmp_path / "asked")
    hooks = {hook.value for hook in Hook}
    gates = ",".join(f"{feature.name}=true" for feature in FEATURE_GATES if feature.name in hooks)
    ground.plane.provider.upgrading = 1.0
    await have_workers(scene.client)
    await scene.add_on("web")
    said: set[str] = set()

    async def listen() -> None:
        """Note all that the Cluster says it waits for."""

        def note(it: Object | None) -> bool:
            said.add(condition(it or {}, "TopologyReconciled").get("message", ""))
            return False

        await object_watch.until(scene.client, CLUSTERS, "prod", note, "over", namespace=scene.namespace, within=3600)

    async with ground.manager(
        "--feature-gates", gates, PYTHONPATH=str(tmp_path), ONCE_ASKED=str(asked.path)
    ) as manager:
        await ground.until_discovered(*(which.value for which in Hook))
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            cluster = await create(scene)
            await scene.until_on(cluster, "web")
            # Cluster API may ask it later than the hooks of an upgrade that begins at once.
            initialized = Hook.AFTER_CONTROL_PLANE_INITIALIZED
            await eventually(lambda: asked.times(initialized) >= 1, "the call of AfterControlPlaneInitialized")
            upgrade = {"spec": {"topology": {"version": NEW}}}
            await scene.client.patch(CLUSTERS, cluster.name, upgrade, namespace=scene.namespace)
            await cluster.until(upgraded, "upgraded")
            # The last one is asked when all is done, and nothing on the Cluster waits for it.
            await eventually(lambda: asked.times(Hook.AFTER_CLUSTER_UPGRADE) >= 2, "the second call of the last hook")
            await cluster.delete()
            await cluster.until_gone()
            listening.cancel()
        assert await manager.stop() == 0
    assert asked.order() == [
        (Hook.BEFORE_CLUSTER_CREATE, {}),
        (Hook.AFTER_CONTROL_PLANE_INITIALIZED, {}),
        *CHAINED,
        (Hook.BEFORE_CLUSTER_DELETE, {}),
    ]
    # At each version, it was first told to wait, and then that it may go on.
    each = Counter(which for which, _ in (*CHAINED, (Hook.BEFORE_CLUSTER_CREATE, {}), (Hook.BEFORE_CLUSTER_DELETE, {})))
    for which, versions in each.items():
        assert asked.times(which) >= 2 * versions, which
        assert any(f"{which.value}: once at {which.value}" in item for item in said), (which, said)
    assert await scene.on_member() == {}


def upgraded(cluster: Object | None) -> bool:
    versions = ((cluster or {}).get("status") or {}).get("controlPlane", {}).get("versions")
    return bool(versions == [{"version": NEW}]) and object_watch.has_condition(cluster, "TopologyReconciled")
