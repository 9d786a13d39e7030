"""The ways in which Unwind deletes objects, behind one small interface: the table of `test_ways_of_deleting` runs the
same rules against each of them."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from tests.eventually import eventually
from tests.plane.support import cluster_teardowns, objects, profiles, requested_deletions, unjoins
from tests.plane.support.azure_objects import CACHES
from unwind.api.capi import CLUSTERS
from unwind.api.karmada import WORKS, RemoveStrategy
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STATEFUL_SETS
from unwind.api.sveltos import CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.deleters.registry import installed
from unwind.deploy.helm_install import chart_of
from unwind.helm import charts
from unwind.helm.program import Helm
from unwind.inventory.inventories import Inventories
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until_absent
from unwind.local import build, tools
from unwind.teardown.requests import request
from unwind.testing.charts import pack, unpack_chart
from unwind.testing.managers import granting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry, Inventory
    from unwind.kube.client import Client, Object
    from unwind.local.audit_log import AuditEvent
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

RESOURCES = {
    resource.kind: resource for resource in (CACHES, CONFIG_MAPS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STATEFUL_SETS)
}
"""The kinds of the objects, by name."""
PLUGINS = tuple(installed())
ANCHOR = "anchor"
"""A ConfigMap that stays in a profile or Work from which everything else is taken."""


class Way:
    """One way of deleting. Objects are deployed and deleted while the controllers run; changes in between are made
    while they do not run, so that no drift correction interferes."""

    name: ClassVar[str]
    cluster: LocalCluster
    """Where the objects are."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        """`namespace`: a namespace of the management cluster for this way."""
        self.plane = plane
        self.management = plane.management.client
        self.home = namespace
        self.cluster = plane.members[unjoins.MEMBER]
        self.namespace = namespace
        """The namespace of the objects."""
        self._by_test: set[str] = set()
        """The uids of the objects that the test deleted."""

    @property
    def client(self) -> Client:
        """The client for the cluster with the objects."""
        return self.cluster.client

    @property
    def member(self) -> str:
        """The member in full (GROUP/KIND/NAMESPACE/NAME); empty if the objects are on the management cluster."""
        return ""

    def scene(self) -> AbstractAsyncContextManager[None]:
        """Everything that must exist before the deployment."""
        raise NotImplementedError

    def controllers(self) -> AbstractAsyncContextManager[object]:
        """The controllers that deploy and delete, as long as the context lasts."""
        raise NotImplementedError

    async def deploy(self, *manifests: Object) -> None:
        """Deploy the manifests, and return when the inventory has their uids."""
        raise NotImplementedError

    async def delete(self) -> None:
        """Request the deletion; the controllers carry it out."""
        raise NotImplementedError

    async def status(self) -> str:
        """What is reported about the deletion, as text."""
        raise NotImplementedError

    async def until_done(self) -> None:
        """Return when the deletion is complete."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Remove what the deletion leaves in the scene. The controllers run."""

    async def inventories(self) -> list[Inventory]:
        """The inventories of what was deployed."""
        raise NotImplementedError

    async def pause(self, *, paused: bool) -> None:
        """Pause the cluster or the Work, or unpause it."""
        raise NotImplementedError

    async def retry(self, name: str) -> None:
        """Called after an object is no longer blocked, for ways that refuse instead of waiting."""
        del name

    async def until_blocked(self, *parts: str) -> str:
        """The reported text, as soon as it contains these parts."""
        last = [""]

        async def reported() -> bool:
            last[0] = await self.status()
            return all(part in last[0] for part in parts)

        try:
            await eventually(reported, within=45, every=0.1)
        except AssertionError:
            raise AssertionError(f"{self.name} does not report {parts}: {last[0]}") from None
        return last[0]

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        """An object; None if it does not exist."""
        where = (namespace or self.namespace) if resource.namespaced else None
        try:
            return await self.client.get(resource, name, namespace=where)
        except NotFoundError:
            return None

    async def patch(self, name: str, metadata: Object) -> None:
        """Change the metadata of a ConfigMap, as another field manager."""
        await self.client.patch(
            CONFIG_MAPS, name, {"metadata": metadata}, namespace=self.namespace, field_manager="jane"
        )

    async def remove(self, name: str, uid: str) -> None:
        """Delete a ConfigMap, as someone else."""
        self._by_test.add(uid)
        await self.client.delete(CONFIG_MAPS, name, uid=uid, namespace=self.namespace)

    async def ledger(self) -> dict[str, str]:
        """The names of the objects in the ledger, with their reasons."""
        entries = [entry for chunk in await self.inventories() for entry in chunk.spec.entries.values()]
        return {entry.object.name: entry.ledger.reason for entry in entries if entry.ledger}

    async def until_pruned(self, pruned: Callable[[Entry], bool] = lambda entry: entry.object.name != ANCHOR) -> None:
        """Return when the inventory names no pruned object that is not in the ledger. `pruned`: whether an entry is of
        such an object."""

        async def over() -> bool:
            entries = [entry for chunk in await self.inventories() for entry in chunk.spec.entries.values()]
            return all(entry.ledger for entry in entries if pruned(entry))

        await eventually(over, "a complete prune", within=60, every=0.2)

    def deletions(self) -> list[AuditEvent]:
        """The accepted DELETEs in the namespace, except those of the test."""
        found = self.cluster.audit.deletions(namespace=self.namespace)
        ours = [event for event in found if event.user_agent.startswith(("unwind", "Helm/"))]
        return [event for event in ours if event.uid not in self._by_test]

    def deleted(self) -> list[str]:
        """The names of the objects that were deleted, in order."""
        return [event.object_ref.name for event in self.deletions()]


