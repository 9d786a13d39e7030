"""A local control plane: etcd, a management cluster, members and optional components."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.concurrency import gather_limited
from unwind.local import plane_programs, tools
from unwind.local.build import equip
from unwind.local.capi import ClusterApi
from unwind.local.cloud import LoadBalancers
from unwind.local.cluster import LocalCluster, NodePrograms, Programs
from unwind.local.home import Home, PlaneRecord, RecordedCluster, RecordedProcess, Shape, sweep
from unwind.local.paths import require_room
from unwind.local.pods.agent import PodAgent
from unwind.local.processes import Daemon, ProcessId
from unwind.local.provider import Provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from unwind.local.build import ProgressListener, Toolbox

MANAGEMENT = "management"
# etcd grows with use: refuse to start rather than run out of disk later.
_ROOM = 512 * 2**20
# An API server uses two cores while it starts: more in parallel only delay each other.
_STARTING_AT_ONCE = 2


class Plane:
    """The control plane and its members, supervised by this process.

    Use it as an async context manager. All child processes end with this process, in any way it ends.
    """

    def __init__(
        self,
        home: Home,
        *,
        shape: Shape,
        toolbox: Toolbox,
        ephemeral: bool = False,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = home.name
        self.directory = home.directory
        self.shape = shape
        self.members: dict[str, LocalCluster] = {}
        self.clouds: dict[str, LoadBalancers] = {}
        """The simulated cloud of each cluster, by the cluster's name."""
        self._home = home
        self._toolbox = toolbox
        self._ephemeral = ephemeral
        self._announce = announce
        self._since = time.time()
        self._phase = "Starting"
        self.etcd: Daemon | None = None
        """The etcd of all clusters of the plane."""
        self._attached: set[str] = set()
        self._background: list[asyncio.Task[None]] = []
        self.cluster_api: ClusterApi | None = None
        self.agent: PodAgent | None = None
        """Runs the Pods of the management cluster; None without an image."""
        self._up: set[str] = set()
        self.provider = Provider(lambda name: self.members.get(name) if name in self._up else None)
        self.management = self._cluster(MANAGEMENT)

    async def start(self) -> None:
        """Start everything; if something fails, stop what was started."""
        try:
            require_room(
                self.directory,
                _ROOM,
                purpose="for a control plane",
                remedy="free some disk space, or set UNWIND_STATE_DIR to another disk",
            )
            self._save()
            await self._start_etcd()
            names = [f"member-{number}" for number in range(1, self.shape.members + 1)]
            await gather_limited(
                [self._start_management(), *(self.add_member(name) for name in names)],
                limit=_STARTING_AT_ONCE,
            )
        except BaseException:
            await self.stop()
            raise
        self._phase = "Ready"
        self._save()

    async def stop(self) -> None:
        """Stop all processes, and remove all files."""
        self._phase = "Stopping"
        self._save()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.agent:
            await self.agent.stop()
        if self.cluster_api:
            await self.cluster_api.stop()
        async with asyncio.TaskGroup() as group:
            for cluster in self.clusters():
                group.create_task(cluster.stop())
        if self.etcd:
            await self.etcd.stop()
        self._home.remove()

    async def add_member(self, name: str | None = None) -> LocalCluster:
        """Start another member."""
        name = name or _first_free(self.members)
        member = self.members[name] = self._cluster(name)
        await self._start_cluster(member)
        self._up.add(name)
        self.provider.look_again()
        return member

    async def remove_member(self, name: str) -> None:
        """Stop a member abruptly, as in a power failure."""
        self._up.discard(name)
        self.provider.look_again()
        await self.members.pop(name).stop()
        self._save()

    def attach_member(self, name: str, cluster: LocalCluster) -> None:
        """Use a cluster of another plane, which has another etcd, as a member. It is not stopped with this plane."""
        self.members[name] = cluster
        self._attached.add(name)
        self._up.add(name)
        self.provider.look_again()

    def clusters(self) -> Iterator[LocalCluster]:
        """The clusters whose processes belong to this plane."""
        yield self.management
        yield from (member for name, member in self.members.items() if name not in self._attached)

    async def _start_etcd(self) -> None:
        self.etcd = Daemon(
            "etcd",
            plane_programs.etcd(self._toolbox.program(tools.ETCD), data=self.directory / "etcd"),
            log=self.directory / "etcd.log",
            ready=self._etcd_listens,
            directory=self.directory,
            changed=self._save,
        )
        await self.etcd.start()

    async def _etcd_listens(self) -> bool:
        # Through a directory descriptor: a socket path may have 107 characters, a directory path 4,096.
        directory = os.open(self.directory, os.O_PATH)
        try:
            _, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{plane_programs.ETCD_SOCKET}")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        finally:
            os.close(directory)
        writer.close()
        await writer.wait_closed()
        return True

    async def _start_management(self) -> None:
        await self._start_cluster(self.management)
        if self.shape.image:
            archive = Path(self.shape.image)
            self.agent = PodAgent(self.management, {archive.name.partition("-")[0]: archive})
            await self.agent.start()
        if self.shape.capi:
            began = time.monotonic()
            box, tool = self._toolbox, tools.CLUSTER_API_MANAGER
            self.cluster_api = ClusterApi(
                self.management,
                program=box.program(tool),
                crds=box.assets_of(tool),
                hosts=self.agent.hosts if self.agent else None,
                changed=self._save,
            )
            await self.cluster_api.start()
            self._run(self.provider.run(self.management), name="simulated Cluster API providers")
            self._announce(f"Cluster API {tool.module.version} started ({time.monotonic() - began:.1f}s)")

    async def _start_cluster(self, cluster: LocalCluster) -> None:
        began = time.monotonic()
        await cluster.start()
        if self.shape.cloud:
            cloud = self.clouds[cluster.name] = LoadBalancers(delay=self.shape.cloud_delay, changed=self._save)
            self._run(cloud.run(cluster), name=f"cloud of {cluster.name}")
        self._save()
        self._announce(f"{cluster.name} started at {cluster.server} ({time.monotonic() - began:.1f}s)")

    def _run(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Run a task as long as the plane. If it ends with an error, which is a bug, the error is announced."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                self._announce(f"{name} ended: {error!r}")

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        self._background.append(task)

    def _cluster(self, name: str) -> LocalCluster:
        box = self._toolbox
        nodes = None
        if self.shape.nodes:
            nodes = NodePrograms(
                scheduler=box.program(tools.KUBE_SCHEDULER),
                kwok=box.program(tools.KWOK),
                stages=box.assets_of(tools.KWOK),
            )
        programs = Programs(
            api_server=box.program(tools.KUBE_APISERVER),
            controller_manager=box.program(tools.KUBE_CONTROLLER_MANAGER),
            nodes=nodes,
        )
        return LocalCluster(name, directory=self.directory / name, programs=programs, changed=self._save)

    def _save(self) -> None:
        """Record the processes, so that other commands can list them, and kill them if this process is killed."""
        own = ProcessId.of(os.getpid())
        assert own  # noqa: S101 - we run
        daemons = [("", self.etcd)] if self.etcd else []
        daemons += [(cluster.name, daemon) for cluster in self.clusters() for daemon in cluster.daemons]
        if self.cluster_api and self.cluster_api.daemon:
            daemons.append((MANAGEMENT, self.cluster_api.daemon))
        self._home.write(
            PlaneRecord(
                name=self.name,
                phase=self._phase,
                shape=self.shape,
                supervisor=own,
                since=self._since,
                ephemeral=self._ephemeral,
                clusters=[
                    RecordedCluster(
                        name=cluster.name,
                        server=cluster.server,
                        kubeconfig=str(cluster.kubeconfig),
                        audit_log=str(cluster.audit.path),
                    )
                    for cluster in self.clusters()
                ],
                processes=[
                    RecordedProcess(
                        name=daemon.name,
                        cluster=cluster,
                        process=daemon.process,
                        restarts=daemon.restarts,
                        log=str(daemon.log),
                    )
                    for cluster, daemon in daemons
                ],
                load_balancers=[
                    f"{name}: {balancer.service} at {balancer.address}"
                    for name, cloud in self.clouds.items()
                    for balancer in cloud.load_balancers.values()
                ],
            )
        )


def _first_free(taken: dict[str, LocalCluster]) -> str:
    return next(name for number in range(1, len(taken) + 2) if (name := f"member-{number}") not in taken)


@asynccontextmanager
async def running(
    shape: Shape = Shape(),  # noqa: B008 - frozen
    *,
    progress: ProgressListener | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Plane]:
    """A temporary control plane for programs and tests.

    It needs no name, several can run in parallel, and the next one cleans up after a killed one.
    """
    toolbox = await equip(shape, progress)
    for name in await asyncio.to_thread(sweep):
        announce(f"cleaned up after killed control plane {name!r}")
    home = Home(f"passing-{uuid.uuid4().hex[:12]}").claim(announce=announce)
    plane = Plane(home, shape=shape, toolbox=toolbox, ephemeral=True, announce=announce)
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()
