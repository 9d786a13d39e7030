"""`unwind status`: progress and blockers of teardowns."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.live import Live
from rich.text import Text

from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.cli import arguments, console, teardowns
from unwind.cli.archives import ArchiveOption, read_archive
from unwind.cli.arguments import Context, Flag, Kubeconfig
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import decoding
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.informers import Informer
from unwind.render import teardowns as shown
from unwind.render.timeline_rows import timeline_chart, timeline_document
from unwind.render.timeline_svg import timeline_svg
from unwind.render.timeline_text import TimelineText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.render.timeline_rows import TimelineChart
    from unwind.teardown.archive_documents import ArchivedTeardown

Target = Annotated[
    str | None,
    Parameter(
        name="CLUSTER",
        help="Show only this one: NAME, NAMESPACE/NAME, KIND/NAME, or the name of a Teardown.",
        completer=teardowns.complete_teardowns,
    ),
]
Form = Literal["table", "wide", "json", "yaml", "svg"]


async def status(
    cluster: Target = None,
    /,
    *,
    namespace: Annotated[
        str | None, Parameter(name=["--namespace", "-n"], help="Show only targets in this namespace.")
    ] = None,
    watch: Annotated[
        Flag, Parameter(name=["--watch", "-w"], help="Watch for changes; with CLUSTER, until its teardown is finished.")
    ] = False,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str | None, Parameter(help="With --watch: stop after this duration (90s, 10m) and exit with 3.")
    ] = None,
    timeline: Annotated[
        Flag, Parameter(help="With CLUSTER: show how long each step took, what it waited for, and the critical path.")
    ] = False,
    output: Annotated[
        Form, Parameter(name=["--output", "-o"], help="Output format; svg draws the --timeline of one teardown.")
    ] = "table",
    archive: ArchiveOption = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show teardowns: progress, blockers, since when, and which controller or user must act.

    With CLUSTER, show its waves and steps too, and what is being withdrawn from it. In a pipe, --watch prints a line
    per change; with -o json or yaml, it prints each Teardown when it changes.
    """
    _check(cluster, watch=watch, timeline=timeline, output=output)
    if archive:
        documents = read_archive(archive, watch=watch, timeout=timeout, kubeconfig=kubeconfig, context=context)
        _show_archived(documents, cluster, namespace, timeline=timeline, output=output)
        return
    within = seconds_of(timeout, option="--timeout")
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-status") as client:
        every = await teardowns.list_kind(client, TEARDOWNS)
        if watch:
            await _watch(client, _Choice(cluster, namespace), output, within)
            return
    found = teardowns.picked(every, cluster, namespace)
    if not found and (cluster is not None or output in ("table", "wide")):
        _nothing(cluster, namespace, some=bool(every))
        return
    if timeline:
        now = datetime.now(UTC)
        _show_timelines({item.metadata.name: timeline_chart(item, now=now) for item in readable(found)}, output)
        return
    if output in ("json", "yaml"):
        console.show_objects([plain_object(item) for item in found], output)
        return
    console.show(_picture(teardowns.readable(found), cluster, output))


def _check(cluster: str | None, *, watch: bool, timeline: bool, output: Form) -> None:
    """Refuse options that cannot be used together."""
    if timeline and cluster is None:
        raise UsageError("--timeline needs CLUSTER", remedy="list teardowns with `unwind status`")
    if timeline and watch:
        raise UsageError("--timeline cannot be used with --watch", remedy="use one of them")
    if output == "svg" and not timeline:
        raise UsageError("-o svg needs --timeline", remedy="`unwind plan -o svg` draws the waves of a deletion")


def _show_archived(
    documents: list[ArchivedTeardown], cluster: str | None, namespace: str | None, *, timeline: bool, output: Form
) -> None:
    """Show the Teardowns of an archive as those of a cluster."""
    by_uid = {item.teardown.metadata.uid: item for item in documents}
    every = [item.teardown for item in by_uid.values()]
    found = teardowns.chosen(every, cluster, namespace, finished=False)
    if not found and (cluster is not None or output in ("table", "wide")):
        _nothing(cluster, namespace, some=bool(every), where="the archive")
        return
    if timeline:
        now = datetime.now(UTC)
        charts = {
            item.metadata.name: timeline_chart(item, now=now, more=by_uid[item.metadata.uid].timeline)
            for item in shown.ordered(found)
        }
        _show_timelines(charts, output)
    elif output in ("json", "yaml"):
        console.show_objects([_object(item) for item in found], output)
    else:
        console.show(_picture(found, cluster, output))


def readable(found: list[Object]) -> list[Teardown]:
    """The decoded Teardowns, in the order in which they are shown."""
    return shown.ordered(teardowns.readable(found))


def _show_timelines(charts: dict[str, TimelineChart], output: Form) -> None:
    """Show timelines, by the names of their Teardowns."""
    if output == "svg":
        if len(charts) > 1:
            raise UnwindError(
                f"cannot draw {len(charts)} teardowns as one SVG",
                remedy=f"use the name of one Teardown: {', '.join(charts)}",
            )
        sys.stdout.writelines(map(timeline_svg, charts.values()))
    elif output == "json":
        console.show_json([timeline_document(chart) for chart in charts.values()])
    elif output == "yaml":
        console.show_objects([timeline_document(chart) for chart in charts.values()], "yaml")
    else:
        parts: list[RenderableType] = []
        for chart in charts.values():
            parts += [Text()] if parts else []
            parts.append(TimelineText(chart, every=output == "wide"))
        console.show(Group(*parts))