class _Profiles(Way):
    """A profile that deploys to a SveltosCluster."""

    _feature = "Resources"

    @property
    def member(self) -> str:
        return f"lib.projectsveltos.io/SveltosCluster/{self.home}/edge"

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        await profiles.install(self.management)
        async with profiles.playing(self.plane, self.home) as self._it:
            await self._it.register()
            yield

    def controllers(self) -> AbstractAsyncContextManager[object]:
        return profiles.running(self.management, self.home, clock=SYSTEM, plugins=PLUGINS)

    async def deploy(self, *manifests: Object) -> None:
        await self._it.source("all", *manifests, profiles.config_map(self.namespace, ANCHOR))
        await self._it.profile("all", "all")
        await self._deployed()

    async def _deployed(self) -> None:
        summary = await self._it.until_summary(
            "all", lambda it: profiles.feature(it, self._feature) == "Provisioned", "Provisioned"
        )
        self._uid = summary.metadata.uid

    async def status(self) -> str:
        name = self._it.summary_name("all")
        try:
            return str((await self.management.get(CLUSTER_SUMMARIES, name, namespace=self.home)).get("status"))
        except NotFoundError:
            return ""

    async def inventories(self) -> list[Inventory]:
        return await self._it.inventories(self._uid)

    async def pause(self, *, paused: bool) -> None:
        await self.management.patch(SVELTOS_CLUSTERS, "edge", {"spec": {"paused": paused}}, namespace=self.home)


class ProfileWithdrawal(_Profiles):
    """The deletion of a profile."""

    name = "withdrawal"

    async def delete(self) -> None:
        await self._it.delete_profile("all")

    async def until_done(self) -> None:
        await self._it.until_profile_gone("all")


class ProfilePrune(_Profiles):
    """Objects that are no longer in the sources of a profile. It stays until the ledger was read."""

    name = "prune"

    async def delete(self) -> None:
        await self._it.edit("all", profiles.config_map(self.namespace, ANCHOR, changed="yes"))

    async def until_done(self) -> None:
        await self._it.until_on_member(ANCHOR, lambda it: it["data"] == {"changed": "yes"})
        await self.until_pruned()

    async def finish(self) -> None:
        await self._it.delete_profile("all")
        await self._it.until_profile_gone("all")


