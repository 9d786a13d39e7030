"""A stand-in for Cluster API's providers: a workload cluster is a member of the plane, there already.

What runs in a real management cluster is an infrastructure and a control-plane provider; this does to their objects
what those do, as far as Cluster API sees it: finalizer, endpoint, kubeconfig, status; on the way back the finalizer.
"""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from unwind.api.capi import CLUSTERS, KUBECONFIG_SECRET_TYPE
from unwind.api.names import CLUSTER_NAME_LABEL
from unwind.api.resources import SECRETS, Resource
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.stubs import STUB_CLUSTERS, STUB_CONTROL_PLANES

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object
    from unwind.local.cluster import Cluster

USER = "stub-provider"
_RETRY = 0.2


class Workload(msgspec.Struct, frozen=True):
    """The cluster that an object stands for: where it is, and the way in."""

    server: str
    kubeconfig: bytes


class Key(msgspec.Struct, frozen=True):
    """One object to look after."""

    resource: Resource
    namespace: str
    name: str


def finalizer(resource: Resource) -> str:
    return f"{resource.kind.lower()}.{resource.group}"


def owner(stub: Object) -> Object | None:
    """The reference to the Cluster that an object is part of; Cluster API sets it."""
    for reference in stub["metadata"].get("ownerReferences", []):
        if reference["kind"] == CLUSTERS.kind and reference["apiVersion"].split("/")[0] == CLUSTERS.group:
            return dict(reference)
    return None


def wanted(resource: Resource, stub: Object, workload: Workload | None) -> Object:
    """What an object that is to stay should have in metadata and spec."""
    finalizers = stub["metadata"].get("finalizers", [])
    mark = finalizer(resource)
    patch: Object = {"metadata": {"finalizers": finalizers if mark in finalizers else [*finalizers, mark]}}
    if resource == STUB_CLUSTERS and workload:
        address = urlsplit(workload.server)
        patch["spec"] = {"controlPlaneEndpoint": {"host": address.hostname, "port": address.port}}
    return patch


def wanted_status(
    resource: Resource, stub: Object, workload: Workload | None, *, now: str, upgraded: bool = True
) -> Object:
    """What an object should say of itself, as far as it follows from what is known.

    `upgraded`: whether a control plane has the version that it should have by now.
    """
    if workload is None:
        member = stub["spec"]["member"]
        return _conditions(resource, stub, "False", "UnknownMember", f"this plane has no member {member!r}", now=now)
    if owner(stub) is None:
        return _conditions(resource, stub, "False", "WaitingForCluster", "no Cluster refers to it yet", now=now)
    status = _conditions(resource, stub, "True", "Provided", "", now=now)
    if resource == STUB_CLUSTERS:
        return status | {"initialization": {"provisioned": True}}
    version = stub["spec"].get("version")
    versions = [{"version": version}] if version else []
    return status | {
        "initialization": {"controlPlaneInitialized": True},
        "externalManagedControlPlane": True,
        "versions": versions if upgraded else stub["status"]["versions"],
    }


def kubeconfig_secret(cluster: Object, namespace: str, workload: Workload) -> Object:
    """The way into a workload cluster, where everybody looks for it; it goes when the Cluster has gone."""
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "type": KUBECONFIG_SECRET_TYPE,
        "metadata": {
            "name": f"{cluster['name']}-kubeconfig",
            "namespace": namespace,
            # Cluster API does not see a Secret without it.
            "labels": {CLUSTER_NAME_LABEL: cluster["name"]},
            "ownerReferences": [{key: cluster[key] for key in ("apiVersion", "kind", "name", "uid")}],
        },
        "data": {"value": base64.b64encode(workload.kubeconfig).decode()},
    }


def covers(current: object, patch: object) -> bool:
    """Whether merging the patch would change nothing."""
    if isinstance(patch, dict) and isinstance(current, dict):
        return all(key in current and covers(current[key], value) for key, value in patch.items())
    return current == patch


