"""Buckets: a kind of the tests' own that stands for something outside, and the store that it stands for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from tests.eventually import eventually
from tests.plane.support import objects
from tests.plane.support.controllers import controller_deps
from unwind.api.meta import ObjectRef
from unwind.api.names import Finalizer
from unwind.api.resources import Resource
from unwind.api.rights import Right
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.outcomes import Again, Gone
from unwind.deleters.registration import External, Kinds
from unwind.deleters.registry import DeleterRegistry
from unwind.external.controller import DeletionMetrics, ExternalController
from unwind.kube import object_watch
from unwind.kube.absence import Presence, Sighting
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.testing import managers
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.annotation_values import DeletePolicy
    from unwind.clock import Clock
    from unwind.deleters.context import DeleteContext
    from unwind.deleters.outcomes import Kept
    from unwind.deleters.registration import Registration
    from unwind.deleters.registry import Plugin
    from unwind.kube.client import Client, Object
    from unwind.kube.fencing import ShardOwner

# As Azure Service Operator's conditions are.
CONDITIONS: Object = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime"],
        "properties": {
            **{name: {"type": "string"} for name in ("type", "status", "severity", "reason", "message", "note")},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer"},
        },
    },
}


def bucket_crd(group: str, *, status: Object | None = None, subresource: bool = True) -> Object:
    """A CRD for Buckets; `status` are the properties of its status."""
    properties = {"conditions": CONDITIONS} if status is None else status
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
            "status": {"type": "object", "properties": properties},
        },
    }
    made = objects.crd(Resource(group, "v1", "buckets", "Bucket"), schema=schema)
    if subresource:
        made["spec"]["versions"][0]["subresources"] = {"status": {}}
    return made


async def grant(client: Client, group: str) -> None:
    """Grant every manager the rights for Buckets, as docs/run.md says."""
    rights = (
        Right(group, ("buckets",), ("get", "list", "watch", "patch")),
        Right(group, ("buckets/status",), ("patch",)),
    )
    await managers.grant(client, f"buckets.{group}", *rights)


async def define(client: Client, group: str, *, granted: bool = True, **more: Any) -> Resource:
    """Have Buckets served, and unless told otherwise grant managers the rights for them."""
    if granted:
        await grant(client, group)
    await objects.define(client, bucket_crd(group, **more))

    async def discovered() -> bool:
        return any(kind.resource.group == group for kind in await Discovery(client).kinds())

    await eventually(discovered, f"{group} in discovery", within=30)
    resource = Resource(group, "v1", "buckets", "Bucket")
    await _until_watched(client, resource)
    return resource


async def _until_watched(client: Client, resource: Resource) -> None:
    """For a moment after a CRD was created its watches are turned away; by a clock that stands still, nobody would come
    back."""
    metadata = {"name": "probe", "namespace": "default"}
    body = {"apiVersion": resource.api_version, "kind": "Bucket", "metadata": metadata}
    uid = (await client.create(resource, body))["metadata"]["uid"]
    await eventually(lambda: _watched(client, resource), "a watch", within=30)
    await client.delete(resource, "probe", uid=uid, namespace="default")


async def _watched(client: Client, resource: Resource) -> bool:
    try:
        async with aclosing(client.watch(resource, namespace="default")) as events:
            async for event in events:
                return event.type == "ADDED"
    except ApiError:
        pass  # too early
    return False


class Store:
    """What is outside: the buckets that there are, what was asked of them, and what is to be answered."""

    def __init__(self) -> None:
        self.buckets: set[str] = set()
        self.calls: list[str] = []
        self.answers: list[BaseException] = []
        self.seen: list[Object] = []
        """The objects as the API server had them while their buckets were being deleted."""
        self.open = 0
        self.refuses: Exception | None = None
        self.called = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self.closed = False
        self.stalls = ""
        """As long as it says something, nothing is deleted."""


class StoreEnd:
    """Deletes buckets."""

    name = "store"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.clients: tuple[object, ...] = (store,)

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone | Kept:
        store = self._store
        store.calls.append(ctx.ref.name)
        store.seen.append(await ctx.client.get(ctx.resource, ctx.ref.name, namespace=ctx.ref.namespace))
        store.called.set()
        if store.hold:
            await store.hold.wait()
        if store.stalls:
            raise Again(store.stalls, after=1000)
        if store.answers:
            raise store.answers.pop(0)
        store.buckets.discard(ctx.ref.name)
        return Gone("the store has it no more")

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        there = ctx.ref.name in self._store.buckets
        return Sighting(Presence.PRESENT if there else Presence.ABSENT, "the store was asked")


def external(store: Store, group: str) -> External:
    @asynccontextmanager
    async def opened(_: Client) -> AsyncIterator[StoreEnd]:
        if store.refuses:
            raise store.refuses
        store.open += 1
        try:
            yield StoreEnd(store)
        finally:
            store.closed = True

    return External(name="store", kinds=(Kinds(f"{group}/*", "Bucket"),), open=opened)


class Running:
    """A controller that runs, and what belongs to it."""

    def __init__(self, controller: ExternalController, registry: CollectorRegistry, clock: Clock) -> None:
        self.controller = controller
        self.clock = clock
        self._registry = registry

    def sample(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)


@asynccontextmanager
async def running(
    client: Client,
    namespace: str,
    *known: External | Registration,
    plugins: tuple[Plugin, ...] = (),
    clock: Clock | None = None,
    policy: DeletePolicy | None = None,
    owner: ShardOwner | None = None,
) -> AsyncIterator[Running]:
    """Run a controller as the manager of the namespace, by a clock that stands still unless there is another."""
    collected = CollectorRegistry()
    clock = clock or StillClock()
    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        recorder = Recorder(own, instance="test")
        controller = ExternalController(
            controller_deps(own, owner=owner, metrics=Metrics(collected), recorder=recorder, clock=clock),
            DeleterRegistry((*BUILTIN, *known), plugins=plugins),
            namespace=namespace,
            measures=DeletionMetrics(collected),
            policy=policy,
        )
        tasks = [group.create_task(item.run()) for item in (recorder, controller)]
        try:
            yield Running(controller, collected, clock)
        finally:
            for task in tasks:
                task.cancel()


class Buckets:
    """The Bucket objects of one namespace, and what a person does with them."""

    def __init__(self, client: Client, resource: Resource, namespace: str) -> None:
        self.client = client
        self.resource = resource
        self.namespace = namespace

    async def create(self, name: str, **metadata: Any) -> Object:
        """Create one, and wait for nothing."""
        body = {"apiVersion": self.resource.api_version, "kind": "Bucket", "spec": {}}
        return await self.client.create(
            self.resource, body | {"metadata": {"name": name, "namespace": self.namespace, **metadata}}
        )

    async def claimed(self, name: str, **metadata: Any) -> ObjectRef:
        """Create one, and wait until our finalizer is on it."""
        await self.create(name, **metadata)
        found = await self.until(name, lambda it: Finalizer.EXTERNAL in (it["metadata"].get("finalizers") or ()))
        return self.ref(found)

    def ref(self, obj: Object) -> ObjectRef:
        return ObjectRef(
            group=self.resource.group,
            version="v1",
            kind="Bucket",
            namespace=self.namespace,
            name=obj["metadata"]["name"],
            uid=obj["metadata"]["uid"],
        )

    async def get(self, name: str) -> Object:
        return await self.client.get(self.resource, name, namespace=self.namespace)

    async def patch(self, name: str, patch: Object, **more: Any) -> Object:
        return await self.client.patch(self.resource, name, patch, namespace=self.namespace, **more)

    async def annotate(self, name: str, **annotations: str | None) -> Object:
        return await self.patch(name, {"metadata": {"annotations": annotations}})

    async def delete(self, ref: ObjectRef) -> None:
        """Have it deleted, and wait for nothing."""
        await self.client.delete(self.resource, ref.name, uid=ref.uid, namespace=self.namespace)

    async def until(self, name: str, holds: Callable[[Object], bool], called: str = "as it should be") -> Object:
        found = await object_watch.until(
            self.client,
            self.resource,
            name,
            lambda it: it is not None and holds(it),
            called,
            namespace=self.namespace,
            within=30,
        )
        assert found is not None
        return found

    async def until_gone(self, name: str) -> None:
        await object_watch.until_absent(self.client, self.resource, name, namespace=self.namespace, within=30)

    async def until_said(self, name: str, reason: str) -> Object:
        """Wait until the Ready condition has this reason, and return it."""
        found = await self.until(name, lambda it: ready(it).get("reason") == reason, reason)
        return ready(found)


def ready(obj: Object) -> Object:
    conditions: list[Object] = (obj.get("status") or {}).get("conditions") or []
    return next((obj for obj in conditions if obj["type"] == "Ready"), {})