class _Charts(_Profiles):
    """A profile with a Helm chart."""

    _feature = "Helm"

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        program = (await build.ensure([tools.HELM]))["helm"].path
        async with AsyncExitStack() as stack:
            self._charts = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._helm = Helm(program, charts=self._charts)
            await stack.enter_async_context(super().scene())
            yield

    def controllers(self) -> AbstractAsyncContextManager[object]:
        return profiles.running(self.management, self.home, clock=SYSTEM, helm=self._helm, plugins=PLUGINS)

    async def deploy(self, *manifests: Object) -> None:
        await self._it.profile("all", helmCharts=[self._chart("all", *manifests), *self._beside()])
        await self._deployed()

    def _beside(self) -> list[Object]:
        """Further charts of the profile."""
        return []

    def _chart(self, name: str, *manifests: Object, release: str = "all") -> Object:
        files = {f"templates/{at}.yaml": msgspec.json.encode(one).decode() for at, one in enumerate(manifests)}
        directory = unpack_chart(pack(name, {"values.yaml": "{}", **files}), self._charts)
        return {"repositoryURL": directory.as_uri(), "releaseName": release, "releaseNamespace": self.namespace}


class HelmUninstall(_Charts, ProfileWithdrawal):
    """The deletion of a profile with a Helm chart."""

    name = "Helm uninstall"


class ChartPrune(_Charts, ProfilePrune):
    """A chart that is no longer in a profile."""

    name = "prune of a chart"

    def _beside(self) -> list[Object]:
        return [self._chart(ANCHOR, profiles.config_map(self.namespace, ANCHOR), release=ANCHOR)]

    async def delete(self) -> None:
        await self._it.edit_profile("all", {"helmCharts": self._beside()})

    async def until_done(self) -> None:
        await self.until_pruned(lambda entry: chart_of(entry) == charts.source(self.namespace, "all"))


class ClusterDeletion(Way):
    """The deletion of a Cluster of Cluster API with an enforced profile."""

    name = "cluster"

    @property
    def member(self) -> str:
        return f"cluster.x-k8s.io/Cluster/{self.home}/{self._it.cluster.name}"

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        self._it = cluster_teardowns.DeployedScene(self.plane, self.home)
        await self._it.begin()
        yield
        await self._it.clear()

    def controllers(self) -> AbstractAsyncContextManager[object]:
        return cluster_teardowns.all_controllers(self.management, self.home, clock=SYSTEM, plugins=PLUGINS)

    async def deploy(self, *manifests: Object) -> None:
        await self._it.source("all", *manifests)
        await self._it.profile("all", "all", clusterDeletionBehavior="EnforceRemovePolicies")
        await self._it.deployed("all")
        self._uid = (await self._it.summary_of("all")).metadata.uid

    async def delete(self) -> None:
        await self._it.cluster.delete()

    async def status(self) -> str:
        return await _status_of(self.management, self._it.cluster.uid)

    async def until_done(self) -> None:
        assert (await self._it.cluster.ended()).phase is Phase.COMPLETE

    async def finish(self) -> None:
        await cluster_teardowns.until_let_go(self._it)
        await self._it.cluster.go()
        await self._it.until_summaries_gone("all")

    async def inventories(self) -> list[Inventory]:
        return await self._it.inventories(self._uid)

    async def pause(self, *, paused: bool) -> None:
        await self.management.patch(CLUSTERS, self._it.cluster.name, {"spec": {"paused": paused}}, namespace=self.home)


