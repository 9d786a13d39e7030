"""Flux on a plane: handles for one cluster that the real controllers deploy, and policies that enforce all of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.plane.support.cluster_teardowns import manager, scene
from tests.plane.support.fixed_policies import FixedPolicies
from tests.plane.support.flux_sources import FluxSources, artifacts, config_map
from unwind.api.flux import FLUX_FINALIZER, KUSTOMIZATIONS
from unwind.api.names import Finalizer
from unwind.api.policies import SourceKind, Suspended
from unwind.api.resources import CONFIG_MAPS
from unwind.companions.flux import FluxCompanion
from unwind.companions.step_source import CompanionSteps
from unwind.kube.object_watch import until
from unwind.kube.updates import revise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Effort
    from unwind.capi.cluster_controller import ClusterTeardownController
    from unwind.companions.companion import Handle
    from unwind.companions.step_source import HandleDecision
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps


class EnforceAll(FixedPolicies):
    """Policies that enforce every handle. `efforts`: others, by the name of the handle."""

    sources = frozenset({SourceKind.FLUX})

    def __init__(self, *namespaces: str, **efforts: Effort) -> None:
        super().__init__(efforts, namespaces=namespaces)
        self.suspended = Suspended.HOLD

    def decide(self, handle: Handle) -> HandleDecision | None:
        decision, removes = super().decide(handle), self.suspended is Suspended.REMOVE
        return decision and msgspec.structs.replace(decision, removes_suspended=removes)

    async def removes_suspended(self, target: ClusterTarget, handle: ObjectRef, on_member: bool) -> bool:
        return self.suspended is Suspended.REMOVE


class FluxScene:
    """A cluster on which Flux deploys, from the management cluster."""

    def __init__(self, cluster: TeardownScene, sources: FluxSources) -> None:
        self.cluster = cluster
        self.sources = sources
        self.secret = f"{cluster.name}-kubeconfig"
        self.policies = EnforceAll(cluster.namespace)
        self.helm: Helm | None = None
        """The program of the manager."""

    def on_member(self) -> FluxSources:
        """Sources for Flux on the member itself."""
        return self.sources.on(self.cluster.member.client, self.cluster.on_member)

    @property
    def client(self) -> Client:
        return self.cluster.client

    def config_map(self, name: str, **metadata: Any) -> Object:
        """A manifest for the member."""
        return config_map(name, self.cluster.on_member, **metadata)

    async def kustomization(self, name: str, *objects: str, **more: Any) -> None:
        """A Kustomization on the management cluster with these ConfigMaps. `manifests`: other objects."""
        manifests = [*(self.config_map(item) for item in objects), *more.pop("manifests", ())]
        await self.sources.kustomization(name, manifests, secret=self.secret, **more)

    def steps(self, deps: RemovalDeps, client: Client) -> CompanionSteps:
        companion = FluxCompanion(client, removes=self.policies.removes_suspended, helm=self.helm)
        return CompanionSteps(companion, self.policies, deps.members, deps.inventories)

    @asynccontextmanager
    async def manager(self, **more: Any) -> AsyncIterator[ClusterTeardownController]:
        """A manager with Flux as a companion, with the rights of an installed one."""

        def source(deps: RemovalDeps) -> CompanionSteps:
            return self.steps(deps, deps.members._client)

        async with manager(self.client, sources=(source,), **more) as controller:
            yield controller

    async def handle(self, name: str) -> Object | None:
        found = await self.client.list(KUSTOMIZATIONS, namespace=self.cluster.namespace)
        return next((item for item in found if item["metadata"]["name"] == name), None)

    async def until_handle(self, name: str, state: Any, called: str) -> None:
        await until(self.client, KUSTOMIZATIONS, name, state, called, namespace=self.cluster.namespace)

    async def hold(self, name: str, resource: Resource = KUSTOMIZATIONS) -> str:
        """Put Unwind's finalizer on a handle, as policies do when they select the cluster; its uid."""
        found = await self.client.get(resource, name, namespace=self.cluster.namespace)
        patch: Object = {"metadata": {"finalizers": [FLUX_FINALIZER, Finalizer.HANDLE.value]}}
        await revise(self.client, resource, found, lambda _: patch)
        return str(found["metadata"]["uid"])

    async def free(self, name: str) -> None:
        """Take the finalizers off a ConfigMap on the member."""
        patch = {"metadata": {"finalizers": None}}
        await self.cluster.member.client.patch(CONFIG_MAPS, name, patch, namespace=self.cluster.on_member)


@asynccontextmanager
async def flux_scene(plane: Plane, namespace: str) -> AsyncIterator[FluxScene]:
    cluster = await scene(plane, namespace)
    async with artifacts() as server:
        yield FluxScene(cluster, FluxSources(plane.management.client, namespace, server))
