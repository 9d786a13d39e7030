"""`unwind join`: join a cluster as a member."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unwind.api import names
from unwind.api.karmada import RemoveStrategy
from unwind.cli import console
from unwind.cli.arguments import OUTPUT, Context, Flag, Kubeconfig
from unwind.errors import UnwindError
from unwind.karmada import join as karmada_join
from unwind.karmada.join_objects import JoinOptions
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client

if TYPE_CHECKING:
    from unwind.kube.kubeconfig import ClusterConnection


async def join(
    name: Annotated[str, Parameter(help="The name of the member.")],
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    cluster_kubeconfig: Annotated[Path, Parameter(help="The kubeconfig file of the cluster to join.")],
    cluster_context: Annotated[
        str | None, Parameter(help="The context in --cluster-kubeconfig; default: its current context.")
    ] = None,
    cluster_namespace: Annotated[
        str, Parameter(help="The namespace for the credentials, in the member and in the control plane.")
    ] = names.KARMADA_CLUSTER_NAMESPACE,
    cluster_provider: Annotated[str, Parameter(help="The cloud provider of the member.")] = "",
    cluster_region: Annotated[str, Parameter(help="The region of the member.")] = "",
    cluster_zones: Annotated[str, Parameter(help="The zones of the member, comma-separated.")] = "",
    remove_strategy: Annotated[
        str | None,
        Parameter(help="Whether unjoin keeps the member's objects (Needless) or must remove them first (Required)."),
    ] = None,
    dry_run: Annotated[
        Flag, Parameter(help="Print the objects that would be created, those in the member first.")
    ] = False,
    output: Annotated[console.DocumentFormat | None, OUTPUT] = None,
) -> None:
    """Join a cluster: create a ServiceAccount in it, and a Cluster with its credentials in the control plane.

    If it fails, the objects that it created are removed. Run it again to retry or to update a member.
    """
    options = JoinOptions(
        name=name,
        namespace=cluster_namespace,
        provider=cluster_provider,
        region=cluster_region,
        zones=tuple(zone.strip() for zone in cluster_zones.split(",") if zone.strip()),
        remove_strategy=_strategy(remove_strategy),
    )
    options.check()
    here = kubeconfigs.load(kubeconfig, context=context)
    there = join_way(cluster_kubeconfig, cluster_context)
    async with Client(here, user_agent="unwind-join") as home, Client(there, user_agent="unwind-join") as member:
        if dry_run:
            console.show_objects(await karmada_join.rehearse(home, member, options), output or "yaml")
            return
        joined = await karmada_join.join(home, member, options, announce=_announce)
    if output:
        console.show_objects([msgspec.to_builtins(item) for item in joined.done], output)
        return
    console.out.print(f"{joined.name} joined (cluster ID {joined.id})")


def join_way(file: Path, context: str | None) -> ClusterConnection:
    try:
        return kubeconfigs.load(file, context=context)
    except UnwindError as error:
        raise UnwindError(
            f"--cluster-kubeconfig: {error.what}", remedy="check the file, or choose a context with --cluster-context"
        ) from error


def _strategy(text: str | None) -> RemoveStrategy | None:
    if text is None:
        return None
    strategy = RemoveStrategy.read(text)
    if isinstance(strategy, RemoveStrategy):
        return strategy
    raise UnwindError(f"invalid --remove-strategy {text!r} (valid: {', '.join(RemoveStrategy)})")


def _announce(line: str) -> None:
    console.err.print(line, markup=False)
