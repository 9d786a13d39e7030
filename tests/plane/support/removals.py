"""What the tests of removals are made of: objects on a member with their inventory, and the removal of them."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support import objects
from tests.plane.support.objects import until_allowed
from unwind.api.annotation_values import VolumePolicy
from unwind.api.crds import DEFINITIONS
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import OWNER_LABEL, Finalizer
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    Resource,
)
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, INVENTORIES, Entry, EntryState, Inventory, InventorySpec, MemberRef
from unwind.concurrency import gather_limited
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import Waiting
from unwind.kube import object_watch
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members.member import Member
from unwind.removal.removal import Removal
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from unwind.api.fields import Unknown
    from unwind.clock import Clock
    from unwind.deleters.registration import Registration
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client, Object
    from unwind.local.audit_log import AuditEvent as Audited
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="fleet", name="m", uid="m-1")


async def define_inventories(client: Client) -> None:
    """Have Inventories served; they may be there already."""
    [inventories] = [definition for definition in DEFINITIONS if definition.resource == INVENTORIES]
    definition = inventories.custom_resource_definition()
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, definition)
    await object_watch.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"], "Established")
    await until_served(client, INVENTORIES)


async def until_served(client: Client, resource: Resource) -> None:
    """Return when a new kind is in discovery and can be listed."""

    async def discovered() -> bool:
        return resource in [kind.resource for kind in await Discovery(client).kinds()]

    await eventually(discovered, f"{resource.kind} in discovery", within=30)
    # For a moment after a CRD was created its lists are refused.
    await until_allowed(lambda: client.list(resource), within=30)


class RemovalLog:
    """What a removal said."""

    def __init__(self) -> None:
        self.removal: Removal | None = None
        self.news = asyncio.Event()
        self._printed: set[str] = set()

    def changed(self) -> None:
        self.news.set()
        # A test that runs out of time shows what its removal waited for.
        new = set(self.words()) - self._printed if self.removal else set()
        self._printed |= new
        for word in sorted(new):
            print(f"removal waits: {word}")

    def words(self) -> list[str]:
        assert self.removal
        waits = self.removal.waits.values()
        return [wait.reason if isinstance(wait, Waiting) else wait.message for wait in waits]

    async def until(self, *parts: str) -> str:
        """Return what is said as soon as it has all of this in it."""
        async with asyncio.timeout(60):
            while True:
                self.news.clear()
                for word in self.words():
                    if all(part in word for part in parts):
                        return word
                await self.news.wait()


class RemovalScene:
    """One step: what it put on a member, and the account of it."""

    def __init__(self, plane: Plane, inventories: Inventories, cluster: LocalCluster, system_uid: str) -> None:
        self.management = plane.management
        self.inventories = inventories
        self.cluster = cluster
        self.client = cluster.client
        self.system_uid = system_uid
        self.owner = ObjectRef(
            group="config.projectsveltos.io",
            version="v1beta1",
            kind="ClusterSummary",
            namespace="fleet",
            name="step",
            uid=str(uuid.uuid4()),
        )
        self.entries: dict[str, Entry] = {}

    def another(self) -> RemovalScene:
        """Another step on the same member."""
        other = object.__new__(RemovalScene)
        other.__dict__.update(self.__dict__)
        other.owner = msgspec.structs.replace(self.owner, uid=str(uuid.uuid4()))
        other.entries = {}
        return other

    async def put(self, resource: Resource, body: Object, *, order: int = 0, key: str = "", **entry: Any) -> ObjectRef:
        """Create an object with our mark, and enter it in the inventory."""
        metadata = body["metadata"]
        labels = {OWNER_LABEL: self.owner.uid} | (metadata.get("labels") or {})
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **body,
            "metadata": metadata | {"labels": labels},
        }
        made = await self.client.create(resource, body)
        return self.enter(resource, made, order=order, key=key, **entry)

    def enter(self, resource: Resource, made: Object, *, order: int = 0, key: str = "", **entry: Any) -> ObjectRef:
        """Enter an object in the inventory."""
        ref = objects.ref(resource, made)
        given: dict[str, Any] = {"state": "Confirmed", "resource": resource.plural, "order": order} | entry
        self.entries[key or f"e-{len(self.entries)}"] = Entry(object=ref, **given)
        return ref

    def intend(self, resource: Resource, namespace: str, name: str) -> ObjectRef:
        """Enter an object that is intended, and was not created, under its name."""
        absent = {"metadata": {"name": name, "namespace": namespace}}
        return self.enter(resource, absent, key=name, state=EntryState.INTENDED.value)

    async def config_map(self, namespace: str, name: str, **more: Any) -> ObjectRef:
        metadata = {"name": name, "namespace": namespace, **more.pop("metadata", {})}
        return await self.put(CONFIG_MAPS, {"metadata": metadata}, **more)

    async def namespace(self, name: str, **more: Any) -> ObjectRef:
        return await self.put(NAMESPACES, {"metadata": {"name": name}}, **more)

    async def deployment(self, namespace: str, name: str, *, replicas: int = 1, **more: Any) -> ObjectRef:
        """A Deployment whose Pods are there."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        ref = await self.put(DEPLOYMENTS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec}, **more)

        def ready(it: Object | None) -> bool:
            return bool(it and it.get("status", {}).get("readyReplicas") == replicas)

        await object_watch.until(self.client, DEPLOYMENTS, name, ready, "ready", namespace=namespace)
        return ref

    async def definition(self, group: str, *, scope: str = "Namespaced", owned: bool = True, **more: Any) -> Resource:
        """A CRD of this step for Gadgets, served."""
        names = {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"}
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        body: Object = {
            "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
            "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
            "metadata": {"name": f"gadgets.{group}"},
            "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
        }
        if owned:
            await self.put(CUSTOM_RESOURCE_DEFINITIONS, body, **more)
        else:
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
        resource = Resource(group, "v1", "gadgets", "Gadget", namespaced=scope == "Namespaced")
        await until_served(self.client, resource)
        return resource

    async def write(self) -> list[Inventory]:
        """Write the inventory, in as many chunks as it takes."""
        entries = list(self.entries.items())
        chunks = [dict(entries[at : at + ENTRIES_IN_A_CHUNK]) for at in range(0, len(entries), ENTRIES_IN_A_CHUNK)]
        for number, chunk in enumerate(chunks):
            member = MemberRef(object=CLUSTER, system_uid=self.system_uid)
            made = Inventory(
                metadata=ObjectMeta(
                    name=f"{self.owner.uid}-{number}",
                    namespace=self.inventories.namespace,
                    labels={OWNER_LABEL: self.owner.uid},
                    finalizers=(Finalizer.INVENTORY,),
                ),
                spec=InventorySpec(owner=self.owner, member=member, chunk=number, sealed_for="t-1", entries=chunk),
            )
            await self.inventories.client.create(INVENTORIES, manifest(INVENTORIES, made))
        return await self.read()

    async def read(self) -> list[Inventory]:
        return await self.inventories.of(self.owner.uid)

    async def account(self) -> dict[str, Entry]:
        """The entries as they are on the server now."""
        return {key: entry for chunk in await self.read() for key, entry in chunk.spec.entries.items()}

    @asynccontextmanager
    async def waiting(self, *words: str, **options: Any) -> AsyncIterator[tuple[Removal, asyncio.Task[None]]]:
        """A removal that runs, from when it waits for what has these words. `options`: those of `removal`."""
        told = RemovalLog()
        async with self.removal(told=told, **options) as removal, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(removal.run())
            await told.until(*words)
            yield removal, running

    @asynccontextmanager
    async def removal(
        self,
        *,
        client: Client | None = None,
        clock: Clock | None = None,
        system_uid: str = "",
        told: RemovalLog | None = None,
        going: Callable[[], Collection[str]] = frozenset,
        awaited: bool = False,
        take_along: bool = False,
        volumes: VolumePolicy | Callable[[], VolumePolicy | Unknown] = VolumePolicy.RETAIN,
        deleters: Iterable[Registration] = (),
        **more: Any,
    ) -> AsyncIterator[Removal]:
        """A removal by what the server has of the inventory, and by a clock that stands still. `deleters`: besides the
        built-in ones. `more`: further arguments of `Removal`."""
        clock = clock or StillClock()
        told = told or RemovalLog()
        uid = system_uid or self.system_uid
        async with Member(CLUSTER, client or self.client, system_uid=uid, clock=clock) as member:
            told.removal = Removal(
                member,
                self.inventories,
                await self.read(),
                deleters=(*BUILTIN, *deleters),
                teardown="t-1",
                take_along=take_along,
                volumes=volumes if callable(volumes) else lambda: volumes,
                awaited=lambda: awaited,
                going=going,
                changed=told.changed,
                clock=clock,
                **more,
            )
            yield told.removal

    async def remove(self, **more: Any) -> Removal:
        """Write the inventory if that is not done, and have everything removed."""
        if not await self.read():
            await self.write()
        async with self.removal(**more) as removal, asyncio.timeout(90):
            await removal.run()
        return removal

    async def there(self, resource: Resource, ref: ObjectRef) -> bool:
        """Whether exactly this object is there."""
        try:
            found = await self.client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            return False
        return bool(found["metadata"]["uid"] == ref.uid)

    def deleted(self) -> list[Audited]:
        """The deletions by uid of what this step put there, in the order in which they were answered."""
        uids = {entry.object.uid for entry in self.entries.values()}
        return [deletion for deletion in self.cluster.audit.deletions() if deletion.uid in uids]

    def order(self) -> list[str]:
        """What was deleted, by resource and name, each once."""
        told = [f"{item.object_ref.resource}/{item.object_ref.name}" for item in self.deleted()]
        return list(dict.fromkeys(told))


def stateful_set(room: str, name: str, *, replicas: int) -> Object:
    """A StatefulSet that has a claim for each of its Pods."""
    labels = {"app": name}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    return {
        "metadata": {"name": name, "namespace": room},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            # All at once: without volumes that are bound the first Pod would hold up the others.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "c"}]},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


async def until_claimed(client: Client, room: str, name: str) -> Object:
    """A claim, as soon as it is there."""
    found = await object_watch.until(
        client, PERSISTENT_VOLUME_CLAIMS, name, lambda it: it is not None, "made", namespace=room
    )
    assert found
    return found


async def everything_by(work: Collection[Any]) -> None:
    await gather_limited(work, limit=16)


async def serve_finalizers(client: Client, resource: Resource, finalizer: str) -> None:
    """A stand-in for an operator: what is being deleted is let go, until cancelled."""
    while True:
        with suppress(ApiError):  # its kind is gone, or was changed by somebody meanwhile: then it is shown again
            async for event in client.watch(resource):
                metadata = event.object.get("metadata", {})
                if event.type != "DELETED" and metadata.get("deletionTimestamp"):
                    left = [item for item in metadata.get("finalizers", ()) if item != finalizer]
                    await client.revise(resource, event.object, {"metadata": {"finalizers": left}})
        await asyncio.sleep(0.05)
