"""`unwind version`: versions of the client, the running managers and the cluster."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from unwind.api.names import VERSION_ANNOTATION
from unwind.api.resources import LEASES
from unwind.api.rights import HOME
from unwind.cli import console
from unwind.cli.arguments import OUTPUT, Context, Flag, Kubeconfig, Namespace
from unwind.errors import UnwindError
from unwind.install.running_managers import lease_held
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.shards import REPLICA_LEASES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.client import Object

PACKAGE = "kube-unwind"


class Manager(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A replica of the manager with a current lease."""

    name: str
    version: str = ""
    """Empty if the lease does not carry it."""


class VersionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Versions of the client, the managers and the cluster."""

    client: str
    python: str
    server: str = ""
    """The Kubernetes version; empty if the API server does not answer."""
    managers: tuple[Manager, ...] | None = None
    """Running managers; None if unknown."""
    problem: str = ""
    """Why a version is unknown."""


async def version(
    *,
    namespace: Namespace = HOME,
    client_only: Annotated[
        Flag, Parameter(name="--client", help="Show the client version only, without contacting a cluster.")
    ] = False,
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the versions of the client, of the running managers and of the cluster."""
    told = VersionReport(client=version_of(PACKAGE), python=platform.python_version())
    if not client_only:
        told = await _asked(told, kubeconfig, context, namespace)
    if output == "json":
        console.show_json(msgspec.to_builtins(told))
    elif output == "yaml":
        console.show_objects([msgspec.to_builtins(told)], "yaml")
    else:
        _show(told)


async def _asked(told: VersionReport, kubeconfig: Kubeconfig, context: Context, namespace: str) -> VersionReport:
    """The versions with those of the cluster, or with the error that prevented reading them."""
    try:
        connection = kubeconfigs.load(kubeconfig, context=context)
        async with Client(connection, user_agent="unwind-version", deadline=5.0) as client:
            server = msgspec.json.decode(await client.raw("/version"), type=dict[str, str])
            told = msgspec.structs.replace(told, server=server.get("gitVersion", "unknown"))
            leases = await client.list(LEASES, namespace=namespace)
    except UnwindError as error:
        # An unreachable cluster is part of the answer, not an error.
        return msgspec.structs.replace(told, problem=str(error))
    return msgspec.structs.replace(told, managers=tuple(_managers(leases, now=datetime.now(UTC))))


def _managers(leases: Iterable[Object], *, now: datetime) -> Iterable[Manager]:
    for obj in leases:
        metadata = obj["metadata"]
        if metadata["name"].startswith(REPLICA_LEASES) and lease_held(obj, now=now):
            annotations = metadata.get("annotations") or {}
            yield Manager(name=obj["spec"]["holderIdentity"], version=annotations.get(VERSION_ANNOTATION, ""))


def _show(told: VersionReport) -> None:
    say = console.out.print
    say(f"unwind   {told.client} (Python {told.python})", markup=False)
    if told.server:
        say(f"server   {told.server}", markup=False)
    for manager in told.managers or ():
        say(f"manager  {manager.version or 'unknown version'} ({manager.name})", markup=False)
    if told.managers == ():
        say("manager  not running")
    if told.problem:
        console.announce(f"unknown: {told.problem}")
