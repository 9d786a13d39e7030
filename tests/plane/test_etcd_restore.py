"""The etcd of the management cluster is restored from a backup, and the members have gone on since.

Records name objects that no longer exist, objects exist that no record names, and resourceVersions go back. Nothing
that is not in an Inventory may be deleted, no gate may open by what is not known, and teardowns continue or say what
they wait for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers
from tests.plane.support.etcd_backups import back_up, restore
from tests.plane.support.profiles import config_map, message
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer
from unwind.local import plane as planes
from unwind.local.home import Shape
from unwind.testing.managers import manager_client
from unwind.testing.namespaces import new_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]


@pytest_asyncio.fixture(loop_scope="session")
async def plane() -> AsyncIterator[Plane]:
    """A management cluster whose member has an etcd of its own. For one test only: Cluster API's manager, which runs
    there, does not notice a restore."""
    async with planes.running(Shape(capi=True)) as management, planes.running(Shape(members=1)) as other:
        management.attach_member("member-1", other.members["member-1"])
        yield management


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane) -> DeployedScene:
    made = DeployedScene(plane, await new_namespace(plane))
    await made.begin()
    return made


async def _go_on(scene: DeployedScene) -> dict[str, str]:
    """What happens after the backup: web-0 is created again by a user, web-1 by the add-on, web-2 stays, web-3 is new,
    and another profile deploys more. Returns the objects on the member, with their uids."""
    async with all_controllers(scene.client, scene.namespace):
        await scene.edit("web", *(config_map(scene.namespace, f"web-{number}") for number in (0, 2)))
        await scene.until_off_member("web-1")
        await scene.edit("web", *(config_map(scene.namespace, f"web-{number}") for number in (0, 1, 2, 3)))
        await scene.until_on_member("web-3")
        await scene.add_on("late")
        await scene.deployed("web", "late")
    there = (await scene.on_member())["web-0"]
    await scene.member.client.delete(CONFIG_MAPS, "web-0", uid=there["metadata"]["uid"], namespace=scene.namespace)
    await scene.member.client.create(CONFIG_MAPS, config_map(scene.namespace, "web-0", by="a user"))
    return {name: obj["metadata"]["uid"] for name, obj in (await scene.on_member()).items()}


@pytest_asyncio.fixture(loop_scope="session")
async def before(plane: Plane, scene: DeployedScene, tmp_path: Path) -> dict[str, str]:
    """An add-on that is deployed, backed up, changed (`_go_on`) and restored. The objects on the member."""
    backup = tmp_path / "backup"
    await scene.deploy("web", objects=3)
    await back_up(plane, backup)
    before = await _go_on(scene)
    await restore(plane, backup)
    return before


async def test_objects_that_changed_after_the_backup_are_not_deleted_by_their_old_records(
    scene: DeployedScene, before: dict[str, str]
) -> None:
    deleted = scene.deleted()
    async with all_controllers(scene.client, scene.namespace):
        await scene.cluster.delete()
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
    # Only what has the recorded uid. That web-1 is of the same add-on is not in the records.
    assert scene.deleted()[len(deleted) :] == ["web-2"]
    after = {name: obj["metadata"]["uid"] for name, obj in (await scene.on_member()).items()}
    assert after == {name: uid for name, uid in before.items() if name != "web-2"}


async def test_objects_of_an_add_on_are_recorded_again_when_it_is_deployed_after_the_restore(
    scene: DeployedScene, before: dict[str, str]
) -> None:
    deleted = scene.deleted()
    async with all_controllers(scene.client, scene.namespace):
        await scene.edit("web", *(config_map(scene.namespace, f"web-{number}") for number in (0, 1, 2, 3)))
        # web-0 is a user's now.
        failed = await scene.until_summary(
            "web", lambda it: "web-0" in message(it), "failed on web-0", cluster=scene.cluster.name, type_="capi"
        )
        assert "not managed by Unwind" in message(failed)
        await scene.cluster.delete()
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
    assert sorted(scene.deleted()[len(deleted) :]) == ["web-1", "web-2", "web-3"]
    after = {name: obj["metadata"]["uid"] for name, obj in (await scene.on_member()).items()}
    assert after == {name: uid for name, uid in before.items() if name in ("web-0", "late-0", "late-1")}


async def test_a_teardown_that_had_ended_since_continues_and_ends_again(
    plane: Plane, scene: DeployedScene, tmp_path: Path
) -> None:
    async with scene.deleting("top-0", "base", "top", chained=True):
        await scene.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
    await back_up(plane, tmp_path / "backup")

    async with all_controllers(scene.client, scene.namespace):
        await scene.unblock("top-0")
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
        await scene.cluster.go()
    # Objects of others, with the same names.
    await scene.member.client.create(CONFIG_MAPS, config_map(scene.namespace, "top-0", by="a user"))
    await scene.member.client.create(CONFIG_MAPS, config_map(scene.namespace, "base-0", by="a user"))
    deleted = scene.deleted()

    await restore(plane, tmp_path / "backup")
    assert (await scene.client.get(TEARDOWNS, scene.cluster.uid))["status"]["phase"] == Phase.HELD
    async with all_controllers(scene.client, scene.namespace):
        assert (await scene.cluster.ended()).phase is Phase.COMPLETE
    assert scene.deleted() == deleted
    assert set(await scene.on_member()) == {"top-0", "base-0"}


async def test_a_manager_that_runs_during_a_restore_sees_the_restored_state(
    plane: Plane, scene: DeployedScene, tmp_path: Path
) -> None:
    client, before, later = scene.client, Key(scene.namespace, "before"), Key(scene.namespace, "later")
    made = await client.create(CONFIG_MAPS, config_map(scene.namespace, before.name))
    async with manager_client(client, scene.namespace) as own:
        await back_up(plane, tmp_path / "backup")
        informer = Informer(own, decoding.metadata(CONFIG_MAPS))
        running = asyncio.create_task(informer.run())
        await informer.until_synced()
        await client.create(CONFIG_MAPS, config_map(scene.namespace, later.name))
        await client.delete(CONFIG_MAPS, before.name, uid=made["metadata"]["uid"], namespace=scene.namespace)
        await eventually(lambda: informer.cache.get(later) and not informer.cache.get(before), "the later state")
        await restore(plane, tmp_path / "backup")
        await eventually(lambda: informer.cache.get(before) and not informer.cache.get(later), "the restored state")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
