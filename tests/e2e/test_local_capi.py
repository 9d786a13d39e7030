"""The real Cluster API, with members for workload clusters."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1
from unwind.api.resources import NAMESPACES, SECRETS, Resource
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.object_watch import conditions_text, until, until_absent, until_true
from unwind.local.capi import create_cluster, delete_cluster, until_available
from unwind.local.cluster import LocalCluster
from unwind.local.provider import Provider
from unwind.local.stubs import CLASS, STUB_CLUSTERS, STUB_CONTROL_PLANES

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

NAMESPACE = "default"


class Setup(msgspec.Struct):
    """A plane with Cluster API and the stand-in for its providers."""

    management: LocalCluster
    members: dict[str, LocalCluster]
    provider: Provider

    @property
    def client(self) -> Client:
        return self.management.client


@pytest.fixture
def setup(plane: Plane) -> Setup:
    return Setup(plane.management, plane.members, plane.provider)


@pytest.fixture
def name() -> str:
    return f"c-{uuid.uuid4().hex[:6]}"


def parts(cluster: Object) -> list[tuple[Resource, str]]:
    """What exists only because a Cluster does."""
    return [
        (STUB_CLUSTERS, cluster["spec"]["infrastructureRef"]["name"]),
        (STUB_CONTROL_PLANES, cluster["spec"]["controlPlaneRef"]["name"]),
        (SECRETS, f"{cluster['metadata']['name']}-kubeconfig"),
    ]


async def identity(client: Client) -> object:
    return (await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"]


@pytest.mark.parametrize("topology", [True, False], ids=["with a class", "without a class"])
async def test_a_cluster_becomes_available_and_its_kubeconfig_leads_to_the_member(
    setup: Setup, name: str, tmp_path: Path, topology: bool
) -> None:
    cluster = await create_cluster(
        setup.client, name=name, namespace=NAMESPACE, member="member-1", topology=topology, labels={"env": "test"}
    )
    assert cluster["metadata"]["labels"]["env"] == "test"
    secret = await setup.client.get(SECRETS, f"{name}-kubeconfig", namespace=NAMESPACE)
    file = tmp_path / "kubeconfig"
    file.write_bytes(base64.b64decode(secret["data"]["value"]))
    async with Client(kubeconfig.load(file)) as workload:
        assert await identity(workload) == await identity(setup.members["member-1"].client)
        assert await identity(workload) != await identity(setup.client)


@pytest.mark.parametrize("topology", [True, False], ids=["with a class", "without a class"])
async def test_a_deleted_cluster_takes_along_all_that_was_made_for_it(setup: Setup, name: str, topology: bool) -> None:
    cluster = await create_cluster(setup.client, name=name, namespace=NAMESPACE, member="member-1", topology=topology)
    await delete_cluster(setup.client, name=name, namespace=NAMESPACE)
    for resource, part in parts(cluster):
        await until_absent(setup.client, resource, part, namespace=NAMESPACE, within=10)
    deleted = [
        entry.object_ref.resource
        for entry in setup.management.audit.deletions(namespace=NAMESPACE)
        if entry.object_ref.name.startswith(name) and not entry.object_ref.name.endswith("shim")
    ]
    # Cluster API asks again where its cache has not heard of the first time yet.
    assert list(dict.fromkeys(deleted)) == ["clusters", "stubcontrolplanes", "stubclusters", "secrets"]


async def test_a_cluster_deleted_and_made_again_at_once_becomes_available(setup: Setup, name: str) -> None:
    first = await create_cluster(setup.client, name=name, namespace=NAMESPACE, member="member-1")
    await delete_cluster(setup.client, name=name, namespace=NAMESPACE)
    second = await create_cluster(setup.client, name=name, namespace=NAMESPACE, member="member-1")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    secret = await setup.client.get(SECRETS, f"{name}-kubeconfig", namespace=NAMESPACE)
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [second["metadata"]["uid"]]


async def create_for_unknown(setup: Setup, name: str, *, member: str) -> None:
    """Make a Cluster for a member that is not there, and wait until somebody has noticed."""

    def noticed(cluster: Object | None) -> bool:
        return "UnknownMember" in conditions_text(cluster, "InfrastructureReady")

    with pytest.raises(UnwindError, match="timed out after"):
        await create_cluster(setup.client, name=name, namespace=NAMESPACE, member=member, within=0.1)
    await until(setup.client, CLUSTERS, name, noticed, "told", namespace=NAMESPACE)


async def test_a_cluster_that_names_an_unknown_member_says_so_until_there_is_one(
    plane: Plane, setup: Setup, name: str
) -> None:
    await create_for_unknown(setup, name, member="late")
    with pytest.raises(UnwindError, match="InfrastructureReady: this plane has no member 'late'") as told:
        await until_available(setup.client, name=name, namespace=NAMESPACE, within=1)
    assert "\n" not in str(told.value)
    await plane.add_member("late")
    await until_available(setup.client, name=name, namespace=NAMESPACE)
    await delete_cluster(setup.client, name=name, namespace=NAMESPACE)
    await plane.remove_member("late")


async def test_a_cluster_that_names_an_unknown_member_can_be_deleted(setup: Setup, name: str) -> None:
    await create_for_unknown(setup, name, member="nobody")
    await delete_cluster(setup.client, name=name, namespace=NAMESPACE)


async def test_an_api_server_that_was_away_does_not_stop_the_providers(setup: Setup, name: str) -> None:
    before = await create_cluster(setup.client, name=f"{name}-0", namespace=NAMESPACE, member="member-1")
    await setup.management.api_server.stop()
    await asyncio.sleep(1)
    await setup.management.api_server.start()
    await create_cluster(setup.client, name=f"{name}-1", namespace=NAMESPACE, member="member-1")
    await delete_cluster(setup.client, name=before["metadata"]["name"], namespace=NAMESPACE)


async def test_infrastructure_takes_the_time_to_go_that_was_set(setup: Setup, name: str) -> None:
    await create_cluster(setup.client, name=name, namespace=NAMESPACE, member="member-1")
    setup.provider.delay = 1.5
    began = time.monotonic()
    try:
        await delete_cluster(setup.client, name=name, namespace=NAMESPACE)
    finally:
        setup.provider.delay = 0.0
    assert time.monotonic() - began >= 1.5


async def test_a_cluster_written_in_the_older_version_works_as_well(setup: Setup, name: str) -> None:
    topology = {"class": CLASS, "version": "v1.36.0", "variables": [{"name": "member", "value": "member-1"}]}
    manifest = {
        "apiVersion": CLUSTERS_V1BETA1.api_version,
        "kind": CLUSTERS_V1BETA1.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"topology": topology},
    }
    await setup.client.create(CLUSTERS_V1BETA1, manifest)
    await until_available(setup.client, name=name, namespace=NAMESPACE)
    old = await setup.client.get(CLUSTERS_V1BETA1, name, namespace=NAMESPACE)
    assert old["spec"]["infrastructureRef"]["apiVersion"] == STUB_CLUSTERS.api_version
    await delete_cluster(setup.client, name=name, namespace=NAMESPACE)


async def test_an_upgrade_of_the_control_plane_is_over_as_soon_as_it_is_asked_for(setup: Setup, name: str) -> None:
    await create_cluster(setup.client, name=name, namespace=NAMESPACE, member="member-1", version="v1.36.0")
    patch = {"spec": {"topology": {"version": "v1.36.1"}}}
    await setup.client.patch(CLUSTERS, name, patch, namespace=NAMESPACE)

    def upgraded(cluster: Object | None) -> bool:
        status = (cluster or {}).get("status", {})
        return bool(status.get("controlPlane", {}).get("versions") == [{"version": "v1.36.1"}])

    await until(setup.client, CLUSTERS, name, upgraded, "upgraded", namespace=NAMESPACE)
    await until_true(setup.client, CLUSTERS, name, "TopologyReconciled", namespace=NAMESPACE)
