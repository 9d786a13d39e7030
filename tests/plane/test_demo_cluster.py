"""`unwind demo --kubeconfig`: the demo on an existing cluster leaves nothing behind, and changes nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.forked_commands import UNWIND
from tests.plane.support.commands import CommandResult, command, run
from tests.plane.support.objects import new_object
from unwind.api.names import DEMO_LABEL
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.install import existing_objects
from unwind.local import plane as planes
from unwind.local.home import Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster

# Kinds whose objects Kubernetes and the nodes change all the time.
_CHANGING = ("leases", "nodes", "endpoints", "endpointslices")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster without Unwind, with somebody's objects."""
    async with planes.running(Shape(nodes=True)) as plane:
        client = plane.management.client
        await plane.management.create_namespace("theirs")
        await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "prices", namespace="theirs"))
        yield plane.management


async def everything(client: Client) -> dict[str, str]:
    """Every object of the cluster, each with its uid, and its version where that changes only by a write."""
    found: dict[str, str] = {}
    for kind in await existing_objects.served_kinds(client):
        resource = kind.resource
        if "list" not in kind.verbs:
            continue
        async for item in existing_objects.list_metadata(client, resource):
            if resource.kind == "Event" and item.name.startswith("node-"):
                continue  # about the start of the nodes, some seconds later
            version = "" if resource.plural in _CHANGING else item.resource_version
            found[f"{resource.kind}.{resource.group} {item.namespace}/{item.name}"] = f"{item.uid} {version}"
    return found


async def unchanged(client: Client, before: dict[str, str]) -> None:
    """Wait until the cluster has exactly these objects again: Kubernetes removes the APIService of a CRD later."""

    async def same() -> bool:
        return await everything(client) == before

    try:
        await eventually(same, "the objects from before", within=20)
    except AssertionError:
        assert await everything(client) == before


def start(cluster: LocalCluster, *options: str) -> subprocess.Popen[str]:
    """Start the demo as from a terminal, where Ctrl-C reaches the manager as well."""
    return subprocess.Popen(
        [UNWIND, "demo", "--kubeconfig", cluster.kubeconfig, "--yes", *options],
        env=os.environ | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


async def until_said(demo: subprocess.Popen[str], words: str) -> str:
    """Read the output up to a line with these words."""

    def read() -> str:
        assert demo.stdout
        told = []
        for line in demo.stdout:
            told.append(line)
            if words in line:
                return "".join(told)
        pytest.fail("".join(told))

    return await asyncio.wait_for(asyncio.to_thread(read), 90)


async def ended(demo: subprocess.Popen[str]) -> str:
    told, _ = await asyncio.to_thread(demo.communicate, timeout=150)
    return told


@pytest.mark.timeout(240)
async def test_the_demo_shows_protection_preview_and_an_ordered_deletion_and_leaves_nothing_behind(
    cluster: LocalCluster,
) -> None:
    before = await everything(cluster.client)
    demo = start(cluster, "--no-input")
    text = await ended(demo)
    assert demo.returncode == 0, text
    assert "\x1b" not in text
    assert "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always" in text
    order = [
        text.index(f"{stage} removed (verified absent)") for stage in ("custom objects", "workloads", "namespaces")
    ]
    assert order == sorted(order)
    held = text.index("blocked by finalizer backup.example.dev/last-backup (no controller found)")
    assert held < text.index("The orders are backed up in 5 s") < order[0]
    assert "8 of 8 objects removed (verified absent)" in text
    await unchanged(cluster.client, before)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("moment", ["Setup:", "has a web shop", "The orders are backed up"])
async def test_after_ctrl_c_nothing_is_left(cluster: LocalCluster, moment: str) -> None:
    before = await everything(cluster.client)
    demo = start(cluster, "--no-input")
    await until_said(demo, moment)
    os.killpg(demo.pid, signal.SIGINT)
    told = await ended(demo)
    assert demo.returncode, told
    assert "Traceback" not in told
    await unchanged(cluster.client, before)


@pytest.mark.timeout(240)
async def test_what_a_killed_demo_left_is_named_and_cleaned_up(cluster: LocalCluster) -> None:
    before = await everything(cluster.client)
    demo = start(cluster, "--no-input")
    await until_said(demo, "Setup:")

    async def created() -> bool:
        return bool(await cluster.client.list(NAMESPACES, labels=DEMO_LABEL))

    await eventually(created, "the first objects")
    os.killpg(demo.pid, signal.SIGKILL)
    await ended(demo)
    again = await command(cluster, "demo", "--kubeconfig", str(cluster.kubeconfig), "--yes", features="")
    assert "objects of another run exist" in again.refusal
    assert "unwind demo --clean-up" in again.refusal
    cleaned = await command(cluster, "demo", "--clean-up", "--yes", features="")
    assert cleaned.code == 0, cleaned.err
    await unchanged(cluster.client, before)
    assert "No object of a demo exists." in (await command(cluster, "demo", "--clean-up", features="")).out


async def test_the_demo_asks_before_it_changes_anything(cluster: LocalCluster) -> None:
    before = await everything(cluster.client)
    done = await command(cluster, "demo", "--kubeconfig", str(cluster.kubeconfig), features="")
    assert done.code == 1
    assert "use --yes" in done.err
    assert "It changes no other object" in done.err
    await unchanged(cluster.client, before)


async def test_the_demo_refuses_a_cluster_where_unwind_is_installed(cluster: LocalCluster) -> None:
    crd = existing_crd()
    made = await cluster.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    try:
        refusal = (await demo_of(cluster.kubeconfig)).refusal
        assert "Unwind is installed on this cluster (CRD inventories.unwind.dev exists)" in refusal
        assert "without --kubeconfig" in refusal
        assert not await cluster.client.list(NAMESPACES, labels=DEMO_LABEL)
    finally:
        await cluster.client.delete(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"], uid=made["metadata"]["uid"])


async def test_the_demo_refuses_a_user_who_is_not_an_administrator(cluster: LocalCluster) -> None:
    kubeconfig = cluster.write_kubeconfig("jane", groups=("developers",))
    refusal = (await demo_of(kubeconfig)).refusal
    assert "this user may not do that" in refusal
    assert "cluster-admin" in refusal
    assert not await cluster.client.list(NAMESPACES, labels=DEMO_LABEL)


async def demo_of(kubeconfig: Path) -> CommandResult:
    return await run("demo", "--kubeconfig", str(kubeconfig), "--yes", kubeconfig=kubeconfig, features="")


def existing_crd() -> Object:
    names = {"kind": "Inventory", "listKind": "InventoryList", "plural": "inventories", "singular": "inventory"}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    spec = {"group": "unwind.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    return new_object(CUSTOM_RESOURCE_DEFINITIONS, "inventories.unwind.dev") | {"spec": spec}
