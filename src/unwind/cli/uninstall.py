"""`unwind uninstall`: remove Unwind from a cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from unwind.api.rights import HOME, Setting
from unwind.cli import console
from unwind.cli.arguments import (
    Context,  # noqa: TC001 - cyclopts reads the annotations
    Kubeconfig,  # noqa: TC001 - cyclopts reads the annotations
    Namespace,  # noqa: TC001 - cyclopts reads the annotations
)
from unwind.errors import UnwindError
from unwind.install import uninstall as uninstalling
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client


async def uninstall(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = HOME,
    delete_crds: Annotated[
        bool,
        Parameter(
            negative="", help="Delete Unwind's CRDs even if custom resources exist, which are deleted with them."
        ),
    ] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask for confirmation.")] = False,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")] = "table",
) -> None:
    """Remove what install created, and Unwind's finalizers from all objects.

    Refuses while a Teardown is unfinished or a manager is running. CRDs that have custom resources are kept.
    """
    setting = Setting(namespace=namespace)
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-uninstall") as client:
        seen = await uninstalling.survey(client, setting)
        if not (seen.crds or seen.bearers or seen.objects or seen.adopted):
            nothing = uninstalling.UninstallResult(deleted=(), released=0, kept=())
            if output == "json":
                console.show_json(nothing)
            else:
                console.out.print("Unwind is not installed.")
            return
        if not yes:
            _confirm(seen, delete_crds=delete_crds)
        outcome = await uninstalling.uninstall(
            client, setting, seen, delete_crds=delete_crds, announce=console.announce
        )
    if output == "json":
        console.show_json(outcome)
        return
    for item in outcome.kept:
        console.out.print(f"kept {item}", markup=False)
    console.out.print(
        f"deleted {len(outcome.deleted)}, finalizers removed {outcome.released}, kept {len(outcome.kept)}"
    )


def _confirm(seen: uninstalling.InstalledState, *, delete_crds: bool) -> None:
    if not sys.stdin.isatty():
        raise UnwindError("cannot ask for confirmation: stdin is not a terminal", remedy="use --yes")
    along = sum(crd.objects for crd in seen.crds)
    console.err.print(
        f"{len(seen.bearers)} objects lose Unwind's finalizers; {len(seen.objects)} objects of Unwind are deleted."
    )
    for crd in seen.crds:
        fate = "is deleted" if delete_crds or not crd.objects else "is kept"
        console.err.print(f"CustomResourceDefinition {crd.name} {fate}: {crd.objects} objects")
    if delete_crds and along:
        console.err.print(f"[bold red]{along} custom resources are deleted with their CRDs.[/bold red]")
    try:
        answer = console.err.input("Continue? (yes/no) ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise UnwindError("aborted: nothing was changed")
