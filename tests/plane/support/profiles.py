"""Profiles, clusters and sources for tests: what a person writes, and what is seen of it on the member."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import yaml
from prometheus_client import CollectorRegistry

from tests.eventually import eventually
from tests.namespaces import drop
from tests.owners import Owner
from tests.plane.support.controllers import HOLD, addon_controllers, removal_deps, running_components
from tests.plane.support.objects import until_there
from tests.plane.support.waits import until_struct
from unwind.addons.caches import AddonCaches
from unwind.api.names import SVELTOS_PAUSED_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.sveltos import (
    CLUSTER_CONFIGURATIONS,
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    PROFILES,
    SVELTOS_CLUSTERS,
    ClusterSummary,
)
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Inventory
from unwind.install.manifests import crds
from unwind.kube import object_watch
from unwind.kube.errors import AlreadyExistsError, ApiError, NotFoundError
from unwind.kube.metrics import Metrics
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleters.registry import Plugin
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.kube.fencing import ShardOwner
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

KINDS = (
    CLUSTER_PROFILES,
    PROFILES,
    CLUSTER_SUMMARIES,
    CLUSTER_CONFIGURATIONS,
    SVELTOS_CLUSTERS,
    INVENTORIES,
    TEARDOWNS,
)


# Kubernetes puts it into every namespace.
_ROOT = "kube-root-ca.crt"


async def install(client: Client) -> None:
    """Have all kinds served, and watches of them answered."""
    await serve(client, ("config.projectsveltos.io", "lib.projectsveltos.io", "unwind.dev"), KINDS)


_SERVED: WeakKeyDictionary[Client, set[str]] = WeakKeyDictionary()


async def serve(client: Client, groups: Iterable[str], kinds: Iterable[Resource]) -> None:
    """Have the kinds of these groups served, and watches of these kinds answered. For each client, only the first time:
    the API server checks a whole CRD before it says that it exists."""
    served = _SERVED.setdefault(client, set())
    fresh = False
    for group in [group for group in groups if group not in served]:
        for body in crds(group):
            with suppress(AlreadyExistsError):  # another test was first
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
                fresh = True
            await object_watch.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, body["metadata"]["name"], "Established")
        served.add(group)
    if fresh:  # otherwise the test that created them has waited
        # All at once: a watch without objects is known to be answered only when its second is over.
        await asyncio.gather(*(eventually(partial(_watched, client, kind), f"a watch of {kind}") for kind in kinds))


async def _watched(client: Client, resource: Resource) -> bool:
    """Right after a CRD was created its watches are turned away; by a clock that stands still nobody comes back."""
    try:
        async for _ in client.watch_lines(resource, seconds=1):
            return True
    except ApiError:
        return False
    return True


@asynccontextmanager
async def running(
    client: Client,
    namespace: str,
    *,
    clock: Clock | None = None,
    owner: ShardOwner | None = None,
    helm: Helm | None = None,
    plugins: tuple[Plugin, ...] = (),
) -> AsyncIterator[Clock]:
    """Run the controllers as the manager of the namespace, by a clock that stands still unless there is another."""
    clock = clock or StillClock()
    owner = owner or Owner()
    metrics = Metrics(CollectorRegistry())
    async with (
        manager_client(client, namespace) as own,
        removal_deps(own, namespace, clock=clock, plugins=plugins) as deps,
    ):
        caches = AddonCaches(own, clock=clock)
        controllers = addon_controllers(own, caches, deps, owner=owner, metrics=metrics, helm=helm)
        async with running_components((caches, *controllers)):
            yield clock


def config_map(namespace: str, name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data or {"made": "by a profile"},
    }


class MemberConfigMaps:
    """The ConfigMaps in one namespace of a member cluster, for scenes that have both."""

    member: LocalCluster
    namespace: str

    async def on_member(self) -> dict[str, Object]:
        """The ConfigMaps, by name."""
        found = await self.member.client.list(CONFIG_MAPS, namespace=self.namespace)
        return {item["metadata"]["name"]: item for item in found if item["metadata"]["name"] != _ROOT}

    async def block(self, name: str, finalizer: str = HOLD) -> None:
        """Add a finalizer that no controller removes."""
        patch = {"metadata": {"finalizers": [finalizer]}}
        # As another field manager: what Unwind wrote and does not apply any more is removed.
        await self.member.client.patch(CONFIG_MAPS, name, patch, namespace=self.namespace, field_manager="somebody")

    async def unblock(self, *names: str) -> None:
        """Remove the finalizers from those that still exist."""
        for name in names:
            with suppress(NotFoundError):
                await self.member.client.patch(
                    CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, namespace=self.namespace
                )

    def deleted(self) -> list[str]:
        """The ConfigMaps whose deletion the member accepted, in order."""
        found = self.member.audit.deletions(resource="configmaps", namespace=self.namespace)
        return [item.object_ref.name for item in found]

    def deletion_times(self) -> dict[str, tuple[str, str]]:
        """When the deletion of each was received and answered, from the member's audit log."""
        found = self.member.audit.deletions(resource="configmaps", namespace=self.namespace)
        return {item.object_ref.name: (item.request_received_timestamp, item.stage_timestamp) for item in found}


