"""CPU and memory of one manager for a number of clusters with add-ons: while it deploys, at a restart, and idle.

`UNWIND_BENCH_CLUSTERS=100` sets the number of clusters, `UNWIND_BENCH_PROFILES=2` that of the profiles on each of them.
With `UNWIND_BENCH_LOG` the manager logs into that file. Real: the API server, the manager with the rights that
`unwind install` grants, Clusters, profiles, ClusterSummaries, Inventories, and the objects that the manager deployed.
Not real: Cluster API does not run, and all clusters are one member, each with a namespace of its own there.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.clusters import Many, define_clusters
from unwind.api.rights import HOME, Setting
from unwind.install.install import install
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.local.home import Shape
from unwind.local.paths import Port
from unwind.local.plane import running
from unwind.testing.managers import manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster

CLUSTERS = int(os.environ.get("UNWIND_BENCH_CLUSTERS", "100"))
PROFILES_EACH, OBJECTS_EACH = int(os.environ.get("UNWIND_BENCH_PROFILES", "2")), 5
LOG = os.environ.get("UNWIND_BENCH_LOG", os.devnull)
IDLE_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")
_GATES = "ResourcesDeletionProtection=true"


class Process:
    """What the kernel says about a process."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    @property
    def cpu(self) -> float:
        """The processor time so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def megabytes(self, field: str) -> float:
        """`VmRSS`: now; `VmHWM`: at most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(f"{field}:")]
        return int(line.split()[1]) / 1024

    async def until_ready(self) -> None:
        async with Client(ClusterConnection(server=f"http://127.0.0.1:{self.port}")) as client:
            while not await client.healthy():  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.05)

    async def failed_reconciles(self) -> int:
        async with Client(ClusterConnection(server=f"http://127.0.0.1:{self.port}")) as client:
            lines = (await client.raw("/metrics")).decode().splitlines()
        return int(sum(float(it.split()[-1]) for it in lines if it.startswith("unwind_reconcile_errors_total{")))


@asynccontextmanager
async def managing(management: LocalCluster, listen: Port) -> AsyncIterator[Process]:
    """A manager with controllers and server, as in a Pod."""
    port = Port()
    port.release()
    told = {
        "UNWIND_LISTEN": f"127.0.0.1:{listen}",
        "UNWIND_METRICS_LISTEN": f"127.0.0.1:{port}",
        "UNWIND_FEATURE_GATES": _GATES,
    }
    argv = [str(Path(sys.executable).with_name("unwind")), "run"]
    argv += ["--kubeconfig", str(await manager_kubeconfig(management, HOME))]
    with await asyncio.to_thread(Path(LOG).open, "ab") as log:
        process = await asyncio.create_subprocess_exec(*argv, env=os.environ | told, stdout=log, stderr=log)
    try:
        yield Process(process.pid, port.number)
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            process.terminate()
        await process.wait()


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        listen = Port()
        await install(plane.management.client, Setting(url=f"https://127.0.0.1:{listen}"), accept_shadowing=True)
        listen.release()
        await define_clusters(plane.management.client)
        many = Many(plane, clusters=CLUSTERS, profiles=PROFILES_EACH, objects=OBJECTS_EACH)
        async with managing(plane.management, listen) as manager:
            await manager.until_ready()
            await many.make()
            began, cpu = time.perf_counter(), manager.cpu
            await many.deploy()
            took = time.perf_counter() - began
            failed = await manager.failed_reconciles()
            show("deploy", f"{took:.0f} s", f"{manager.cpu - cpu:.0f} s of CPU, {failed} reconciles failed", manager)
            await idle(manager)
        async with managing(plane.management, listen) as manager:
            began = time.perf_counter()
            await manager.until_ready()
            show("restart", f"ready after {time.perf_counter() - began:.1f} s", f"{manager.cpu:.1f} s of CPU", manager)
            await asyncio.sleep(IDLE_SECONDS)
            show("restart", f"{IDLE_SECONDS:.0f} s later", f"{manager.cpu:.1f} s of CPU", manager)
            await idle(manager)


async def idle(manager: Process) -> None:
    """Nothing is deployed or deleted."""
    await asyncio.sleep(10)
    cpu = manager.cpu
    await asyncio.sleep(IDLE_SECONDS)
    used = (manager.cpu - cpu) / IDLE_SECONDS * 1000
    show("idle", f"{IDLE_SECONDS:.0f} s", f"{used:.0f} millicores", manager)


def show(*words: str | Process) -> None:
    *said, manager = words
    assert isinstance(manager, Process)
    memory = f"{manager.megabytes('VmRSS'):.0f} MB resident, at most {manager.megabytes('VmHWM'):.0f} MB"
    objects = CLUSTERS * PROFILES_EACH * OBJECTS_EACH
    print(f"{CLUSTERS:,} clusters, {CLUSTERS * PROFILES_EACH:,} ClusterSummaries, {objects:,} objects:", end=" ")
    print(*said, memory, sep=", ", flush=True)


if __name__ == "__main__":
    uvloop.run(main())