class _Works(Way):
    """A Work on a joined member."""

    @property
    def member(self) -> str:
        return f"cluster.karmada.io/Cluster/{self._it.name}"

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        async with unjoins.scene(self.plane, self.home, remove_strategy=RemoveStrategy.REQUIRED) as self._it:
            yield

    def controllers(self) -> AbstractAsyncContextManager[object]:
        return unjoins.controllers(self.management, self.home, clock=SYSTEM, plugins=PLUGINS)

    async def deploy(self, *manifests: Object) -> None:
        await self._it.work("all", *manifests, profiles.config_map(self.namespace, ANCHOR))
        await self._it.deployed("all")
        self._uid = await self._it.work_uid("all")

    async def status(self) -> str:
        try:
            work = await self.management.get(WORKS, "all", namespace=self._it.execution)
        except NotFoundError:
            return ""
        return str(work.get("status"))

    async def inventories(self) -> list[Inventory]:
        return await self._it.inventories.of(self._uid)

    async def pause(self, *, paused: bool) -> None:
        """Suspend the Work: nothing else of a member can be paused."""
        patch = {"spec": {"suspendDispatching": paused}}
        await self.management.patch(WORKS, "all", patch, namespace=self._it.execution)

    async def _delete_work(self) -> None:
        await self.management.delete(WORKS, "all", uid=self._uid, namespace=self._it.execution)

    async def _until_work_gone(self) -> None:
        await until_absent(self.management, WORKS, "all", namespace=self._it.execution)


class WorkDeletion(_Works):
    """The deletion of a Work."""

    name = "Work"

    async def delete(self) -> None:
        await self._delete_work()

    async def until_done(self) -> None:
        await self._until_work_gone()


class WorkPrune(_Works):
    """Objects that are no longer in a Work. It stays until the ledger was read."""

    name = "prune of a Work"

    async def delete(self) -> None:
        left = [profiles.config_map(self.namespace, ANCHOR, changed="yes")]
        patch = {"spec": {"workload": {"manifests": left}}}
        await self.management.patch(WORKS, "all", patch, namespace=self._it.execution)

    async def until_done(self) -> None:
        await self.until_pruned()

    async def finish(self) -> None:
        await self._delete_work()
        await self._until_work_gone()


class MemberUnjoin(_Works):
    """The unjoin of a member with removeStrategy Required."""

    name = "unjoin"

    async def delete(self) -> None:
        await self._it.delete()

    async def status(self) -> str:
        return await _status_of(self.management, self._it.uid)

    async def until_done(self) -> None:
        assert (await self._it.gone()).phase is Phase.COMPLETE


class RequestedDeletion(Way):
    """`unwind delete` of each object, on the management cluster."""

    name = "unwind delete"

    def __init__(self, plane: Plane, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.cluster = plane.management
        self._room = requested_deletions.Room(plane.management, namespace)
        self.namespace = self._room.name
        self._targets: dict[str, tuple[Resource, ObjectRef]] = {}

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        await profiles.install(self.management)
        await self._room.open()
        async with granting(self.management, self.home, requested_deletions.ANYTHING):
            yield
        await requested_deletions.tidy(self.management)

    def controllers(self) -> AbstractAsyncContextManager[object]:
        return requested_deletions.manager(self.management, self.home)

    async def deploy(self, *manifests: Object) -> None:
        for body in manifests:
            resource = RESOURCES[body["kind"]]
            ref = objects.ref(resource, await self.management.create(resource, body))
            self._targets[ref.name] = resource, ref

    async def delete(self) -> None:
        for name in self._targets:
            await self.retry(name)

    async def retry(self, name: str) -> None:
        resource, ref = self._targets[name]
        await request(self.management, ref, plural=resource.plural, now=SYSTEM.now())

    async def _teardowns(self) -> list[Teardown]:
        found = msgspec.convert(await self.management.list(TEARDOWNS), list[Teardown])
        uids = {ref.uid for _, ref in self._targets.values()}
        return [it for it in found if it.spec.cause == Cause.REQUESTED and it.spec.target.uid in uids]

    async def status(self) -> str:
        return "\n".join(str(it.status) for it in await self._teardowns())

    async def until_done(self) -> None:
        async def finished() -> bool:
            return all(it.finished for it in await self._teardowns())

        await eventually(finished, "finished requests", within=60, every=0.1)

    async def inventories(self) -> list[Inventory]:
        inventories = Inventories(self.management, namespace=self.home)
        return [chunk for it in await self._teardowns() for chunk in await inventories.of(it.metadata.uid)]


async def _status_of(client: Client, teardown: str) -> str:
    try:
        return str((await client.get(TEARDOWNS, teardown)).get("status"))
    except NotFoundError:
        return ""
