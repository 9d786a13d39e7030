"""Objects of Azure Service Operator on a cluster, the operator itself, and the credentials of members."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.plane.support import objects
from tests.plane.support.buckets import CONDITIONS
from tests.plane.support.removals import until_served
from unwind.api.meta import ObjectRef
from unwind.api.names import (
    AZURE_FINALIZER,
    AZURE_RESOURCE_ID_ANNOTATION,
    CREDENTIALS_PREFIX,
    EXTERNAL_LABEL,
    EXTERNAL_MEMBER_ANNOTATION,
    EXTERNAL_NAMESPACES_ANNOTATION,
    OWNER_LABEL,
)
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, SECRETS, Resource
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.kube import object_watch
from unwind.kube.errors import NotFoundError
from unwind.testing.arm import CLIENT, SECRET, TENANT, Arm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from unwind.kube.client import Client, Object

CACHES = Resource("cache.azure.com", "v1api20230401", "redis", "Redis")
ALIASES = Resource("subscription.azure.com", "v1api20211001", "aliases", "Alias")
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
TEAM = "00000000-0000-0000-0000-0000000000aa"
OPERATOR = "aso"


def lead_to(arm: Arm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a manager whose cloud is this stand-in. It has no identity of its own."""
    authority = folder / "ca.pem"
    authority.write_bytes(arm.certificate)
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_AUTHORITY_HOST", "AZURE_RESOURCE_MANAGER_ENDPOINT"):
        monkeypatch.setenv(name, arm.environ[name])
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))


@asynccontextmanager
async def served(client: Client) -> AsyncIterator[None]:
    """Serve the Azure kinds on a cluster, as long as the context lasts."""
    schema = objects.ANY_SCHEMA | {
        "properties": {
            "spec": objects.ANY_SCHEMA,
            "status": objects.ANY_SCHEMA | {"properties": {"conditions": CONDITIONS}},
        }
    }
    for resource in (CACHES, ALIASES):
        definition = objects.crd(resource, schema=schema)
        definition["spec"]["versions"][0]["subresources"] = {"status": {}}
        await objects.define(client, definition)
        await until_served(client, resource)
    yield
    for resource in (CACHES, ALIASES):
        for left in await client.list(resource):
            with suppress(NotFoundError):
                where = left["metadata"]["namespace"]
                patch = {"metadata": {"finalizers": None}}
                await client.patch(resource, left["metadata"]["name"], patch, namespace=where)
        name = f"{resource.plural}.{resource.group}"
        await objects.delete(client, CUSTOM_RESOURCE_DEFINITIONS, name)
        await object_watch.until_absent(client, CUSTOM_RESOURCE_DEFINITIONS, name, within=60)


def cache_id(name: str, subscription: str = SUBSCRIPTION) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/rg/providers/Microsoft.Cache/redis/{name}"


def alias_id(name: str) -> str:
    return f"/providers/Microsoft.Subscription/aliases/{name}"


def azure_object(resource: Resource, namespace: str, name: str) -> Object:
    """An object as a user writes it."""
    return objects.new_object(resource, name, namespace, spec={"azureName": name})


class AzureObjects:
    """The Azure objects in one namespace of a cluster, and their resources at Azure."""

    def __init__(self, client: Client, namespace: str, arm: Arm) -> None:
        self.client = client
        self.namespace = namespace
        self.arm = arm

    async def create(self, resource: Resource, name: str, *, owner: str = "", **azure: Any) -> Object:
        """An object that Azure Service Operator has created, at Azure as well."""
        body = azure_object(resource, self.namespace, name)
        body["metadata"]["labels"] = {OWNER_LABEL: owner} if owner else {}
        await self.client.create(resource, body)
        return await self.provision(resource, name, **azure)

    async def provision(
        self, resource: Resource, name: str, *, subscription: str = "", azure_id: str = "", **azure: Any
    ) -> Object:
        """Act as Azure Service Operator: add its finalizer and the id, then create the resource."""
        made_id = azure_id or (cache_id(name) if resource == CACHES else alias_id(name))
        metadata = {"finalizers": [AZURE_FINALIZER], "annotations": {AZURE_RESOURCE_ID_ANNOTATION: made_id}}
        await self.client.patch(resource, name, {"metadata": metadata}, namespace=self.namespace, field_manager="aso")
        properties = {"subscriptionId": subscription} if subscription else {}
        status = {"status": {"id": made_id, "properties": properties}}
        self.arm.resource(made_id, properties=properties, **azure)
        if subscription:
            self.arm.subscription(subscription)
        return await self.client.patch(
            resource, name, status, namespace=self.namespace, subresource="status", field_manager="aso"
        )

    async def get(self, resource: Resource, name: str) -> Object:
        return await self.client.get(resource, name, namespace=self.namespace)

    async def until_terminating(self, resource: Resource, name: str) -> Object:
        found = await object_watch.until(
            self.client,
            resource,
            name,
            lambda it: it is not None and bool(it["metadata"].get("deletionTimestamp")),
            "terminating",
            namespace=self.namespace,
            within=30,
        )
        assert found
        return found

    async def until_gone(self, resource: Resource, name: str) -> None:
        await object_watch.until_absent(self.client, resource, name, namespace=self.namespace, within=60)

    async def is_there(self, resource: Resource, name: str) -> bool:
        return not await objects.absent(self.client, resource, name, self.namespace)

    def changed(self) -> list[tuple[str, str]]:
        """The changes at Azure, in order."""
        return [
            (request.method, request.path)
            for request in self.arm.requests
            if request.method in ("POST", "DELETE") and "/oauth2/" not in request.path
        ]

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """A Deployment of Azure Service Operator exists. It serves nothing by itself."""
        labels = {"app": "azure-service-operator-v2"}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none.example/c"}]}}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
        metadata = {"labels": labels}
        await self.client.create(
            DEPLOYMENTS, objects.new_object(DEPLOYMENTS, OPERATOR, self.namespace, metadata=metadata, spec=spec)
        )
        try:
            yield
        finally:
            await objects.delete(self.client, DEPLOYMENTS, OPERATOR, self.namespace)
            await object_watch.until_absent(self.client, DEPLOYMENTS, OPERATOR, namespace=self.namespace, within=30)


async def map_credentials(
    client: Client,
    home: str,
    *,
    member: str,
    namespaces: str,
    name: str = f"{CREDENTIALS_PREFIX}test",
    subscription: str = "",
) -> None:
    """Write a Secret that maps credentials of the stand-in to a member."""
    values = {"AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT, "AZURE_CLIENT_SECRET": SECRET}
    values |= {"AZURE_SUBSCRIPTION_ID": subscription} if subscription else {}
    metadata = {
        "labels": {EXTERNAL_LABEL: "azure"},
        "annotations": {EXTERNAL_MEMBER_ANNOTATION: member, EXTERNAL_NAMESPACES_ANNOTATION: namespaces},
    }
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    await client.create(SECRETS, objects.new_object(SECRETS, name, home, metadata=metadata, data=data))


async def ledger_of(client: Client, home: str, uid: str) -> Inventory | None:
    """The ledger entry about finalizers that were removed from an object."""
    try:
        return await client.get(INVENTORIES, f"released-{uid}", namespace=home, type=Inventory)
    except NotFoundError:
        return None


def ref_of(resource: Resource, obj: Object) -> ObjectRef:
    metadata = obj["metadata"]
    return msgspec.convert(
        {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        ObjectRef,
    )
