"""Unwind's own objects: who may write and delete them, and what the manager restores."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from tests.eventually import eventually
from tests.plane.support.commands import kubectl
from tests.plane.support.controllers import controller_deps, running_components
from tests.plane.support.objects import delete, new_object, until_allowed, until_refused
from unwind.addons.manifests import profile_rules
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import OWNER_LABEL, EventReason
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import HOME, Setting
from unwind.api.unwind import INVENTORIES, Entry, Inventory, InventorySpec, MemberRef
from unwind.capi.manifests import cluster_rules
from unwind.install.install import install
from unwind.install.manifests import policies
from unwind.install.own_object_policies import kinds_name
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.events import EVENTS, Recorder
from unwind.kube.metrics import Metrics
from unwind.protection.controller import ProtectionController
from unwind.protection.webhook import RestoreReporter
from unwind.server.manager_names import CERTIFICATE, REGISTRATION
from unwind.server.registration import RegistrationDeps
from unwind.server.webhook_controller import mended
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

LEASE = "unwind-shard-99"
KEY = "unwind-a-key"
RECORD = "guarded-0"
ADMIN, NAMESPACE_ADMIN, TENANT = "own-admin", "own-namespace-admin", "own-tenant"
WRITE = ["create", "patch", "update", "delete", "deletecollection", "get", "list"]


def inventory(name: str, namespace: str = HOME) -> Object:
    it = ObjectRef(version="v1", kind="ConfigMap", namespace="default", name="it", uid="it")
    spec = InventorySpec(
        owner=ObjectRef(kind="ClusterSummary", namespace="default", name=name, uid=name),
        member=MemberRef(object=ObjectRef(kind="Cluster", name="m", uid="m"), system_uid="m"),
        entries={"it": Entry(object=it, resource="configmaps", state="Confirmed")},
    )
    return manifest(
        INVENTORIES,
        Inventory(metadata=ObjectMeta(name=name, namespace=namespace, labels={OWNER_LABEL: name}), spec=spec),
    )


def lease(name: str, namespace: str = HOME) -> Object:
    return new_object(LEASES, name, namespace, spec={"holderIdentity": "a", "leaseDurationSeconds": 1})


class OwnObjectsScene:
    """An installed Unwind with a record and a Lease, and people with different rights."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.kubeconfigs: dict[str, Path] = {}

    async def begin(self) -> None:
        await install(self.client, Setting(url="https://127.0.0.1:1"), accept_shadowing=True)
        for resource, obj in (
            (INVENTORIES, inventory(RECORD)),
            (LEASES, lease(LEASE)),
            (SECRETS, new_object(SECRETS, KEY, HOME)),
        ):
            await self.client.create(resource, obj)
        await self.bind(ADMIN, "cluster-admin")
        # As `admin` of the namespace, with what an operator may add to it.
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        await self.client.create(ROLES, new_object(ROLES, NAMESPACE_ADMIN, HOME, rules=[everything]))
        await self.client.create(ROLE_BINDINGS, self.binding(ROLE_BINDINGS, NAMESPACE_ADMIN, HOME))
        # Rights over kinds and webhooks, as an operator of something else has them.
        groups = ["apiextensions.k8s.io", "admissionregistration.k8s.io"]
        rules = [{"apiGroups": groups, "resources": ["*"], "verbs": WRITE}]
        await self.client.create(CLUSTER_ROLES, new_object(CLUSTER_ROLES, TENANT, rules=rules))
        await self.bind(TENANT, TENANT)
        for user in (ADMIN, NAMESPACE_ADMIN, TENANT):
            self.kubeconfigs[user] = self.cluster.write_kubeconfig(user)
        await self.until_guarded()

    async def until_guarded(self) -> None:
        """Return when the API server heeds the policies, and what people were granted."""
        found = await self.client.get(NAMESPACES, HOME)
        await until_refused(lambda: self.client.delete(NAMESPACES, HOME, uid=found["metadata"]["uid"], dry_run=True))
        label = {"metadata": {"labels": {"a": "b"}}}
        async with Client(self.cluster.connection(NAMESPACE_ADMIN)) as client:
            # A policy refuses it, and RBAC does not any more.
            await until_refused(lambda: client.patch(INVENTORIES, RECORD, label, namespace=HOME), "by Unwind only")

    async def bind(self, user: str, role: str) -> None:
        await self.client.create(CLUSTER_ROLE_BINDINGS, self.binding(CLUSTER_ROLE_BINDINGS, user, "", role))

    def binding(self, resource: Resource, user: str, namespace: str, role: str = "") -> Object:
        kind = CLUSTER_ROLES.kind if role else ROLES.kind
        return new_object(
            resource,
            user,
            namespace,
            roleRef={"apiGroup": CLUSTER_ROLES.group, "kind": kind, "name": role or user},
            subjects=[{"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": user}],
        )

    async def kubectl(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await kubectl(self.kubeconfigs[user], *arguments)

    async def uid(self, resource: Resource, name: str) -> str:
        found = await self.client.get(resource, name, namespace=HOME if resource.namespaced else None)
        uid: str = found["metadata"]["uid"]
        return uid


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(plane: Plane) -> AsyncIterator[OwnObjectsScene]:
    """A cluster of these tests' own: what they guard is shared by all others."""
    member = await plane.add_member("own-objects")
    scene = OwnObjectsScene(member)
    await scene.begin()
    yield scene
    await plane.remove_member(member.name)


@pytest.mark.parametrize(
    "target",
    [
        "crd/inventories.unwind.dev",
        "crd/teardowns.unwind.dev",
        "crd/clustersummaries.config.projectsveltos.io",
        f"namespace/{HOME}",
        f"inventory/{RECORD}",
        f"configmap/{REGISTRATION}",
        f"secret/{KEY}",
    ],
)
async def test_a_cluster_admin_does_not_delete_records_by_accident(scene: OwnObjectsScene, target: str) -> None:
    done = await scene.kubectl(ADMIN, "delete", target, "-n", HOME, "--dry-run=server")
    assert done.returncode != 0
    assert "Without its records, Unwind does not know what it deployed" in done.stderr
    assert "`unwind uninstall`" in done.stderr


@pytest.mark.parametrize(
    "target",
    [
        f"{VALIDATING_WEBHOOK_CONFIGURATIONS.plural}/{profile_rules(HOME)}",
        f"{MUTATING_WEBHOOK_CONFIGURATIONS.plural}/{cluster_rules(HOME)}",
    ],
)
async def test_a_cluster_admin_does_not_delete_webhooks_by_accident(scene: OwnObjectsScene, target: str) -> None:
    done = await scene.kubectl(ADMIN, "delete", target, "--dry-run=server")
    assert done.returncode != 0
    assert "registers the webhooks of Unwind" in done.stderr


async def test_a_cluster_admin_does_not_delete_all_records_at_once(scene: OwnObjectsScene) -> None:
    done = await scene.kubectl(
        ADMIN, "delete", "--raw", f"/apis/unwind.dev/v1alpha1/namespaces/{HOME}/inventories?dryRun=All"
    )
    assert done.returncode != 0
    assert "Without its records" in done.stderr


async def test_a_cluster_admin_may_change_a_record_and_delete_it_by_its_uid(scene: OwnObjectsScene) -> None:
    async with Client(scene.cluster.connection(ADMIN)) as client:
        made = await client.create(INVENTORIES, inventory("by-uid"))
        await client.patch(INVENTORIES, "by-uid", {"metadata": {"labels": {"a": "b"}}}, namespace=HOME)
        await client.delete(INVENTORIES, "by-uid", uid=made["metadata"]["uid"], namespace=HOME)
    await object_watch.until_absent(scene.client, INVENTORIES, "by-uid", namespace=HOME)


async def test_a_kind_of_records_goes_on_being_served(scene: OwnObjectsScene) -> None:
    name = f"{INVENTORIES.plural}.{INVENTORIES.group}"
    found = await scene.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    versions = [item | {"served": False} for item in found["spec"]["versions"]]
    async with Client(scene.cluster.connection(ADMIN)) as client:
        with pytest.raises(ApiError, match="must serve version v1alpha1"):
            await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": versions}})
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"metadata": {"annotations": {"a": "b"}}})


