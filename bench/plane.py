"""How long a control plane takes to come up, against the API server alone; and what it takes in memory."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid

from bench.ratios import RUNS, Ratio, alternate
from unwind.kube.client import Client
from unwind.local import plane_programs, tools
from unwind.local.build import Toolbox, equip
from unwind.local.cluster import LocalCluster, Programs
from unwind.local.home import Home, Shape
from unwind.local.plane import Plane, running
from unwind.local.processes import Daemon


async def main() -> None:
    toolbox = await equip(Shape())
    whole, alone = await alternate(lambda: plane_up(toolbox), lambda: api_server_up(toolbox))
    print(Ratio("control plane up", "the API server alone, until ready", whole, alone, goal=1.5))
    first, second = await members()
    print(Ratio("one more member", "the first member", second, first, goal=1.2))
    await memory()


async def plane_up(toolbox: Toolbox) -> float:
    home = Home(f"bench-{uuid.uuid4().hex[:8]}").claim(announce=print)
    plane = Plane(home, shape=Shape(), toolbox=toolbox, ephemeral=True)
    began = time.perf_counter()
    await plane.start()
    took = time.perf_counter() - began
    await plane.stop()
    return took


async def api_server_up(toolbox: Toolbox) -> float:
    """The limit: etcd is there already, certificates are written, only the API server has to get ready."""
    home = Home(f"bench-{uuid.uuid4().hex[:8]}").claim(announce=print)
    directory = home.directory

    async def listens() -> bool:
        return (directory / plane_programs.ETCD_SOCKET).exists()

    etcd = Daemon(
        "etcd",
        plane_programs.etcd(toolbox.program(tools.ETCD), data=directory / "etcd"),
        log=directory / "etcd.log",
        ready=listens,
        directory=directory,
    )
    await etcd.start()
    await asyncio.sleep(1)  # whatever etcd has still to do when it listens is none of the API server's time
    cluster = LocalCluster(
        "alone",
        directory=directory / "alone",
        programs=Programs(
            api_server=toolbox.program(tools.KUBE_APISERVER),
            controller_manager=toolbox.program(tools.KUBE_CONTROLLER_MANAGER),
        ),
    )
    cluster.prepare()
    async with Client(cluster.connection("admin", groups=("system:masters",))) as client:
        server = Daemon(
            "kube-apiserver",
            plane_programs.api_server(
                toolbox.program(tools.KUBE_APISERVER), cluster.files, prefix="/alone", port=cluster.port
            ),
            log=directory / "api.log",
            ready=client.healthy,
            directory=directory,
        )
        began = time.perf_counter()
        await server.start()
        took = time.perf_counter() - began
    await server.stop()
    await etcd.stop()
    home.remove()
    return took


async def members() -> tuple[float, float]:
    async def timed(plane: Plane) -> float:
        began = time.perf_counter()
        await plane.add_member()
        return time.perf_counter() - began

    first, second = [], []
    for _ in range(RUNS):
        async with running() as plane:
            first.append(await timed(plane))
            second.append(await timed(plane))
    return statistics.median(first), statistics.median(second)


async def memory() -> None:
    async with running(Shape(members=2)) as plane:
        record = Home(plane.name).read()
        assert record
        total = 0
        for process in record.processes:
            assert process.process
            total += process.process.resident_bytes
            print(
                f"{process.cluster or 'plane':<12} {process.name:<28} {process.process.resident_bytes / 2**20:6.0f} MiB"
            )
        print(f"{'plane and two members':<41} {total / 2**20:6.0f} MiB resident")


if __name__ == "__main__":
    asyncio.run(main())
