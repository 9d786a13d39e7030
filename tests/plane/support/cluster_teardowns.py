"""What the tests of teardowns are made of: clusters with add-ons on them, as if they had been deployed."""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from tests.owners import Owner
from tests.plane.support import profiles
from tests.plane.support.controllers import HOLD, addon_controllers, controller_deps, removal_deps, running_components
from unwind.addons.caches import AddonCaches
from unwind.addons.moved_cluster_adoption import MovedAddons
from unwind.addons.step_source import SummarySteps
from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import MEMBER_LABEL, OWNER_LABEL, Finalizer
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, ClusterSummary
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Entry, EntryState, Inventory, InventorySpec, MemberRef, Teardown
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.install.install import install
from unwind.inventory.inventories import Inventories
from unwind.kube import kubeconfig
from unwind.kube.errors import NotFoundError
from unwind.kube.metrics import Metrics
from unwind.kube.object_watch import until, until_absent
from unwind.kube.updates import revise
from unwind.local.capi import create_cluster
from unwind.manager.health import new_registry
from unwind.members import targets
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from unwind.clock import Clock
    from unwind.deleters.registry import Plugin
    from unwind.kube.client import Client, Object
    from unwind.kube.events import Recorder
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import FollowedSource

MEMBER = "member-1"
# How often in a row annotations must be seen before they count as set.
_STAYS = 4


