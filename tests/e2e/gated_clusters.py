"""What the tests of the gate are made of: the real Cluster API, `unwind run` registered with it, clusters with add-ons.

Replicas come and go behind one address, as behind a Service.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.commands import command
from tests.plane.support.manager_process import running
from tests.plane.support.objects import teardown_policy
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.names import CLUSTER_UID_ANNOTATION, FORCE_RELEASE_ANNOTATION
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import LEASES, SECRETS
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Inventory, Teardown
from unwind.capi.admission_policies import extension_name
from unwind.kube import kubeconfig, object_watch
from unwind.kube.client import Client
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.local import build, tools
from unwind.local import plane as planes
from unwind.local.capi import create_cluster
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.home import Shape
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tests.plane.support.manager_process import Manager
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.plane import Plane

ENFORCE, REMOVE, LEAVE = "EnforceRemovePolicies", "RemovePolicies", "LeavePolicies"
MEMBER = "member-1"
OURS = extension_name(HOME)
WAITING = "waiting for add-on cleanup: "
ON_MEMBERS = "unwind"
"""The user agent of the manager in the audit log of a member. Clients of tests have the same one."""
_BACKUP = "example.dev/backup"
_LONG = 90.0


class Balancer:
    """One address on loopback in front of all replicas; use it as an async context manager."""

    def __init__(self) -> None:
        self._open = True
        self._replicas: list[tuple[str, int]] = []
        self._turns = itertools.count()
        self._listener: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._listener
        self._listener.close()
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._listener
        return f"https://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def shut(self) -> None:
        """From now on nobody gets through, and who is through already is cut off."""
        self._open = False
        for caller in self._callers:
            caller.cancel()

    def reopen(self) -> None:
        self._open = True

    def add(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._replicas.append((host, int(port)))

    def remove(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._replicas.remove((host, int(port)))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._callers.add(task)
        onward: asyncio.StreamWriter | None = None
        try:
            there = await self._connect()
            if there is None:
                return
            back, onward = there
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_pass(reader, onward))
                directions.create_task(_pass(back, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # one of the two sides has gone, or all of this is over
        finally:
            self._callers.discard(task)
            for side in (writer, onward):
                if side:
                    side.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        turn = next(self._turns)
        for number in range(len(self._replicas) if self._open else 0):
            with suppress(OSError):  # it is dead: the next one
                return await asyncio.open_connection(*self._replicas[(turn + number) % len(self._replicas)])
        return None


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    raise ConnectionResetError  # one direction that ends ends both


class Ground:
    """A plane with Cluster API on which Unwind is installed."""

    def __init__(self, plane: Plane, balancer: Balancer) -> None:
        self.plane = plane
        self.balancer = balancer
        self.management = plane.management
        self.client = plane.management.client
        self.member = plane.members[MEMBER]

    async def install(self, *, features: str = "") -> None:
        options = ("--features", features) if features else ()
        told = await command(self.management, "install", "--url", self.balancer.url, *options)
        assert told.code == 0, told.err

    @asynccontextmanager
    async def manager(self, *options: str, **variables: str) -> AsyncIterator[Manager]:
        """`unwind run`, one more replica, from when it is ready on."""
        async with running(self.management, HOME, *options, kubeconfig=None, **variables) as manager:
            await manager.until_ready("https")
            address = manager.addresses["https"]
            self.balancer.add(address)
            try:
                yield manager
            finally:
                self.balancer.remove(address)
            # In peace, so that nobody has to wait until its Leases run out. One that a test killed is dead already.
            await manager.stop()

    @asynccontextmanager
    async def registered_manager(self, *options: str, **variables: str) -> AsyncIterator[Manager]:
        """The same, from when Cluster API knows us on."""
        async with self.manager(*options, **variables) as manager:
            await self.until_discovered()
            yield manager

    async def forget_replicas(self) -> None:
        """Delete the Leases of replicas that were killed, as if they had run out."""
        for lease in await self.client.list(LEASES, namespace=HOME):
            meta = lease["metadata"]
            with suppress(NotFoundError):
                await self.client.delete(LEASES, meta["name"], uid=meta["uid"], namespace=HOME)

    async def until_discovered(self, *hooks: str) -> Object:
        """Return when Cluster API knows us, and that we answer to these hooks."""

        def known(config: Object | None) -> bool:
            handlers = ((config or {}).get("status") or {}).get("handlers") or ()
            told = {handler["requestHook"]["hook"] for handler in handlers}
            return object_watch.has_condition(config, "Discovered") and {"BeforeClusterDelete", *hooks} <= told

        found = await object_watch.until(self.client, EXTENSION_CONFIGS, OURS, known, "discovered", within=_LONG)
        assert found
        return found

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[Client]:
        """Somebody with all rights, and a name."""
        async with Client(self.management.connection(name, groups=ALL_RIGHTS)) as client:
            yield client


@asynccontextmanager
async def grounds(*, features: str = "", cloud: bool = False) -> AsyncIterator[Ground]:
    """A plane of its own: what is registered with its Cluster API is asked about every cluster on it. `cloud`: Services
    get load balancers."""
    shape = Shape(members=1, capi=True, cloud=cloud)
    async with planes.running(shape, announce=print) as plane, Balancer() as balancer:
        ground = Ground(plane, balancer)
        await ground.install(features=features)
        yield ground
        check_requests(ground.management)


class GateScene(profiles.ProfileScene):
    """A namespace with clusters in it, and one of the same name on the member with what profiles put there."""

    def __init__(self, ground: Ground, namespace: str, *, shares: GateScene | None = None) -> None:
        """`shares`: another scene whose profiles are for the clusters of this one, too."""
        super().__init__(ground.client, ground.member, namespace)
        self.ground = ground
        self._shares = shares
        if shares:
            self.label = shares.label

    def called(self, name: str, kind: Resource = CLUSTER_PROFILES) -> str:
        return self._shares.called(name, kind) if self._shares else super().called(name, kind)

    @asynccontextmanager
    async def managed_cluster(self) -> AsyncIterator[tuple[Manager, GatedCluster]]:
        """A manager that Cluster API knows, and a cluster with the add-on `web`."""
        await self.add_on("web")
        async with self.ground.registered_manager() as manager:
            yield manager, await self.cluster("web")

    async def held_cluster(self, by: Client | None = None) -> GatedCluster:
        """A cluster whose deletion is held by the object `web-0` of its add-on."""
        await self.add_on("web")
        cluster = await self.cluster("web")
        await self.block("web-0")
        await cluster.delete(by)
        await cluster.until_held("web-0")
        return cluster

    async def policy(self, *sources: Object, **spec: Any) -> None:
        """A TeardownPolicy for the clusters of this scene."""
        await self.client.create(TEARDOWN_POLICIES, teardown_policy(self.namespace, self.label, *sources, **spec))

    async def forget_policy(self) -> None:
        found = await self.client.get(TEARDOWN_POLICIES, self.namespace)
        await self.client.delete(TEARDOWN_POLICIES, self.namespace, uid=found["metadata"]["uid"])

    async def begin(self) -> None:
        await self.ground.management.create_namespace(self.namespace)
        await self.member.create_namespace(self.namespace)

    async def cluster(self, *deployed: str, name: str = "prod", **more: Any) -> GatedCluster:
        """A cluster with these add-ons on it."""
        made = await create_cluster(
            self.client, name=name, namespace=self.namespace, member=MEMBER, labels=self.label, **more
        )
        cluster = GatedCluster(self, name, made["metadata"]["uid"])
        for profile in deployed:
            await self.until_on(cluster, profile)
        return cluster

    async def until_on(self, cluster: GatedCluster, profile: str) -> None:
        """Return when an add-on is on this very cluster."""

        def provisioned(it: Object | None) -> bool:
            of = ((it or {}).get("metadata", {}).get("annotations") or {}).get(CLUSTER_UID_ANNOTATION)
            features = ((it or {}).get("status") or {}).get("featureSummaries") or []
            return of == cluster.uid and any(feature.get("status") == "Provisioned" for feature in features)

        summary = self.summary_name(profile, cluster.name, "capi")
        await object_watch.until(
            self.client, CLUSTER_SUMMARIES, summary, provisioned, "Provisioned", namespace=self.namespace, within=_LONG
        )

    async def block(self, name: str, finalizer: str = _BACKUP) -> None:
        await super().block(name, finalizer)

    async def ledger(self, teardown: Teardown) -> dict[str, tuple[str, str]]:
        """What was left behind, by name: why, and who decided."""
        assert teardown.spec.plan
        owners = {step.object.uid for step in teardown.spec.plan.steps}
        found = msgspec.convert(await self.client.list(INVENTORIES, namespace=HOME), list[Inventory])
        entries = [entry for chunk in found if chunk.spec.owner.uid in owners for entry in chunk.spec.entries.values()]
        return {entry.object.name: (entry.ledger.reason, entry.ledger.by) for entry in entries if entry.ledger}

    async def clear(self) -> None:
        """Let go of what is left: the next test finds nothing of it, also after a failure."""
        await self.unblock(*await self.on_member())
        for item in await self.client.list(CLUSTERS, namespace=self.namespace):
            cluster = GatedCluster(self, item["metadata"]["name"], item["metadata"]["uid"])
            with suppress(NotFoundError, ConflictError):  # it goes, or has gone
                await cluster.annotate(self.client, {FORCE_RELEASE_ANNOTATION: "the test is over"})
                await cluster.delete()
        for profile in await self.client.list(CLUSTER_PROFILES):
            meta = profile["metadata"]
            if meta["name"].startswith(self.namespace):
                with suppress(NotFoundError):
                    await self.client.delete(CLUSTER_PROFILES, meta["name"], uid=meta["uid"])


class PlainScene(GateScene):
    """The same without profiles: other deployers put there what is on the member."""

    async def clear(self) -> None:
        await self.unblock(*await self.on_member())


S = TypeVar("S", bound=GateScene)


@asynccontextmanager
async def with_policy(scene: S, *sources: Object, **spec: Any) -> AsyncIterator[S]:
    """A scene whose clusters a TeardownPolicy selects."""
    await scene.begin()
    await scene.policy(*sources, **spec)
    yield scene
    await scene.clear()
    await scene.forget_policy()


async def lead_to(client: Client, namespace: str, name: str, connection: ClusterConnection) -> None:
    """Have everybody reach a cluster by another way."""
    text = kubeconfig.document(connection, cluster=name, user="unwind")
    data = {"value": base64.b64encode(text.encode()).decode()}
    await client.patch(SECRETS, f"{name}-kubeconfig", {"data": data}, namespace=namespace)


class GatedCluster:
    """A Cluster of Cluster API whose workload cluster is the member."""

    def __init__(self, scene: GateScene, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        self._scene = scene
        self._client = scene.client
        self._namespace = scene.namespace

    async def delete(self, by: Client | None = None) -> None:
        """As kubectl does with --wait=false."""
        await (by or self._client).delete(CLUSTERS, self.name, uid=self.uid, namespace=self._namespace)

    async def annotate(self, by: Client, annotations: Mapping[str, str | None]) -> None:
        await by.patch(CLUSTERS, self.name, {"metadata": {"annotations": annotations}}, namespace=self._namespace)

    async def get(self) -> Object:
        return await self._client.get(CLUSTERS, self.name, namespace=self._namespace)

    async def until(self, state: Callable[[Object | None], bool], called: str = "as it should be") -> Object | None:
        """Return it as soon as it is so."""
        return await object_watch.until(
            self._client, CLUSTERS, self.name, state, called, namespace=self._namespace, within=_LONG
        )

    async def until_held(self, *words: str) -> str:
        """Return when it says that it waits for its add-ons, and these words with it; what it says."""
        said: list[str] = []

        def held(it: Object | None) -> bool:
            assert it, "it went without waiting"
            assert it["metadata"]["uid"] == self.uid, "it went without waiting"
            deleting = profiles.condition(it, "Deleting")
            said[:] = [profiles.condition(it, "TopologyReconciled").get("message", "")]
            return deleting.get("reason") == "WaitingForBeforeDeleteHook" and all(
                word in said[0] for word in (WAITING, *words)
            )

        await self.until(held, f"saying {words}")
        return said[0]

    async def until_gone(self) -> None:
        """Return when it is not there any more; another of its name may be."""

        def gone(it: Object | None) -> bool:
            return it is None or it["metadata"]["uid"] != self.uid

        await self.until(gone, "gone")

    async def teardown(self, state: Callable[[Teardown], bool] = lambda it: it.finished) -> Teardown:
        """Its Teardown, as soon as it is so; by default, when it is over."""
        found = await object_watch.until(
            self._client,
            TEARDOWNS,
            self.uid,
            lambda it: it is not None and state(msgspec.convert(it, Teardown)),
            "as it should be",
            within=_LONG,
        )
        return msgspec.convert(found, Teardown)

    def deletion_requested(self) -> str:
        """When it was deleted."""
        audit = self._scene.ground.management.audit
        found = audit.deletions(resource=CLUSTERS.plural, namespace=self._scene.namespace)
        return min(item.request_received_timestamp for item in found if item.object_ref.name == self.name)

    def taken_apart(self) -> list[str]:
        """When Cluster API had parts of it deleted."""
        found = self._scene.ground.management.audit.deletions(namespace=self._scene.namespace)
        return [
            item.request_received_timestamp
            for item in found
            if item.object_ref.resource in ("stubcontrolplanes", "stubclusters")
            and item.object_ref.name.startswith(self.name)
        ]


async def path_with_helm() -> str:
    """A PATH for managers that run Helm."""
    helm = (await build.ensure([tools.HELM]))[tools.HELM.name].path
    return f"{helm.parent}{os.pathsep}{os.environ['PATH']}"


async def until_asked(manager: Manager, *, times: int) -> None:
    """Return when Cluster API has asked a replica so many times more whether a cluster may go."""
    wanted = await _asked(manager) + times

    async def reached() -> bool:
        return await _asked(manager) >= wanted

    await eventually(reached, f"{times} more requests", within=_LONG)


async def _asked(manager: Manager) -> float:
    _, metrics = await manager.probe("/metrics")
    counts = [line for line in metrics.splitlines() if line.startswith("unwind_http_requests_total{")]
    return sum(float(line.split()[-1]) for line in counts if 'route="BeforeClusterDelete"' in line)


def new_namespace() -> str:
    return f"gate-{uuid.uuid4().hex[:6]}"
