"""`unwind plan`: what a deletion would come to. Only reads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unwind.api.policies import VolumePolicy
from unwind.api.rights import HOME
from unwind.cli import console, documents, foreseen
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.cli.targets import Home, Place, Target, Volumes, check_volumes, meant
from unwind.controllers.foreseeing import foresee
from unwind.errors import UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.picturing.dot import dot
from unwind.picturing.mermaid import mermaid
from unwind.picturing.png import png
from unwind.picturing.svg import svg

if TYPE_CHECKING:
    from unwind.removing.foreseeing import Foreseen

Form = Literal["table", "wide", "json", "yaml", "svg", "png", "dot", "mermaid"]


async def plan(
    target: Target,
    /,
    *,
    namespace: Place = None,
    volumes: Volumes = "Retain",
    output: Annotated[Form, Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Show what would go if a target were deleted, in which order, and what a person should know before.

    Nothing is deleted or written. What belongs to it goes along; what is protected would refuse; what is somebody
    else's stays; and what stays and needs it is named.
    """
    if output == "png" and sys.stdout.isatty():
        raise UsageError(
            "a PNG is nothing for a terminal", remedy="write it into a file: unwind plan … -o png > plan.png"
        )
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-plan") as client:
        named = await meant(client, Discovery(client), target, namespace=namespace, otherwise=connection.namespace)
        try:
            seen = await foresee(client, named, home=unwind_namespace, volumes=VolumePolicy(volumes))
        except NotFoundError as error:
            raise UnwindError(f"there is no {named}", remedy=str(error)) from error
    check_volumes(seen, volumes)
    show(seen, output)


def show(seen: Foreseen, output: Form) -> None:
    """Print it."""
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
