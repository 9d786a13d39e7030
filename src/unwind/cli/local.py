"""`unwind local`: manage control planes on this machine."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from cyclopts import App, Parameter
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from unwind.cli import console
from unwind.cli.arguments import Flag, Output
from unwind.errors import UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.local import supervisor, tools
from unwind.local.build import ensure, equip
from unwind.local.capi import create_cluster
from unwind.local.home import Home, PlaneRecord, RecordedCluster, Shape
from unwind.local.paths import cache_dir, size
from unwind.local.plane import MANAGEMENT
from unwind.local.tools import Origin
from unwind.subprocesses import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from unwind.local.tools import Binary, CacheCondition


# Build progress of local binaries: progress bars on a terminal, periodic lines elsewhere.

_LINE_EVERY = 15.0


class BuildProgress:
    """Progress callbacks for `unwind.local.build`; use it as a context manager."""

    def __init__(self, *, list_found: bool = False) -> None:
        self._list_found = list_found
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}
        self._shown = Progress(
            TextColumn("{task.fields[name]:<24}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=console.err,
            transient=True,
            disable=not console.err.is_terminal,
        )

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shown.stop()

    def found(self, found: Binary) -> None:
        if self._list_found:
            where = "cached" if found.origin is Origin.CACHE else f"{found.path} (from {found.origin})"
            console.err.print(f"{found.name:<24} {where}")

    def mending(self, name: str, condition: CacheCondition) -> None:
        console.err.print(f"rebuilding {name}: cached binary {condition}")

    def waiting(self, module: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        console.err.print(f"waiting for {who} to build {module}")

    def downloading(self, name: str, what: str, count: int) -> None:
        self._show(name, f"{count} modules downloaded", done=0, total=None)

    def building(self, name: str, done: int, total: int) -> None:
        doing = f"{done} of {total} packages compiled" if done < total else "linking"
        self._show(name, doing, done=done, total=total)

    def built(self, found: Binary, seconds: float) -> None:
        if found.name in self._bars:
            self._shown.remove_task(self._bars.pop(found.name))
        console.err.print(f"{found.name:<24} built in {seconds:.0f}s")

    def _show(self, name: str, doing: str, *, done: int, total: int | None) -> None:
        if name not in self._bars:
            self._bars[name] = self._shown.add_task(name, name=name, doing=doing, total=total)
        self._shown.update(self._bars[name], doing=doing, completed=done, total=total)
        now = time.monotonic()
        if self._shown.disable and now - self._said.get(name, 0.0) >= _LINE_EVERY:
            self._said[name] = now
            console.err.print(f"{name:<24} {doing}")


local = App(
    name="local",
    help="""Run Kubernetes control planes on this machine: etcd, API server, controller manager, and members.

