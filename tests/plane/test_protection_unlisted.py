"""A deletion is refused if it cannot be found out what it would take along, whichever way decides about the rest."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import protected_objects
from tests.plane.support.extension_registration import serve_only
from tests.plane.support.objects import api_service_without_server, crd, define, until_allowed, until_refused
from tests.plane.support.protected_objects import ROOM
from tests.plane.support.protection_table import LABEL, P
from tests.plane.test_protection_webhook import Guarded, answering, delete, labelled, refused, room
from unwind.api.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.api.rights import HOME, Setting
from unwind.install.manifests import manifests, resource_of
from unwind.kube.discovery import Discovery
from unwind.protection.manifests import configuration, policy_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client
    from unwind.local.plane import Plane

pytestmark = pytest.mark.timeout(400)
UNKNOWN = f"{P} list protected objects error: "


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["webhook", "policies and webhook"])
async def guarded(plane: Plane, request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    """A cluster whose API server asks our listener: about everything, or about what policies do not decide."""
    cluster = await plane.add_member(f"unlisted-{uuid.uuid4().hex[:8]}")
    client, everything = cluster.client, request.param == "webhook"
    for manifest in manifests(Setting()):
        if manifest["kind"] in ("Namespace", "ServiceAccount") or manifest["apiVersion"].startswith("rbac."):
            await client.create(resource_of(manifest), manifest)
    async with answering(cluster) as it:
        if not everything:
            policies, bindings = policy_objects(HOME)
            for policy in policies:
                await client.apply(VALIDATING_ADMISSION_POLICIES, policy)
            for binding in bindings:
                await client.apply(VALIDATING_ADMISSION_POLICY_BINDINGS, binding)
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration(HOME, it.calling, everything=everything))
        await cluster.create_namespace(ROOM)
        await labelled(client, CONFIG_MAPS, "canary", ROOM, "Always")
        await until_refused(lambda: delete(client, CONFIG_MAPS, "canary", ROOM))
        await until_refused(lambda: delete(client, NAMESPACES, ROOM))
        yield it
    await plane.remove_member(cluster.name)


async def served(it: Guarded, *versions: str) -> Resource:
    """A new kind with one protected resource."""
    plural = f"k{uuid.uuid4().hex[:8]}"
    resource = Resource("unlisted.dev", versions[-1], plural, plural.title(), namespaced=False)
    await define(it.client, crd(resource, *versions))
    await until_allowed(lambda: labelled(it.client, resource, "kept", value="Always"))
    return resource


async def test_a_crd_whose_versions_are_not_served_keeps_its_protected_resources(guarded: Guarded) -> None:
    client, resource = guarded.client, await served(guarded, "v1")
    crd = f"{resource.plural}.{resource.group}"
    none = Resource(resource.group, "none", resource.plural, resource.kind, namespaced=False)
    await serve_only(client, none)
    said = await refused(client, CUSTOM_RESOURCE_DEFINITIONS, crd, dry_run=False)
    assert said.startswith(f"{UNKNOWN}no version of the CRD is served, so its resources cannot be listed; ")
    assert said.endswith("set served: true on one of its versions")
    # As the message says: then it is named, and once its label is gone, the CRD can be deleted.
    await serve_only(client, resource)
    said = await refused(client, CUSTOM_RESOURCE_DEFINITIONS, crd, dry_run=False)
    assert said == f"{P} {LABEL} of what is of it: {resource.kind} kept"
    await client.patch(resource, "kept", {"metadata": {"labels": None}})
    await delete(client, CUSTOM_RESOURCE_DEFINITIONS, crd, dry_run=False)


async def test_a_crd_whose_conversion_fails_keeps_its_protected_resources(guarded: Guarded) -> None:
    client, resource = guarded.client, await served(guarded, "v1", "v2")
    crd = f"{resource.plural}.{resource.group}"
    nowhere = {"clientConfig": {"url": "https://127.0.0.1:1/"}, "conversionReviewVersions": ["v1"]}
    await client.patch(
        CUSTOM_RESOURCE_DEFINITIONS, crd, {"spec": {"conversion": {"strategy": "Webhook", "webhook": nowhere}}}
    )
    await serve_only_if(client, Resource(resource.group, "v1", resource.plural, resource.kind, namespaced=False))
    said = await refused(client, CUSTOM_RESOURCE_DEFINITIONS, crd, dry_run=False)
    assert said.startswith(UNKNOWN)
    assert "conversion webhook" in said


async def serve_only_if(client: Client, resource: Resource) -> None:
    """Have one version in the CRD marked as served: it cannot be seen to answer."""
    name = f"{resource.plural}.{resource.group}"
    found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    versions = [item | {"served": item["name"] == resource.version} for item in found["spec"]["versions"]]
    await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": versions}})


async def test_a_namespace_stays_while_an_aggregated_api_does_not_answer(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    group = f"{name}.dev"
    made = await client.create(API_SERVICES, api_service_without_server(group))
    try:
        error = await until_refused(lambda: delete(client, NAMESPACES, name))
        said = protected_objects.ours(error)
        assert said == f"{UNKNOWN}v1.{group} does not respond; repair its server or delete its APIService"
    finally:
        await client.delete(API_SERVICES, f"v1.{group}", uid=made["metadata"]["uid"])

        async def answered() -> bool:
            return not await Discovery(client).silent()

        await eventually(answered, "discovery without the APIService")
    await until_allowed(lambda: delete(client, NAMESPACES, name))


async def test_a_protected_custom_resource_keeps_its_namespace_and_is_named(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    plural = f"k{uuid.uuid4().hex[:8]}"
    resource = Resource("unlisted.dev", "v1", plural, plural.title())
    await define(client, crd(resource))
    await until_allowed(lambda: delete(client, NAMESPACES, name))
    await until_allowed(lambda: labelled(client, resource, "kept", name, "Always"))
    # A moment after its CRD, a kind is discovered.
    await until_refused(lambda: delete(client, NAMESPACES, name))
    said = await refused(client, NAMESPACES, name, dry_run=False)
    assert said == f"{P} {LABEL} of what is in it: {resource.kind} {name}/kept"
    assert (await refused(client, resource, "kept", name)).startswith(f"{P} {LABEL}=Always")
