"""Members for tests: real clusters, joined as a person joins them, and what runs beside them."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.plane.support import profiles
from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from unwind.addons.caches import AddonCaches
from unwind.api.karmada import CLUSTERS, WORKS, Cluster
from unwind.api.names import KARMADA_CLUSTER_NAMESPACE, KARMADA_EXECUTION_NAMESPACE
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.rights import HOME
from unwind.clock import SYSTEM
from unwind.karmada import join
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.cluster_controller import ClusterController
from unwind.karmada.join_objects import JoinOptions
from unwind.kube import object_watch
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.events import Recorder
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.clock import Clock
    from unwind.components import Component
    from unwind.deleters.registry import Plugin
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.teardown.step_removers import RemovalDeps

GROUPS = ("cluster.karmada.io", "work.karmada.io")


async def install(client: Client) -> None:
    """Have all kinds served that members need, and those of add-ons, whose caches run beside them."""
    await profiles.install(client)
    await profiles.serve(client, GROUPS, (CLUSTERS, WORKS))


@asynccontextmanager
async def running(
    client: Client,
    *more: Callable[[Client, KarmadaCaches, AddonCaches, RemovalDeps], Component],
    clock: Clock = SYSTEM,
    namespace: str = HOME,
    plugins: tuple[Plugin, ...] = (),
) -> AsyncIterator[KarmadaCaches]:
    """The cluster controller runs as the manager of a namespace, and with it what else is made for the caches."""
    async with manager_client(client, namespace) as own:
        addons, caches = AddonCaches(own, clock=clock), KarmadaCaches(own, clock=clock)
        recorder = Recorder(own, instance="test")
        async with removal_deps(own, namespace, clock=clock, plugins=plugins) as deps:
            shared = controller_deps(own, recorder=recorder, clock=clock)
            clusters = ClusterController(shared, caches, addons.sources[SECRETS.kind], deps.members)
            others = (make(own, caches, addons, deps) for make in more)
            async with running_components((addons, caches, recorder, clusters, *others)):
                yield caches


class Member:
    """A cluster that is joined under a name of its own, and what stands for it in the control plane."""

    def __init__(self, client: Client, cluster: LocalCluster, name: str, joined: join.Joined) -> None:
        self.client = client
        """Of the control plane."""
        self.cluster = cluster
        self.name = name
        self.joined = joined
        self.execution = f"{KARMADA_EXECUTION_NAMESPACE}{name}"

    async def get(self) -> Cluster:
        return await self.client.get(CLUSTERS, self.name, type=Cluster)

    async def until(self, holds: Callable[[Cluster], bool], called: str = "as it should be") -> Cluster:
        """The Cluster, as soon as it is so."""
        found = await object_watch.until(
            self.client,
            CLUSTERS,
            self.name,
            lambda it: it is not None and holds(msgspec.convert(it, Cluster)),
            called,
            within=60,
        )
        return msgspec.convert(found, Cluster)

    async def work(self, name: str, *manifests: Object, **spec: Any) -> Object:
        """A Work of these manifests."""
        body = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": name, "namespace": self.execution},
            "spec": {"workload": {"manifests": list(manifests)}, **spec},
        }
        return await self.client.create(WORKS, body)

    async def delete(self) -> None:
        """Ask for the end of the Cluster, which is what unjoining begins with."""
        it = await self.get()
        await self.client.delete(CLUSTERS, self.name, uid=it.metadata.uid)


def a_name() -> str:
    """One that no other test has."""
    return f"m-{uuid.uuid4().hex[:8]}"


async def prepare(cluster: LocalCluster) -> None:
    """Have a namespace for credentials that no test deletes: the next one would have to wait until it is gone."""
    await cluster.create_namespace(KARMADA_CLUSTER_NAMESPACE)


async def clear(client: Client, name: str) -> None:
    """Let go of all that stands for a member, so that its cluster can be joined again. Nobody waits for namespaces."""
    execution = f"{KARMADA_EXECUTION_NAMESPACE}{name}"
    for work in await client.list(WORKS, namespace=execution):
        await _drop(client, WORKS, work["metadata"]["name"], execution)
    await _drop(client, CLUSTERS, name, None)
    await _drop(client, SECRETS, name, KARMADA_CLUSTER_NAMESPACE)
    with suppress(NotFoundError, ConflictError):
        found = await client.get(NAMESPACES, execution)
        await client.delete(NAMESPACES, execution, uid=found["metadata"]["uid"])


async def _drop(client: Client, kind: Any, name: str, namespace: str | None) -> None:
    with suppress(NotFoundError, ConflictError):
        found = await client.get(kind, name, namespace=namespace)
        await client.delete(kind, name, uid=found["metadata"]["uid"], namespace=namespace)
        await client.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=namespace)


@asynccontextmanager
async def joined(
    client: Client, cluster: LocalCluster, *, name: str = "", via: Client | None = None, **options: Any
) -> AsyncIterator[Member]:
    """A cluster joined for one test. `via`: another way to it, such as a proxy, by which it is joined."""
    name = name or a_name()
    await prepare(cluster)
    done = await join.join(client, via or cluster.client, JoinOptions(name=name, **options))
    member = Member(client, cluster, name, done)
    try:
        yield member
    finally:
        await clear(client, name)
        home = await client.cluster_uid()
        await join.take_out(cluster.client, name, KARMADA_CLUSTER_NAMESPACE, joined_to=home)
