"""`unwind hooks`: list Cluster API's lifecycle hooks and the rules on each, and which gate holds each cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.table import Table

from unwind.addons.hook_rule_catalogue import KNOWN
from unwind.api.capi import MACHINES, MACHINES_V1BETA1
from unwind.api.hooks import Hook
from unwind.api.names import CLUSTER_NAME_LABEL, DISARM_FIELD_MANAGER
from unwind.api.resources import Resource
from unwind.api.rights import HOME
from unwind.capi.hook_protocol import switched_on
from unwind.capi.hook_registry import HookRegistry, installed
from unwind.capi.machine_caches import is_armed
from unwind.capi.machine_gate_controller import set_annotation
from unwind.cli import console
from unwind.cli.arguments import Context, Flag, Kubeconfig, Output
from unwind.errors import UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.decoding import Metadata
from unwind.kube.errors import ApiError
from unwind.manager import feature_gates as features
from unwind.preview.cluster_gates import ClusterGate, read_gates
from unwind.render.text import counted

hooks = App(
    name="hooks",
    help="List Cluster API lifecycle hooks and the rules on each, and which gate holds each Cluster.",
)
# Seconds for the clusters: the hooks are listed in any case.
_WITHIN = 10.0
# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404


class HookRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on a hook."""

    name: str
    source: str
    about: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One hook; hooks are listed in the order of a Cluster's life."""

    hook: str
    on: bool
    """Whether the hook is registered with Cluster API."""
    blocks: bool
    """Whether the hook can block a Cluster."""
    rules: tuple[HookRow, ...]
    held: tuple[str, ...] = ()
    """Plugin load errors that make the hook block, whatever its rules say."""


@hooks.default
async def list_hooks(
    *,
    feature_gates: Annotated[
        str,
        Parameter(env_var="UNWIND_FEATURE_GATES", help="The feature gates of the manager: NAME=true,NAME=false."),
    ] = "",
    output: Output = "table",
    namespace: Annotated[str, Parameter(help="The namespace that Unwind is installed in.")] = HOME,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List the lifecycle hooks of Cluster API, whether each is enabled, and its rules. Then, if there is a cluster to
    ask: which gate holds the deletion of each Cluster, and why.

    Rules come with Unwind and from installed packages (entry point group unwind.hooks). If a package fails to load, its
    hook blocks. Enable a hook with `unwind run --feature-gates HOOK=true`.
    """
    on = switched_on(features.parse(feature_gates))
    plugins = installed()
    for plugin in plugins:
        plugin.load()
    registry = HookRegistry(plugins=plugins)
    listed = [_listed(hook, registry, on=hook in on) for hook in Hook]
    gates, why_not = await _gates(kubeconfig, context, namespace)
    if output == "json":
        told = {"hooks": msgspec.to_builtins(listed), "clusters": msgspec.to_builtins(gates)}
        console.show_json(told)
    else:
        _show(listed)
        _show_gates(gates)
    if why_not:
        console.err.print(f"clusters are not shown: {why_not}", soft_wrap=True, markup=False)
    if output == "json":
        return
    for item in listed:
        for why in item.held:
            console.err.print(f"[bold]blocked:[/] {item.hook}: {why}")


async def _gates(kubeconfig: Path | None, context: str | None, namespace: str) -> tuple[list[ClusterGate], str]:
    """The gates of all Clusters, or why they are not known. Without a kubeconfig there are none to show."""
    try:
        connection = kubeconfigs.load(kubeconfig, context=context)
    except UnwindError:
        if kubeconfig or context:
            raise
        return [], ""
    try:
        async with asyncio.timeout(_WITHIN), Client(connection, user_agent="unwind-hooks") as client:
            return await read_gates(client, namespace=namespace), ""
    except TimeoutError:
        return [], f"no answer within {_WITHIN:.0f}s; check the connection to the API server, and retry"
    except UnwindError as error:
        return [], str(error)


def _show_gates(gates: list[ClusterGate]) -> None:
    if not gates:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("CLUSTER", "GATE", "STATE"):
        table.add_column(heading, no_wrap=True)
    table.add_column("WHY")
    for gate in gates:
        table.add_row(gate.cluster, gate.gate, gate.state, gate.why)
    console.out.print()
    console.out.print(table)


@hooks.command
async def disarm(
    cluster: Annotated[str, Parameter(help="The Cluster, as NAMESPACE/NAME.")] = "",
    /,
    *,
    all_clusters: Annotated[
        Flag, Parameter(name="--all", help="The Machines of every Cluster, also if it is gone.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Remove Unwind's pre-terminate hook from the Machines of a Cluster. Needs no manager.

    Use it if no manager runs and Machines wait for it, or after Clusters were moved to a management cluster without
    Unwind. A manager that runs arms them again while a TeardownPolicy says `gate: Machines`. Refused while a Teardown
    holds the Cluster: use `unwind release` then.
    """
    home, _, name = cluster.partition("/")
    if all_clusters is bool(cluster) or (cluster and not name):
        raise UsageError("expected a Cluster as NAMESPACE/NAME, or --all", remedy="see `unwind hooks disarm --help`")
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-hooks") as client:
        resource, found = await _machines(client, home, name)
        for machine in found:
            try:
                await set_annotation(client, resource, machine, None, field_manager=DISARM_FIELD_MANAGER)
            except ApiError as error:
                raise UnwindError(
                    f"cannot disarm Machine {machine.namespace}/{machine.name}: {error.status.message}",
                    remedy="if a Teardown holds the Cluster, use `unwind release`",
                ) from error
    console.out.print(f"{counted(len(found), 'Machine')} disarmed")


async def _machines(client: Client, namespace: str, name: str) -> tuple[Resource, list[Metadata]]:
    """The armed Machines of a Cluster; of all if it has no name."""
    for resource in (MACHINES, MACHINES_V1BETA1):
        labels = f"{CLUSTER_NAME_LABEL}={name}" if name else ""
        try:
            items = await client.list(resource, namespace=namespace or None, labels=labels)
        except ApiError as error:
            if error.code != _NOT_SERVED:
                raise
            continue
        found = [msgspec.convert(item["metadata"], Metadata) for item in items]
        return resource, [machine for machine in found if is_armed(machine)]
    raise UnwindError("cannot list Machines: Cluster API is not installed", remedy="use the management cluster")


def _listed(hook: Hook, registry: HookRegistry, *, on: bool) -> Listed:
    own = [HookRow(name=item.name, source="unwind", about=item.about) for item in KNOWN if hook in item.hooks]
    others = [HookRow(name=rule.name, source=rule.source, about=rule.about) for rule in registry.rules(hook)]
    return Listed(hook=hook.value, on=on, blocks=hook.blocks, rules=(*own, *others), held=tuple(registry.broken(hook)))


def _show(listed: list[Listed]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("HOOK", "ENABLED", "RULE", "SOURCE"):
        table.add_column(heading, no_wrap=True)
    table.add_column("DESCRIPTION")
    for item in listed:
        first = (item.hook, "yes" if item.on else "no")
        for place, row in enumerate(item.rules):
            table.add_row(*(("", "") if place else first), row.name, row.source, row.about)
    console.out.print(table)
