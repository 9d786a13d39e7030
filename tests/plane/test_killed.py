"""The manager killed again and again while it takes a cluster apart: nothing is lost, left, or touched besides."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp import web

from tests.plane.profiles import install
from tests.plane.tearing import CapiCluster, Deployed, all_controllers
from unwind.api.names import Finalizer
from unwind.api.resources import LEASES
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Phase, Teardown
from unwind.cli.run import run
from unwind.kube import kubeconfig
from unwind.kube.errors import NotFoundError
from unwind.local.cluster import ALL_RIGHTS
from unwind.testing.intercepting import Interceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from multiprocessing.context import ForkServerProcess

    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(170)]

KILLS = int(os.environ.get("UNWIND_SOAK_KILLS", "20"))
Signature = tuple[str, str, str]


def manage(path: str, namespace: str, log: str) -> None:
    """What a manager's process does: `unwind run`, with all that it says in a file."""
    with Path(log).open("ab") as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
    run(
        kubeconfig=Path(path),
        namespace=namespace,
        roles="controllers",
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        log_format="json",
    )


class Managers:
    """One manager after the other, each a process of its own."""

    def __init__(self, path: Path, namespace: str, log: Path) -> None:
        self._told = (str(path), namespace, str(log))
        # From a process that has read all modules already: that is most of what it takes to start one.
        self._start = multiprocessing.get_context("forkserver")
        self._start.set_forkserver_preload(["unwind.cli.run", "unwind.controllers.addons.parts"])
        self.process: ForkServerProcess | None = None

    def go_by(self, way: kubeconfig.Connection) -> None:
        """Tell those to come how to reach the management cluster."""
        Path(self._told[0]).write_text(kubeconfig.document(way, cluster="management", user="manager"))

    async def start(self) -> None:
        self.process = self._start.Process(target=manage, args=self._told)
        await asyncio.to_thread(self.process.start)

    def tell(self) -> None:
        log = Path(self._told[2])
        print(log.read_text()[-8000:] if log.exists() else "no manager was started")

    async def ended(self) -> None:
        if self.process:
            await asyncio.to_thread(self.process.join)

    async def kill(self) -> None:
        if self.process:
            self.process.kill()
            await self.ended()


def signature(method: str, path: str, body: bytes) -> Signature:
    """What tells one write of a teardown from another: also which fields a patch is about."""
    fields: set[str] = set()
    with suppress(msgspec.DecodeError):
        it: Any = msgspec.json.decode(body) if method == "PATCH" else None
        for key, value in it.items() if isinstance(it, dict) else ():
            fields |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
    return method, path, " ".join(sorted(fields - {"metadata.uid", "metadata.resourceVersion"}))


class Killer:
    """Kills the manager at each write that it has not killed one at: before it is passed on, or before it is answered.

    A write at which it is going to strike is alone on its way: another that is under way when the manager dies was
    neither before nor after anything.
    """

    def __init__(self, managers: Managers, *, before: bool) -> None:
        self._managers = managers
        self._before = before
        self._holder: asyncio.Task[Any] | None = None
        self.killed: dict[Signature, None] = {}

    async def before(self, method: str, path: str, body: bytes) -> None:
        # What every manager writes to be one at all, and what it only tells people.
        if "/leases" in path or "/events" in path:
            return
        writer = self._managers.process
        while self._holder and not self._holder.done():
            await asyncio.sleep(0.002)
        if writer is not self._managers.process or not writer or not writer.is_alive():
            raise web.HTTPServiceUnavailable  # of a manager that is dead by now
        if signature(method, path, body) in self.killed:
            return
        self._holder = asyncio.current_task()
        if self._before:
            await self._strike(method, path, body)

    async def after(self, method: str, path: str, body: bytes) -> None:
        if self._holder is asyncio.current_task():
            await self._strike(method, path, body)

    async def _strike(self, method: str, path: str, body: bytes) -> None:
        self.killed[signature(method, path, body)] = None
        try:
            await self._managers.kill()
        finally:
            self._holder = None
        raise web.HTTPServiceUnavailable  # nobody is there to read it


