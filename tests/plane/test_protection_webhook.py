"""The webhook's way of deletion protection: the real API server asks our listener, which knows what a real cluster has.

The caches and fresh reads have exactly the rights that `unwind install` gives. All tests share one cluster, which no
other test has seen and nobody uses afterwards: nothing in it is cleaned up.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
import structlog
from prometheus_client import CollectorRegistry

from tests.plane.support import protected_objects
from tests.plane.support.objects import crd, define, new_object, until_allowed, until_refused
from tests.plane.support.protected_objects import MANAGER
from tests.plane.support.protection_table import CASCADING, LABEL, ROWS, P
from unwind.api.names import EventReason
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.api.rights import HOME, Setting
from unwind.certificates import Authority
from unwind.concurrency import gather_limited
from unwind.install.manifests import manifests, resource_of
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.events import EVENTS, Recorder
from unwind.kube.metrics import OTHER
from unwind.local.cluster import LocalCluster
from unwind.manager.health import new_registry
from unwind.protection.contents_reader import ProtectionLookup
from unwind.protection.manifests import configuration, protection_rules
from unwind.protection.namespace_cache import ProtectionCaches
from unwind.protection.webhook import DenialReporter, ProtectionWebhook
from unwind.server.listener import Address, Listener, address_of, bind
from unwind.server.tls import Tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

# The table takes its time on a busy machine.
pytestmark = pytest.mark.timeout(400)
WIDGETS = Resource("example.dev", "v1", "widgets", "Widget")


class Guarded(msgspec.Struct):
    """A cluster whose API server asks us."""

    cluster: LocalCluster
    caches: ProtectionCaches
    registry: CollectorRegistry
    address: str
    bundle: str

    @property
    def client(self) -> Client:
        return self.cluster.client

    def counted(self, kind: str, reason: str) -> float:
        return self.registry.get_sample_value("unwind_protection_denials_total", {"kind": kind, "reason": reason}) or 0

    def calling(self, path: str) -> Object:
        return {"url": f"https://{self.address}{path}", "caBundle": self.bundle}


@asynccontextmanager
async def answering(cluster: LocalCluster, *, counting: bool = True) -> AsyncIterator[Guarded]:
    """Our listener, which nobody asks yet. `counting`: whether it gets to know what there is in namespaces."""
    registry, authority = new_registry(), Authority("protection")
    pair = authority.server("unwind", hosts=("127.0.0.1",))
    async with (
        Client(cluster.connection(MANAGER, groups=("system:serviceaccounts",))) as client,
        asyncio.TaskGroup() as group,
    ):
        caches, recorder = ProtectionCaches(client), Recorder(client, instance="test")
        webhook = ProtectionWebhook(
            counts=caches.counts,
            guards=caches.guards,
            lookup=ProtectionLookup(client),
            reporter=DenialReporter(registry=registry, recorder=recorder),
        )
        listener = Listener("https", webhook.routes(), tls=Tls(pair))
        listening = bind(Address("127.0.0.1", 0), option="")
        await listener.open(listening)
        running = [group.create_task(part.run()) for part in (caches if counting else caches.guards, recorder)]
        try:
            bundle = base64.b64encode(authority.certificate).decode()
            yield Guarded(cluster, caches, registry, str(address_of(listening)), bundle)
        finally:
            for task in running:
                task.cancel()
            await listener.close(grace=0.5)
            listening.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(plane: Plane) -> AsyncIterator[Guarded]:
    """All rows of the table are there, and then the API server asks about everything."""
    cluster = await plane.add_member(f"guarded-{uuid.uuid4().hex[:8]}")
    client = cluster.client
    for manifest in manifests(Setting()):
        # The kinds themselves are the table's, which take anything.
        if manifest["kind"] in ("Namespace", "ServiceAccount") or manifest["apiVersion"].startswith("rbac."):
            await client.create(resource_of(manifest), manifest)
    await protected_objects.put_all(client)
    async with answering(cluster) as it:
        asking = configuration(HOME, it.calling, everything=True)
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, asking)
        # It takes the API server a moment to know whom to ask.
        await labelled(client, CONFIG_MAPS, "canary", "default", "Always")
        await until_refused(lambda: delete(client, CONFIG_MAPS, "canary", "default"))
        yield it
    await plane.remove_member(cluster.name)


# What the tests do


async def labelled(
    client: Client, resource: Resource, name: str, namespace: str = "", value: str | None = None, **more: Any
) -> Object:
    body = new_object(resource, name, namespace, **more)
    body["metadata"]["labels"] = {} if value is None else {LABEL: value}
    return await client.create(resource, body)


async def room(it: Guarded, value: str | None = None) -> str:
    """A namespace in which Pods can be made."""
    name = f"room-{uuid.uuid4().hex[:8]}"
    await it.cluster.create_namespace(name)
    await label(it.client, NAMESPACES, name, value)
    return name


async def label(
    client: Client, resource: Resource, name: str, value: str | None, namespace: str | None = None
) -> Object:
    return await client.patch(resource, name, {"metadata": {"labels": {LABEL: value}}}, namespace=namespace)


async def delete(
    client: Client, resource: Resource, name: str, namespace: str | None = None, *, dry_run: bool = True
) -> None:
    found = await client.get(resource, name, namespace=namespace)
    await client.delete(resource, name, uid=found["metadata"]["uid"], namespace=namespace, dry_run=dry_run)


async def refused(
    client: Client, resource: Resource, name: str, namespace: str | None = None, *, dry_run: bool = True
) -> str:
    with pytest.raises(ApiError) as caught:
        await delete(client, resource, name, namespace, dry_run=dry_run)
    return protected_objects.ours(caught.value)


async def until_said(it: Guarded, words: str, name: str, resource: Resource = NAMESPACES) -> str:
    """Delete (a dry run) until it is refused with these words: a no may be a moment old."""
    return protected_objects.ours(await until_refused(lambda: delete(it.client, resource, name), words))


def pod(name: str, namespace: str) -> Object:
    """One that goes at once when it is deleted: it is on no node."""
    return new_object(PODS, name, namespace, spec=protected_objects.pod({}, terminationGracePeriodSeconds=0)["spec"])


# The table


async def test_every_row_of_the_table_is_answered_as_it_should(guarded: Guarded) -> None:
    assert await protected_objects.differences(guarded.client, ROWS) == []
    asked = list(guarded.cluster.audit.entries(user=MANAGER))
    assert asked
    assert [entry for entry in asked if entry.code == 403] == [], "it has the rights for all that it asks"


async def test_what_is_not_counted_yet_is_answered_the_same(guarded: Guarded) -> None:
    client, name = guarded.client, protection_rules(HOME)
    by_the_rest = [row for row in ROWS if row.by_the_rest]
    async with answering(guarded.cluster, counting=False) as fresh:
        await client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, name, configuration(HOME, fresh.calling, everything=True))
        try:
            async with asyncio.timeout(60):
                while not fresh.counted("configmaps", "Always"):
                    await refused(client, CONFIG_MAPS, "canary", "default", dry_run=False)
            assert await protected_objects.differences(client, by_the_rest) == []
        finally:
            again = configuration(HOME, guarded.calling, everything=True)
            await client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, name, again)
            before = guarded.counted("configmaps", "Always")
            async with asyncio.timeout(60):
                while guarded.counted("configmaps", "Always") == before:
                    await refused(client, CONFIG_MAPS, "canary", "default", dry_run=False)


# Namespaces and CRDs


async def test_pods_are_counted_as_they_come_and_go(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded, "Cascading")
    await until_allowed(lambda: delete(client, NAMESPACES, name))

    async def until_there_are(number: int) -> None:
        await gather_limited((client.create(PODS, pod(f"p-{item}", name)) for item in range(number)), limit=16)
        await until_said(guarded, f"{CASCADING} and active pods {number}>0", name)
        assert guarded.caches.counts.pods(name) == number

    await until_there_are(10)
    for one in range(10):
        await delete(client, PODS, f"p-{one}", name, dry_run=False)
    await until_allowed(lambda: delete(client, NAMESPACES, name))
    await until_there_are(1_000)


async def test_a_namespace_or_crd_that_cannot_be_looked_into_stays_with_the_error(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded, "Cascading")
    unlabelled = await room(guarded)
    await define(client, crd(Resource("lists.dev", "v1", "gadgets", "Gadget")))
    await label(client, CUSTOM_RESOURCE_DEFINITIONS, "gadgets.lists.dev", "Cascading")
    await until_allowed(lambda: delete(client, NAMESPACES, name))
    bindings = [binding for binding in await client.list(CLUSTER_ROLE_BINDINGS) if _of_manager(binding)]
    for binding in bindings:
        await client.patch(CLUSTER_ROLE_BINDINGS, binding["metadata"]["name"], {"subjects": []})
    try:
        said = await until_said(guarded, f"{P} list pods error: GET /api", name)
        assert "forbidden" in said
        said = await until_said(
            guarded, f"{P} list CRs error: GET /apis/lists.dev/v1/", "gadgets.lists.dev", CUSTOM_RESOURCE_DEFINITIONS
        )
        # Without a label, too: something in it may be protected.
        said = await until_said(guarded, f"{P} list protected objects error: GET /api", unlabelled)
        assert "grant the manager permission to list it" in said
    finally:
        for binding in bindings:
            await client.patch(CLUSTER_ROLE_BINDINGS, binding["metadata"]["name"], {"subjects": binding["subjects"]})
    await until_allowed(lambda: delete(client, NAMESPACES, name))
    await until_allowed(lambda: delete(client, NAMESPACES, unlabelled))


def _of_manager(binding: Object) -> bool:
    return any(
        subject.get("namespace") == HOME and subject["kind"] == "ServiceAccount"
        for subject in binding.get("subjects") or ()
    )


async def test_a_namespace_goes_when_nothing_protected_is_left_in_it(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    held = f"{P} {LABEL} of what is in it: "
    await labelled(client, CONFIG_MAPS, "kept", name, "Always")
    match = {"app": "web"}
    spec = {"replicas": 1, "selector": {"matchLabels": match}, "template": protected_objects.pod(match)}
    await labelled(client, DEPLOYMENTS, "web", name, "Cascading", spec=spec)
    said = await until_said(guarded, held, name)
    assert "ConfigMap" in said or "Deployment" in said
    # What nothing depends on any more, or is labelled no longer, keeps nothing.
    await client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, namespace=name)
    await until_said(guarded, f"{held}ConfigMap {name}/kept", name)
    await label(client, CONFIG_MAPS, "kept", None, name)
    await until_allowed(lambda: delete(client, NAMESPACES, name))


async def test_a_crd_stays_while_something_of_it_is_protected_and_a_kind_that_comes_later_counts(
    guarded: Guarded,
) -> None:
    client, name = guarded.client, await room(guarded)
    await define(client, crd(WIDGETS))
    await until_allowed(lambda: labelled(client, WIDGETS, "kept", name, "Always"))
    said = await refused(client, CUSTOM_RESOURCE_DEFINITIONS, "widgets.example.dev")
    assert said == f"{P} {LABEL} of what is of it: Widget {name}/kept"
    assert await refused(client, WIDGETS, "kept", name) == (
        f"{P} {LABEL}=Always; to delete it anyway, remove the label first:"
        f" kubectl label widgets.example.dev/kept -n {name} {LABEL}-"
    )
    await label(client, WIDGETS, "kept", None, name)
    await until_allowed(lambda: delete(client, CUSTOM_RESOURCE_DEFINITIONS, "widgets.example.dev"))


async def test_a_protected_resource_of_a_kind_that_is_served_since_a_moment_keeps_its_namespace(
    guarded: Guarded,
) -> None:
    client, name = guarded.client, await room(guarded)
    kind = Resource("apps.kruise.io", "v1alpha1", "clonesets", "CloneSet")
    await labelled(client, kind, "web", name, "Cascading", spec={"replicas": 3})
    said = await until_said(guarded, f"{P} {LABEL} of what is in it: CloneSet {name}/web", name)
    assert "remove the label" not in said, "it is not its own label that keeps it"


# Collections, writes, versions


async def test_a_collection_is_denied_by_what_is_protected_in_it(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    for service, value in (("a", "Always"), ("b", "Cascading"), ("c", None)):
        ports = {"ports": [{"port": 80}], "clusterIP": "None"}
        await labelled(client, SERVICES, service, name, value, spec=ports)
    with pytest.raises(ApiError) as caught:
        await client._call("delete", SERVICES, "DELETE", SERVICES.path(namespace=name))
    said = protected_objects.ours(caught.value)
    assert said.startswith(f"{P} {LABEL}=Always")
    assert f"services/a -n {name}" in said, "the request has no name: it is the object's"
    assert "a" in {service["metadata"]["name"] for service in await client.list(SERVICES, namespace=name)}


async def test_a_value_that_nobody_knows_is_refused_when_it_is_written_and_not_afterwards(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    unknown = f"{P} {LABEL}=always: unknown value (valid: Always, Cascading)"
    with pytest.raises(ApiError) as caught:
        await labelled(client, CONFIG_MAPS, "new", name, "always")
    assert protected_objects.ours(caught.value) == unknown
    await labelled(client, CONFIG_MAPS, "old", name, "Always")
    with pytest.raises(ApiError) as caught:
        await label(client, CONFIG_MAPS, "old", "always", name)
    assert protected_objects.ours(caught.value) == unknown
    # The table's objects had theirs before anybody looked.
    row = next(row for row in ROWS if row.kind.kind == "Deployment" and row.label == "always")
    await client.patch(row.resource, row.name, {"spec": {"replicas": 3}}, namespace=protected_objects.ROOM)


async def test_reviews_of_v1beta1_are_answered_in_their_version(guarded: Guarded) -> None:
    client, name, kind = guarded.client, await room(guarded), SERVICE_ACCOUNTS
    for account, value in (("kept", "Always"), ("free", None)):
        await labelled(client, kind, account, name, value)
    asking = configuration(f"{HOME}-old", guarded.calling, everything=True)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": [kind.plural]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}, "objectSelector": {}}
    asking["webhooks"] = [
        item | here | {"rules": [rule], "admissionReviewVersions": ["v1beta1"]}
        for item in asking["webhooks"]
        if item["failurePolicy"] == "Fail"
    ]
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, asking)
    # The other configuration has us asked, too: it is counted twice once both are heeded.
    before = guarded.counted(OTHER, "Always")
    async with asyncio.timeout(60):
        while guarded.counted(OTHER, "Always") - before < 2:
            before = guarded.counted(OTHER, "Always")
            said = await refused(client, kind, "kept", name, dry_run=False)
            assert said.startswith(f"{P} {LABEL}=Always")
    # An answer in another version would be a failure, by which it would stay, too.
    await delete(client, kind, "free", name)


# What is told


async def test_a_denial_is_counted_and_an_event_says_it_and_a_dry_run_leaves_nothing(guarded: Guarded) -> None:
    client, name = guarded.client, await room(guarded)
    for config_map in ("asked", "tried"):
        await labelled(client, CONFIG_MAPS, config_map, name, "Always")
    before = guarded.counted("configmaps", "Always")
    with structlog.testing.capture_logs() as logged:
        await refused(client, CONFIG_MAPS, "tried", name)
        await refused(client, CONFIG_MAPS, "asked", name, dry_run=False)
    lines = [line for line in logged if line.get("object", "").startswith(f"ConfigMap/{name}/")]
    assert [line["object"] for line in lines] == [f"ConfigMap/{name}/asked"]
    assert lines[0]["user"] == "admin"
    assert lines[0]["groups"] == ["system:masters", "system:authenticated"]
    assert guarded.counted("configmaps", "Always") == before + 1
    async with asyncio.timeout(60):
        async for event in client.watch(EVENTS, namespace=name):
            it = event.object
            if it["regarding"]["kind"] == "ConfigMap":
                assert it["regarding"]["name"] == "asked"
                assert (it["reason"], it["type"]) == (EventReason.REFUSED, "Warning")
                assert it["note"] == f"{P} {LABEL}=Always"
                break