All servers listen on loopback only. Binaries are taken from `UNWIND_<NAME>` variables (UNWIND_KUBE_APISERVER), the
directory KUBEBUILDER_ASSETS, the PATH or the cache, and are otherwise built from their Go modules.""",
)

PARTS = ("nodes", "helm", "capi", "cloud")
Name = Annotated[str, Parameter(help="The name of the control plane; several can run side by side.")]
Kubernetes = Annotated[
    str,
    Parameter(
        help=f"The minor version of Kubernetes: {', '.join(tools.KUBERNETES_MINORS)}. Its servers are built here; "
        "binaries from elsewhere, whose version is not known, are not used. Default: UNWIND_KUBERNETES."
    ),
]


@local.command
async def up(
    *,
    name: Name = "default",
    members: Annotated[
        int, Parameter(help="The number of member clusters, in addition to the management cluster.")
    ] = 0,
    with_: Annotated[
        str,
        Parameter(
            name="--with",
            help="Comma-separated components: nodes (Pods run), helm, capi (Cluster API's manager), "
            "cloud (LoadBalancer Services get an address).",
        ),
    ] = "",
    cloud_delay: Annotated[
        float, Parameter(help="Seconds that the simulated cloud takes to remove a load balancer.")
    ] = 3.0,
    image: Annotated[
        Path | None,
        Parameter(
            help="An OCI archive NAME-VERSION.oci.tar: Pods of the image NAME run as processes, on nodes of their own. "
            "Needs root, and nodes in --with."
        ),
    ] = None,
    kubernetes: Kubernetes = "",
    foreground: Annotated[
        Flag, Parameter(help="Run in the foreground; stop the control plane when this process or its parent ends.")
    ] = False,
    output: Output = "table",
) -> None:
    """Start a control plane in the background."""
    shape = shape_of(members=members, with_=with_, cloud_delay=cloud_delay, image=image, kubernetes=kubernetes)
    with BuildProgress() as progress:
        toolbox = await equip(shape, progress)
    order = supervisor.Order(name=name, shape=shape, toolbox=toolbox)
    if not foreground:
        with console.err.status(f"Starting control plane {name!r}"):
            record = await supervisor.up(order, announce=_announce)
        _told(record, output)
        return
    end_with_parent(signal.SIGTERM)
    home = Home(name).claim(announce=_announce)
    await supervisor.keep(
        home,
        order,
        announce=_announce,
        ready=lambda: _told(supervisor.existing_plane(name), output),
        until=supervisor.until_signalled(),
    )


@local.command
async def down(
    *,
    name: Name = "default",
    all_: Annotated[Flag, Parameter(name="--all", help="Stop all control planes.")] = False,
    output: Output = "table",
) -> None:
    """Stop a control plane and delete its files."""
    names = [home.name for home in Home.all()] if all_ else [name]
    taken: dict[str, bool] = {}
    for plane in names:
        with console.err.status(f"Stopping control plane {plane!r}"):
            taken[plane] = await supervisor.down(plane)
        if output == "table":
            console.out.print(
                f"Control plane {plane!r} stopped." if taken[plane] else f"Control plane {plane!r} not found."
            )
    if output == "json":
        console.show_json({"down": [plane for plane, found in taken.items() if found]})


@local.command
def status(*, output: Output = "table") -> None:
    """List the control planes on this machine and their components."""
    planes = [(home, record) for home in Home.all() if (record := home.read())]
    if output == "json":
        console.show_json([{"state": _state(home, record), **msgspec.to_builtins(record)} for home, record in planes])
        return
    if not planes:
        console.out.print("No control plane is running. Start one with `unwind local up`.")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("PLANE", "CLUSTER", "STATE", "SERVER", "PROCESSES", "MEMORY", "AGE"):
        table.add_column(
            heading, justify="right" if heading in ("PROCESSES", "MEMORY", "AGE") else "left", no_wrap=True
        )
    for home, record in planes:
        _add_rows(table, _state(home, record), record)
    console.out.print(table)
    for line in (line for home, record in planes for line in _remarks(_state(home, record), record)):
        console.out.print(line)


@local.command
def kubeconfig(
    *,
    name: Name = "default",
    member: Annotated[str | None, Parameter(help="The member cluster; default: the management cluster.")] = None,
    path: Annotated[Flag, Parameter(help="Print the path of the file instead of its content.")] = False,
) -> None:
    """Print the kubeconfig of a cluster: `export KUBECONFIG=$(unwind local kubeconfig --path)`."""
    clusters = _clusters(supervisor.existing_plane(name))
    wanted = member or MANAGEMENT
    if wanted not in clusters:
        raise UnwindError(
            f"control plane {name!r} has no cluster {wanted!r}", remedy=f"use one of {', '.join(sorted(clusters))}"
        )
    file = Path(clusters[wanted].kubeconfig)
    sys.stdout.write(f"{file}\n" if path else file.read_text())


@local.command
async def cluster(
    cluster_name: Annotated[str, Parameter(name="CLUSTER", help="The name of the Cluster.")],
    /,
    *,
    name: Name = "default",
    member: Annotated[str, Parameter(help="The member to use as its workload cluster.")] = "member-1",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], help="The namespace of the Cluster.")] = "default",
    by_hand: Annotated[
        Flag, Parameter(help="Create it without a ClusterClass; Cluster API calls no hooks for such a Cluster.")
    ] = False,
    output: Output = "table",
) -> None:
    """Create a Cluster API Cluster with a member as its workload cluster, and wait until it is Available."""
    record = supervisor.existing_plane(name)
    if not record.shape.capi:
        raise UnwindError(
            f"Cluster API is not installed in control plane {name!r}", remedy="start one with `--with capi`"
        )
    clusters = _clusters(record)
    if member not in clusters or member == MANAGEMENT:
        raise UnwindError(
            f"control plane {name!r} has no member {member!r}", remedy="list them with `unwind local status`"
        )
    config = kubeconfigs.load(Path(clusters[MANAGEMENT].kubeconfig))
    with console.err.status(f"Creating Cluster {cluster_name!r}"):
        async with Client(config) as client:
            made = await create_cluster(
                client, name=cluster_name, namespace=namespace, member=member, topology=not by_hand
            )
    if output == "json":
        console.show_json(made)
        return
    console.out.print(f"Cluster {namespace}/{cluster_name} is Available; its workload cluster is {member}.")


@local.command
async def build(
    *,
    companions: Annotated[
        Flag,
        Parameter(
            help="Also build the controllers that Unwind is tested beside: CAAPH, kubeadm-control-plane,"
            " kustomize-controller, helm-controller."
        ),
    ] = False,
    kubernetes: Kubernetes = "",
    output: Output = "table",
) -> None:
    """Build all binaries ahead of time; those that exist are only listed."""
    wanted = tools.for_kubernetes(tools.ALL + (tools.COMPANIONS if companions else ()), kubernetes)
    with BuildProgress(list_found=True) as progress:
        await ensure(wanted, progress)
    if output == "json":
        console.show_json({"programs": [tool.name for tool in wanted], "cache": str(cache_dir())})
        return
    console.err.print(f"All {len(wanted)} binaries are available. Cache: {cache_dir()}.")


def shape_of(*, members: int, with_: str, cloud_delay: float, image: Path | None = None, kubernetes: str = "") -> Shape:
    """The Shape that the options describe; raises UsageError."""
    parts = [part for part in with_.replace(" ", "").split(",") if part]
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise UsageError(f"unknown component {', '.join(unknown)} in --with (valid: {', '.join(PARTS)})")
    if members < 0:
        raise UsageError(f"invalid --members {members}", remedy="use 0 or more")
    if cloud_delay < 0:
        raise UsageError(f"invalid --cloud-delay {cloud_delay}", remedy="use 0 or more seconds")
    if image and not image.is_file():
        raise UsageError(f"invalid --image {image}: no such file", remedy="build it with `make image`")
    if image and "nodes" not in parts:
        raise UsageError("--image needs kube-scheduler", remedy="add nodes to --with")
    archive = str(image.absolute()) if image else ""
    return Shape(
        members=members,
        cloud_delay=cloud_delay,
        image=archive,
        kubernetes=kubernetes,
        **dict.fromkeys(parts, True),
    )


def _told(record: PlaneRecord, output: str) -> None:
    if output == "json":
        console.show_json(record)
    else:
        show_up(record)


def show_up(record: PlaneRecord) -> None:
    """Print that a control plane is running, with the next commands."""
    name = "" if record.name == "default" else f" --name {record.name}"
    console.out.print(f"[bold]Control plane {record.name!r} is running.[/bold]")
    console.out.print(f"  export KUBECONFIG=$(unwind local kubeconfig{name} --path)")
    if record.shape.members:
        console.out.print(f"  unwind local kubeconfig{name} --member member-1")
    console.out.print(f"  unwind local status\n  unwind local down{name}")


def _clusters(record: PlaneRecord) -> dict[str, RecordedCluster]:
    return {cluster.name: cluster for cluster in record.clusters}


def _announce(line: str) -> None:
    console.err.print(f"[green]✓[/green] {line}" if console.err.is_terminal else line)


def _state(home: Home, record: PlaneRecord) -> str:
    if not home.in_use:
        return "Dead"
    return (
        "Degraded"
        if any(process.process is None or not process.process.alive for process in record.processes)
        else record.phase
    )


def _add_rows(table: Table, state: str, record: PlaneRecord) -> None:
    colour = {"Ready": "green", "Starting": "yellow", "Stopping": "yellow"}.get(state, "red")
    for number, cluster in enumerate(record.clusters):
        programs = [
            process
            for process in record.processes
            if process.cluster == cluster.name or (number == 0 and not process.cluster)
        ]
        running = [program.process for program in programs if program.process and program.process.alive]
        table.add_row(
            record.name,
            cluster.name,
            f"[{colour}]{state}[/{colour}]",
            cluster.server,
            f"{len(running)}/{len(programs)}",
            size(sum(process.resident_bytes for process in running)),
            console.age(record.since),
        )


def _remarks(state: str, record: PlaneRecord) -> Iterator[str]:
    if state == "Dead":
        yield f"Control plane {record.name!r} was killed: clean up with `unwind local down --name {record.name}`."
    for process in record.processes:
        if process.restarts:
            times = "once" if process.restarts == 1 else f"{process.restarts} times"
            yield f"{process.name} of {process.cluster or record.name} restarted {times}: see {process.log}"
    for balancer in record.load_balancers:
        yield f"Simulated load balancer of {balancer}"
