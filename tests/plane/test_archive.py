"""`unwind run --archive` on a real API server: a document of every end, and no record is deleted before that."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import commands
from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers
from tests.plane.support.controllers import HOLD, controller_deps, removal_deps, running_components
from tests.plane.support.manager_process import running
from tests.plane.support.requested_deletions import Command, Room, own_namespace
from unwind.addons.caches import AddonCaches
from unwind.api.names import FORCE_RELEASE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, LEASES, NAMESPACES, SERVICES
from unwind.api.rights import Right
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.clock import SYSTEM
from unwind.kube.events import EVENTS, Recorder
from unwind.kube.metrics import Metrics
from unwind.kube.object_watch import until_absent
from unwind.kube.shards import Shards
from unwind.manager.health import new_registry
from unwind.preview.removal_forecast import refusals
from unwind.teardown.archive_controller import ArchiveController
from unwind.teardown.archive_directory import ArchiveDirectory, SkippedFile
from unwind.teardown.archive_documents import file_name
from unwind.teardown.request_controller import RequestController
from unwind.teardown.signatures import RecordKeys
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.kube.client import Client
    from unwind.local.plane import Plane
    from unwind.teardown.archive_documents import ArchivedTeardown

ANYTHING = Right("*", ("*",), ("get", "list", "watch", "delete", "patch"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> AsyncIterator[str]:
    """Unwind's own namespace, with the policies of that manager."""
    async with own_namespace(plane, "unwind-archive", ANYTHING) as name:
        yield name


def documents(path: Path, uid: str) -> list[ArchivedTeardown]:
    """The documents of a Teardown. Those of unsigned requests of other tests may be there, too."""
    found = [item for item in ArchiveDirectory(path).documents() if not isinstance(item, SkippedFile)]
    return [item for item in found if item.teardown.metadata.uid == uid]


async def without_leases(client: Client, namespace: str) -> None:
    """As if the Leases of a manager that was killed had run out."""
    for lease in await client.list(LEASES, namespace=namespace):
        meta = lease["metadata"]
        await client.delete(LEASES, meta["name"], uid=meta["uid"], namespace=namespace)


async def test_a_manager_that_is_killed_between_the_end_and_the_write_loses_no_document(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    scene, archive = DeployedScene(plane, namespace), tmp_path / "archive"
    archive.mkdir()
    await scene.begin()
    await scene.add_on("shop", objects=1)
    async with all_controllers(scene.client, namespace):
        await scene.deployed("shop")
    [name] = await scene.on_member()
    await scene.member.client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": [HOLD]}}, namespace=namespace)
    client, cluster = scene.client, scene.cluster
    manager = partial(running, plane.management, namespace, "--roles", "controllers", "--archive", str(archive))
    async with manager() as first:
        await cluster.delete()
        await cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
        await cluster.annotate({FORCE_RELEASE_ANNOTATION: "no backup any more"})
        ended = await cluster.ended()
        first.process.kill()
        await first.process.wait()
    assert documents(archive, ended.metadata.uid) == []
    assert ended.phase is Phase.RELEASED

    # A file of someone else has the name of the document: it is neither taken for it nor overwritten.
    taken = archive / file_name(ended)
    taken.write_text("not a document")
    await without_leases(client, namespace)
    async with manager("--keep-teardowns", "1s") as second:
        await second.until_listening("metrics")

        async def reported() -> str:
            events = await client.list(EVENTS)
            notes = [
                it["note"]
                for it in events
                if it["reason"] == "NotArchived" and it["regarding"]["uid"] == ended.metadata.uid
            ]
            return notes[0] if notes else ""

        assert "move that file away" in await eventually(reported, "an Event on the Teardown")
        await second.until_logged("reconcile failed, will retry")
        assert "unwind_archive_failures_total 0.0" not in (await second.probe("/metrics"))[1]
        # The gate does not wait for the archive, and the record waits for it.
        await cluster.go()
        assert (await cluster.ended()).metadata.uid == ended.metadata.uid
        assert taken.read_text() == "not a document"
        taken.unlink()
        [document] = await eventually(partial(documents, archive, ended.metadata.uid), "the document")
        await until_absent(client, TEARDOWNS, cluster.uid)
        await second.until_metric("unwind_archive_pending_teardowns 0.0")
    assert document.teardown.spec == ended.spec
    assert [(line.object.name, line.reason, line.message) for line in document.ledger] == [
        (name, "Forced", "no backup any more")
    ]
    assert {"WaveStarted", "Released", "Finished"} <= {entry.event for entry in document.timeline}
    assert taken.name == file_name(document.teardown)

    told = await commands.run("ledger", cluster.name, "--archive", str(archive), kubeconfig=tmp_path / "none")
    assert f"Cluster {namespace}/{cluster.name} was released by" in told.out
    assert f"ConfigMap {namespace}/{name}" in told.out
    told = await commands.run(
        "status", cluster.name, "--archive", str(archive), "--timeline", "-o", "json", kubeconfig=tmp_path / "none"
    )
    [chart] = msgspec.json.decode(told.out)
    assert (chart["phase"], [row["critical"] for row in chart["rows"]]) == ("Released", [True])
    await scene.member.client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, namespace=namespace)


