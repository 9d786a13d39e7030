"""`unwind hooks`: list Cluster API's lifecycle hooks and the rules on each."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.table import Table

from unwind.addons.builtin_rules import KNOWN
from unwind.api.hooks import Hook
from unwind.capi.hook_protocol import switched_on
from unwind.capi.hook_registry import HookRegistry, installed
from unwind.cli import console
from unwind.manager import feature_gates as features


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


def hooks(
    *,
    feature_gates: Annotated[
        str,
        Parameter(env_var="UNWIND_FEATURE_GATES", help="The feature gates of the manager: NAME=true,NAME=false."),
    ] = "",
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")] = "table",
) -> None:
    """List the lifecycle hooks of Cluster API, whether each is enabled, and its rules.

    Rules come with Unwind and from installed packages (entry point group unwind.hooks). If a package fails to load, its
    hook blocks. Enable a hook with `unwind run --feature-gates HOOK=true`.
    """
    on = switched_on(features.parse(feature_gates))
    plugins = installed()
    for plugin in plugins:
        plugin.load()
    registry = HookRegistry(plugins=plugins)
    listed = [_listed(hook, registry, on=hook in on) for hook in Hook]
    if output == "json":
        told = {"hooks": msgspec.to_builtins(listed)}
        console.show_json(told)
        return
    _show(listed)
    for item in listed:
        for why in item.held:
            console.err.print(f"[bold]blocked:[/] {item.hook}: {why}")


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
