"""`unwind demo`: a demonstration on a local control plane, or on an existing cluster."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

from cyclopts import Parameter

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.cli import console
from unwind.cli.arguments import Context, Flag, Kubeconfig
from unwind.cli.local import BuildProgress
from unwind.demo import cluster_objects, cluster_stage, cluster_story, story
from unwind.demo.cluster_objects import DemoRun
from unwind.errors import UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client


async def demo(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    yes: Annotated[Flag, Parameter(name=["--yes", "-y"], help="Do not ask before the cluster is changed.")] = False,
    no_input: Annotated[Flag, Parameter(name="--no-input", help="Continue automatically after a few seconds.")] = False,
    keep: Annotated[
        Flag, Parameter(help="Keep the control plane running at the end, with another cluster, until Ctrl-C.")
    ] = False,
    clean_up: Annotated[Flag, Parameter(help="Delete what an interrupted demo left on an existing cluster.")] = False,
) -> None:
    """Show what Unwind does. Takes about a minute.

    By default the demo starts a local control plane with Cluster API, and deletes a cluster with add-ons. With
    --kubeconfig or --context it runs on an existing cluster, in namespaces of its own: protection, preview and ordered
    deletion of a namespace. It asks first, needs the rights of cluster-admin, and deletes everything that it created.
    """
    if kubeconfig is None and context is None and not clean_up:
        if yes:
            raise UsageError("--yes requires --kubeconfig or --context", remedy="omit --yes, or name a cluster")
        with BuildProgress() as progress:
            await story.tell(console.out, progress, ask=_is_interactive(no_input), keep=keep)
        return
    if keep:
        raise UsageError("--keep cannot be used with an existing cluster", remedy="omit --keep")
    # A closed terminal ends the demo like Ctrl-C, so that nothing stays on the cluster.
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-demo") as client:
        if clean_up:
            await _clean_up(client, yes=yes)
            return
        version = await cluster_stage.check(client)
        run = DemoRun.new()
        _introduce(connection.server, version, context, run)
        _confirm(yes=yes)
        await cluster_story.tell(console.out, connection, client, run, ask=_is_interactive(no_input))


def _is_interactive(no_input: bool) -> bool:
    return sys.stdin.isatty() and not no_input


def _introduce(server: str, version: str, context: str | None, run: DemoRun) -> None:
    named = f"context {context}, " if context else ""
    kinds: dict[str, list[str]] = {}
    objects = [*cluster_objects.installed(run), *cluster_objects.furniture(run), *cluster_objects.rights(run, ())]
    for resource, obj in objects:
        if not resource.namespaced:
            kinds.setdefault(resource.kind, []).append(obj["metadata"]["name"])
    console.err.print(f"The demo runs on an existing cluster: {named}{server}, Kubernetes {version}.", markup=False)
    console.err.print("It creates these objects, and deletes them at the end, also if it fails or you press Ctrl-C:")
    for kind in (NAMESPACES.kind, CUSTOM_RESOURCE_DEFINITIONS.kind):
        console.err.print(f"  {kind}: {', '.join(kinds.pop(kind))}", markup=False)
    rest = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    console.err.print(f"  and, with {run.home} in their names: {rest}", markup=False)
    console.err.print(
        "It changes no other object. Cluster API, add-ons and member clusters are not shown here:\n"
        "for these, run `unwind demo` without --kubeconfig, which starts a control plane on this machine.",
        markup=False,
    )


def _confirm(*, yes: bool) -> None:
    if not yes:
        console.confirm("Continue? (yes/no) ", expected="yes")


async def _clean_up(client: Client, *, yes: bool) -> None:
    found = await cluster_stage.find(client)
    if not found:
        console.out.print("No object of a demo exists.")
        return
    await cluster_stage.refuse_running(client, found)
    console.err.print("These objects of a demo are deleted, and all content of these namespaces:")
    for resource, obj in found:
        console.err.print(f"  {resource.kind} {obj['metadata']['name']}", markup=False)
    _confirm(yes=yes)
    await cluster_stage.clean_up(client, console.announce)