class Stage:
    """A cluster with add-ons, and a manager that reaches neither side but by way of interceptors."""

    def __init__(self, scene: Deployed, managers: Managers, user: str) -> None:
        self.scene = scene
        self.managers = managers
        self.user = user
        self.uids: dict[str, str] = {}

    async def deploy(self, graph: dict[str, tuple[str, ...]], way: kubeconfig.Connection, objects: int = 1) -> None:
        await self.scene.begin()
        for name, needs in graph.items():
            await self.scene.add_on(name, depends_on=needs, objects=objects)
        async with all_controllers(self.scene.client, self.scene.namespace):
            await self.scene.deployed(*graph)
        there = await self.scene.on_member()
        self.uids |= {one["metadata"]["uid"]: name for name, one in there.items()}
        await self.scene.cluster.lead_to(way)
        await self.scene.cluster.delete()

    async def restart(self) -> None:
        """Begin another manager, as if the Leases of the one before had run out meanwhile."""
        client, namespace = self.scene.client, self.scene.namespace
        for lease in await client.list(LEASES, namespace=namespace):
            meta = lease["metadata"]
            with suppress(NotFoundError):
                await client.delete(LEASES, meta["name"], uid=meta["uid"], namespace=namespace)
        await self.managers.start()

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

    async def check(self) -> None:
        scene = self.scene
        teardown = msgspec.convert(await scene.client.get(TEARDOWNS, scene.cluster.uid), Teardown)
        assert teardown.phase is Phase.COMPLETE
        assert teardown.status.left == 0
        assert await scene.on_member() == {}
        sent = [one for one in scene.member.audit.deletions() if one.username == self.user]
        # Each of ours, once, by its uid; and nothing else.
        assert sorted(one.uid for one in sent) == sorted(self.uids)
        assert {one.uid: one.object_ref.name for one in sent} == self.uids


@asynccontextmanager
async def staged(plane: Plane, namespace: str, tmp_path: Path) -> AsyncIterator[Stage]:
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    stage = Stage(Deployed(plane, namespace), managers, f"killed-{namespace}")
    await install(stage.scene.client)
    try:
        yield stage
    except BaseException:
        managers.tell()
        raise
    finally:
        await managers.kill()
        await stage.scene.clear()


@asynccontextmanager
async def intercepted(plane: Plane, stage: Stage, before: Any, after: Any) -> AsyncIterator[kubeconfig.Connection]:
    """Have the manager go by way of us, and know the way to the member."""
    async with AsyncExitStack() as stack:
        ways = []
        for cluster in (plane.management, stage.scene.member):
            way = cluster.connection(stage.user, groups=ALL_RIGHTS)
            ways.append((await stack.enter_async_context(Interceptor(way, before=before, after=after))).connection)
        stage.managers.go_by(ways[0])
        yield ways[1]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_of_a_teardown_brings_it_to_its_end(
    plane: Plane, namespace: str, tmp_path: Path, before: bool
) -> None:
    async with staged(plane, namespace, tmp_path) as stage:
        killer = Killer(stage.managers, before=before)
        async with intercepted(plane, stage, killer.before, killer.after) as way:
            await stage.deploy({"base": (), "middle": ("base",), "top": ("middle",)}, way)
            while not await stage.done():
                if stage.managers.process is None or not stage.managers.process.is_alive():
                    await stage.restart()
                await asyncio.sleep(0.05)
        await stage.managers.kill()
        await stage.check()
        print(f"{len(killer.killed)} kills {'before' if before else 'after'}:")
        for one in killer.killed:
            print("  ", *one)
        kinds = {(method, path.split("/")[-2 if path.endswith("status") else -1]) for method, path, _ in killer.killed}
        # It was there at all that matters: the plan, the seal, each object, each account of it.
        assert {("POST", "teardowns")} <= kinds
        assert {name for method, name in kinds if method == "DELETE"} >= {"base-0", "middle-0", "top-0"}
        assert any("spec.sealedFor" in fields for _, _, fields in killer.killed)


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
    async with staged(plane, namespace, tmp_path) as stage, intercepted(plane, stage, dawdle, dawdle) as way:
        while killed < KILLS:
            rounds += 1
            names = [f"r{rounds}-{number}" for number in range(6)]
            graph = {one: tuple(other for other in names[:at] if chance.random() < 0.4) for at, one in enumerate(names)}
            stage.scene.cluster = CapiCluster(stage.scene.client, namespace)
            await stage.deploy(graph, way, objects=3)
            while not await stage.done():
                if killed < KILLS:
                    await stage.restart()
                    await asyncio.sleep(chance.uniform(0, 3))
                    await stage.managers.kill()
                    killed += 1
                elif stage.managers.process is None or not stage.managers.process.is_alive():
                    await stage.restart()
                await asyncio.sleep(0.05)
            await stage.managers.kill()
            await stage.check()
            for name in names:
                await stage.scene.delete_profile(name)
        print(f"{killed} kills in {rounds} teardowns")