@pytest.mark.parametrize("what", ["missing", "file"])
async def test_a_manager_does_not_start_with_an_archive_that_cannot_be_used(
    plane: Plane, namespace: str, tmp_path: Path, what: str
) -> None:
    (tmp_path / "file").touch()
    told = await commands.run("run", "--archive", str(tmp_path / what), kubeconfig=plane.management.kubeconfig)
    why = "No such file or directory" if what == "missing" else "Not a directory"
    assert told.refusal.startswith(f"unwind: cannot archive to {tmp_path / what}: {why}; --archive needs an existing")


@asynccontextmanager
async def archiving(client: Client, home: str, path: Path) -> AsyncIterator[None]:
    """A manager of requests with an archive."""
    async with manager_client(client, home) as own, removal_deps(own, home, clock=SYSTEM) as deps:
        caches, registry = AddonCaches(own), new_registry()
        keys, recorder = RecordKeys(own, namespace=home), Recorder(own, instance="test")
        shared = controller_deps(own, metrics=Metrics(registry), recorder=recorder)
        archive = ArchiveController(
            shared, ArchiveDirectory(path), caches, deps.inventories, keys=keys, registry=registry
        )
        controller = RequestController(
            shared,
            caches,
            msgspec.structs.replace(deps, archive=archive),
            refusals=partial(refusals, home=home),
            keys=keys,
        )
        shards = Shards(own, namespace=home, identity="archiving")
        async with running_components((caches, controller, archive, recorder, shards)):
            yield


async def test_a_cancelled_deletion_is_gone_only_when_it_is_in_the_archive(
    room: Room, command: Command, home: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    await room.put(
        SERVICES, "web", metadata={"finalizers": [HOLD]}, spec={"type": "LoadBalancer", "ports": [{"port": 80}]}
    )
    await room.ask(NAMESPACES, room.name, "namespace")
    async with archiving(room.client, home, archive):  # the volume is not mounted
        running_ = await room.teardown(lambda it: bool(it.status.blockers), "held")
        cancelling = asyncio.ensure_future(command.cancel(running_.metadata.name))
        ended = await room.teardown(lambda it: it.phase is Phase.CANCELLED, "cancelled")
        assert ended.metadata.terminating
        assert not cancelling.done()
        archive.mkdir()
        await cancelling
        await until_absent(room.client, TEARDOWNS, ended.metadata.name)
    [document] = documents(archive, ended.metadata.uid)
    assert (document.teardown.phase, document.teardown.metadata.uid) == (Phase.CANCELLED, ended.metadata.uid)
    await room.let_go(SERVICES, "web")
