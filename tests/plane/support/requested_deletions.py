"""What the tests of `unwind plan` and `unwind delete` are made of: a manager, objects, and the commands."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from tests.plane.support.objects import until_refused
from tests.plane.support.removals import until_served
from unwind.addons.caches import AddonCaches
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import Finalizer
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from unwind.api.rights import Right, Setting
from unwind.api.unwind import TEARDOWNS, Cause, Teardown
from unwind.cli.cancel import cancel
from unwind.cli.delete import delete
from unwind.cli.plan import plan
from unwind.clock import SYSTEM
from unwind.install.running_managers import running_managers
from unwind.inventory.inventories import Inventories
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.kube.shards import Shards
from unwind.kube.updates import discard
from unwind.preview.removal_forecast import refusals
from unwind.teardown.manifests import REQUESTS
from unwind.teardown.request_controller import RequestController
from unwind.teardown.requests import ACCESS_REVIEWS, request, request_manifest
from unwind.testing.managers import granting, manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

    from unwind.clock import Clock
    from unwind.deleters.registry import Plugin
    from unwind.kube.client import Object
    from unwind.kube.events import Recorder
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane
    from unwind.teardown.request_step_source import RequestSource
    from unwind.teardown.step_removers import RemovalDeps

ANYTHING = Right("*", ("*",), ("get", "list", "watch", "delete"))
"""What a person grants to a manager that is to delete whatever is asked for: see docs/delete.md."""


@asynccontextmanager
async def manager(client: Client, home: str, **more: Any) -> AsyncIterator[RequestController]:
    """What carries requests out, as long as the context lasts; then it is gone as if it had been killed. `more`: what
    `request_controller` takes."""
    async with manager_client(client, home) as own, request_controller(own, home, **more) as (caches, controller):
        # By its Leases it is known to be alive.
        shards = Shards(own, namespace=home, identity=f"test-{uuid.uuid4().hex[:6]}")
        async with running_components((caches, controller, shards)):
            await eventually(lambda: running_managers(client, home), "a live manager")
            yield controller


@asynccontextmanager
async def request_controller(
    client: Client,
    home: str,
    *,
    clock: Clock = SYSTEM,
    plugins: tuple[Plugin, ...] = (),
    recorder: Recorder | None = None,
    others: Callable[[RemovalDeps], Callable[[Teardown], RequestSource | None]] = lambda _: lambda _: None,
) -> AsyncIterator[tuple[AddonCaches, RequestController]]:
    """The controller of requests with its caches; neither runs."""
    caches = AddonCaches(client, clock=clock)
    async with removal_deps(client, home, clock=clock, plugins=plugins) as deps:
        yield (
            caches,
            RequestController(
                controller_deps(client, recorder=recorder, clock=clock),
                caches,
                deps,
                refusals=partial(refusals, home=home),
                others=others(deps),
            ),
        )


class Room:
    """A namespace on the management cluster, and what is put into it."""

    def __init__(self, cluster: LocalCluster, home: str) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.home = home
        self.name = f"room-{uuid.uuid4().hex[:6]}"
        self.uids: dict[str, str] = {}

    async def open(self) -> None:
        await self.cluster.create_namespace(self.name)
        self.uids["namespace"] = await self.uid(NAMESPACES, self.name, namespace=None)

    async def put(self, resource: Resource, name: str, *, namespace: str | None = "", **body: Any) -> Object:
        """Create an object in the room, or with None for its namespace, in the cluster."""
        where = self.name if namespace == "" else namespace
        metadata = {"name": name} | ({"namespace": where} if where else {}) | body.pop("metadata", {})
        made = await self.client.create(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **body}
        )
        self.uids[name] = made["metadata"]["uid"]
        return made

    async def config_map(self, name: str, **metadata: Any) -> Object:
        return await self.put(CONFIG_MAPS, name, metadata=metadata)

    async def deployment(self, name: str, *, replicas: int = 1, **metadata: Any) -> Object:
        """A Deployment whose Pods are there."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        made = await self.put(DEPLOYMENTS, name, metadata=metadata, spec=spec)

        def made_all(it: Object | None) -> bool:
            return bool(it and it.get("status", {}).get("replicas", 0) == replicas)

        await object_watch.until(self.client, DEPLOYMENTS, name, made_all, "scaled up", namespace=self.name)
        return made

    async def service(self, name: str, **spec: Any) -> Object:
        return await self.put(SERVICES, name, spec={"ports": [{"port": 80}], **spec})

    async def definition(self, *, scope: str = "Namespaced", **metadata: Any) -> Resource:
        """A CRD for Gadgets of a group of the room's own, served."""
        group = f"{self.name}.dev"
        names = {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"}
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        await self.put(
            CUSTOM_RESOURCE_DEFINITIONS,
            f"gadgets.{group}",
            namespace=None,
            metadata=metadata,
            spec={"group": group, "scope": scope, "names": names, "versions": [version]},
        )
        resource = Resource(group, "v1", "gadgets", "Gadget", namespaced=scope == "Namespaced")
        await until_served(self.client, resource)
        return resource

    async def uid(self, resource: Resource, name: str, *, namespace: str | None = "") -> str:
        found = await self.client.get(resource, name, namespace=self.name if namespace == "" else namespace)
        uid: str = found["metadata"]["uid"]
        return uid

    async def there(self, resource: Resource, name: str, *, namespace: str | None = "") -> bool:
        try:
            await self.uid(resource, name, namespace=namespace)
        except NotFoundError:
            return False
        return True

    async def let_go(self, resource: Resource, name: str) -> None:
        """Take the finalizers off, as whoever serves them would."""
        patch = {"metadata": {"finalizers": None}}
        await self.client.patch(resource, name, patch, namespace=self.name if resource.namespaced else None)

    async def teardown(self, state: Callable[[Teardown], bool], called: str, *, target: str = "namespace") -> Teardown:
        """The Teardown of a target, as soon as it is so."""

        def look(it: Object | None) -> bool:
            return it is not None and state(msgspec.convert(it, Teardown))

        found = await object_watch.until(self.client, TEARDOWNS, f"request-{self.uids[target]}", look, called)
        return msgspec.convert(found, Teardown)

    async def ask(self, resource: Resource, name: str, key: str, *, max_objects: int | None = None) -> Teardown:
        """Write the Teardown, without looking at anything before."""
        namespace = self.name if resource.namespaced else ""
        ref = ObjectRef(
            group=resource.group,
            version=resource.version,
            kind=resource.kind,
            namespace=namespace,
            name=name,
            uid=self.uids[key],
        )
        return await request(self.client, ref, plural=resource.plural, now=SYSTEM.now(), max_objects=max_objects)

    async def accounts(self, teardown: Teardown) -> list[Any]:
        return await Inventories(self.client, namespace=self.home).of(teardown.metadata.uid)

    def deleted(self) -> list[str]:
        """What was deleted by its uid, of what was put here: in order, each once."""
        names = {uid: name for name, uid in self.uids.items()}
        return list(
            dict.fromkeys(names[deletion.uid] for deletion in self.cluster.audit.deletions() if deletion.uid in names)
        )

    def unguarded(self) -> list[str]:
        """Deletions by us that took whatever had the name."""
        found = self.cluster.audit.deletions(namespace=self.name)
        return [item.object_ref.name for item in found if not item.uid and item.user_agent.startswith("unwind")]


class User(msgspec.Struct, frozen=True):
    """A user of the cluster, known to it by a certificate."""

    name: str
    client: Client


@asynccontextmanager
async def user(room: Room, name: str, rules: list[Object], *, here: list[Object] | None = None) -> AsyncIterator[User]:
    """A user with these rights in the whole cluster, and those of `here` in the namespace of the room."""
    name = f"{name}-{room.name}"
    subject = {"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": name}
    role = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": name}
    if here:
        await room.put(ROLES, name, rules=here)
        await room.put(ROLE_BINDINGS, name, roleRef=role | {"kind": "Role"}, subjects=[subject])
    await room.put(CLUSTER_ROLES, name, namespace=None, rules=rules)
    await room.put(CLUSTER_ROLE_BINDINGS, name, namespace=None, roleRef=role, subjects=[subject])
    async with Client(room.cluster.connection(name)) as client:
        # A right counts as soon as the API server has taken notice of it.
        for rule, place in [(rule, "") for rule in rules] + [(rule, room.name) for rule in here or ()]:
            await eventually(partial(allowed, client, rule, place), f"the right {rule}")
        yield User(name, client)


async def allowed(client: Client, rule: Object, namespace: str) -> bool:
    """Whether the API server grants the first right of a rule to who asks."""
    asked = {"group": rule["apiGroups"][0], "resource": rule["resources"][0], "verb": rule["verbs"][0]}
    body = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {
            "resourceAttributes": asked
            | ({"namespace": namespace} if namespace else {})
            | ({"name": rule["resourceNames"][0]} if "resourceNames" in rule else {})
        },
    }
    return bool((await client.create(ACCESS_REVIEWS, body)).get("status", {}).get("allowed"))


