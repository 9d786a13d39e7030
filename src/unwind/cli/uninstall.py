"""`unwind uninstall`: remove Unwind from a cluster."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unwind.api.resources import DEPLOYMENTS
from unwind.api.rights import HOME, Setting
from unwind.cli import console
from unwind.cli.arguments import Context, Flag, InstalledNamespace, Kubeconfig, Output, Yes
from unwind.errors import UnwindError
from unwind.install import uninstall as uninstalling
from unwind.install import uninstall_preconditions
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.events import Recorder, Regarding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TERMINATION_LOG = Path("/dev/termination-log")
"""The kubelet shows its content in the status of the Pod."""


async def uninstall(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: InstalledNamespace = HOME,
    delete_crds: Annotated[
        Flag, Parameter(help="Delete Unwind's CRDs even if custom resources exist, which are deleted with them.")
    ] = False,
    leave_addons: Annotated[
        Flag,
        Parameter(help="Uninstall although objects are deployed that must be removed before their cluster is deleted."),
    ] = False,
    in_cluster: Annotated[
        Flag,
        Parameter(
            help="Delete only what the manager created, as the chart does before `helm uninstall` deletes the rest."
        ),
    ] = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Remove what install created, and Unwind's finalizers from all objects.

    Refuses while a Teardown is unfinished, while objects are deployed that must be removed before their cluster is
    deleted, and while a manager runs outside the cluster. A manager in the cluster is stopped. CRDs that have custom
    resources are kept.
    """
    setting = Setting(namespace=namespace)
    async with (
        Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-uninstall") as client,
        _reported(client, namespace, in_cluster=in_cluster),
    ):
        seen = await uninstalling.survey(client, setting, leave_addons=leave_addons, of_chart=in_cluster)
        if not (seen.crds or seen.bearers or seen.objects or seen.adopted or in_cluster):
            nothing = uninstalling.UninstallResult(deleted=(), released=0, kept=())
            if output == "json":
                console.show_json(nothing)
            else:
                console.out.print("Unwind is not installed.")
            return
        if not (yes or in_cluster):
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


@asynccontextmanager
async def _reported(client: Client, namespace: str, *, in_cluster: bool) -> AsyncIterator[None]:
    """In the cluster, report why it failed in an Event and in the termination message of the Pod."""
    try:
        yield
    except UnwindError as error:
        if in_cluster:
            with suppress(OSError):
                await asyncio.to_thread(_TERMINATION_LOG.write_text, f"{error}\n")
            # An Event that cannot be written must not hide the error.
            with suppress(UnwindError):
                await _write_event(client, namespace, str(error))
        raise


async def _write_event(client: Client, namespace: str, message: str) -> None:
    if found := await uninstall_preconditions.manager_deployment(client, namespace):
        metadata = found["metadata"]
        kind = DEPLOYMENTS
        about = Regarding(kind.api_version, kind.kind, metadata["name"], metadata["uid"], namespace)
        recorder = Recorder(client, instance="unwind-uninstall")
        recorder.report(about, "UninstallRefused", message, action="Uninstall", type="Warning")
        await recorder.write()


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
