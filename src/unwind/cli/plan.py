"""`unwind plan`: preview what a deletion would remove, read-only, as table, JSON or picture."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from unwind.api.annotation_values import VolumePolicy
from unwind.api.rights import HOME
from unwind.api.unwind import Effort
from unwind.cli import console, helm_release_target, policies
from unwind.cli.arguments import (
    OUTPUT,
    Context,
    Home,
    Kubeconfig,
    Place,
    Target,
    Volumes,
    check_volumes,
    resolve_target,
)
from unwind.errors import UnwindError, UsageError, WouldLeakError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.preview.cluster_preview import foresee
from unwind.render.graphs import dot, mermaid
from unwind.render.picture import of_plan
from unwind.render.svg import png, svg
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from unwind.api.meta import ObjectRef
    from unwind.kube.discovery import Named
    from unwind.preview.object_preview import Foreseen
    from unwind.render.picture import Box, Picture

Form = Literal["table", "wide", "json", "yaml", "svg", "png", "dot", "mermaid"]
_SHOWN = 5
_WARNINGS = 10
_KINDS = 4
_EFFORTS = {
    Effort.ENFORCE.value: "removed",
    Effort.TRY.value: "best effort, with timeout",
    Effort.LEAVE.value: "left in place",
}


async def plan(
    target: Target = "",
    /,
    *,
    policy: Annotated[
        Path | None,
        Parameter(help="Instead of a target: a file with a TeardownPolicy. Shows which clusters it would select."),
    ] = None,
    namespace: Place = None,
    cluster: helm_release_target.OnCluster = None,
    volumes: Volumes = "Retain",
    output: Annotated[Form, OUTPUT] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Preview what deleting a target would remove, in order. Read-only.

    Shows the dependents that are deleted with it, the protected objects that would refuse the deletion, the objects
    that are kept because they are not managed by the target, and the kept objects that depend on it.

    For a Cluster: also what Flux, CAAPH and Helm deployed there, and what no TeardownPolicy removes. For a
    Kustomization or HelmRelease of Flux, a HelmReleaseProxy, and a Helm release (release/NAME): every object, what
    would create it again, what Helm keeps and why, and what would be left behind.

    Exit codes: 0 success; 1 refused or failed; 2 usage error; 4 something would be left behind, or that could not be
    known.
    """
    if output == "png" and sys.stdout.isatty():
        raise UsageError(
            "cannot print a PNG to a terminal", remedy="redirect it to a file: unwind plan … -o png > plan.png"
        )
    if policy is not None:
        if target:
            raise UsageError(f"cannot plan both {target} and --policy", remedy="use one of them")
        await policies.show_policy(policy, output, kubeconfig=kubeconfig, context=context)
        return
    if not target:
        raise UsageError("no target", remedy="name one, such as cluster/NAME, or use --policy FILE")
    seen = await preview_target(
        target,
        namespace=namespace,
        cluster=cluster,
        volumes=volumes,
        kubeconfig=kubeconfig,
        context=context,
        home=unwind_namespace,
    )
    show_preview(seen, output)
    check_leaks(seen)


async def preview_target(
    target: str,
    *,
    namespace: str | None,
    cluster: str | None,
    volumes: Volumes,
    kubeconfig: Path | None,
    context: str | None,
    home: str,
) -> Foreseen:
    """The preview of the deletion of what a user named. Raises UnwindError if there is no such object."""
    helm_release_target.check_cluster(target, cluster)
    if helm_release_target.release_name(target):
        async with helm_release_target.release_place(
            target,
            namespace=namespace,
            cluster=cluster,
            kubeconfig=kubeconfig,
            context=context,
            user_agent="unwind-plan",
        ) as place:
            return await place.foresee(VolumePolicy(volumes))
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-plan") as client:
        named = await resolve_target(
            client, Discovery(client), target, namespace=namespace, otherwise=connection.namespace
        )
        seen = await preview_named(client, named, home=home, volumes=VolumePolicy(volumes))
    check_volumes(seen, volumes)
    return seen


async def preview_named(
    client: Client, named: Named, *, home: str, volumes: VolumePolicy, asked: str = "plan deletion of"
) -> Foreseen:
    """The preview of the deletion of an object. Raises UnwindError if it does not exist. `asked`: what the user asked
    for, for the message."""
    try:
        return await foresee(client, named, home=home, volumes=volumes)
    except NotFoundError as error:
        raise UnwindError(
            f"cannot {asked} {named}: not found ({error})", remedy="check its name and --namespace"
        ) from error


