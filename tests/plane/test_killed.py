"""The manager killed again and again while it takes a cluster apart: nothing is lost, left, or touched besides."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.cluster_teardowns import CapiCluster, DeployedScene, all_controllers
from tests.plane.support.killed_managers import Killer, Managers, intercepted, killed_user
from tests.plane.support.profiles import config_map, install
from unwind.api.names import Finalizer
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Inventory, Phase, Teardown
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.plane.support.killed_managers import OnWrite
    from unwind.kube import kubeconfig
    from unwind.local.audit_log import AuditEvent
    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(170)]

KILLS = int(os.environ.get("UNWIND_SOAK_KILLS", "20"))


class Stage:
    """A cluster with add-ons, and a manager that reaches neither side but by way of interceptors."""

    def __init__(self, scene: DeployedScene, managers: Managers) -> None:
        self.scene = scene
        self.managers = managers
        self.uids: dict[str, str] = {}

    async def deploy(
        self,
        graph: dict[str, tuple[str, ...]],
        way: kubeconfig.ClusterConnection,
        objects: int = 1,
        *,
        delete: bool = True,
    ) -> None:
        """`delete`: delete the cluster afterwards."""
        await self.scene.begin()
        for name, needs in graph.items():
            await self.scene.add_on(name, depends_on=needs, objects=objects)
        async with all_controllers(self.scene.client, self.scene.namespace):
            await self.scene.deployed(*graph)
        there = await self.scene.on_member()
        self.uids |= {one["metadata"]["uid"]: name for name, one in there.items()}
        await self.scene.cluster.lead_to(way)
        if delete:
            await self.scene.cluster.delete()

    async def until(self, state: Callable[[], Awaitable[object]]) -> None:
        """Have managers live and die until it is so."""
        await self.managers.until(state, self.scene.client)

    def sent(self) -> list[AuditEvent]:
        """The deletions of managers on the member."""
        user = killed_user(self.managers.namespace)
        return [deletion for deletion in self.scene.member.audit.deletions() if deletion.username == user]

    async def done(self) -> bool:
        """Whether all is over; the gate is opened when it may be."""
        client, cluster = self.scene.client, self.scene.cluster
        try:
            teardown = msgspec.convert(await client.get(TEARDOWNS, cluster.uid), Teardown)
        except NotFoundError:
            return False
        if not teardown.finished:
            return False
        with suppress(NotFoundError):  # it is gone already
            await cluster.let_go()
        for kind in (CLUSTER_SUMMARIES, INVENTORIES):
            if await client.list(kind, namespace=self.scene.namespace):
                return False
        with suppress(NotFoundError):
            # It goes with the Cluster, unless somebody holds it.
            return Finalizer.CREDENTIALS not in ((await cluster.secret())["metadata"].get("finalizers") or ())
        return True

    async def recorded(self) -> list[str]:
        """The names of the objects in the Inventories."""
        found = msgspec.convert(
            await self.scene.client.list(INVENTORIES, namespace=self.scene.namespace), list[Inventory]
        )
        return sorted(entry.object.name for chunk in found for entry in chunk.spec.entries.values())

    async def withdrawn(self) -> bool:
        """Whether all profiles are withdrawn."""
        return not await self.scene.client.list(CLUSTER_SUMMARIES, namespace=self.scene.namespace)

    def intercepted(self, before: OnWrite, after: OnWrite) -> AbstractAsyncContextManager[kubeconfig.ClusterConnection]:
        """Managers that reach neither side but by way of us, and the way to the member."""
        return intercepted(self.managers, self.scene.client, self.scene.member, before=before, after=after)

    async def check(self) -> None:
        scene = self.scene
        teardown = msgspec.convert(await scene.client.get(TEARDOWNS, scene.cluster.uid), Teardown)
        assert teardown.phase is Phase.COMPLETE
        assert teardown.status.left == 0
        assert await scene.on_member() == {}
        sent = self.sent()
        # Each of ours, once, by its uid; and nothing else.
        assert sorted(item.uid for item in sent) == sorted(self.uids)
        assert {item.uid: item.object_ref.name for item in sent} == self.uids


@asynccontextmanager
async def staged(plane: Plane, namespace: str, tmp_path: Path) -> AsyncIterator[Stage]:
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    stage = Stage(DeployedScene(plane, namespace), managers)
    await install(stage.scene.client)
    try:
        yield stage
    finally:
        await stage.scene.clear()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_of_a_teardown_brings_it_to_its_end(
    plane: Plane, namespace: str, tmp_path: Path, before: bool
) -> None:
    async with staged(plane, namespace, tmp_path) as stage:
        killer = Killer(stage.managers, before=before)
        async with stage.intercepted(killer.before, killer.after) as way:
            await stage.deploy({"base": (), "middle": ("base",), "top": ("middle",)}, way)
            await stage.until(stage.done)
        await stage.check()
        killer.report()
        kinds = {(method, path.split("/")[-2 if path.endswith("status") else -1]) for method, path, _ in killer.killed}
        # It was there at all that matters: the plan, the seal, each object, each account of it.
        assert {("POST", "teardowns")} <= kinds
        assert {name for method, name in kinds if method == "DELETE"} >= {"base-0", "middle-0", "top-0"}
        assert any("spec.sealedFor" in fields for _, _, fields in killer.killed)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_of_a_withdrawal_brings_it_to_its_end_and_records_it(
    plane: Plane, namespace: str, tmp_path: Path, before: bool
) -> None:
    async with staged(plane, namespace, tmp_path) as stage:
        scene, killer = stage.scene, Killer(stage.managers, before=before)
        async with stage.intercepted(killer.before, killer.after) as way:
            await stage.deploy({"base": (), "top": ("base",)}, way, delete=False)
            owners = {name: (await scene.summary_of(name)).metadata.uid for name in ("base", "top")}
            for name in owners:
                await scene.delete_profile(name)
            await stage.until(stage.withdrawn)
        assert await scene.on_member() == {}
        sent = stage.sent()
        assert [item.object_ref.name for item in sent] == ["top-0", "base-0"]
        assert {item.uid for item in sent} == set(stage.uids)
        assert await scene.client.list(INVENTORIES, namespace=namespace) == []
        for uid in owners.values():
            # The first kill comes in the first second: each is recorded, because a manager was restarted.
            record = msgspec.convert(await scene.client.get(TEARDOWNS, uid), Teardown)
            assert (record.phase, record.status.left) == (Phase.COMPLETE, 0)
        killer.report()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_of_a_prune_brings_it_to_its_end(
    plane: Plane, namespace: str, tmp_path: Path, before: bool
) -> None:
    async with staged(plane, namespace, tmp_path) as stage:
        scene, killer = stage.scene, Killer(stage.managers, before=before)

        async def pruned() -> bool:
            return set(await scene.on_member()) == {"base-0"} and await stage.recorded() == ["base-0"]

        async with stage.intercepted(killer.before, killer.after) as way:
            await stage.deploy({"base": ()}, way, objects=3, delete=False)
            left = await scene.on_member()
            await scene.edit("base", config_map(namespace, "base-0"))
            await stage.until(pruned)
            assert (await scene.on_member())["base-0"]["metadata"]["uid"] == left["base-0"]["metadata"]["uid"]
            # Each of those that the source no longer has, once, by its uid.
            assert sorted(item.object_ref.name for item in stage.sent()) == ["base-1", "base-2"]
            assert {item.uid for item in stage.sent()} == {uid for uid, name in stage.uids.items() if name != "base-0"}
            killer.report()
            await scene.delete_profile("base")
            await stage.until(stage.withdrawn)


@pytest.mark.timeout(max(170, 9 * KILLS))
async def test_a_manager_that_is_killed_at_any_moment_brings_its_teardowns_to_their_end(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")

    async def dawdle(method: str, path: str, body: bytes) -> None:
        if "/leases" not in path:
            await asyncio.sleep(chance.uniform(0, 0.3))

    killed = rounds = 0
    async with staged(plane, namespace, tmp_path) as stage, stage.intercepted(dawdle, dawdle) as way:
        while killed < KILLS:
            rounds += 1
            names = [f"r{rounds}-{number}" for number in range(6)]
            graph = {one: tuple(other for other in names[:at] if chance.random() < 0.4) for at, one in enumerate(names)}
            stage.scene.cluster = CapiCluster(stage.scene.client, namespace)
            await stage.deploy(graph, way, objects=3)
            while killed < KILLS and not await stage.done():
                await stage.managers.restart(stage.scene.client)
                await asyncio.sleep(chance.uniform(0, 3))  # any moment
                await stage.managers.kill()
                killed += 1
            await stage.until(stage.done)
            await stage.managers.kill()
            await stage.check()
            for name in names:
                await stage.scene.delete_profile(name)
        print(f"{killed} kills in {rounds} teardowns")