class Provider:
    """Looks after every StubCluster and StubControlPlane of a management cluster."""

    def __init__(self, member: Callable[[str], Cluster | None], *, delay: float = 0.0) -> None:
        """`member` gives the member of a name, once it is up: Cluster API that finds nobody there waits for 30 s."""
        self.delay = delay
        """How long infrastructure takes to go, in seconds."""
        self.upgrading = 0.0
        """How long a control plane takes to be upgraded, in seconds. If it is no time at all, Cluster API may ask the
        hook after the whole upgrade before the one after the control plane (seen)."""
        self._member = member
        self._known: set[Key] = set()
        self._waiting: set[Key] = set()
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._gone_at: dict[str, float] = {}
        self._given: set[tuple[str, bytes]] = set()
        """The kubeconfigs that were given out, each with the uid of its Cluster."""
        self._upgraded_at: dict[tuple[str, str], float] = {}
        """When a control plane, by its uid, has a version."""

    async def run(self, management: Cluster) -> None:
        """Do it until cancelled."""
        connection = management.connection(USER, groups=ALL_RIGHTS)
        async with Client(connection, user_agent=USER) as client, asyncio.TaskGroup() as group:
            for resource in (STUB_CLUSTERS, STUB_CONTROL_PLANES):
                group.create_task(self._watch(client, resource), name=f"watch {resource.plural}")
            group.create_task(self._work(client), name="provide")

    def look_again(self) -> None:
        """To be called when there is a member more, or one less: the API server has no event for that."""
        for key in self._known:
            self._add(key)

    def _add(self, key: Key) -> None:
        if key not in self._waiting:
            self._waiting.add(key)
            self._queue.put_nowait(key)

    async def _watch(self, client: Client, resource: Resource) -> None:
        while True:
            try:
                async for event in client.watch(resource):
                    if event.type not in ("ADDED", "MODIFIED", "DELETED"):
                        break
                    metadata = event.object["metadata"]
                    key = Key(resource, metadata["namespace"], metadata["name"])
                    self._known.add(key)
                    self._add(key)
            except (ApiError, UnreachableError):
                pass  # away, or starting: what was missed comes with the next watch
            await asyncio.sleep(_RETRY)

    async def _work(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._queue.get()
            self._waiting.discard(key)
            try:
                again = await self._reconcile(client, key)
            except (ApiError, UnreachableError):
                again = _RETRY  # changed meanwhile, gone, or the server is away: the next look shows which
            if again is not None:
                loop.call_later(again, self._add, key)

    async def _reconcile(self, client: Client, key: Key) -> float | None:
        """Do for an object what can be done now; say in how many seconds to come back, if not at its next event."""
        try:
            stub = await client.get(key.resource, key.name, namespace=key.namespace)
        except NotFoundError:
            self._known.discard(key)
            return None
        if "deletionTimestamp" in stub["metadata"]:
            return await self._release(client, key.resource, stub)
        workload = self._workload(stub["spec"]["member"])
        stub = await _merge(client, key.resource, stub, wanted(key.resource, stub, workload))
        cluster = owner(stub)
        # The Secret before the status: as soon as infrastructure is provisioned, Cluster API tries to connect, and if
        # there is no Secret then, it tries again only after 30 s.
        if workload and cluster:
            given = (cluster["uid"], workload.kubeconfig)
            secret = kubeconfig_secret(cluster, key.namespace, workload)
            if not await _ensure(client, secret, again=given in self._given):
                return _RETRY
            self._given.add(given)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        left = self._until_upgraded(stub)
        status = wanted_status(key.resource, stub, workload, now=now, upgraded=left <= 0)
        await _merge(client, key.resource, stub, {"status": status}, subresource="status")
        return left if left > 0 else None

    def _until_upgraded(self, stub: Object) -> float:
        """How many seconds a control plane still needs for the version that it should have."""
        versions = stub.get("status", {}).get("versions")
        wanted = stub["spec"].get("version")
        if not versions or not wanted or versions == [{"version": wanted}]:
            return 0.0  # it has it; or it is new, and gets it at once
        now = asyncio.get_running_loop().time()
        return self._upgraded_at.setdefault((stub["metadata"]["uid"], wanted), now + self.upgrading) - now

    async def _release(self, client: Client, resource: Resource, stub: Object) -> float | None:
        metadata = stub["metadata"]
        if finalizer(resource) not in metadata.get("finalizers", []):
            return None
        now = asyncio.get_running_loop().time()
        takes = self.delay if resource == STUB_CLUSTERS else 0.0
        remaining = self._gone_at.setdefault(metadata["uid"], now + takes) - now
        if remaining > 0:
            return remaining
        finalizers = [one for one in metadata["finalizers"] if one != finalizer(resource)]
        await _merge(client, resource, stub, {"metadata": {"finalizers": finalizers}})
        del self._gone_at[metadata["uid"]]
        return None

    def _workload(self, name: str) -> Workload | None:
        member = self._member(name)
        return Workload(member.server, member.kubeconfig.read_bytes()) if member else None


def _conditions(resource: Resource, stub: Object, state: str, reason: str, message: str, *, now: str) -> Object:
    """The one condition that Cluster API copies to the Cluster."""
    kind = "Ready" if resource == STUB_CLUSTERS else "Available"
    since = now
    for condition in stub.get("status", {}).get("conditions", []):
        if condition["type"] == kind and condition["status"] == state:
            since = condition["lastTransitionTime"]
    condition = {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": since}
    return {"conditions": [condition]}


async def _merge(
    client: Client, resource: Resource, current: Object, patch: Object, *, subresource: str | None = None
) -> Object:
    """Patch an object as it was read, unless it is so already."""
    if covers(current, patch):
        return current
    return await client.revise(resource, current, patch, subresource=subresource)


async def _ensure(client: Client, secret: Object, *, again: bool) -> bool:
    """Have the Secret there as it should be; False while one that is being deleted stands in the way.

    One that an earlier Cluster of this name had, and that the garbage collector has not come to yet, is taken over.
    `again`: it was given out before, and whoever has changed it since had a reason.
    """
    metadata = secret["metadata"]
    try:
        current = await client.get(SECRETS, metadata["name"], namespace=metadata["namespace"])
    except NotFoundError:
        await client.create(SECRETS, secret)
        return True
    if "deletionTimestamp" in current["metadata"]:
        return False
    if not again:
        await _merge(client, SECRETS, current, {"metadata": metadata, "data": secret["data"]})
    return True