def check_leaks(seen: Foreseen) -> None:
    """Raise WouldLeakError if the deletion would leave something behind, or that is not known."""
    if seen.leaks:
        first = seen.leaks[0]
        more = f" and {len(seen.leaks) - 1} more" if len(seen.leaks) > 1 else ""
        raise WouldLeakError(
            f"something would be left behind, or is not known: {first.object}: {first.why}{more}",
            remedy="see the rest with `unwind plan`, and delete it yourself if it is not needed",
        )


def show_preview(seen: Foreseen, output: Form) -> None:
    """Print the preview in the given format."""
    match output:
        case "table" | "wide":
            console.show(preview_table(seen, wide=output == "wide"))
        case "json":
            console.show_json(preview_document(seen))
        case "yaml":
            sys.stdout.write(console.as_yaml([preview_document(seen)]))
        case "svg":
            sys.stdout.write(svg(pictured(seen)))
        case "png":
            sys.stdout.buffer.write(png(svg(pictured(seen))))
        case "dot":
            sys.stdout.write(dot(pictured(seen)))
        case "mermaid":
            sys.stdout.write(mermaid(pictured(seen)))


def total(foreseen: Foreseen) -> int:
    """How many objects would be deleted, dependents included: what `--max-objects` limits."""
    return foreseen.radius.total + (0 if foreseen.requested else len(foreseen.along) + 1)


def summary_line(foreseen: Foreseen) -> str:
    """The preview in one line."""
    waves = foreseen.plan.waves
    parts = [
        f"{counted(total(foreseen), 'object')} would be deleted" if total(foreseen) else "nothing would be deleted"
    ]
    if waves:
        parts.append(f"in {counted(waves, 'wave')}")
    if staying := len(foreseen.staying):
        parts.append(f"{staying} would be kept")
    return ", ".join(parts)


def preview_table(foreseen: Foreseen, *, wide: bool = False) -> RenderableType:
    """The preview for a terminal: order, blast radius and warnings."""
    parts: list[RenderableType] = [
        Text.assemble((foreseen.title, "bold"), ": ", summary_line(foreseen)),
        Text(""),
        _steps(foreseen),
    ]
    for heading, style, lines in paragraphs(foreseen, wide=wide):
        if lines:
            parts += [Text(""), Text(heading, style=style), *(Text(f"  {line}") for line in lines)]
    return Group(*parts)


def preview_document(foreseen: Foreseen) -> dict[str, Any]:
    """The whole preview as plain data for JSON and YAML."""
    told: dict[str, Any] = msgspec.to_builtins(foreseen)
    return told | {"total": total(foreseen), "refused": bool(foreseen.refusals)}


def pictured(foreseen: Foreseen) -> Picture:
    """The preview as a picture: a column per wave, a box per step with its kinds; refusals are marked."""
    plain = of_plan(foreseen.title, foreseen.plan, subtitle=summary_line(foreseen))
    holding = (*foreseen.refusals, *foreseen.blocked)
    refusing = {told.object.uid: told.why for told in holding if told.object.uid}

    def with_details(box: Box) -> Box:
        refs = foreseen.objects.get(box.name, ())
        blocked = next((f"{ref}: {refusing[ref.uid]}" for ref in refs if ref.uid in refusing), "")
        return msgspec.structs.replace(box, details=tuple(_kinds(refs)), blocked=blocked)

    columns = tuple(
        msgspec.structs.replace(column, boxes=tuple(map(with_details, column.boxes))) for column in plain.columns
    )
    notes = [
        *(f"refused: {told.object}: {told.why}" for told in foreseen.refusals[:_SHOWN]),
        *(f"blocked: {told.object}: {told.why}" for told in foreseen.blocked[:_SHOWN]),
        *(f"left behind: {told.object}: {told.why}" for told in foreseen.leaks[:_SHOWN]),
        *_in_the_cloud(foreseen),
        *plain.notes,
        *(f"kept: {told.object}: {told.why}" for told in foreseen.staying[:_SHOWN]),
    ]
    return msgspec.structs.replace(plain, columns=columns, notes=tuple(notes))


