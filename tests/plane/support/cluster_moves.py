"""What `clusterctl move` does to a Cluster and its kubeconfig Secret, request by request (read from v1.14.2); and the
Cluster after that."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.plane.support.cluster_teardowns import CapiCluster
from tests.plane.support.profiles import ProfileScene
from unwind.api.capi import CLUSTERS
from unwind.api.names import DELETE_FOR_MOVE_ANNOTATION, OWNERS_ANNOTATION
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.unwind import Phase
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from tests.plane.support.cluster_teardowns import DeployedScene
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object


async def pause(client: Client, name: str, namespace: str, *, paused: bool = True) -> None:
    await client.patch(CLUSTERS, name, {"spec": {"paused": paused}}, namespace=namespace)


async def copy(source: Client, target: Client, resource: Resource, name: str, namespace: str) -> Object:
    """Create an object in the other management cluster, with its labels, annotations and finalizers."""
    found = await source.get(resource, name, namespace=namespace)
    kept = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: value for key, value in found["metadata"].items() if key in kept}
    body = {key: value for key, value in found.items() if key not in ("status", "metadata")} | {"metadata": metadata}
    return await target.create(resource, body)


async def delete(client: Client, resource: Resource, name: str, namespace: str, *, interrupted: bool = False) -> None:
    """Delete an object after it was copied: first the annotation, in place of all others, and at last no finalizer.
    `interrupted`: before its finalizers are removed."""
    mark = [{"op": "add", "path": "/metadata/annotations", "value": {DELETE_FOR_MOVE_ANNOTATION: ""}}]
    marked = await client.patch(resource, name, mark, namespace=namespace)
    await client.delete(resource, name, uid=marked["metadata"]["uid"], namespace=namespace)
    if interrupted:
        return
    try:
        await client.patch(resource, name, {"metadata": {"finalizers": []}}, namespace=namespace)
    except NotFoundError:
        return


async def move(source: Client, target: Client, name: str, namespace: str) -> Object:
    """Move a Cluster, which stays paused in the other management cluster; the new Cluster."""
    secret = f"{name}-kubeconfig"
    await pause(source, name, namespace)
    with contextlib.suppress(AlreadyExistsError):
        await target.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    made = await copy(source, target, CLUSTERS, name, namespace)
    await copy(source, target, SECRETS, secret, namespace)
    await delete(source, SECRETS, secret, namespace)
    await delete(source, CLUSTERS, name, namespace)
    # Cluster API, which does not run there, would find out that the control plane is initialized.
    ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
    await target.patch(CLUSTERS, name, ready, namespace=namespace, subresource="status")
    return made


class Arrived(ProfileScene):
    """A Cluster in the management cluster that it was moved to."""

    def __init__(self, client: Client, source: DeployedScene, made: Object) -> None:
        super().__init__(client, source.member, source.namespace)
        self.cluster = CapiCluster(client, source.namespace)
        self.cluster.name = source.cluster.name
        self.cluster.uid = made["metadata"]["uid"]

    async def unpause(self) -> None:
        await pause(self.client, self.cluster.name, self.namespace, paused=False)

    async def torn_down(self, removed: str) -> None:
        """Delete the Cluster, which takes so many objects with it; nothing is left on the member."""
        await self.cluster.delete()
        await self.ended(removed)

    async def ended(self, removed: str) -> None:
        teardown = await self.cluster.ended()
        assert (teardown.phase, teardown.status.removed) == (Phase.COMPLETE, removed)
        assert await self.on_member() == {}


async def owners_recorded(source: DeployedScene) -> None:
    """Return when the Cluster names the ClusterSummary of the profile `web`."""
    uid = (await source.summary_of("web")).metadata.uid

    def recorded(it: Object | None) -> bool:
        return uid in ((it or {}).get("metadata", {}).get("annotations") or {}).get(OWNERS_ANNOTATION, "")

    await until(source.client, CLUSTERS, source.cluster.name, recorded, "recorded", namespace=source.namespace)
