"""`unwind local`: a real control plane on this machine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter
from rich.table import Table

from unwind.children import end_with_parent
from unwind.cli import console
from unwind.cli.building import BuildProgress
from unwind.errors import UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.local import building, supervising, tools
from unwind.local.capi import create_cluster
from unwind.local.home import Home, Record, RecordedCluster, Shape
from unwind.local.paths import cache_dir, size
from unwind.local.plane import MANAGEMENT
from unwind.local.toolbox import equip

if TYPE_CHECKING:
    from collections.abc import Iterator

local = App(
    name="local",
    help="""A real control plane on this machine: etcd, API server, controller manager, and members.

Everything listens on loopback only. The programs are looked for in `UNWIND_<NAME>` variables (UNWIND_KUBE_APISERVER),
on the PATH and in the cache, and built from their Go modules if they are nowhere.""",
)

PARTS = ("nodes", "helm", "capi", "cloud")
Name = Annotated[str, Parameter(help="Which plane; several can be up side by side.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")]


@local.command
async def up(
    *,
    name: Name = "default",
    members: Annotated[int, Parameter(help="How many member clusters beside the management cluster.")] = 0,
    with_: Annotated[
        str,
        Parameter(
            name="--with",
            help="What else, separated by commas: nodes (Pods run), helm, capi (Cluster API's manager), "
            "cloud (LoadBalancer Services get an address).",
        ),
    ] = "",
    cloud_delay: Annotated[float, Parameter(help="Seconds the cloud takes to remove a load balancer.")] = 3.0,
    foreground: Annotated[
        bool, Parameter(negative="", help="Stay, and take the plane along when this process or its parent ends.")
    ] = False,
    output: Output = "table",
) -> None:
    """Bring a control plane up, and leave it running."""
    shape = shape_of(members=members, with_=with_, cloud_delay=cloud_delay)
    with BuildProgress() as progress:
        toolbox = await equip(shape, progress)
    order = supervising.Order(name=name, shape=shape, toolbox=toolbox)
    if not foreground:
        with console.err.status(f"Starting plane {name!r}"):
            record = await supervising.up(order, announce=_announce)
        _told(record, output)
        return
    end_with_parent(signal.SIGTERM)
    home = Home(name).claim(announce=_announce)
    await supervising.keep(
        home,
        order,
        announce=_announce,
        ready=lambda: _told(supervising.existing(name), output),
        until=supervising.until_signalled(),
    )


@local.command
async def down(
    *,
    name: Name = "default",
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Every plane there is.")] = False,
    output: Output = "table",
) -> None:
    """Take a control plane down: no process and no file of it is left."""
    names = [home.name for home in Home.all()] if all_ else [name]
    taken: dict[str, bool] = {}
    for one in names:
        with console.err.status(f"Taking plane {one!r} down"):
            taken[one] = await supervising.down(one)
        if output == "table":
            console.out.print(f"Plane {one!r} is down." if taken[one] else f"There is no plane {one!r}.")
    if output == "json":
        console.show_json({"down": [one for one, found in taken.items() if found]})


@local.command
def status(*, output: Output = "table") -> None:
    """Show the planes on this machine, and what runs of each."""
    planes = [(home, record) for home in Home.all() if (record := home.read())]
    if output == "json":
        console.show_json([{"state": _state(home, record), **msgspec.to_builtins(record)} for home, record in planes])
        return
    if not planes:
        console.out.print("No plane is up. `unwind local up` starts one.")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("PLANE", "CLUSTER", "STATE", "SERVER", "PROGRAMS", "MEMORY", "AGE"):
        table.add_column(heading, justify="right" if heading in ("PROGRAMS", "MEMORY", "AGE") else "left", no_wrap=True)
    for home, record in planes:
        _add_rows(table, _state(home, record), record)
    console.out.print(table)
    for line in (line for home, record in planes for line in _remarks(_state(home, record), record)):
        console.out.print(line)


@local.command
def kubeconfig(
    *,
    name: Name = "default",
    member: Annotated[str | None, Parameter(help="A member, instead of the management cluster.")] = None,
    path: Annotated[bool, Parameter(negative="", help="Print where the file is, instead of what is in it.")] = False,
) -> None:
    """Print the kubeconfig of a cluster: `export KUBECONFIG=$(unwind local kubeconfig --path)`."""
    clusters = _clusters(supervising.existing(name))
    wanted = member or MANAGEMENT
    if wanted not in clusters:
        raise UnwindError(f"plane {name!r} has no {wanted!r}", remedy=f"it has {', '.join(sorted(clusters))}")
    file = Path(clusters[wanted].kubeconfig)
    sys.stdout.write(f"{file}\n" if path else file.read_text())


@local.command
async def cluster(
    cluster_name: Annotated[str, Parameter(name="CLUSTER", help="What to call it.")],
    /,
    *,
    name: Name = "default",
    member: Annotated[str, Parameter(help="The member that is its workload cluster.")] = "member-1",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], help="Where to put it.")] = "default",
    by_hand: Annotated[
        bool, Parameter(negative="", help="Without a ClusterClass: Cluster API calls no hooks for such a Cluster.")
    ] = False,
    output: Output = "table",
) -> None:
    """Make a Cluster of Cluster API, whose workload cluster is a member; return when it is Available."""
    record = supervising.existing(name)
    if not record.shape.capi:
        raise UnwindError(f"plane {name!r} has no Cluster API", remedy="bring one up with `--with capi`")
    clusters = _clusters(record)
    if member not in clusters or member == MANAGEMENT:
        raise UnwindError(f"plane {name!r} has no member {member!r}", remedy="`unwind local status` lists them")
    config = kubeconfigs.load(Path(clusters[MANAGEMENT].kubeconfig))
    with console.err.status(f"Making Cluster {cluster_name!r}"):
        async with Client(config) as client:
            made = await create_cluster(
                client, name=cluster_name, namespace=namespace, member=member, topology=not by_hand
            )
    if output == "json":
        console.show_json(made)
        return
    console.out.print(f"Cluster {namespace}/{cluster_name} is Available; its workload cluster is {member}.")


@local.command
async def build(*, output: Output = "table") -> None:
    """Build every binary ahead of time; what is there already is only listed."""
    with BuildProgress(list_found=True) as progress:
        await building.ensure(tools.ALL, progress)
    if output == "json":
        console.show_json({"programs": [tool.name for tool in tools.ALL], "cache": str(cache_dir())})
        return
    console.err.print(f"All {len(tools.ALL)} programs are there. The cache is {cache_dir()}.")


def shape_of(*, members: int, with_: str, cloud_delay: float) -> Shape:
    """Read what was asked for."""
    parts = [part for part in with_.replace(" ", "").split(",") if part]
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise UsageError(f"--with does not know {', '.join(unknown)}", remedy=f"it knows {', '.join(PARTS)}")
    if members < 0:
        raise UsageError(f"--members is {members}", remedy="use 0 or more")
    if cloud_delay < 0:
        raise UsageError(f"--cloud-delay is {cloud_delay}", remedy="use 0 or more seconds")
    return Shape(members=members, cloud_delay=cloud_delay, **dict.fromkeys(parts, True))


def _told(record: Record, output: str) -> None:
    if output == "json":
        console.show_json(record)
    else:
        show_up(record)


def show_up(record: Record) -> None:
    """Say that a plane is up, and what to do with it."""
    name = "" if record.name == "default" else f" --name {record.name}"
    console.out.print(f"[bold]Plane {record.name!r} is up.[/bold]")
    console.out.print(f"  export KUBECONFIG=$(unwind local kubeconfig{name} --path)")
    if record.shape.members:
        console.out.print(f"  unwind local kubeconfig{name} --member member-1")
    console.out.print(f"  unwind local status\n  unwind local down{name}")


def _clusters(record: Record) -> dict[str, RecordedCluster]:
    return {cluster.name: cluster for cluster in record.clusters}


def _announce(line: str) -> None:
    console.err.print(f"[green]✓[/green] {line}" if console.err.is_terminal else line)


def _state(home: Home, record: Record) -> str:
    if not home.in_use:
        return "Dead"
    return "Degraded" if any(one.process is None or not one.process.alive for one in record.processes) else record.phase


def _add_rows(table: Table, state: str, record: Record) -> None:
    colour = {"Ready": "green", "Starting": "yellow", "Stopping": "yellow"}.get(state, "red")
    for number, cluster in enumerate(record.clusters):
        programs = [one for one in record.processes if one.cluster == cluster.name or (number == 0 and not one.cluster)]
        running = [one.process for one in programs if one.process and one.process.alive]
        table.add_row(
            record.name,
            cluster.name,
            f"[{colour}]{state}[/{colour}]",
            cluster.server,
            f"{len(running)}/{len(programs)}",
            size(sum(process.resident_bytes for process in running)),
            console.age(record.since),
        )


def _remarks(state: str, record: Record) -> Iterator[str]:
    if state == "Dead":
        yield f"Plane {record.name!r} was killed: `unwind local down --name {record.name}` clears away what is left."
    for one in record.processes:
        if one.restarts:
            times = "once" if one.restarts == 1 else f"{one.restarts} times"
            yield f"{one.name} of {one.cluster or record.name} was started again {times}: {one.log}"
    for balancer in record.load_balancers:
        yield f"Load balancer in the cloud of {balancer}"