def _steps(foreseen: Foreseen) -> Table:
    rows = Table(box=None, header_style="bold", pad_edge=False)
    rows.add_column("WAVE", justify="right")
    rows.add_column("STEP", no_wrap=True)
    rows.add_column("OBJECTS", justify="right")
    rows.add_column("KINDS", overflow="fold")
    rows.add_column("ACTION", no_wrap=True)
    for step in foreseen.plan.steps:
        what = ", ".join(_kinds(foreseen.objects.get(step.name, ())))
        action = _EFFORTS.get(step.effort, step.effort)
        if step.name in foreseen.by_unwind:
            action = f"{action}, by Unwind"
        rows.add_row(str(step.wave), step.name, str(step.objects), what, action)
    return rows


def paragraphs(foreseen: Foreseen, *, wide: bool) -> Iterator[tuple[str, str, list[str]]]:
    """What follows the steps: a heading, its style, and lines."""
    refusals = [f"{told.object}: {told.why}" for told in foreseen.refusals]
    yield "Refused, nothing would be deleted:", "bold red", refusals
    blocked = [f"{told.object}: {told.why}" for told in foreseen.blocked]
    yield "Blocked, the deletion waits for these:", "bold red", blocked
    leaks = [f"{told.object}: {told.why}" for told in foreseen.leaks]
    yield "Left behind, or not known:", "bold red", leaks if wide else _cut(leaks, most=_WARNINGS)
    costs = [*(str(cost) for cost in foreseen.costs if cost.left), *(str(it) for it in foreseen.costs if not it.left)]
    yield "What would cost money:", "bold", costs if wide else _cut(costs, most=_WARNINGS)
    yield "Cloud resources:", "bold", _in_the_cloud(foreseen)
    definitions = [
        f"{definition.name}: {_number(definition.resources)} custom resources"
        + (f", {definition.along} not managed by this target" if definition.along else "")
        for definition in foreseen.radius.definitions
    ]
    yield "CustomResourceDefinitions and their custom resources:", "bold", definitions
    yield "Deleted with their owners:", "bold", _named(foreseen.along, wide=wide)
    staying = [f"{told.object}: {told.why}" for told in foreseen.staying]
    yield "Kept:", "bold", staying if wide else _cut(staying)
    yield "Warnings:", "bold yellow", list(foreseen.warnings) if wide else _cut(foreseen.warnings, most=_WARNINGS)
    if wide:
        kinds = [
            f"{kind.objects:>6} {kind.kind}{f'.{kind.group}' if kind.group else ''}" for kind in foreseen.radius.kinds
        ]
        yield "Objects by kind:", "bold", kinds
        for step in foreseen.plan.steps:
            yield f"Wave {step.wave}, {step.name}:", "bold", [str(ref) for ref in foreseen.objects.get(step.name, ())]
        if len(foreseen.critical_path) > 1:
            yield "Critical path:", "bold", [" → ".join(foreseen.critical_path)]


def _in_the_cloud(foreseen: Foreseen) -> list[str]:
    balancers = foreseen.radius.load_balancers
    volumes = [volume for volume in foreseen.volumes if volume.goes]
    told = []
    if balancers:
        told.append(
            f"{counted(len(balancers), 'load balancer')}: {', '.join(_cut([str(balancer) for balancer in balancers]))}"
        )
    if volumes:
        named = [f"{volume.name} ({volume.size})" if volume.size else volume.name for volume in volumes]
        told.append(f"{counted(len(volumes), 'volume')}: {', '.join(_cut(named))}")
    return told


def _number(count: int | None) -> str:
    return "an unknown number of" if count is None else str(count)


def _named(refs: Sequence[ObjectRef], *, wide: bool) -> list[str]:
    if not wide:
        return [", ".join(_kinds(refs))] if refs else []
    return sorted(str(ref) for ref in refs)


def _kinds(refs: Iterable[ObjectRef]) -> list[str]:
    """The number of objects per kind, the most frequent first."""
    counts = Counter(ref.kind for ref in refs)
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    told = [f"{count} {kind}" for kind, count in ordered[:_KINDS]]
    rest = sum(count for _, count in ordered[_KINDS:])
    return [*told, f"{rest} more"] if rest else told


def _cut(lines: Sequence[str], *, most: int = _SHOWN) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"and {more} more"] if more > 0 else list(lines)
