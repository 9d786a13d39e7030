"""A simulated cloud: assigns addresses to LoadBalancer Services, and removes load balancers with a delay.

It acts on a Service like the service controller of a cloud provider, in the same order: finalizer, load balancer,
address; on deletion load balancer, then finalizer.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import SERVICES
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.local.cluster import ALL_RIGHTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

CLEANUP_FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
USER = "system:cloud-controller-manager"
_RETRY = 0.2


class CloudStep(Enum):
    """The next step for a Service."""

    NOTHING = "nothing"
    FINALIZER = "the cleanup finalizer"
    ADDRESS = "a load balancer and its address"
    RELEASE = "its load balancer gone, then its finalizer"


class LoadBalancer(msgspec.Struct, frozen=True):
    """A load balancer, which exists outside the cluster."""

    service: str
    address: str


def next_step(service: Object) -> CloudStep:
    """The next step for a Service in its current state."""
    metadata = service["metadata"]
    wanted = service["spec"].get("type") == "LoadBalancer" and "deletionTimestamp" not in metadata
    marked = CLEANUP_FINALIZER in metadata.get("finalizers", [])
    if not wanted:
        return CloudStep.RELEASE if marked else CloudStep.NOTHING
    if not marked:
        return CloudStep.FINALIZER
    return CloudStep.NOTHING if service.get("status", {}).get("loadBalancer", {}).get("ingress") else CloudStep.ADDRESS


class LoadBalancers:
    """The load balancers of one cluster, by the uid of their Service."""

    def __init__(self, *, delay: float, changed: Callable[[], None] = lambda: None) -> None:
        self.delay = delay
        self.load_balancers: dict[str, LoadBalancer] = {}
        self._changed = changed
        self._made = 0
        self._releasing: set[str] = set()

    async def run(self, cluster: LocalCluster) -> None:
        """Reconcile the Services of a cluster until cancelled."""
        connection = cluster.connection(USER, groups=ALL_RIGHTS)
        async with Client(connection, user_agent="cloud-stand-in") as client, asyncio.TaskGroup() as group:
            while True:
                try:
                    async for event in client.watch(SERVICES):
                        if event.type in ("ADDED", "MODIFIED"):
                            await self._advance(client, event.object, group)
                except (ApiError, UnreachableError):
                    pass  # the server is unavailable or starting: the next watch reports what was missed
                await asyncio.sleep(_RETRY)

    async def _advance(self, client: Client, service: Object, group: asyncio.TaskGroup) -> None:
        step, uid = next_step(service), service["metadata"]["uid"]
        if step is CloudStep.FINALIZER:
            await _set_finalizers(client, service, [*_finalizers(service), CLEANUP_FINALIZER])
        elif step is CloudStep.ADDRESS:
            await _set_ingress(client, service, [{"ip": self._load_balancer(service).address}])
        elif step is CloudStep.RELEASE and uid not in self._releasing:
            self._releasing.add(uid)
            group.create_task(self._release(client, service), name=f"release {uid}")

    def _load_balancer(self, service: Object) -> LoadBalancer:
        metadata = service["metadata"]
        if metadata["uid"] not in self.load_balancers:
            self._made += 1
            # Addresses reserved for documentation, which are never routed.
            address = f"203.0.113.{self._made % 254 + 1}"
            name = f"{metadata['namespace']}/{metadata['name']}"
            self.load_balancers[metadata["uid"]] = LoadBalancer(service=name, address=address)
            self._changed()
        return self.load_balancers[metadata["uid"]]

    async def _release(self, client: Client, service: Object) -> None:
        metadata = service["metadata"]
        await asyncio.sleep(self.delay)
        self.load_balancers.pop(metadata["uid"], None)
        self._changed()
        while not await _unmark(client, metadata):  # noqa: ASYNC110 - nobody tells when a server is back
            await asyncio.sleep(_RETRY)
        self._releasing.discard(metadata["uid"])


async def _unmark(client: Client, metadata: Object) -> bool:
    """Remove address and finalizer from a Service; False if it must be retried."""
    try:
        service = await client.get(SERVICES, metadata["name"], namespace=metadata["namespace"])
        if service["metadata"]["uid"] != metadata["uid"]:
            return True  # recreated with another uid
        if "deletionTimestamp" not in service["metadata"]:
            service = await _set_ingress(client, service, None)
        await _set_finalizers(
            client, service, [finalizer for finalizer in _finalizers(service) if finalizer != CLEANUP_FINALIZER]
        )
    except NotFoundError:
        return True
    except (ApiError, UnreachableError):
        return False
    return True


def _finalizers(service: Object) -> list[str]:
    finalizers: list[str] = service["metadata"].get("finalizers", [])
    return finalizers


async def _set_finalizers(client: Client, service: Object, finalizers: list[str]) -> None:
    await client.revise(SERVICES, service, {"metadata": {"finalizers": finalizers}})


async def _set_ingress(client: Client, service: Object, ingress: list[Object] | None) -> Object:
    patch = {"status": {"loadBalancer": {"ingress": ingress}}}
    return await client.revise(SERVICES, service, patch, subresource="status")
