"""`unwind deleters`: list the deleters in the order of the chain."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from unwind.api.resources import Resource
from unwind.cli import console
from unwind.cli.arguments import Output
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import External, Kinds, Registration
from unwind.deleters.registry import DeleterRegistry, installed, skipped
from unwind.errors import UsageError


class DeleterRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One deleter, or the final DELETE of the chain."""

    order: int | None
    name: str
    kinds: tuple[str, ...]
    some: bool = False
    """It has a predicate, so it handles only some objects of these kinds."""
    source: str
    about: str = ""


async def deleters(
    kind: Annotated[
        str | None,
        Parameter(help="Show only deleters for this kind (Deployment), or its exact chain (apps/v1/Deployment)."),
    ] = None,
    /,
    *,
    output: Output = "table",
) -> None:
    """List the deleters in the order in which they run. Each deleter handles the object or passes it to the next.

    Deleters come with Unwind and from installed packages (entry point group unwind.deleters). If a package fails to
    load, deletion of its kinds is blocked. A package that was installed without the extra that its entry point names is
    skipped.
    """
    registry = DeleterRegistry(BUILTIN, plugins=installed())
    await registry.load()
    held = {plugin.name: f"{plugin.source}: {plugin.error}" for plugin in registry.plugins if plugin.error}
    rows = await _chain(registry, kind, held) if kind and "/" in kind else _all(registry, kind)
    if output == "json":
        told = {"deleters": msgspec.to_builtins(rows), "held": held, "skipped": skipped()}
        console.show_json(told)
        return
    _show(rows)
    for kinds, why in held.items():
        console.err.print(f"[bold]blocked:[/] {kinds}: its plugin failed to load ({why}); fix or uninstall it")
    for kinds, why in skipped().items():
        console.err.print(f"[bold]skipped:[/] {kinds} ({escape(why)})")


async def _chain(registry: DeleterRegistry, kind: str, held: dict[str, str]) -> list[DeleterRow]:
    """The deleters for one kind, and the final DELETE."""
    exact = Kinds.parse(kind)
    if "*" in kind:
        raise UsageError(
            f"{kind} matches more than one kind", remedy="specify group and version, as in apps/v1/Deployment"
        )
    group, _, version = exact.api_version.rpartition("/")
    resource = Resource(group, version, "", exact.kind)
    try:
        links = await registry.deleters(resource)
        external = await registry.external(resource)
    except PermanentError as error:
        held[kind] = str(error)
        return []
    end = _row(external) if external else _kubernetes()
    return [*(_row(link) for link in links), end]


def _all(registry: DeleterRegistry, kind: str | None) -> list[DeleterRow]:
    found = [item for item in registry.all() if kind is None or _may_be_for(item, kind)]
    links = sorted((item for item in found if isinstance(item, Registration)), key=lambda one: (one.order, one.name))
    ends = [_row(item) for item in found if isinstance(item, External)]
    return [*(_row(link) for link in links), *ends, _kubernetes()]


def _may_be_for(one: Registration | External, kind: str) -> bool:
    return any(fnmatchcase(kind.lower(), kinds.kind.lower()) for kinds in one.kinds)


def _row(one: Registration | External) -> DeleterRow:
    link = one if isinstance(one, Registration) else None
    return DeleterRow(
        order=link.order if link else None,
        name=one.name,
        kinds=tuple(str(kinds) for kinds in one.kinds),
        some=bool(link and link.when),
        source=one.source,
        about=one.about,
    )


def _kubernetes() -> DeleterRow:
    about = "DELETE with the uid as precondition, then wait until the object is verified absent."
    return DeleterRow(order=None, name=KubernetesEnd.name, kinds=("*",), source="unwind", about=about)


def _show(rows: list[DeleterRow]) -> None:
    if not rows:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("ORDER", justify="right", no_wrap=True)
    for heading in ("NAME", "KINDS", "SOURCE"):
        table.add_column(heading, no_wrap=True)
    table.add_column("DESCRIPTION")
    for row in rows:
        kinds = "\n".join(row.kinds) + (" (some)" if row.some else "")
        cells: list[Any] = ["end" if row.order is None else str(row.order), row.name, kinds, row.source, row.about]
        table.add_row(*cells)
    console.out.print(table)
