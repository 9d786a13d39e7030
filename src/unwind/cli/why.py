"""`unwind why`: explain why an object is not deleted or cannot be deleted, and what to do."""

from __future__ import annotations

import shlex
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from unwind.cli import arguments, console
from unwind.cli.arguments import Context, Flag, Kubeconfig, Output
from unwind.clock import SYSTEM
from unwind.errors import UnwindError, UsageError
from unwind.kube import discovery
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.members import cluster_lookup
from unwind.members.members import Members
from unwind.render.text import counted, plain, span
from unwind.why.answers import AnswerState, Effect, Kubectl
from unwind.why.diagnosis import why as ask
from unwind.why.reachable_clusters import ReachableCluster
from unwind.why.stuck import OLDER_THAN, find_stuck

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from unwind.why.answers import Answer, Link, Remedy
    from unwind.why.stuck import StuckReport

_COLOURS = {
    AnswerState.HELD: "bold yellow",
    AnswerState.GOING: "bold green",
    AnswerState.REFUSED: "bold red",
    AnswerState.DELETABLE: "bold green",
    AnswerState.NOT_KNOWN: "bold yellow",
}
_MARKS = {Effect.SAFE: "green", Effect.LOOKS: "cyan", Effect.DELETES: "red", Effect.LEAVES: "yellow"}


async def why(
    target: Annotated[
        str | None,
        Parameter(name="KIND/NAME", help="The object: cluster/prod-7, deploy/web, ns/shop, crd/pools.example.dev."),
    ] = None,
    /,
    *,
    stuck: Annotated[
        Flag, Parameter(help="Instead of one object: everything that has been terminating for a while.")
    ] = False,
    all_clusters: Annotated[Flag, Parameter(help="With --stuck: also on all member clusters.")] = False,
    older_than: Annotated[
        str | None, Parameter(help="With --stuck: what has been terminating for longer (90s, 2h); default: 10m.")
    ] = None,
    namespace: arguments.Place = None,
    cluster: Annotated[
        str | None,
        Parameter(help="The member cluster of the object: NAME or NAMESPACE/NAME of its cluster object here."),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Output = "table",
) -> None:
    """Explain why an object is not gone or cannot be deleted, who must act, and which command unblocks it.

    Works for any object and changes nothing: whether an object can be deleted is checked with a dry run. Each command
    is marked as safe, or with what it leaves behind. With --stuck, explain everything that does not go away; -n limits
    that to a namespace. Exit codes: 0 answered; 1 the object is not found or the cluster is unreachable.
    """
    age = _check(target, stuck=stuck, all_clusters=all_clusters, cluster=cluster, older_than=older_than)
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(connection, user_agent="unwind-why"))
        fleet = await stack.enter_async_context(Members(client))
        place = ReachableCluster(client, kubectl=kubectl_options(kubeconfig, context), fleet=fleet)
        if cluster:
            anchor = await cluster_lookup.find_cluster(client, place.discovery, cluster)
            place = await stack.enter_async_context(place.reached(anchor))
        if target is None:
            report = await find_stuck(place, older_than=age, namespace=namespace, members=all_clusters)
            if output == "json":
                console.show_json(msgspec.to_builtins(report))
            else:
                console.out.print(stuck_text(report, now=datetime.now(UTC)))
            return
        # The namespace of a member's kubeconfig context is not the user's choice.
        otherwise = "default" if cluster else connection.namespace
        named = await arguments.resolve_target(
            place.client, place.discovery, target, namespace=namespace, otherwise=otherwise
        )
        try:
            answer = await ask(place, named, clock=SYSTEM)
        except NotFoundError:
            on = f" on {place.name}" if cluster else ""
            raise UnwindError(f"{named} not found{on}", remedy=_elsewhere(named)) from None
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n")
        return
    _show(answer)


def _check(
    target: str | None, *, stuck: bool, all_clusters: bool, cluster: str | None, older_than: str | None
) -> timedelta:
    """The age for --stuck. Raises UsageError before any request if the arguments do not fit together."""
    if target is not None:
        if stuck:
            raise UsageError("--stuck does not apply to one object", remedy="omit KIND/NAME or --stuck")
        discovery.split(target)
    elif not stuck:
        raise UsageError("no object given", remedy="use KIND/NAME, such as ns/shop, or --stuck")
    if not stuck and (all_clusters or older_than):
        raise UsageError("--all-clusters and --older-than need --stuck", remedy="omit them, or use --stuck")
    if all_clusters and cluster:
        raise UsageError("--cluster and --all-clusters exclude each other", remedy="use one of them")
    return arguments.duration(older_than, option="--older-than") if older_than else OLDER_THAN


