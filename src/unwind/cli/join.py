"""`unwind join`: have a cluster become a member."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unwind.api import names
from unwind.api.karmada import RemoveStrategy
from unwind.cli import console, documents
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.errors import UnwindError
from unwind.fleet import joining
from unwind.fleet.memberships import Wish
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client

if TYPE_CHECKING:
    from unwind.kube.kubeconfig import Connection


async def join(
    name: Annotated[str, Parameter(help="What the member is to be called.")],
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    cluster_kubeconfig: Annotated[Path, Parameter(help="The kubeconfig file of the cluster that is to be joined.")],
    cluster_context: Annotated[
        str | None, Parameter(help="The context in that one, instead of the current one.")
    ] = None,
    cluster_namespace: Annotated[
        str, Parameter(help="The namespace of the credentials, in the member and in the control plane.")
    ] = names.KARMADA_CLUSTER_NAMESPACE,
    cluster_provider: Annotated[str, Parameter(help="Whose cloud it is in.")] = "",
    cluster_region: Annotated[str, Parameter(help="Where.")] = "",
    cluster_zones: Annotated[str, Parameter(help="Where exactly: names, separated by commas.")] = "",
    remove_strategy: Annotated[
        str | None,
        Parameter(help="What becomes of its objects when it is unjoined: they stay (Needless) or must go (Required)."),
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would be made, the member's side first.")] = False,
    output: Annotated[documents.Format | None, Parameter(name=["--output", "-o"], help="How to print it.")] = None,
) -> None:
    """Have a cluster become a member: an account in it, and here a Cluster with the way to it.

    What was made is taken back if it fails half-way. It may be given again, to go on or to bring up to date.
    """
    wish = Wish(
        name=name,
        namespace=cluster_namespace,
        provider=cluster_provider,
        region=cluster_region,
        zones=tuple(zone.strip() for zone in cluster_zones.split(",") if zone.strip()),
        remove_strategy=_strategy(remove_strategy),
    )
    wish.check()
    here = kubeconfigs.load(kubeconfig, context=context)
    there = way_to(cluster_kubeconfig, cluster_context)
    async with Client(here, user_agent="unwind-join") as home, Client(there, user_agent="unwind-join") as member:
        if dry_run:
            documents.show(await joining.rehearse(home, member, wish), output or "yaml")
            return
        joined = await joining.join(home, member, wish, announce=_announce)
    if output:
        documents.show([msgspec.to_builtins(one) for one in joined.done], output)
        return
    console.out.print(f"{joined.name} is a member: cluster {joined.id}")


def way_to(file: Path, context: str | None) -> Connection:
    try:
        return kubeconfigs.load(file, context=context)
    except UnwindError as error:
        raise UnwindError(
            f"--cluster-kubeconfig: {error.what}", remedy="name another one, or a context of it with --cluster-context"
        ) from error


def _strategy(text: str | None) -> RemoveStrategy | None:
    if text is None:
        return None
    strategy = RemoveStrategy.read(text)
    if isinstance(strategy, RemoveStrategy):
        return strategy
    raise UnwindError(f"--remove-strategy is {text!r}", remedy=f"use one of {', '.join(RemoveStrategy)}")


def _announce(line: str) -> None:
    console.err.print(line, markup=False)
