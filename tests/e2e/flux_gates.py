"""A cluster on which Flux deploys, behind the gate of Cluster API."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.plane.support.flux_sources import FluxSources, artifacts, config_map, helm_release
from unwind.api.capi import CLUSTERS
from unwind.api.flux import KUSTOMIZATIONS
from unwind.api.names import Finalizer
from unwind.kube import object_watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import GatedCluster, GateScene
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

HOLD = "example.dev/backup"
CHART = {"templates/db.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-0\n"}


class FluxGate:
    """A cluster of a policy, on which Flux deploys."""

    def __init__(self, scene: GateScene, sources: FluxSources) -> None:
        self.scene = scene
        self.sources = sources
        self.there = sources.on(scene.member.client, scene.namespace)
        """Flux on the member."""
        self.secret = "prod-kubeconfig"  # noqa: S105 - a name

    def config_map(self, name: str, **more: object) -> Object:
        return config_map(name, self.scene.namespace, **more)

    async def begin(self, *sources: Object, **spec: object) -> GatedCluster:
        """A policy, and a cluster that it selects. `sources`: those of the policy; by default, Flux is enforced."""
        await self.scene.policy(*sources or ({"kind": "Flux", "effort": "Enforce"},), **spec)
        return await self.scene.cluster()

    async def kustomization(self, name: str, *manifests: Object, **more: object) -> None:
        found = manifests or (self.config_map(f"{name}-0"),)
        await self.sources.kustomization(name, found, secret=self.secret, **more)

    async def nested_release(self, name: str, parent: str, **more: object) -> None:
        """A HelmRelease in a Kustomization that deploys on the management cluster."""
        await self.sources.chart(name, CHART)
        release = helm_release(name, self.scene.namespace, secret=self.secret)
        await self.sources.kustomization(parent, [release], **more)
        await self.sources.until_ready(parent)

    async def written(self, cluster: GatedCluster) -> Object:
        """The manifest of the cluster, for a Kustomization that contains it."""
        found = await cluster.get()
        return {
            "apiVersion": CLUSTERS.api_version,
            "kind": CLUSTERS.kind,
            "metadata": {"name": cluster.name, "namespace": self.scene.namespace, "labels": self.scene.label},
            "spec": {"topology": found["spec"]["topology"]},
        }

    async def prune(self, name: str) -> None:
        """Remove everything from the source of a Kustomization, so that Flux deletes it."""
        await self.sources.source(name, [config_map("empty", self.scene.namespace)])

    async def until_held(
        self, *names: str, resource: Resource = KUSTOMIZATIONS, finalizer: Finalizer = Finalizer.HANDLE
    ) -> None:
        """Return when Unwind's finalizer is on these handles."""
        for name in names:
            await object_watch.until(
                self.scene.client,
                resource,
                name,
                lambda it: it is not None and finalizer.value in (it["metadata"].get("finalizers") or ()),
                "held by its policy",
                namespace=self.scene.namespace,
            )

    async def free(self, name: str) -> None:
        await self.scene.unblock(name)


@asynccontextmanager
async def flux_gate(scene: GateScene) -> AsyncIterator[FluxGate]:
    """The gate of a scene. Its policy goes with it."""
    async with artifacts() as server:
        yield FluxGate(scene, FluxSources(scene.client, scene.namespace, server))
    await scene.forget_policy()