class ProfileScene(MemberConfigMaps):
    """One test's namespace on the management cluster, and one of the same name on the member."""

    def __init__(self, client: Client, member: LocalCluster, namespace: str) -> None:
        self.client = client
        self.member = member
        self.namespace = namespace
        self.label = {"test": namespace}

    async def register(self, name: str = "edge", *, labels: dict[str, str] | None = None, ready: bool = True) -> Object:
        """A SveltosCluster that is the member."""
        kubeconfig = base64.b64encode(self.member.kubeconfig.read_bytes()).decode()
        secret = {"name": f"{name}-sveltos-kubeconfig", "namespace": self.namespace}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": {"kubeconfig": kubeconfig}}
        await self.client.create(SECRETS, body)
        return await self.register_again(name, labels=labels, ready=ready)

    async def register_again(
        self, name: str = "edge", *, labels: dict[str, str] | None = None, ready: bool = True
    ) -> Object:
        metadata = {"name": name, "namespace": self.namespace, "labels": self.label if labels is None else labels}
        made = await self.client.create(
            SVELTOS_CLUSTERS,
            {"apiVersion": SVELTOS_CLUSTERS.api_version, "kind": "SveltosCluster", "metadata": metadata, "spec": {}},
        )
        if ready:
            await self.client.patch(
                SVELTOS_CLUSTERS, name, {"status": {"ready": True}}, namespace=self.namespace, subresource="status"
            )
        return made

    async def source(self, name: str, *documents: Object, secret: bool = False) -> Object:
        """A ConfigMap or Secret with these manifests."""
        text = yaml.dump_all(documents)
        metadata = {"name": name, "namespace": self.namespace}
        if secret:
            data = {"all.yaml": base64.b64encode(text.encode()).decode()}
            return await self.client.create(
                SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
            )
        return await self.client.create(
            CONFIG_MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"all.yaml": text}},
        )

    async def edit(self, name: str, *documents: Object) -> None:
        data = {"all.yaml": yaml.dump_all(documents)}
        await self.client.patch(CONFIG_MAPS, name, {"data": data}, namespace=self.namespace)

    def refs(self, *names: str) -> list[Object]:
        return [{"kind": "ConfigMap", "namespace": self.namespace, "name": name} for name in names]

    async def profile(self, name: str, *sources: str, kind: Resource = CLUSTER_PROFILES, **spec: Any) -> Object:
        """A profile of the sources for the clusters with this test's label, unless the spec says otherwise."""
        metadata = {"name": self.called(name, kind)}
        if kind.namespaced:
            metadata["namespace"] = self.namespace
        body = {"clusterSelector": {"matchLabels": self.label}, "policyRefs": self.refs(*sources)} | spec
        return await self.client.create(
            kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": body}
        )

    async def add_on(
        self, name: str, *, behaviour: str = "EnforceRemovePolicies", depends_on: Iterable[str] = (), objects: int = 2
    ) -> None:
        """A ClusterProfile with this name, for a number of ConfigMaps that are named after it."""
        await self.source(name, *(config_map(self.namespace, f"{name}-{number}") for number in range(objects)))
        await self.profile(name, name, clusterDeletionBehavior=behaviour, dependsOn=self.needs(*depends_on))

    def called(self, name: str, kind: Resource = CLUSTER_PROFILES) -> str:
        """ClusterProfiles of different tests share one place."""
        return name if kind.namespaced else f"{self.namespace}-{name}"

    def needs(self, *names: str) -> list[str]:
        return [self.called(name) for name in names]

    async def edit_profile(self, name: str, spec: Object, kind: Resource = CLUSTER_PROFILES) -> None:
        namespace = self.namespace if kind.namespaced else None
        await self.client.patch(kind, self.called(name, kind), {"spec": spec}, namespace=namespace)

    async def delete_profile(self, name: str, kind: Resource = CLUSTER_PROFILES) -> None:
        namespace = self.namespace if kind.namespaced else None
        found = await self.client.get(kind, self.called(name, kind), namespace=namespace)
        await self.client.delete(kind, found["metadata"]["name"], uid=found["metadata"]["uid"], namespace=namespace)

    async def until_profile(
        self, name: str, holds: Callable[[Object], bool], called: str = "as it should be"
    ) -> Object:
        found = await object_watch.until(
            self.client, CLUSTER_PROFILES, self.called(name), lambda it: it is not None and holds(it), called, within=30
        )
        assert found
        return found

    async def provide(self, profile: str = "web", name: str = "a", **spec: Any) -> None:
        """A profile with a ConfigMap of this name, and the cluster that it is for."""
        await self.source(profile, config_map(self.namespace, name))
        await self.register()
        await self.profile(profile, profile, **spec)

    async def until_profile_gone(self, name: str) -> None:
        await object_watch.until_absent(self.client, CLUSTER_PROFILES, self.called(name), within=30)

    def summary_name(self, profile: str, cluster: str = "edge", type_: str = "sveltos") -> str:
        return f"{self.called(profile)}-{type_}-{cluster}"

    async def summary(self, profile: str, cluster: str = "edge") -> ClusterSummary:
        return await self.client.get(
            CLUSTER_SUMMARIES, self.summary_name(profile, cluster), namespace=self.namespace, type=ClusterSummary
        )

    async def until_summary(
        self,
        profile: str,
        holds: Callable[[ClusterSummary], bool],
        called: str = "as it should be",
        *,
        cluster: str = "edge",
        type_: str = "sveltos",
    ) -> ClusterSummary:
        return await until_struct(
            self.client,
            CLUSTER_SUMMARIES,
            self.summary_name(profile, cluster, type_),
            ClusterSummary,
            holds,
            called,
            namespace=self.namespace,
            within=30,
        )

    async def until_provisioned(self, *profiles: str, cluster: str = "edge", type_: str = "sveltos") -> None:
        for profile in profiles:
            await self.until_summary(
                profile,
                lambda it: feature(it) == "Provisioned",
                "Provisioned",
                cluster=cluster,
                type_=type_,
            )

    async def until_summary_gone(self, profile: str, cluster: str = "edge", type_: str = "sveltos") -> None:
        name = self.summary_name(profile, cluster, type_)
        await object_watch.until_absent(self.client, CLUSTER_SUMMARIES, name, namespace=self.namespace, within=30)

    async def until_on_member(self, name: str, holds: Callable[[Object], bool] = lambda _: True) -> Object:
        return await until_there(self.member.client, CONFIG_MAPS, name, holds, namespace=self.namespace, within=30)

    async def until_off_member(self, name: str) -> None:
        await object_watch.until_absent(self.member.client, CONFIG_MAPS, name, namespace=self.namespace, within=30)

    async def inventories(self, uid: str) -> list[Inventory]:
        found = await self.client.list(INVENTORIES, namespace=self.namespace, labels=f"unwind.dev/owner={uid}")
        return msgspec.convert(found, list[Inventory])

    def created(self) -> list[str]:
        entries = self.member.audit.entries(verbs=("create",), resource="configmaps", namespace=self.namespace)
        return [entry.object_ref.name for entry in entries if entry.code < 300 and entry.object_ref.name != _ROOT]

    async def clear(self) -> None:
        """Let go of what is left, so that the controllers of the next test do not find it."""
        for item in await self.client.list(TEARDOWNS):
            if item["spec"]["target"].get("namespace") == self.namespace:
                with suppress(NotFoundError):
                    await self.client.delete(TEARDOWNS, item["metadata"]["name"], uid=item["metadata"]["uid"])
        for profile in await self.client.list(CLUSTER_PROFILES):
            if profile["metadata"]["name"].startswith(self.namespace):
                await drop(self.client, CLUSTER_PROFILES, profile)
        for kind in (PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS, INVENTORIES, SECRETS):
            for item in await self.client.list(kind, namespace=self.namespace):
                await drop(self.client, kind, item)