async def test_an_admin_of_the_namespace_writes_none_of_its_records(scene: OwnObjectsScene) -> None:
    label = {"metadata": {"labels": {"a": "b"}}}
    objects = ((INVENTORIES, RECORD), (LEASES, LEASE), (CONFIG_MAPS, REGISTRATION), (SECRETS, KEY))
    async with Client(scene.cluster.connection(NAMESPACE_ADMIN)) as client:
        for resource, name in objects:
            with pytest.raises(ApiError, match=f"{HOME}/{name} can be written by Unwind only"):
                await client.patch(resource, name, label, namespace=HOME)
            with pytest.raises(ApiError, match=f"{HOME}/{name} can be written by Unwind only"):
                await client.delete(resource, name, uid=await scene.uid(resource, name), namespace=HOME)
        for resource, obj in (
            (INVENTORIES, inventory("planted")),
            (LEASES, lease("unwind-replica-x")),
            (SECRETS, new_object(SECRETS, "unwind-planted", HOME)),
        ):
            with pytest.raises(ApiError, match="can be written by Unwind only"):
                await client.create(resource, obj)
        # What is not Unwind's is nobody's business.
        await client.create(LEASES, lease("theirs"))
        await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "theirs", HOME))
        await client.create(SECRETS, new_object(SECRETS, CERTIFICATE, HOME))