@asynccontextmanager
async def policies(client: Client, home: str) -> AsyncIterator[None]:
    """The admission policy on Teardowns, as `unwind install` applies it, once it is in force."""
    policy, binding = REQUESTS.manifests(Setting(namespace=home))
    made = await client.apply(VALIDATING_ADMISSION_POLICIES, policy)
    bound = await client.apply(VALIDATING_ADMISSION_POLICY_BINDINGS, binding)
    ref = ObjectRef(version="v1", kind="ConfigMap", namespace=home, name="probe", uid="u-1")
    probe = request_manifest(ref, name="request-probe", by="another", plural="configmaps", now=SYSTEM.now())
    # Of several policies that refuse, the API server names one: that of another manager has the same rules.
    await until_refused(
        lambda: client.apply(TEARDOWNS, manifest(TEARDOWNS, probe), dry_run=True), "spec.requestedBy is another"
    )
    yield
    for resource, one in ((VALIDATING_ADMISSION_POLICY_BINDINGS, bound), (VALIDATING_ADMISSION_POLICIES, made)):
        await client.delete(resource, one["metadata"]["name"], uid=one["metadata"]["uid"])


@asynccontextmanager
async def own_namespace(plane: Plane, name: str, *rights: Right) -> AsyncIterator[str]:
    """Unwind's own namespace, with the kinds, the policy on Teardowns and more rights of that manager."""
    client = plane.management.client
    await profiles.install(client)
    await plane.management.create_namespace(name)
    async with policies(client, name), granting(client, name, *rights):
        yield name
    await tidy(client)


