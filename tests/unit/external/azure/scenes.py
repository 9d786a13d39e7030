"""Shared helpers of the Azure tests: objects of Azure Service Operator, and passes through their chain."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from azure.core.pipeline.transport import AioHttpTransport
from azure.identity.aio import ClientSecretCredential

from unwind.api.names import AZURE_FINALIZER, AZURE_RESOURCE_ID_ANNOTATION
from unwind.api.resources import Resource
from unwind.deleters.chain_attempt import Failed, Waiting, attempt, enter
from unwind.deleters.registry import DeleterRegistry
from unwind.external.azure.arm_client import ArmClient, session
from unwind.external.azure.resource_deletion import ArmEnd
from unwind.testing.arm import CLIENT, SECRET, TENANT, Arm
from unwind.testing.clock import StillClock
from unwind.testing.contexts import context
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.deleters.outcomes import Gone, Kept
    from unwind.kube.client import Object

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"
CACHE = f"{GROUP}/providers/Microsoft.Cache/redis/one"
CACHES = Resource("cache.azure.com", "v1api20230401", "redis", "Redis")


def made(resource: Resource, id_: str, *, status: dict[str, Any] | None = None, **more: Any) -> Object:
    """An object for which Azure Service Operator has created a resource."""
    annotations = {AZURE_RESOURCE_ID_ANNOTATION: id_, **more.pop("annotations", {})}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": id_.rpartition("/")[2],
            "namespace": "default",
            "uid": "uid-1",
            "annotations": annotations,
            "finalizers": [AZURE_FINALIZER],
        },
        "status": {"id": id_, **(status or {})},
        **more,
    }


@asynccontextmanager
async def azure_client(arm: Arm) -> AsyncIterator[ArmClient]:
    async with session(authorities=arm.certificate, proxies=False) as shared:
        transport = AioHttpTransport(session=shared, session_owner=False)
        credential = ClientSecretCredential(
            TENANT,
            CLIENT,
            SECRET,
            authority=arm.url,
            transport=transport,
            disable_instance_discovery=True,
            retry_total=0,
        )
        async with credential:
            yield ArmClient(shared, credential, endpoint=arm.url)


class Azure:
    """The fake, a client for it, and what survives a restart: the memo and the wall clock."""

    def __init__(self, arm: Arm, client: ArmClient) -> None:
        self.arm = arm
        self.client = client
        self.memo: dict[str, str] = {}
        self.clock = StillClock()
        self.others: tuple[Object, ...] = ()
        """Other objects on the cluster."""

    async def enter(
        self, obj: Object, resource: Resource = CACHES, *deleters: Any, absent: bool = False
    ) -> Gone | Kept | Waiting | Failed:
        """Run the chain once, with only the memo from before, as after a restart."""
        end = ArmEnd(self.client)
        objects = Objects(*self.others, clock=self.clock)
        ctx = context(
            obj,
            objects=objects,
            kept=self.memo,
            clients=end.clients,
            clock=self.clock,
            absent=absent,
            resource=resource,
        )
        given = ctx.tombstone() if absent else obj
        return await attempt(enter(DeleterRegistry(deleters), end, ctx, given))
