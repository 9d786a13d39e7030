"""Clusters of which something got lost, a summary or the Cluster itself: nothing is deleted on a guess, and each object
that is left is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers, until_let_go
from unwind.api import meta as api_meta
from unwind.api.names import DEADLINE_ANNOTATION, FORCE_RELEASE_ANNOTATION, ON_DEADLINE_ANNOTATION
from unwind.api.unwind import Phase
from unwind.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane

# Among the longest: they run with the soak tests.
pytestmark = pytest.mark.soak


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[DeployedScene]:
    made = DeployedScene(plane, namespace)
    yield made
    await made.clear()


async def test_what_a_vanished_summary_left_is_held_until_a_person_decides(scene: DeployedScene) -> None:
    await scene.begin()
    await scene.add_on("web")
    await scene.add_on("other")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web", "other")
    # While nobody looks.
    lost = await scene.lose("web")
    await scene.cluster.delete()
    async with all_controllers(scene.client, scene.namespace):
        held = await scene.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
        assert held.spec.plan is None
        said = api_meta.find(held.status.conditions, "UnknownValue")
        assert said
        assert lost.name in said.message
    # Another process says the same.
    async with all_controllers(scene.client, scene.namespace):
        await scene.cluster.annotate({FORCE_RELEASE_ANNOTATION: "it is only a test"}, by="jane")
        teardown = await scene.cluster.ended()
        assert teardown.phase is Phase.RELEASED
        assert teardown.status.left == 4
        await scene.cluster.go()
    assert scene.deleted() == []
    notes = [entry.ledger for chunk in await scene.inventories(lost.uid) for entry in chunk.spec.entries.values()]
    assert [(note.reason, note.message, note.by) for note in notes if note] == [
        ("Forced", "it is only a test", "unknown, see the audit log (field manager jane)")
    ] * 2


async def test_a_cluster_that_vanishes_while_its_plan_is_held_ends_with_a_ledger(scene: DeployedScene) -> None:
    await scene.begin()
    await scene.deploy("web")
    lost = await scene.lose("web")
    await scene.cluster.delete()
    async with all_controllers(scene.client, scene.namespace):
        await scene.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
        await scene.cluster.go()
        assert (await scene.cluster.ended()).phase is Phase.TARGET_GONE
    notes = [entry.ledger for chunk in await scene.inventories(lost.uid) for entry in chunk.spec.entries.values()]
    assert [note.reason for note in notes if note] == ["TargetGone"] * 2
    assert scene.deleted() == []


async def test_a_plan_that_is_held_is_released_at_the_deadline_too(scene: DeployedScene) -> None:
    await scene.begin()
    await scene.deploy("web")
    await scene.lose("web")
    scene.cluster.annotations = {DEADLINE_ANNOTATION: "3s", ON_DEADLINE_ANNOTATION: "Release"}
    await scene.cluster.delete()
    async with all_controllers(scene.client, scene.namespace, clock=SYSTEM):
        teardown = await scene.cluster.ended()
        await scene.cluster.go()
    assert teardown.phase is Phase.RELEASED
    assert teardown.status.left == 2
    assert teardown.status.release
    assert teardown.status.release.reason == "Deadline"
    assert scene.deleted() == []


async def test_a_cluster_that_went_while_nobody_looked_leaves_a_ledger_and_holds_nothing(scene: DeployedScene) -> None:
    await scene.begin(topology=False)
    await scene.add_on("web")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
        uid = (await scene.summary_of("web")).metadata.uid
    await scene.cluster.delete()
    await scene.cluster.go()
    async with all_controllers(scene.client, scene.namespace):
        assert (await scene.cluster.ended()).phase is Phase.TARGET_GONE
        await scene.until_summaries_gone("web")
        await until_let_go(scene)
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    notes = [entry.ledger for chunk in await scene.inventories(uid) for entry in chunk.spec.entries.values()]
    assert [note.reason for note in notes if note] == ["TargetGone"] * 2
    assert set(await scene.on_member()) == {"web-0", "web-1"}
