"""`unwind status`: how far teardowns are, what they wait for, and who must act."""

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
from unwind.cli import console, documents, records, words
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.errors import TimedOutError, UnwindError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube import views
from unwind.kube.client import Client
from unwind.kube.informers import Informer
from unwind.picturing import teardowns as shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from unwind.kube.cache import Change
    from unwind.kube.client import Object

Target = Annotated[
    str | None,
    Parameter(
        name="CLUSTER",
        help="Only this one: NAME, NAMESPACE/NAME, KIND/NAME, or the name of a Teardown.",
        completer=records.names,
    ),
]
Form = Literal["table", "wide", "json", "yaml"]


async def status(
    cluster: Target = None,
    /,
    *,
    namespace: Annotated[
        str | None, Parameter(name=["--namespace", "-n"], help="Only what is, or was, in this namespace.")
    ] = None,
    watch: Annotated[
        bool,
        Parameter(
            name=["--watch", "-w"],
            negative="",
            help="Go on telling what changes; with CLUSTER until its teardown is finished.",
        ),
    ] = False,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str | None, Parameter(help="With --watch: stop after this span (90s, 10m), and exit with 3.")
    ] = None,
    output: Annotated[Form, Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show teardowns: how far each is, what it waits for, since when, and who must act.

    With CLUSTER, its waves and steps as well. In a pipe, --watch prints a line for each change, and nothing else; with
    -o json or yaml, each Teardown whenever it changes.
    """
    within = span(timeout, option="--timeout")
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-status") as client:
        every = await records.listed(client, TEARDOWNS)
        if watch:
            await _watch(client, _Choice(cluster, namespace), output, within)
            return
    found = records.picked(every, cluster, namespace)
    if not found and (cluster is not None or output in ("table", "wide")):
        _nothing(cluster, namespace, some=bool(every))
        return
    if output in ("json", "yaml"):
        documents.show([plain(one) for one in found], output)
        return
    console.show(_picture(records.readable(found), cluster, output))


def span(text: str | None, *, option: str) -> float | None:
    """How many seconds a person allows; None if they said nothing."""
    if text is None:
        return None
    return words.span(text, option=option).total_seconds()


def plain(obj: Object) -> Object:
    """An object without what only the API server looks at, and with its kind, which items of a list do not have."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, **obj, "metadata": metadata}


def _nothing(cluster: str | None, namespace: str | None, *, some: bool) -> None:
    if cluster is not None:
        remedy = "`unwind status` lists those there are" if some else "nothing is, or was lately, taken apart here"
        raise UnwindError(f"there is no teardown{records.described(cluster, namespace)}", remedy=remedy)
    console.announce(f"There are no teardowns{records.described(None, namespace)}.")


def _picture(teardowns: list[Teardown], cluster: str | None, output: Form) -> RenderableType:
    now = datetime.now(UTC)
    if cluster is None or output == "wide":
        return shown.overview(teardowns, now=now, wide=output == "wide")
    parts: list[RenderableType] = []
    for one in shown.ordered(teardowns):
        parts += [Text(), shown.detail(one, now=now)] if parts else [shown.detail(one, now=now)]
    return Group(*parts)


class _Choice:
    """What a person asked for."""

    def __init__(self, cluster: str | None, namespace: str | None) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def of(self, informer: Informer[Teardown]) -> list[Teardown]:
        return records.chosen(informer.cache, self.cluster, self.namespace)

    def over(self, informer: Informer[Teardown]) -> bool:
        """Whether there is nothing more to be seen: somebody asked for one, and it is finished."""
        mine = self.of(informer)
        return self.cluster is not None and bool(mine) and all(one.finished for one in mine)


async def _watch(client: Client, choice: _Choice, output: Form, within: float | None) -> None:
    """Follow them, told by the server, until there is nothing more to be seen."""
    changed = asyncio.Event()
    told: list[str] = []

    def troubled(error: Exception) -> None:
        # Said once, and not at every try: the view goes on from where it was by itself.
        if str(error) not in told:
            told.append(str(error))
            console.announce(f"the server does not answer, it is tried again: {error}")

    informer = Informer(client, views.typed(TEARDOWNS, Teardown), troubled=troubled)
    live = console.out.is_terminal and output in ("table", "wide")
    try:
        async with asyncio.timeout(within), _following(informer):
            await informer.until_synced()
            await (_live if live else _piped)(informer, choice, output, changed)
    except TimeoutError:
        what = f"the teardown{records.described(choice.cluster, choice.namespace)}"
        raise TimedOutError(
            f"{what} was not finished in time" if choice.cluster else "the time for watching is over",
            remedy="`unwind status` says what it waits for",
        ) from None


@asynccontextmanager
async def _following(informer: Informer[Teardown]) -> AsyncIterator[None]:
    """Have it follow the server as long as the body lasts."""
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    following = tasks.create_task(informer.run())
    try:
        yield
    finally:
        following.cancel()
        # What was raised in the body goes on by itself, and not in a group: `head` may have closed the pipe.
        await tasks.__aexit__(None, None, None)


async def _live(informer: Informer[Teardown], choice: _Choice, output: Form, changed: asyncio.Event) -> None:
    def picture() -> RenderableType:
        teardowns = choice.of(informer)
        if teardowns:
            return _picture(teardowns, choice.cluster, output)
        return Text(f"There are no teardowns{records.described(choice.cluster, choice.namespace)}: waiting for one.")

    # Ages go on by themselves, so it is drawn once a second; what happened is drawn at once.
    with Live(get_renderable=picture, console=console.out, refresh_per_second=1) as live:
        informer.subscribe(lambda _: changed.set())
        while not choice.over(informer):
            await changed.wait()
            changed.clear()
            live.refresh()


async def _piped(informer: Informer[Teardown], choice: _Choice, output: Form, changed: asyncio.Event) -> None:
    """What changed, as lines; each is written out at once, because somebody reads along."""
    happened: list[Change[Teardown]] = []

    def note(change: Change[Teardown]) -> None:
        happened.append(change)
        changed.set()

    informer.subscribe(note)
    while True:
        # Asked before the lines are written: what comes meanwhile is told as well.
        over = choice.over(informer)
        while happened:
            change = happened.pop(0)
            if change.new and records.chosen([change.new], choice.cluster, choice.namespace):
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
        return [documents.as_yaml([_object(new)]).rstrip()]
    return list(shown.changes(old, new))


def _object(teardown: Teardown) -> Object:
    body: Object = msgspec.to_builtins(teardown)
    return {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, **body}
