"""Azure objects wherever Unwind meets them: in an add-on, in a Work, and in a namespace that a request deletes."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.namespaces import leave_namespace
from tests.plane.support import azure_objects, karmada_members, profiles
from tests.plane.support.azure_objects import CACHES, AzureObjects, azure_object, cache_id, ledger_of, map_credentials
from tests.plane.support.buckets import running
from tests.plane.support.karmada_members import joined
from tests.plane.support.profiles import playing
from tests.plane.support.requested_deletions import ANYTHING, Command, Room, manager, tidy
from tests.plane.support.works import WorkSite
from unwind.api.names import AZURE_FINALIZER, CREDENTIALS_PREFIX, Finalizer
from unwind.api.resources import SECRETS
from unwind.api.rights import Right
from unwind.clock import SYSTEM
from unwind.deleters.registry import installed
from unwind.kube import object_watch
from unwind.testing.arm import Arm
from unwind.testing.managers import granting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(plane: Plane) -> AsyncIterator[None]:
    await karmada_members.install(plane.management.client)
    async with azure_objects.served(plane.members["member-1"].client):
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def arm(served: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Arm]:
    async with Arm() as arm:
        azure_objects.lead_to(arm, tmp_path, monkeypatch)
        yield arm


async def test_an_add_on_with_an_azure_object_waits_for_credentials_and_deletes_its_resource(
    plane: Plane, namespace: str, arm: Arm
) -> None:
    member = f"lib.projectsveltos.io/SveltosCluster/{namespace}/edge"
    async with playing(plane, namespace) as scene:
        azure = AzureObjects(scene.member.client, namespace, arm)
        await scene.register()
        await scene.source("azure", azure_object(CACHES, namespace, "shop"))
        async with profiles.running(scene.client, namespace, clock=SYSTEM, plugins=tuple(installed())):
            await scene.profile("azure", "azure")
            await scene.until_provisioned("azure")
            made = await azure.provision(CACHES, "shop")
            await scene.delete_profile("azure")
            told = await scene.until_summary(
                "azure", lambda it: "no azure credentials are mapped to" in str(it.status), "told"
            )
            assert member in str(told.status)
            assert arm.requests == []
            await map_credentials(scene.client, namespace, member=member, namespaces=namespace)
            await azure.until_gone(CACHES, "shop")
            await scene.until_profile_gone("azure")
        assert azure.changed() == [("DELETE", cache_id("shop"))]
        found = await ledger_of(scene.client, namespace, made["metadata"]["uid"])
        assert found
        assert found.spec.member.object.name == "edge"


@asynccontextmanager
async def azure_works(plane: Plane, arm: Arm) -> AsyncIterator[tuple[WorkSite, AzureObjects]]:
    """A joined member with Azure objects in one namespace."""
    client, member = plane.management.client, plane.members["member-1"]
    home, there = f"works-{uuid.uuid4().hex[:6]}", f"works-{uuid.uuid4().hex[:6]}"
    await plane.management.create_namespace(home)
    await member.create_namespace(there)
    azure = AzureObjects(member.client, there, arm)
    async with joined(client, member) as it:
        site = WorkSite(it, home, there)
        yield site, azure
    await leave_namespace(client, home)


async def test_a_work_with_an_azure_object_deletes_its_resource(plane: Plane, arm: Arm) -> None:
    async with azure_works(plane, arm) as (site, azure):
        karmada = f"cluster.karmada.io/Cluster/{site.member.name}"
        await map_credentials(site.client, site.home, member=karmada, namespaces=site.there)
        async with site.working(plugins=tuple(installed())):
            await site.work("azure", azure_object(CACHES, site.there, "shop"))
            await site.until_applied("azure")
            made = await azure.provision(CACHES, "shop")
            await site.delete("azure")
            await site.until_gone("azure")
        assert not await azure.is_there(CACHES, "shop")
        assert azure.changed() == [("DELETE", cache_id("shop"))]
        assert await ledger_of(site.client, site.home, made["metadata"]["uid"])


async def test_a_work_leaves_its_azure_object_to_an_operator_on_the_member(plane: Plane, arm: Arm) -> None:
    async with azure_works(plane, arm) as (site, azure):
        async with site.working(plugins=tuple(installed())), azure.operator():
            await site.work("azure", azure_object(CACHES, site.there, "shop"))
            await site.until_applied("azure")
            await azure.provision(CACHES, "shop")
            await site.delete("azure")
            await azure.until_terminating(CACHES, "shop")
            await site.until("azure", lambda it: "is running and deletes" in str(it.status.conditions), "blocked")
            await site.member.cluster.client.patch(
                CACHES, "shop", {"metadata": {"finalizers": None}}, namespace=site.there
            )
            await site.until_gone("azure")
        assert arm.requests == []


# On the management cluster, where the controller of external objects deletes at Azure


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane, served: None) -> AsyncIterator[str]:
    client, name = plane.management.client, "unwind-azure-requests"
    await plane.management.create_namespace(name)
    rights = (
        ANYTHING,
        Right(CACHES.group, (CACHES.plural,), ("get", "list", "watch", "patch")),
        Right(CACHES.group, (f"{CACHES.plural}/status",), ("patch",)),
    )
    async with azure_objects.served(client), granting(client, name, *rights):
        yield name
    await tidy(client)


async def test_a_namespace_with_an_azure_object_goes_after_its_resource(
    plane: Plane,
    home: str,
    arm: Arm,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**arm.environ, "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}.items():
        monkeypatch.setenv(name, value)
    room = Room(plane.management, home)
    await room.open()
    azure = AzureObjects(room.client, room.name, arm)
    plugins = tuple(installed())
    async with running(room.client, home, plugins=plugins, clock=SYSTEM), manager(room.client, home, plugins=plugins):
        made = await azure.create(CACHES, "shop", takes=1)
        await object_watch.until(
            room.client,
            CACHES,
            "shop",
            lambda it: it is not None and Finalizer.EXTERNAL in it["metadata"]["finalizers"],
            "claimed",
            namespace=room.name,
            within=30,
        )
        assert AZURE_FINALIZER in (await azure.get(CACHES, "shop"))["metadata"]["finalizers"]
        told = await Command(plane.management.kubeconfig, home, capsys).delete(f"ns/{room.name}")
    assert f"Namespace {room.name} is gone" in told
    assert azure.changed() == [("DELETE", cache_id("shop"))]
    assert await ledger_of(room.client, home, made["metadata"]["uid"])
    # The identity of the manager is used here, and no mapping.
    secrets = await room.client.list(SECRETS, namespace=home)
    assert not [it for it in secrets if it["metadata"]["name"].startswith(CREDENTIALS_PREFIX)]
