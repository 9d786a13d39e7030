"""Objects on a member that stand for Azure resources: removed with their operator, or in its place."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.plane.support import azure_objects
from tests.plane.support.azure_objects import (
    ALIASES,
    CACHES,
    SUBSCRIPTION,
    TEAM,
    AzureObjects,
    alias_id,
    cache_id,
    ledger_of,
    map_credentials,
)
from tests.plane.support.objects import delete
from tests.plane.support.removals import RemovalLog, serve_finalizers
from unwind.api.names import AZURE_FINALIZER, DELETE_POLICY_ANNOTATION, DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import DEPLOYMENTS
from unwind.api.unwind import EntryState
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import Gone
from unwind.deleters.registration import LATE, External, Kinds, Registration
from unwind.deleters.registry import installed
from unwind.external.member_ends import MemberEnds
from unwind.kube.absence import Presence, Sighting
from unwind.testing.arm import Arm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.plane.support.removals import RemovalScene
    from unwind.deleters.context import DeleteContext, DeleteFunc, End
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane
    from unwind.removal.removal import Removal

MEMBER = "cluster.x-k8s.io/Cluster/fleet/m"
CANCEL = f"/subscriptions/{TEAM}/providers/Microsoft.Subscription/cancel"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(plane: Plane) -> AsyncIterator[None]:
    async with azure_objects.served(plane.members["member-1"].client):
        yield


class Site:
    """A removal of Azure objects on a member, and the Azure that they stand for."""

    def __init__(self, scene: RemovalScene, azure: AzureObjects, home: str) -> None:
        self.scene = scene
        self.azure = azure
        self.home = home
        """Unwind's namespace."""
        self.told = RemovalLog()

    async def put(self, name: str, resource: Any = CACHES, **azure: Any) -> Object:
        """An object of the step, with its Azure resource."""
        made = await self.azure.create(resource, name, owner=self.scene.owner.uid, **azure)
        self.scene.enter(resource, made)
        return made

    async def map_credentials(self, **more: str) -> None:
        given = {"member": MEMBER, "namespaces": self.azure.namespace} | more
        await map_credentials(self.scene.management.client, self.home, **given)

    async def remove(self) -> Removal:
        async with self.removing() as (removal, running), asyncio.timeout(60):
            await running
        return removal

    @asynccontextmanager
    async def removing(self, **more: Any) -> AsyncIterator[tuple[Removal, asyncio.Task[None]]]:
        """The removal runs as long as the context lasts."""
        if not await self.scene.read():
            await self.scene.write()
        given: dict[str, Any] = {"plugins": tuple(installed()), "clock": SYSTEM} | more
        async with (
            MemberEnds(self.scene.inventories.client, namespace=self.home) as ends,
            self.scene.removal(told=self.told, external_ends=ends, **given) as removal,
        ):
            running = asyncio.create_task(removal.run())
            try:
                yield removal, running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def ledger(self, obj: Object) -> Any:
        return await ledger_of(self.scene.management.client, self.home, obj["metadata"]["uid"])


@pytest_asyncio.fixture(loop_scope="session")
async def site(
    scene: RemovalScene,
    namespace: str,
    room: str,
    served: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Site]:
    await scene.cluster.create_namespace(room)
    async with Arm() as arm:
        azure_objects.lead_to(arm, tmp_path, monkeypatch)
        yield Site(scene, AzureObjects(scene.client, room, arm), namespace)


async def test_a_running_operator_gets_the_deletion_and_its_finalizer_is_waited_for(site: Site) -> None:
    cache = await site.put("theirs")
    async with site.azure.operator(), site.removing() as (_, running):
        await site.azure.until_terminating(CACHES, "theirs")
        assert "Azure Service Operator" in await site.told.until("waits for finalizers", "is running")
        assert not running.done()
        serving = asyncio.create_task(serve_finalizers(site.scene.client, CACHES, AZURE_FINALIZER))
        await asyncio.wait_for(running, 30)
        serving.cancel()
    assert not await site.azure.is_there(CACHES, "theirs")
    assert site.azure.arm.requests == [], "the operator alone talks to Azure"
    assert await site.ledger(cache) is None


