"""A cluster is deleted after a ClusterSummary vanished: only objects that were not enforced do not hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.cluster_teardowns import DeployedScene, all_controllers
from unwind.api.meta import find
from unwind.api.names import OWNER_LABEL
from unwind.api.unwind import INVENTORIES, Phase
from unwind.cli import ledger
from unwind.kube.events import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[DeployedScene]:
    made = DeployedScene(plane, namespace)
    await made.begin()
    yield made
    await made.clear()


class Reported(Recorder):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str]] = []

    def report(self, regarding, reason, note, *, action, type="Normal") -> None:  # type: ignore[no-untyped-def] # noqa: A002
        self.notes.append((regarding.uid, reason, note))


@pytest.mark.parametrize("behaviour", ["RemovePolicies", "LeavePolicies"])
async def test_what_a_vanished_summary_left_does_not_hold_if_it_was_not_enforced(
    scene: DeployedScene, behaviour: str
) -> None:
    await scene.add_on("web", behaviour=behaviour)
    await scene.add_on("db")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web", "db")
    gone = await scene.lose("web")
    await scene.cluster.delete()
    recorder = Reported()
    async with all_controllers(scene.client, scene.namespace, recorder=recorder):
        teardown = await scene.cluster.ended()
        await scene.cluster.go()
    # The other add-on is removed as always.
    assert teardown.phase is Phase.COMPLETE
    assert sorted(scene.deleted()) == ["db-0", "db-1"]
    there = await scene.on_member()
    assert set(there) == {"web-0", "web-1"}
    assert not any(OWNER_LABEL in (item["metadata"].get("labels") or {}) for item in there.values())
    # What is not known is said three times.
    said = find(teardown.status.conditions, "OwnerGone")
    assert said
    assert f"ClusterSummary {scene.namespace}/{gone.name} was deleted, but 2 objects" in said.message
    assert (scene.cluster.uid, "OwnerGone", said.message) in recorder.notes
    lines = (await ledger.read_ledger(scene.client, scene.cluster.uid, None)).left
    assert {(row.object.name, row.reason) for row in lines} == {("web-0", "OwnerGone"), ("web-1", "OwnerGone")}
    assert f"{gone.name} was deleted before it" in lines[0].message


@pytest.mark.parametrize("earlier", [False, True], ids=["enforced", "of an earlier release"])
async def test_what_a_vanished_summary_left_holds_if_it_was_enforced_or_if_that_is_not_recorded(
    scene: DeployedScene, earlier: bool
) -> None:
    await scene.add_on("web", behaviour="RemovePolicies" if earlier else "EnforceRemovePolicies")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
    gone = await scene.lose("web")
    if earlier:
        [chunk] = await scene.inventories(gone.uid)
        await scene.client.patch(
            INVENTORIES, chunk.metadata.name, {"spec": {"effort": None}}, namespace=scene.namespace
        )
    await scene.cluster.delete()
    async with all_controllers(scene.client, scene.namespace):
        held = await scene.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
        assert held.spec.plan is None
        said = find(held.status.conditions, "UnknownValue")
        assert said
        assert gone.name in said.message
        await scene.cluster.go()
        await scene.cluster.ended()
    assert scene.deleted() == []


async def test_a_behaviour_that_was_raised_before_the_summary_vanished_holds(scene: DeployedScene) -> None:
    await scene.add_on("web", behaviour="RemovePolicies")
    async with all_controllers(scene.client, scene.namespace):
        await scene.deployed("web")
        await scene.edit_profile("web", {"clusterDeletionBehavior": "EnforceRemovePolicies"})
        uid = (await scene.summary_of("web")).metadata.uid

        async def raised() -> bool:
            return [chunk.spec.effort for chunk in await scene.inventories(uid)] == ["Enforce"]

        await eventually(raised, "the raised effort in the Inventory")
    await scene.lose("web")
    await scene.cluster.delete()
    async with all_controllers(scene.client, scene.namespace):
        held = await scene.cluster.teardown(lambda it: it.phase is Phase.HELD, "held")
        assert held.spec.plan is None
        await scene.cluster.go()
        await scene.cluster.ended()
    assert scene.deleted() == []