async def test_other_namespaces_are_not_concerned(scene: OwnObjectsScene) -> None:
    await scene.cluster.create_namespace("elsewhere")
    await scene.client.create(ROLES, new_object(ROLES, "all", "elsewhere", rules=[_everything()]))
    binding = scene.binding(ROLE_BINDINGS, TENANT, "elsewhere")
    binding["roleRef"]["name"] = "all"
    await scene.client.create(ROLE_BINDINGS, binding)
    async with Client(scene.cluster.connection(TENANT)) as client:
        objects = (
            (LEASES, lease(LEASE, "elsewhere")),
            (CONFIG_MAPS, new_object(CONFIG_MAPS, REGISTRATION, "elsewhere")),
            (INVENTORIES, inventory(RECORD, "elsewhere")),
        )
        for resource, obj in objects:
            await until_allowed(partial(client.create, resource, obj))  # a right is in effect after a moment
            await delete(client, resource, obj["metadata"]["name"], "elsewhere")


def _everything() -> Object:
    return {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


async def test_who_may_write_all_webhooks_and_kinds_does_not_write_those_of_unwind(scene: OwnObjectsScene) -> None:
    label = {"metadata": {"labels": {"a": "b"}}}
    async with Client(scene.cluster.connection(TENANT)) as client:
        for resource, name in (
            (VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(HOME)),
            (MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME)),
            (CUSTOM_RESOURCE_DEFINITIONS, f"{INVENTORIES.plural}.{INVENTORIES.group}"),
        ):
            with pytest.raises(ApiError, match=f"{name} can be changed by Unwind only"):
                await client.patch(resource, name, label)
            with pytest.raises(ApiError, match=r"by Unwind only|Without its records"):
                await client.delete(resource, name, uid=await scene.uid(resource, name), dry_run=True)
        other = new_object(VALIDATING_WEBHOOK_CONFIGURATIONS, "theirs", webhooks=[])
        made = await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, other)
        await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, "theirs", uid=made["metadata"]["uid"])


async def test_the_manager_writes_its_own(scene: OwnObjectsScene) -> None:
    async with manager_client(scene.client, HOME) as client:
        for resource, obj in ((INVENTORIES, inventory("managed")), (LEASES, lease("unwind-replica-y"))):
            name = obj["metadata"]["name"]
            made = await client.create(resource, obj)
            await client.patch(resource, name, {"metadata": {"labels": {"a": "b"}}}, namespace=HOME)
            await client.delete(resource, name, uid=made["metadata"]["uid"], namespace=HOME)


@asynccontextmanager
async def keeping(scene: OwnObjectsScene) -> AsyncIterator[CollectorRegistry]:
    """The part of a manager that restores policies, with protection switched off."""
    registry = CollectorRegistry()
    async with manager_client(scene.client, HOME) as own:
        recorder = Recorder(own, instance="test")
        restored = RestoreReporter(registry=registry, recorder=recorder)
        metrics = Metrics(CollectorRegistry())
        keeper = ProtectionController(
            RegistrationDeps(shared=controller_deps(own, metrics=metrics, recorder=recorder), namespace=HOME),
            on=False,
            policies=policies(Setting(namespace=HOME)),
            restored=restored.report,
        )
        async with running_components((recorder, keeper)):
            yield registry


async def test_policies_come_back_as_they_were_installed_and_that_is_reported(scene: OwnObjectsScene) -> None:
    client = scene.client
    wanted = dict(
        zip(
            (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
            policies(Setting(namespace=HOME)),
            strict=True,
        )
    )
    count = 0
    async with keeping(scene) as registry:
        for resource, objects in wanted.items():
            for one in objects:
                name = one["metadata"]["name"]
                found = await client.get(resource, name)
                assert mended(found, one) == {}, "what is installed needs no change"
                await client.delete(resource, name, uid=found["metadata"]["uid"])
                uid = found["metadata"]["uid"]
                await object_watch.until(
                    client,
                    resource,
                    name,
                    lambda it, uid=uid: it is not None and it["metadata"]["uid"] != uid,  # type: ignore[misc]
                    "made again",
                )
                count += 1
        weakened = {"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}}
        name, resource = kinds_name(HOME), VALIDATING_ADMISSION_POLICIES
        [one] = [it for it in wanted[resource] if it["metadata"]["name"] == name]
        assert mended(await client.patch(resource, name, weakened), one)
        await object_watch.until(
            client, resource, name, lambda it: it is not None and mended(it, one) == {}, "restored"
        )

        async def reported() -> list[Object]:
            found = await _told(client)
            return found if len(found) > count else []

        told = await eventually(reported, "another Event", within=30)
        total = sum(
            registry.get_sample_value("unwind_policies_restored_total", {"kind": kind.kind}) or 0 for kind in wanted
        )
    assert total == count + 1
    assert {item["type"] for item in told} == {"Warning"}
    await scene.until_guarded()


async def _told(client: Client) -> list[Object]:
    return [event for event in await client.list(EVENTS) if event["reason"] == EventReason.POLICY_RESTORED]