def stuck_text(report: StuckReport, *, now: datetime) -> Text:
    """Everything that is stuck, as text: the longest first, each with the first remedy."""
    out = Text()
    for stuck in report.objects:
        where = f" on {stuck.cluster}" if stuck.cluster else ""
        out.append(f"{plain(str(stuck.object))}{plain(where)}", style="bold")
        out.append(f", terminating for {span((now - stuck.since).total_seconds())}\n")
        out.append(f"  {plain(stuck.why)}\n", style=_COLOURS[stuck.state])
        if stuck.actor:
            out.append(f"  must act: {plain(stuck.actor)}\n", style="dim")
        for remedy in stuck.remedies[:1]:
            out.append("  ").append(remedy.effect.value, style=_MARKS[remedy.effect])
            out.append(f": {plain(remedy.about)}\n")
            for command in remedy.commands:
                out.append(f"    {plain(command)}\n")
        out.append("\n")
    long = span(report.older_than_seconds)
    said = f"{counted(len(report.objects), 'object')} terminating for longer than {long}"
    out.append(f"{said}, {counted(report.clusters, 'cluster')} examined", style="bold")
    for silent in report.unanswered:
        out.append(f"\n{plain(silent.cluster)} not examined: {plain(silent.message)}", style="yellow")
    for unlisted in report.unlisted:
        where = f" on {unlisted.cluster}" if unlisted.cluster else ""
        out.append(f"\nnot listed{plain(where)}: {plain(', '.join(unlisted.kinds))} ({plain(unlisted.message)})", "dim")
    for note in report.notes:
        out.append(f"\nnote: {plain(note)}", style="dim")
    return out


def kubectl_options(kubeconfig: Path | None, context: str | None) -> Kubectl:
    """The kubectl prefix for printed commands, with the same kubeconfig and context."""
    options: list[str] = []
    if kubeconfig:
        options += ["--kubeconfig", shlex.quote(str(kubeconfig))]
    if context:
        options += ["--context", shlex.quote(context)]
    return Kubectl(options=tuple(options))


def _elsewhere(named: discovery.Named) -> str:
    return "look in another namespace with -n" if named.namespace else ""


def _show(answer: Answer) -> None:
    out = console.out
    out.print(Text(answer.verdict, style=_COLOURS[answer.state]))
    if answer.since:
        out.print(Text(f"deletion requested {console.age(answer.since.timestamp())} ago", style="dim"))
    if answer.chain:
        out.print(Text("\nwhy", style="bold"))
        for link in answer.chain:
            _show_link(link)
    _show_remedies(answer)
    for note in answer.notes:
        out.print(Text(f"note: {note}", style="dim"))


def _show_link(link: Link) -> None:
    indent = "  " * (link.depth + 1)
    where = f" (on {link.cluster})" if link.cluster else ""
    console.out.print(Text.assemble(indent, (f"{link.object}{where}", "bold"), f": {link.message}"))
    told = []
    if link.since:
        told.append(f"since {console.age(link.since.timestamp())}")
    if link.actor:
        told.append(f"must act: {link.actor}")
    if told:
        console.out.print(Text(f"{indent}  {', '.join(told)}", style="dim"))


def _show_remedies(answer: Answer) -> None:
    if not answer.remedies and not answer.only:
        return
    console.out.print(Text("\nwhat to do", style="bold"))
    if answer.only:
        console.out.print(Text(f"  no command available: {answer.only}"))
    for remedy in answer.remedies:
        _show_remedy(remedy)


def _show_remedy(remedy: Remedy) -> None:
    by = f" (for {remedy.by})" if remedy.by else ""
    mark = (remedy.effect.value, _MARKS[remedy.effect])
    console.out.print(Text.assemble("  ", mark, f": {remedy.about}{by}"))
    for command in remedy.commands:
        console.out.print(Text(f"    {command}"))
    if remedy.afterwards:
        console.out.print(Text("    then, when it is gone:", style="dim"))
        for command in remedy.afterwards:
            console.out.print(Text(f"    {command}"))