class CapiCluster:
    """A Cluster API cluster whose workload cluster is a member; it stays until it is let go, as if a gate held it."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.name = f"c-{uuid.uuid4().hex[:6]}"
        self.annotations: dict[str, str] = {}
        self.uid = ""

    async def create(self, *, topology: bool = True, labels: dict[str, str] | None = None) -> None:
        made = await create_cluster(
            self.client, name=self.name, namespace=self.namespace, member=MEMBER, topology=topology, labels=labels
        )
        self.uid = made["metadata"]["uid"]

        def held(it: Object) -> Object | None:
            return {"metadata": {"finalizers": [*(it["metadata"].get("finalizers") or ()), HOLD]}}

        await revise(self.client, CLUSTERS, made, held)

    async def delete(self) -> None:
        # What is set while Cluster API still sets the Cluster up does not always stay (seen under load).
        stayed = 0
        while self.annotations and stayed < _STAYS:
            await self.annotate(self.annotations)
            await asyncio.sleep(0.5)
            found = await self.client.get(CLUSTERS, self.name, namespace=self.namespace)
            stays = self.annotations.items() <= (found["metadata"].get("annotations") or {}).items()
            stayed = stayed + 1 if stays else 0
        await self.client.delete(CLUSTERS, self.name, uid=self.uid, namespace=self.namespace)

    async def annotate(self, annotations: Mapping[str, str | None], *, by: str = "unwind") -> None:
        patch = {"metadata": {"annotations": annotations}}
        await self.client.patch(CLUSTERS, self.name, patch, namespace=self.namespace, field_manager=by)

    async def let_go(self) -> None:
        """Take our hold off the Cluster, as a gate that opens."""
        found = await self.client.get(CLUSTERS, self.name, namespace=self.namespace)

        def without(it: Object) -> Object | None:
            return {"metadata": {"finalizers": [item for item in it["metadata"]["finalizers"] if item != HOLD]}}

        await revise(self.client, CLUSTERS, found, without)

    async def go(self) -> None:
        """Let it go, and see it gone."""
        await self.let_go()
        await until_absent(self.client, CLUSTERS, self.name, namespace=self.namespace)

    async def teardown(self, state: Callable[[Teardown], bool], called: str, *, within: float = 60.0) -> Teardown:
        """The Teardown, as soon as it is so."""
        last: list[Object | None] = [None]

        def look(it: Object | None) -> bool:
            last[0] = it
            return it is not None and state(msgspec.convert(it, Teardown))

        try:
            found = await until(self.client, TEARDOWNS, self.uid, look, called, within=within)
        except Exception as error:
            raise AssertionError(f"{error}: {(last[0] or {}).get('status')}") from error
        return msgspec.convert(found, Teardown)

    async def ended(self) -> Teardown:
        return await self.teardown(lambda it: it.finished, "finished")

    async def secret(self) -> Object:
        return await self.client.get(SECRETS, f"{self.name}-kubeconfig", namespace=self.namespace)

    async def lead_to(self, connection: ClusterConnection) -> None:
        """Have its Secret lead somewhere else."""
        text = kubeconfig.document(connection, cluster=self.name, user="unwind")
        data = {"value": base64.b64encode(text.encode()).decode()}
        await self.client.patch(SECRETS, f"{self.name}-kubeconfig", {"data": data}, namespace=self.namespace)


class TeardownScene(CapiCluster):
    """A cluster with add-ons on it, as if they had been deployed."""

    def __init__(self, management: LocalCluster, member: LocalCluster, namespace: str) -> None:
        super().__init__(management.client, namespace)
        self.management = management
        self.member = member
        self.on_member = f"addons-{uuid.uuid4().hex[:8]}"
        self._suffix = uuid.uuid4().hex[:6]
        self.system_uid = ""

    def profile(self, name: str) -> str:
        """What a profile of this scene is called: ClusterProfiles have no namespace to keep them apart."""
        return f"{name}-{self._suffix}"

    async def begin(self, *, topology: bool = True, annotations: dict[str, str] | None = None) -> None:
        """Have the cluster made."""
        self.annotations = annotations or {}
        await self.create(topology=topology)
        self.system_uid = await self.member.client.cluster_uid()
        await self.member.create_namespace(self.on_member)

    async def add_on(
        self,
        profile: str,
        *,
        behaviour: str = "EnforceRemovePolicies",
        depends_on: tuple[str, ...] = (),
        objects: int = 3,
        finalizers: tuple[str, ...] = (),
        own_namespace: bool = False,
    ) -> ObjectRef:
        """A profile's add-on: a summary, ConfigMaps on the member, and the inventory that names them.

        `own_namespace`: also a Namespace, see `namespace_of`."""
        ref = await self.add_summary(profile, behaviour=behaviour, depends_on=depends_on)
        names = [f"{profile}-{number}" for number in range(objects)]
        entries = {name: await self.put(ref, name, finalizers) for name in names}
        if own_namespace:
            entries["namespace"] = await self.put_namespace(ref, self.namespace_of(profile))
        await self.record(ref, entries)
        return ref

    async def add_summary(
        self,
        profile: str,
        *,
        behaviour: str = "EnforceRemovePolicies",
        depends_on: tuple[str, ...] = (),
        annotations: dict[str, str] | None = None,
    ) -> ObjectRef:
        """A profile with a provisioned summary, and no objects yet."""
        spec: Object = {"clusterDeletionBehavior": behaviour, "dependsOn": [self.profile(item) for item in depends_on]}
        owner = await self.client.create(
            CLUSTER_PROFILES,
            {
                "apiVersion": CLUSTER_PROFILES.api_version,
                "kind": "ClusterProfile",
                "metadata": {"name": self.profile(profile), "annotations": annotations or {}},
                "spec": spec,
            },
        )
        summary = await self.client.create(
            CLUSTER_SUMMARIES,
            {
                "apiVersion": CLUSTER_SUMMARIES.api_version,
                "kind": "ClusterSummary",
                "metadata": {
                    "name": f"{profile}-capi-{self.name}",
                    "namespace": self.namespace,
                    "ownerReferences": [
                        {
                            "apiVersion": CLUSTER_PROFILES.api_version,
                            "kind": "ClusterProfile",
                            "name": self.profile(profile),
                            "uid": owner["metadata"]["uid"],
                        }
                    ],
                },
                "spec": {
                    "clusterNamespace": self.namespace,
                    "clusterName": self.name,
                    "clusterType": "Capi",
                    "clusterProfileSpec": spec,
                },
            },
        )
        ref = ObjectRef(
            group=CLUSTER_SUMMARIES.group,
            version=CLUSTER_SUMMARIES.version,
            kind="ClusterSummary",
            namespace=self.namespace,
            name=summary["metadata"]["name"],
            uid=summary["metadata"]["uid"],
        )
        status = {"featureSummaries": [{"featureID": "Resources", "status": "Provisioned"}]}
        await self.client.patch(
            CLUSTER_SUMMARIES, ref.name, {"status": status}, namespace=self.namespace, subresource="status"
        )
        return ref

    async def add_ons_on_hold(self) -> None:
        """Two add-ons: "top" has objects with a finalizer, and depends on "base"."""
        await self.add_on("base")
        await self.add_on("top", depends_on=("base",), finalizers=(HOLD,))

    async def delete_midway(self) -> None:
        """Delete the cluster of `add_ons_on_hold`; return when its deletion waits for the objects of "top"."""
        await self.delete()
        await self.teardown(lambda it: len(it.status.blockers) == 3, 'waiting for the objects of "top"')

    def namespace_of(self, profile: str) -> str:
        """The Namespace on the member that an add-on brings along."""
        return f"{self.on_member}-{profile}"

    async def put_namespace(self, owner: ObjectRef, name: str) -> Entry:
        """A Namespace on the member, with the owner's label; its entry in the inventory."""
        metadata = {"name": name, "labels": {OWNER_LABEL: owner.uid}}
        made = await self.member.client.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        )
        it = ObjectRef(version="v1", kind="Namespace", name=name, uid=made["metadata"]["uid"])
        return Entry(object=it, resource="namespaces", state=EntryState.CONFIRMED.value)

    async def add_late(self, owner: ObjectRef, name: str) -> None:
        """One more object of an add-on, put there by somebody who does not know that it is on its way out."""
        entry = await self.put(owner, name)
        patch = {"spec": {"entries": {name: msgspec.to_builtins(entry)}}}
        await self.client.patch(INVENTORIES, f"{owner.uid}-0", patch, namespace=HOME)

    async def put(self, owner: ObjectRef, name: str, finalizers: tuple[str, ...] = ()) -> Entry:
        """A ConfigMap on the member, with the owner's mark; its entry in the inventory."""
        metadata: Object = {
            "name": name,
            "namespace": self.on_member,
            "labels": {OWNER_LABEL: owner.uid},
            "finalizers": list(finalizers),
        }
        made = await self.member.client.create(
            CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        )
        uid = made["metadata"]["uid"]
        it = ObjectRef(version="v1", kind="ConfigMap", namespace=self.on_member, name=name, uid=uid)
        return Entry(object=it, resource="configmaps", state=EntryState.CONFIRMED.value)

    async def unblock(self) -> None:
        """Take the finalizers off all that is on the member."""
        for name in await self.objects():
            free = {"metadata": {"finalizers": None}}
            with suppress(NotFoundError):  # it is removed as soon as others are unblocked
                await self.member.client.patch(CONFIG_MAPS, name, free, namespace=self.on_member)

    async def nothing_left(self) -> None:
        """Assert that nothing is left on the member, and let the cluster go."""
        assert await self.objects() == set()
        await self.let_go()

    async def record(self, owner: ObjectRef, entries: dict[str, Entry]) -> None:
        cluster = targets.capi_ref(self.namespace, self.name, self.uid)
        inventory = Inventory(
            metadata=ObjectMeta(
                name=f"{owner.uid}-0",
                namespace=HOME,
                labels={OWNER_LABEL: owner.uid, MEMBER_LABEL: self.uid},
                finalizers=(Finalizer.INVENTORY.value,),
            ),
            spec=InventorySpec(
                owner=owner, member=MemberRef(object=cluster, system_uid=self.system_uid), entries=entries
            ),
        )
        await self.client.create(INVENTORIES, manifest(INVENTORIES, inventory))

    async def objects(self) -> set[str]:
        """The add-ons' ConfigMaps on the member."""
        found = await self.member.client.list(CONFIG_MAPS, namespace=self.on_member)
        return {item["metadata"]["name"] for item in found} - {"kube-root-ca.crt"}

    def deleted(self) -> list[str]:
        """The ConfigMaps whose deletion the member accepted, in order."""
        entries = self.member.audit.deletions(resource="configmaps", namespace=self.on_member)
        return [entry.object_ref.name for entry in entries]

    async def inventory(self, owner: ObjectRef) -> Inventory | None:
        found = await Inventories(self.client, namespace=HOME).of(owner.uid)
        return found[0] if found else None