@asynccontextmanager
async def playing(plane: Plane, namespace: str) -> AsyncIterator[ProfileScene]:
    """A scene with a namespace of its own on the first member, which stays there."""
    member = plane.members["member-1"]
    await member.create_namespace(namespace)
    scene = ProfileScene(plane.management.client, member, namespace)
    yield scene
    await scene.clear()


async def pause(client: Client, profile: str, *, paused: bool = True) -> None:
    """Pause or unpause a ClusterProfile. As in Sveltos, the value of the annotation does not matter."""
    patch = {"metadata": {"annotations": {SVELTOS_PAUSED_ANNOTATION: "" if paused else None}}}
    await client.patch(CLUSTER_PROFILES, profile, patch)


def feature(summary: ClusterSummary, feature_id: str = "Resources") -> str:
    return next((item.status for item in summary.status.feature_summaries if item.feature_id == feature_id), "")


def message(summary: ClusterSummary, feature_id: str = "Resources") -> str:
    found = (item.failure_message for item in summary.status.feature_summaries if item.feature_id == feature_id)
    return next(found, None) or ""


def condition(obj: Object, type_: str) -> Object:
    found: list[Object] = (obj.get("status") or {}).get("conditions") or []
    return next((obj for obj in found if obj["type"] == type_), {})
