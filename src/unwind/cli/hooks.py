"""`unwind hooks`: what clusters wait for at Cluster API's lifecycle hooks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.table import Table

from unwind import features
from unwind.api.hooks import Hook
from unwind.cli import console
from unwind.gating.protocol import switched_on
from unwind.gating.registry import Registry, installed
from unwind.gating.rules.known import KNOWN


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule at a hook."""

    name: str
    source: str
    about: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One hook, in the order in which a cluster comes by."""

    hook: str
    on: bool
    """Whether Cluster API is told of it."""
    blocks: bool
    """Whether a cluster can be made to wait there."""
    rules: tuple[Row, ...]
    held: tuple[str, ...] = ()
    """Why it holds clusters whatever its rules say."""


def hooks(
    *,
    feature_gates: Annotated[
        str,
        Parameter(env_var="UNWIND_FEATURE_GATES", help="The manager's: what is switched on or off, K=true,K=false."),
    ] = "",
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
) -> None:
    """Show the hooks at which Cluster API asks, whether each is switched on, and the rules that have a say there.

    Rules come with Unwind and from packages beside it (entry points in the group unwind.hooks). A package that does not
    load has its hook held. A hook is switched on with `unwind run --feature-gates HOOK=true`.
    """
    on = switched_on(features.parse(feature_gates))
    plugins = installed()
    for plugin in plugins:
        plugin.load()
    registry = Registry(plugins=plugins)
    listed = [_listed(hook, registry, on=hook in on) for hook in Hook]
    if output == "json":
        told = {"hooks": msgspec.to_builtins(listed)}
        console.show_json(told)
        return
    _show(listed)
    for one in listed:
        for why in one.held:
            console.err.print(f"[bold]held:[/] {one.hook}, because {why}")


def _listed(hook: Hook, registry: Registry, *, on: bool) -> Listed:
    own = [Row(name=one.name, source="unwind", about=one.about) for one in KNOWN if hook in one.hooks]
    others = [Row(name=one.name, source=one.source, about=one.about) for one in registry.rules(hook)]
    return Listed(hook=hook.value, on=on, blocks=hook.blocks, rules=(*own, *others), held=tuple(registry.broken(hook)))


def _show(listed: list[Listed]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("HOOK", "ON", "RULE", "FROM"):
        table.add_column(heading, no_wrap=True)
    table.add_column("WHAT IT DOES")
    for one in listed:
        first = (one.hook, "yes" if one.on else "no")
        for place, row in enumerate(one.rules):
            table.add_row(*(("", "") if place else first), row.name, row.source, row.about)
    console.out.print(table)
