"""`unwind uninstall`: take Unwind out of a cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from unwind.api.rights import HOME, Setting
from unwind.cli import console
from unwind.cli.install import Context, Kubeconfig, Namespace  # noqa: TC001 - cyclopts reads the annotations
from unwind.errors import UnwindError
from unwind.installing import uninstall as uninstalling
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client


async def uninstall(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = HOME,
    delete_crds: Annotated[
        bool, Parameter(negative="", help="Delete our CRDs even if there are objects of them, which go along.")
    ] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
) -> None:
    """Take back what install has put there, and our finalizers from every object.

    It refuses while a Teardown is not finished or a manager runs. CRDs of which there are objects stay.
    """
    setting = Setting(namespace=namespace)
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-uninstall") as client:
        seen = await uninstalling.survey(client, setting)
        if not (seen.crds or seen.bearers or seen.objects or seen.adopted):
            nothing = uninstalling.Outcome(deleted=(), released=0, kept=())
            if output == "json":
                console.show_json(nothing)
            else:
                console.out.print("Nothing of Unwind is here.")
            return
        if not yes:
            _confirm(seen, delete_crds=delete_crds)
        outcome = await uninstalling.uninstall(
            client, setting, seen, delete_crds=delete_crds, announce=console.announce
        )
    if output == "json":
        console.show_json(outcome)
        return
    for one in outcome.kept:
        console.out.print(f"kept {one}", markup=False)
    console.out.print(f"deleted {len(outcome.deleted)}, let go {outcome.released}, kept {len(outcome.kept)}")


def _confirm(seen: uninstalling.Survey, *, delete_crds: bool) -> None:
    if not sys.stdin.isatty():
        raise UnwindError("nobody is there to ask", remedy="say --yes")
    along = sum(crd.objects for crd in seen.crds)
    console.err.print(f"{len(seen.bearers)} objects lose Unwind's finalizers; {len(seen.objects)} objects of ours go.")
    for crd in seen.crds:
        fate = "goes" if delete_crds or not crd.objects else "stays"
        console.err.print(f"CustomResourceDefinition {crd.name} {fate}: {crd.objects} objects")
    if delete_crds and along:
        console.err.print(f"[bold red]{along} objects go along with their CRDs.[/bold red]")
    try:
        answer = console.err.input("Go ahead? (yes/no) ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise UnwindError("nothing was done")