async def test_without_its_operator_the_resource_is_deleted_and_then_the_finalizer_removed(site: Site) -> None:
    cache = await site.put("ours", takes=1)
    await site.map_credentials()
    removal = await site.remove()
    assert removal.progress.removed == 1
    assert not await site.azure.is_there(CACHES, "ours")
    assert site.azure.changed() == [("DELETE", cache_id("ours"))]
    assert site.azure.arm.resources == {}
    [sent] = site.scene.deleted()
    assert sent.uid == cache["metadata"]["uid"]
    entry = (await site.ledger(cache)).spec.entries[cache["metadata"]["uid"]]
    assert entry.state == EntryState.REMOVED
    assert entry.ledger.reason == Reason.FINALIZER_REMOVED
    assert entry.ledger.by == "unwind (azure)"
    assert AZURE_FINALIZER in entry.ledger.message


async def test_a_label_that_is_set_at_the_last_moment_keeps_the_resource_of_an_object_without_finalizer(
    site: Site,
) -> None:
    await site.put("late")
    patch: Object = {"metadata": {"finalizers": None}}
    await site.scene.client.patch(CACHES, "late", patch, namespace=site.azure.namespace)
    await site.map_credentials()
    labelled: list[str] = []

    async def label(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if not labelled:
            labelled.append(ctx.ref.name)
            protected: Object = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
            await site.scene.client.patch(CACHES, ctx.ref.name, protected, namespace=ctx.ref.namespace)
        return await next(ctx, obj)

    last = Registration(name="label-late", kinds=(Kinds("*", CACHES.kind),), delete=label, order=LATE)
    async with site.removing(deleters=(last,)) as (_, running):
        await site.told.until(DELETE_PROTECTION_LABEL)
        assert labelled == ["late"]
        assert site.azure.changed() == []
        assert await site.azure.is_there(CACHES, "late")
        free: Object = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
        await site.scene.client.patch(CACHES, "late", free, namespace=site.azure.namespace)
        await asyncio.wait_for(running, 30)
    assert site.azure.changed() == [("DELETE", cache_id("late"))]
    assert not await site.azure.is_there(CACHES, "late")


async def test_the_finalizer_stays_as_long_as_azure_has_the_resource(site: Site) -> None:
    cache = await site.put("locked")
    site.azure.arm.resources[cache_id("locked").lower()].locked = True
    await site.map_credentials()
    async with site.removing() as (_, running):
        await site.azure.until_terminating(CACHES, "locked")
        await site.told.until("locked")
        found = await site.azure.get(CACHES, "locked")
        assert AZURE_FINALIZER in found["metadata"]["finalizers"]
        assert not running.done()
    assert await site.ledger(cache) is None


async def test_without_mapped_credentials_the_object_is_held_and_goes_on_when_they_come(site: Site) -> None:
    await site.put("unmapped")
    async with site.removing() as (_, running):
        told = await site.told.until("no azure credentials are mapped to", MEMBER)
        assert f"namespace {site.azure.namespace}" in told
        found = await site.azure.get(CACHES, "unmapped")
        assert not found["metadata"].get("deletionTimestamp")
        assert site.azure.arm.requests == []
        await site.map_credentials()
        await asyncio.wait_for(running, 60)
    assert site.azure.changed() == [("DELETE", cache_id("unmapped"))]


@pytest.mark.parametrize(
    "other",
    [
        {"member": "cluster.x-k8s.io/Cluster/fleet/another"},
        {"member": "lib.projectsveltos.io/SveltosCluster/fleet/m"},
        {"namespaces": "another"},
        {"namespaces": ""},
        {"name": "any-name"},
    ],
)
async def test_credentials_that_are_mapped_to_others_are_not_used(site: Site, other: dict[str, str]) -> None:
    await site.put("foreign")
    await site.map_credentials(**other)
    async with site.removing():
        await site.told.until("no azure credentials are mapped to")
    assert site.azure.arm.requests == []
    assert await site.azure.is_there(CACHES, "foreign")


async def test_credentials_of_one_subscription_delete_nothing_in_another(site: Site) -> None:
    other = cache_id("stolen", subscription=TEAM)
    await site.put("stolen", azure_id=other)
    await site.map_credentials(subscription=SUBSCRIPTION)
    async with site.removing():
        await site.told.until("limited to subscription", SUBSCRIPTION)
        found = await site.azure.get(CACHES, "stolen")
        assert AZURE_FINALIZER in found["metadata"]["finalizers"]
    assert site.azure.changed() == []
    assert other.lower() in site.azure.arm.resources


async def test_an_alias_loses_its_subscription_first(site: Site) -> None:
    await site.put("team", ALIASES, subscription=TEAM)
    await site.map_credentials(namespaces="*")
    await site.remove()
    assert site.azure.changed() == [("POST", CANCEL), ("DELETE", alias_id("team"))]
    assert not await site.azure.is_there(ALIASES, "team")


async def test_an_object_that_was_terminating_before_goes_the_same_way(site: Site) -> None:
    cache = await site.put("early")
    await delete(site.scene.client, CACHES, "early", site.azure.namespace)
    await site.map_credentials()
    await site.remove()
    assert site.azure.changed() == [("DELETE", cache_id("early"))]
    assert await site.ledger(cache) is not None


async def test_an_operator_that_stops_after_the_deletion_is_replaced(site: Site) -> None:
    await site.put("orphan")
    await site.map_credentials()
    async with site.azure.operator(), site.removing() as (_, running):
        await site.told.until("waits for finalizers", "is running")
        await site.scene.client.patch(
            DEPLOYMENTS, azure_objects.OPERATOR, {"spec": {"replicas": 0}}, namespace=site.azure.namespace
        )
        await asyncio.wait_for(running, 90)
    assert site.azure.changed() == [("DELETE", cache_id("orphan"))]


async def test_a_killed_removal_deletes_at_azure_once_and_goes_on(site: Site) -> None:
    cache = await site.put("killed", takes=2)
    await site.map_credentials()
    async with site.removing():
        await site.told.until("in progress at Azure")
    assert await site.azure.is_there(CACHES, "killed")
    await site.remove()
    assert site.azure.changed() == [("DELETE", cache_id("killed"))]
    assert await site.ledger(cache) is not None


async def test_a_kept_object_needs_no_credentials(site: Site) -> None:
    made = await site.put("kept")
    annotations = {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "skip"}}}
    await site.scene.client.patch(CACHES, "kept", annotations, namespace=site.azure.namespace)
    removal = await site.remove()
    assert removal.progress.left == 1
    found = await site.azure.get(CACHES, "kept")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert not found["metadata"].get("deletionTimestamp")
    assert site.azure.arm.requests == []