async def tidy(client: Client) -> None:
    """Leave no request behind for another test's manager."""
    for teardown in msgspec.convert(await client.list(TEARDOWNS), list[Teardown]):
        if teardown.spec.cause == Cause.REQUESTED:
            await discard(
                client,
                TEARDOWNS,
                teardown.metadata.name,
                uid=teardown.metadata.uid,
                finalizer=Finalizer.TEARDOWN,
            )


class Command:
    """The commands as a person calls them, in this process."""

    def __init__(self, kubeconfig: Path, home: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._options: dict[str, Any] = {"kubeconfig": kubeconfig, "unwind_namespace": home}
        self._capsys = capsys

    async def plan(self, target: str, **options: Any) -> str:
        self._capsys.readouterr()
        await plan(target, **self._options, **options)
        return self._capsys.readouterr().out

    async def foreseen(self, target: str, **options: Any) -> Any:
        told = await self.plan(target, output="json", **options)
        return msgspec.json.decode(told[told.index("{\n") :])

    async def outcome(self, target: str, **options: Any) -> Any:
        """What became of it, for machines; whatever else this process says stands before it."""
        told = await self.delete(target, output="json", **options)
        return msgspec.json.decode(told[told.index("{\n") : told.rindex("\n}") + 2])

    async def delete(self, target: str, **options: Any) -> str:
        """Raises what the command ends with; returns what it printed, on both ways."""
        self._capsys.readouterr()
        await delete(target, **({"yes": True} | self._options | options))
        told = self._capsys.readouterr()
        return told.out + told.err

    async def cancel(self, target: str, **options: Any) -> str:
        """Raises what the command ends with; returns what it printed, on both ways."""
        self._capsys.readouterr()
        await cancel(target, kubeconfig=self._options["kubeconfig"], **options)
        told = self._capsys.readouterr()
        return told.out + told.err
