"""A simulated Cluster API provider: the workload cluster is a running member of the plane.

It acts on the objects of the infrastructure and control plane providers like those, as far as Cluster API sees:
finalizer, endpoint, kubeconfig, status; on deletion the finalizer.
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
    from unwind.local.cluster import LocalCluster

USER = "stub-provider"
_RETRY = 0.2


class WorkloadCluster(msgspec.Struct, frozen=True):
    """The workload cluster of an object: endpoint and credentials."""

    server: str
    kubeconfig: bytes


class ProviderKey(msgspec.Struct, frozen=True):
    """One object to reconcile."""

    resource: Resource
    namespace: str
    name: str


def finalizer(resource: Resource) -> str:
    return f"{resource.kind.lower()}.{resource.group}"


def owner(stub: Object) -> Object | None:
    """The owner reference to the Cluster of an object; Cluster API sets it."""
    for reference in stub["metadata"].get("ownerReferences", []):
        if reference["kind"] == CLUSTERS.kind and reference["apiVersion"].split("/")[0] == CLUSTERS.group:
            return dict(reference)
    return None


def wanted_fields(resource: Resource, stub: Object, workload: WorkloadCluster | None) -> Object:
    """The desired metadata and spec of an object that is not being deleted."""
    finalizers = stub["metadata"].get("finalizers", [])
    mark = finalizer(resource)
    patch: Object = {"metadata": {"finalizers": finalizers if mark in finalizers else [*finalizers, mark]}}
    if resource == STUB_CLUSTERS and workload:
        address = urlsplit(workload.server)
        patch["spec"] = {"controlPlaneEndpoint": {"host": address.hostname, "port": address.port}}
    return patch


def wanted_status(
    resource: Resource, stub: Object, workload: WorkloadCluster | None, *, now: str, upgraded: bool = True
) -> Object:
    """The desired status of an object, as far as it is known.

    `upgraded`: whether a control plane has reached its desired version.
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


def kubeconfig_secret(cluster: Object, namespace: str, workload: WorkloadCluster) -> Object:
    """The kubeconfig Secret of a workload cluster under its standard name; garbage-collected with the Cluster."""
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "type": KUBECONFIG_SECRET_TYPE,
        "metadata": {
            "name": f"{cluster['name']}-kubeconfig",
            "namespace": namespace,
            # Cluster API ignores Secrets without this label.
            "labels": {CLUSTER_NAME_LABEL: cluster["name"]},
            "ownerReferences": [{key: cluster[key] for key in ("apiVersion", "kind", "name", "uid")}],
        },
        "data": {"value": base64.b64encode(workload.kubeconfig).decode()},
    }


def covers(current: object, patch: object) -> bool:
    """Whether merging the patch would be a no-op."""
    if isinstance(patch, dict) and isinstance(current, dict):
        return all(key in current and covers(current[key], value) for key, value in patch.items())
    return current == patch


class Provider:
    """Reconciles every StubCluster and StubControlPlane of a management cluster."""

    def __init__(self, member: Callable[[str], LocalCluster | None], *, delay: float = 0.0) -> None:
        """`member` returns a running member by name: if Cluster API cannot connect, it retries only after 30 s."""
        self.delay = delay
        """The seconds that infrastructure takes to be deleted."""
        self.upgrading = 0.0
        """The seconds that a control plane takes to be upgraded. With zero, Cluster API may call AfterClusterUpgrade
        before AfterControlPlaneUpgrade (seen)."""
        self._member = member
        self._known: set[ProviderKey] = set()
        self._waiting: set[ProviderKey] = set()
        self._queue: asyncio.Queue[ProviderKey] = asyncio.Queue()
        self._gone_at: dict[str, float] = {}
        self._given: set[tuple[str, bytes]] = set()
        """The created kubeconfigs, with the uids of their Clusters."""
        self._upgraded_at: dict[tuple[str, str], float] = {}
        """When a control plane, by its uid, reaches a version."""

    async def run(self, management: LocalCluster) -> None:
        """Reconcile until cancelled."""
        connection = management.connection(USER, groups=ALL_RIGHTS)
        async with Client(connection, user_agent=USER) as client, asyncio.TaskGroup() as group:
            for resource in (STUB_CLUSTERS, STUB_CONTROL_PLANES):
                group.create_task(self._watch(client, resource), name=f"watch {resource.plural}")
            group.create_task(self._work(client), name="provide")

    def look_again(self) -> None:
        """Requeue everything. Call it when a member is added or removed, for which the API server has no event."""
        for key in self._known:
            self._add(key)

    def _add(self, key: ProviderKey) -> None:
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
                    key = ProviderKey(resource, metadata["namespace"], metadata["name"])
                    self._known.add(key)
                    self._add(key)
            except (ApiError, UnreachableError):
                pass  # the server is unavailable or starting: the next watch reports what was missed
            await asyncio.sleep(_RETRY)

    async def _work(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._queue.get()
            self._waiting.discard(key)
            try:
                again = await self._reconcile(client, key)
            except (ApiError, UnreachableError):
                again = _RETRY  # conflict, gone, or the server is unavailable: the next reconcile shows which
            if again is not None:
                loop.call_later(again, self._add, key)

    async def _reconcile(self, client: Client, key: ProviderKey) -> float | None:
        """Reconcile an object; returns the seconds until requeue, or None to wait for its next event."""
        try:
            stub = await client.get(key.resource, key.name, namespace=key.namespace)
        except NotFoundError:
            self._known.discard(key)
            return None
        if "deletionTimestamp" in stub["metadata"]:
            return await self._release(client, key.resource, stub)
        workload = self._workload(stub["spec"]["member"])
        stub = await _merge(client, key.resource, stub, wanted_fields(key.resource, stub, workload))
        cluster = owner(stub)
        # The Secret before the status: Cluster API connects as soon as infrastructure is provisioned, and if there is
        # no Secret then, it retries only after 30 s.
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
        """The seconds until a control plane reaches its desired version."""
        versions = stub.get("status", {}).get("versions")
        wanted = stub["spec"].get("version")
        if not versions or not wanted or versions == [{"version": wanted}]:
            return 0.0  # already at that version, or new, which gets it at once
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
        finalizers = [item for item in metadata["finalizers"] if item != finalizer(resource)]
        await _merge(client, resource, stub, {"metadata": {"finalizers": finalizers}})
        del self._gone_at[metadata["uid"]]
        return None

    def _workload(self, name: str) -> WorkloadCluster | None:
        member = self._member(name)
        return WorkloadCluster(member.server, member.kubeconfig.read_bytes()) if member else None


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
    """Patch an object with its resourceVersion, unless the patch is a no-op."""
    if covers(current, patch):
        return current
    return await client.revise(resource, current, patch, subresource=subresource)


async def _ensure(client: Client, secret: Object, *, again: bool) -> bool:
    """Create or update the Secret; False while an old one is being deleted.

    A Secret of an earlier Cluster of this name, which the garbage collector has not deleted yet, is taken over.
    `again`: the Secret was created before, and later changes by others are kept.
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