# Kinds of another plugin


class StoreEnd:
    """Deletes the resource of an object that the test put into a set."""

    name = "store"
    clients: tuple[object, ...] = ()

    def __init__(self, store: set[str]) -> None:
        self._store = store

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        self._store.discard(ctx.ref.name)
        return Gone("the store was asked")

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        there = ctx.ref.name in self._store
        return Sighting(Presence.PRESENT if there else Presence.ABSENT, "the store was asked")


def store_of(store: set[str], **more: Any) -> External:
    @asynccontextmanager
    async def opened(_: Client) -> AsyncIterator[End]:
        raise AssertionError("the manager's own identity is not for members")
        yield

    @asynccontextmanager
    async def opened_with(values: Mapping[str, str]) -> AsyncIterator[End]:
        assert values["AZURE_CLIENT_ID"]
        yield StoreEnd(store)

    given: dict[str, Any] = {"open": opened, "open_with": opened_with} | more
    return External(name="azure", kinds=(Kinds("cache.azure.com/*", "Redis"),), **given)


async def test_a_kind_without_an_operator_is_deleted_by_its_end_before_the_object(site: Site) -> None:
    body = azure_objects.azure_object(CACHES, site.azure.namespace, f"plain-{uuid.uuid4().hex[:4]}")
    ref = await site.scene.put(CACHES, body)
    store = {ref.name, "other"}
    await site.map_credentials()
    async with site.removing(plugins=(), deleters=(store_of(store),)) as (_, running):
        await asyncio.wait_for(running, 30)
    assert store == {"other"}
    assert not await site.scene.there(CACHES, ref)


async def test_while_it_is_unknown_whether_an_operator_runs_the_object_is_held(site: Site) -> None:
    async def unknown(_: Client) -> str:
        raise RuntimeError("cannot tell")

    made = await site.put("unknown")
    await site.map_credentials()
    store = {"unknown"}
    end = store_of(store, operator=unknown, finalizers=(AZURE_FINALIZER,))
    async with site.removing(plugins=(), deleters=(end,)):
        await site.told.until("cannot tell")
    found = await site.azure.get(CACHES, "unknown")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert not found["metadata"].get("deletionTimestamp")
    assert store == {"unknown"}


async def test_an_end_that_takes_no_credentials_holds_objects_on_members(site: Site) -> None:
    await site.put("no-end")
    store = {"no-end"}
    async with site.removing(plugins=(), deleters=(store_of(store, open_with=None),)):
        await site.told.until("takes no credentials")
    assert store == {"no-end"}
    assert await site.azure.is_there(CACHES, "no-end")