def seconds_of(text: str | None, *, option: str) -> float | None:
    """A duration option in seconds; None if it is not set."""
    if text is None:
        return None
    return arguments.duration(text, option=option).total_seconds()


def plain_object(obj: Object) -> Object:
    """The object without managedFields, and with apiVersion and kind, which items of a list lack."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, **obj, "metadata": metadata}


def _nothing(cluster: str | None, namespace: str | None, *, some: bool, where: str = "this cluster") -> None:
    if cluster is not None:
        remedy = "list teardowns with `unwind status`" if some else f"{where} has no teardowns"
        raise UnwindError(f"no teardown{teardowns.selection_suffix(cluster, namespace)} found", remedy=remedy)
    console.announce(f"No teardowns found{teardowns.selection_suffix(None, namespace)}.")


def _picture(teardowns: list[Teardown], cluster: str | None, output: Form) -> RenderableType:
    now = datetime.now(UTC)
    if cluster is None or output == "wide":
        return shown.overview(teardowns, now=now, wide=output == "wide")
    parts: list[RenderableType] = []
    for item in shown.ordered(teardowns):
        parts += [Text(), shown.detail(item, now=now)] if parts else [shown.detail(item, now=now)]
    return Group(*parts)


class _Choice:
    """The selected targets."""

    def __init__(self, cluster: str | None, namespace: str | None) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def of(self, informer: Informer[Teardown]) -> list[Teardown]:
        """The Teardowns to show. Finished withdrawals from a cluster are not among those of the cluster."""
        return teardowns.chosen(informer.cache, self.cluster, self.namespace, finished=False)

    def over(self, informer: Informer[Teardown]) -> bool:
        """Whether the watch can end: one target is selected, and its teardowns are finished."""
        mine = teardowns.chosen(informer.cache, self.cluster, self.namespace)
        return self.cluster is not None and bool(mine) and all(item.finished for item in mine)


async def _watch(client: Client, choice: _Choice, output: Form, within: float | None) -> None:
    """Watch the selected teardowns until they are finished or the time is over."""
    changed = asyncio.Event()
    told: list[str] = []

    def troubled(error: Exception) -> None:
        # Print each error once, not at every retry: the watch resumes by itself.
        if str(error) not in told:
            told.append(str(error))
            console.announce(f"watch failed, will retry: {error}")

    informer = Informer(client, decoding.typed(TEARDOWNS, Teardown), troubled=troubled)
    live = console.out.is_terminal and output in ("table", "wide")
    try:
        async with asyncio.timeout(within), _following(informer):
            await informer.until_synced()
            await (_live if live else _piped)(informer, choice, output, changed)
    except TimeoutError:
        what = f"the teardown{teardowns.selection_suffix(choice.cluster, choice.namespace)}"
        raise TimedOutError(
            f"timed out waiting for {what} to finish" if choice.cluster else "watch timed out",
            remedy="see what it waits for with `unwind status`",
        ) from None


@asynccontextmanager
async def _following(informer: Informer[Teardown]) -> AsyncIterator[None]:
    """Run the informer while the body runs."""
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    following = tasks.create_task(informer.run())
    try:
        yield
    finally:
        following.cancel()
        # An exception of the body propagates by itself, not in a group: `head` may have closed the pipe.
        await tasks.__aexit__(None, None, None)


async def _live(informer: Informer[Teardown], choice: _Choice, output: Form, changed: asyncio.Event) -> None:
    def picture() -> RenderableType:
        selected = choice.of(informer)
        if selected:
            return _picture(selected, choice.cluster, output)
        return Text(f"No teardowns found{teardowns.selection_suffix(choice.cluster, choice.namespace)}; waiting.")

    # Redrawn once a second because ages advance; changes are drawn at once.
    with Live(get_renderable=picture, console=console.out, refresh_per_second=1) as live:
        informer.subscribe(lambda _: changed.set())
        while not choice.over(informer):
            await changed.wait()
            changed.clear()
            live.refresh()


async def _piped(informer: Informer[Teardown], choice: _Choice, output: Form, changed: asyncio.Event) -> None:
    """Print changes as lines, flushed at once for the reader of the pipe."""
    happened: list[Change[Teardown]] = []

    def note(change: Change[Teardown]) -> None:
        happened.append(change)
        changed.set()

    informer.subscribe(note)
    while True:
        # Evaluated before the lines are written, so that changes that arrive meanwhile are printed as well.
        over = choice.over(informer)
        while happened:
            change = happened.pop(0)
            if change.new and teardowns.chosen([change.new], choice.cluster, choice.namespace):
                sys.stdout.writelines(f"{line}\n" for line in _lines(change.old, change.new, output))
        sys.stdout.flush()
        if over:
            return
        await changed.wait()
        changed.clear()


def _lines(old: Teardown | None, new: Teardown, output: Form) -> list[str]:
    if output == "json":
        return [msgspec.json.encode(_object(new)).decode()]
    if output == "yaml":
        return [console.as_yaml([_object(new)]).rstrip()]
    return list(shown.changes(old, new))


def _object(teardown: Teardown) -> Object:
    body: Object = msgspec.to_builtins(teardown)
    return {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, **body}