_INSTALLED: WeakSet[Client] = WeakSet()


async def ensure_installed(client: Client) -> None:
    """Install Unwind once for each client of an administrator: an installation takes about a hundred requests."""
    if client not in _INSTALLED:
        await install(client, Setting(), accept_shadowing=True)
        _INSTALLED.add(client)


async def scene(plane: Plane, namespace: str, **more: Any) -> TeardownScene:
    """A cluster that is ready, on the plane's first member."""
    await ensure_installed(plane.management.client)
    made = TeardownScene(plane.management, plane.members[MEMBER], namespace)
    await made.begin(**more)
    return made


class DeployedScene(profiles.ProfileScene):
    """A cluster on which the real controllers put what real profiles say."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        super().__init__(plane.management.client, plane.members[MEMBER], namespace)
        self.cluster = CapiCluster(self.client, namespace)

    async def lose(self, name: str) -> ObjectMeta:
        """Delete a summary without its finalizers, as a user does by mistake."""
        meta = (await self.summary_of(name)).metadata
        patch = {"metadata": {"finalizers": None}}
        await self.client.patch(CLUSTER_SUMMARIES, meta.name, patch, namespace=self.namespace)
        await self.client.delete(CLUSTER_SUMMARIES, meta.name, uid=meta.uid, namespace=self.namespace)
        return meta

    async def begin(self, *, topology: bool = True) -> None:
        await profiles.install(self.client)
        await self.member.create_namespace(self.namespace)
        await self.cluster.create(topology=topology, labels=self.label)

    async def deploy(self, *names: str, chained: bool = False, objects: int = 2) -> None:
        """Add-ons that are on the cluster, and no controller runs any more. `chained`: each depends on the former."""
        await self._add(names, chained=chained, objects=objects)
        async with all_controllers(self.client, self.namespace):
            await self.deployed(*names)

    @asynccontextmanager
    async def deleting(self, blocked: str, *names: str, chained: bool = False) -> AsyncIterator[None]:
        """The same, and the cluster is being deleted while controllers run; this object on it does not go."""
        await self._add(names, chained=chained)
        async with all_controllers(self.client, self.namespace):
            await self.deployed(*names)
            await self.block(blocked)
            await self.cluster.delete()
            yield

    async def _add(self, names: Sequence[str], *, chained: bool, objects: int = 2) -> None:
        for number, name in enumerate(names):
            needs = names[number - 1 : number] if chained else ()
            await self.add_on(name, depends_on=tuple(needs), objects=objects)

    async def deployed(self, *names: str) -> None:
        await self.until_provisioned(*names, cluster=self.cluster.name, type_="capi")

    async def summary_of(self, name: str) -> ClusterSummary:
        called = self.summary_name(name, self.cluster.name, "capi")
        return await self.client.get(CLUSTER_SUMMARIES, called, namespace=self.namespace, type=ClusterSummary)

    async def until_summaries_gone(self, *names: str) -> None:
        for name in names:
            await self.until_summary_gone(name, self.cluster.name, "capi")


@asynccontextmanager
async def manager(
    client: Client,
    *,
    clock: Clock | None = None,
    best_effort: float = 60.0,
    owner: ShardOwner | None = None,
    recorder: Recorder | None = None,
    sources: Iterable[Callable[[RemovalDeps], FollowedSource]] = (),
) -> AsyncIterator[ClusterTeardownController]:
    """The controller, as long as the context lasts; then it is gone as if it had been killed.

    `sources`: further step sources, each made with what the manager shares.
    """
    clock = clock or StillClock()
    async with manager_client(client, HOME) as own:
        caches = AddonCaches(own, clock=clock)
        async with removal_deps(own, HOME, clock=clock, best_effort=best_effort) as deps:
            controller = ClusterTeardownController(
                controller_deps(own, owner=owner, recorder=recorder, clock=clock),
                caches,
                deps,
                sources=(SummarySteps(own, caches), *(make(deps) for make in sources)),
            )
            tasks = [asyncio.ensure_future(item.run()) for item in (caches, controller)]
            try:
                yield controller
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def stopped_midway(it: TeardownScene) -> AsyncIterator[None]:
    """A manager that deletes the cluster, from when the objects of the first step hold it."""
    await it.add_ons_on_hold()
    async with manager(it.client):
        await it.delete_midway()
        yield


def waves(teardown: Teardown) -> dict[str, int]:
    """The wave of each step, by the name of its object."""
    assert teardown.spec.plan
    return {step.object.name: step.wave for step in teardown.spec.plan.steps}


async def until_let_go(scene: DeployedScene) -> None:
    """Return when nobody holds on to the credentials any more, which is the last thing that is done."""
    await until(
        scene.client,
        SECRETS,
        f"{scene.cluster.name}-kubeconfig",
        lambda it: it is None or Finalizer.CREDENTIALS not in (it["metadata"].get("finalizers") or ()),
        "let go",
        namespace=scene.namespace,
    )


@asynccontextmanager
async def all_controllers(
    client: Client,
    namespace: str,
    *,
    clock: Clock | None = None,
    best_effort: float = 60.0,
    recorder: Recorder | None = None,
    plugins: tuple[Plugin, ...] = (),
) -> AsyncIterator[Clock]:
    """All that has to do with add-ons, as long as the context lasts. `namespace`: where the inventories are."""
    clock = clock or StillClock()
    owner, metrics = Owner(), Metrics(new_registry())
    async with manager_client(client, namespace) as own:
        caches = AddonCaches(own, clock=clock)
        async with removal_deps(own, namespace, clock=clock, best_effort=best_effort, plugins=plugins) as deps:
            sources = (SummarySteps(own, caches, moved=MovedAddons(deps)),)
            parts = (
                caches,
                *addon_controllers(own, caches, deps, owner=owner, metrics=metrics),
                ClusterTeardownController(
                    controller_deps(own, owner=owner, metrics=metrics, recorder=recorder, clock=clock),
                    caches,
                    deps,
                    sources=sources,
                ),
            )
            async with running_components(parts):
                yield clock
