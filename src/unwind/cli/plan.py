"""`unwind plan`: preview what a deletion would remove, read-only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unwind.api.annotation_values import VolumePolicy
from unwind.api.rights import HOME
from unwind.cli import console, documents, foreseen
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.cli.targets import Home, Place, Target, Volumes, check_volumes, meant
from unwind.errors import UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.preview.cluster_preview import foresee
from unwind.render.dot import dot
from unwind.render.mermaid import mermaid
from unwind.render.png import png
from unwind.render.svg import svg

if TYPE_CHECKING:
    from unwind.preview.object_preview import Foreseen

Form = Literal["table", "wide", "json", "yaml", "svg", "png", "dot", "mermaid"]


async def plan(
    target: Target,
    /,
    *,
    namespace: Place = None,
    volumes: Volumes = "Retain",
    output: Annotated[Form, Parameter(name=["--output", "-o"], help="Output format.")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Preview what deleting a target would remove, in order. Read-only.

    Shows the dependents that are deleted with it, the protected objects that would refuse the deletion, the objects
    that are kept because they are not managed by the target, and the kept objects that depend on it.
    """
    if output == "png" and sys.stdout.isatty():
        raise UsageError(
            "cannot print a PNG to a terminal", remedy="redirect it to a file: unwind plan … -o png > plan.png"
        )
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-plan") as client:
        named = await meant(client, Discovery(client), target, namespace=namespace, otherwise=connection.namespace)
        try:
            seen = await foresee(client, named, home=unwind_namespace, volumes=VolumePolicy(volumes))
        except NotFoundError as error:
            raise UnwindError(
                f"cannot plan deletion of {named}: not found ({error})", remedy="check its name and --namespace"
            ) from error
    check_volumes(seen, volumes)
    show(seen, output)


def show(seen: Foreseen, output: Form) -> None:
    """Print the preview in the given format."""
    match output:
        case "table" | "wide":
            console.show(foreseen.table(seen, wide=output == "wide"))
        case "json":
            console.show_json(foreseen.document(seen))
        case "yaml":
            sys.stdout.write(documents.as_yaml([foreseen.document(seen)]))
        case "svg":
            sys.stdout.write(svg(foreseen.pictured(seen)))
        case "png":
            sys.stdout.buffer.write(png(svg(foreseen.pictured(seen))))
        case "dot":
            sys.stdout.write(dot(foreseen.pictured(seen)))
        case "mermaid":
            sys.stdout.write(mermaid(foreseen.pictured(seen)))
