"""The steps of the demo, from an empty machine to a deleted cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unwind.api.capi import CLUSTERS
from unwind.api.unwind import TEARDOWNS, StepState, Teardown
from unwind.concurrency import to_tell
from unwind.demo import scenario
from unwind.demo.stage import set_up
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, UnreachableError
from unwind.render.picture import of_plan
from unwind.render.terminal import rendered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from rich.console import Console, RenderableType

    from unwind.api.resources import Resource
    from unwind.api.unwind import Blocker
    from unwind.demo.stage import DemoStage
    from unwind.kube.client import Object
    from unwind.local.build import ProgressListener

# Without input, how long the blocked state is shown.
_LOOKED_AT = 5.0
_RETRY = 0.2
_LONG = 240.0
# With its group, because other systems have a kind Cluster as well.
_DELETE = f"kubectl delete {CLUSTERS.plural}.{CLUSTERS.group} {scenario.CLUSTER} -n {scenario.NAMESPACE} --wait=false"
_HOOK = "BeforeClusterDelete: "
_SAID = {
    StepState.REMOVING.value: "is being removed",
    StepState.REMOVED.value: "removed (verified absent)",
    StepState.LEFT.value: "is left in place, as its profile says",
    StepState.GIVEN_UP.value: "was given up",
}


async def tell(console: Console, progress: ProgressListener, *, ask: bool, keep: bool) -> None:
    """Run the demo. `ask`: wait for key presses. `keep`: keep everything running until Ctrl-C."""
    try:
        await _tell(console, progress, ask=ask, keep=keep)
    except ExceptionGroup as failures:
        raise to_tell(failures) from None


async def _tell(console: Console, progress: ProgressListener, *, ask: bool, keep: bool) -> None:
    began = time.monotonic()
    _heading(console, "Setup: a local control plane, Cluster API, a cluster with nodes, Unwind")
    async with set_up(progress, announce=lambda line: _said(console, line)) as stage:
        cluster = await stage.cluster()
        count = await stage.deployed()
        _said(console, f"Cluster {_name()} is running with {len(scenario.PROFILES)} add-ons ({count} objects)")
        await _refusal(console, stage)
        await _deletion(console, stage, cluster, ask=ask)
        console.print(Text(f"\nTotal time, including setup: {time.monotonic() - began:.0f}s", "bright_black"))
        if keep:
            await _stay(console, stage)


async def _refusal(console: Console, stage: DemoStage) -> None:
    _heading(console, "Deletion protection: a protected namespace cannot be deleted")
    await stage.until_protected()
    said = Text(await _run(console, stage, f"kubectl delete namespace {scenario.PROTECTED}", refused=True), style="red")
    if console.is_terminal:
        console.print(Padding(said, (0, 0, 0, 2)), soft_wrap=False)
    else:
        console.print(Text("  ") + said)


async def _deletion(console: Console, stage: DemoStage, cluster: Object, *, ask: bool) -> None:
    _heading(console, "Cluster deletion: add-ons are removed in dependency order, and the cluster waits")
    uid = cluster["metadata"]["uid"]
    addons = {entry.object.uid for chunk in await stage.inventories() for entry in chunk.spec.entries.values()}
    await _run(console, stage, _DELETE)
    console.print()
    with Show(console, f"Cluster {_name()} is being deleted") as show:
        record = await _watched(stage, show, uid, ask=ask)
        seconds = show.seconds
    console.print()
    console.print(summary(record, show.ended))
    console.print()
    removed, _, of = record.status.removed.partition("/")
    left = f"{record.status.left} left in place" if record.status.left else "nothing left behind"
    _said(console, f"{removed} of {of} objects removed (verified absent) in {seconds:.0f}s, {left}")
    for chunk in await stage.inventories():
        for entry in chunk.spec.entries.values():
            if entry.ledger:
                _said(console, f"left in place: {entry.object} ({entry.ledger.message}; decided by {entry.ledger.by})")
    _said(console, f"remaining load balancers: {stage.load_balancers}")
    later = stage.infrastructure_after(addons)
    _said(console, f"Cluster API deleted the infrastructure {later:.1f}s after the last add-on (from the audit logs)")
    _said(console, f"Cluster {_name()} is gone")


async def _run(console: Console, stage: DemoStage, command: str, *, refused: bool = False) -> str:
    """Run a command as printed and return its output; raises UnwindError on an unexpected exit code."""
    _typed(console, command)
    code, said = await stage.kubectl(command)
    if (code != 0) is not refused:
        raise UnwindError(f"`{command}` exited with {code}", remedy=said)
    return said


async def _watched(stage: DemoStage, show: Show, uid: str, *, ask: bool) -> Teardown:
    """Show the progress until the cluster is gone; returns the final Teardown."""
    gone, held = asyncio.Event(), asyncio.Event()
    last: list[Teardown] = []

    def recorded(obj: Object) -> None:
        last.append(msgspec.convert(obj, Teardown))
        show.teardown(last[-1])
        if any(scenario.BACKUP in blocker.message for blocker in last[-1].status.blockers):
            held.set()

    def seen(obj: Object | None) -> None:
        show.hook(obj)
        if obj is None or obj["metadata"]["uid"] != uid:
            gone.set()

    async with asyncio.timeout(_LONG), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_follow(stage, TEARDOWNS, uid, lambda obj: recorded(obj) if obj else None)),
            group.create_task(_follow(stage, CLUSTERS, scenario.CLUSTER, seen, namespace=scenario.NAMESPACE)),
            group.create_task(_release(stage, show, held, ask=ask)),
        ]
        await gone.wait()
        for task in tasks:
            task.cancel()
    found = await stage.client.get(TEARDOWNS, uid)
    recorded(found)
    if not last[-1].finished:
        raise UnwindError(f"the Teardown ended in phase {last[-1].status.phase}", remedy=f"see {stage.log}")
    return last[-1]


async def _follow(
    stage: DemoStage,
    resource: Resource,
    name: str,
    seen: Callable[[Object | None], None],
    *,
    namespace: str | None = None,
) -> None:
    while True:
        try:
            async with aclosing(stage.client.watch(resource, namespace=namespace, name=name)) as events:
                async for event in events:
                    if event.type == "DELETED":
                        seen(None)
                    elif event.type in ("ADDED", "MODIFIED"):
                        seen(event.object)
        except (ApiError, UnreachableError):
            pass  # watches end from time to time
        await asyncio.sleep(_RETRY)


async def _release(stage: DemoStage, show: Show, held: asyncio.Event, *, ask: bool) -> None:
    """When the finalizer without controller blocks the teardown, remove it, as an administrator would."""
    await held.wait()
    # Short, because the terminal truncates long lines.
    if ask:
        show.ask("Press Enter when the orders are backed up")
        async with _key_press() as pressed:
            await pressed
    else:
        show.ask(f"The orders are backed up in {_LOOKED_AT:.0f} s")
        await asyncio.sleep(_LOOKED_AT)
    await stage.let_go()
    show.ask("")


@asynccontextmanager
async def _key_press() -> AsyncIterator[Awaitable[str]]:
    """The next line from standard input."""
    loop = asyncio.get_running_loop()
    pressed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        line = sys.stdin.readline()
        if not pressed.done():
            pressed.set_result(line)

    loop.add_reader(sys.stdin.fileno(), read)
    try:
        yield pressed
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def _stay(console: Console, stage: DemoStage) -> None:
    """Create another cluster and print commands to try, until Ctrl-C."""
    await stage.clear_member()
    await stage.cluster()
    _heading(
        console,
        "The control plane keeps running until Ctrl-C, with another cluster of the same name. In another terminal:",
    )
    for line in (
        f"export KUBECONFIG={stage.plane.management.kubeconfig}",
        f"unwind plan cluster/{scenario.CLUSTER} -n {scenario.NAMESPACE}",
        _DELETE,
        "unwind status --watch",
        f"unwind why cluster/{scenario.CLUSTER} -n {scenario.NAMESPACE}",
        "unwind ledger",
    ):
        console.print(Text(f"  {line}"))
    await asyncio.Event().wait()


def _name() -> str:
    return f"{scenario.NAMESPACE}/{scenario.CLUSTER}"


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _typed(console: Console, command: str) -> None:
    console.print(Text.assemble(("  $ ", "bright_black"), command))


def _said(console: Console, line: str) -> None:
    if not console.is_terminal:
        console.print(Text(f"  {line}"))
        return
    said = Table.grid(padding=(0, 1, 0, 0))
    said.add_row(Text("  ✓", style="green"), Text(line))
    console.print(said, soft_wrap=False)


def hook_message(cluster: Object | None) -> str:
    """The hook's last response to Cluster API, from the conditions of the Cluster."""
    conditions = ((cluster or {}).get("status") or {}).get("conditions") or []
    told: Object = next((condition for condition in conditions if condition["type"] == "TopologyReconciled"), {})
    _, found, message = " ".join(str(told.get("message", "")).split()).partition(_HOOK)
    return message if found else ""


class Show:
    """The live view of a cluster's deletion; use it as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._teardown: Teardown | None = None
        self._hook = ""
        self._ask = ""
        self._states: dict[str, str] = {}
        self._told: set[str] = set()
        self._live: Live | None = None
        self.ended: dict[str, float] = {}
        """The finished steps, with the seconds each took."""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._drawn, console=self._console, refresh_per_second=8, vertical_overflow="visible"
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ask = ""
        if self._live:
            self._live.stop()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def teardown(self, teardown: Teardown) -> None:
        """Show the progress of the teardown."""
        self._teardown = teardown
        for step in teardown.status.steps:
            if self._states.get(step.name) == step.state:
                continue
            self._states[step.name] = step.state
            if step.state in (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP):
                self.ended[step.name] = self.seconds
            if said := _SAID.get(step.state):
                self._line(f"{step.name} {said}")
        for blocker in teardown.status.blockers:
            if blocker.actor:  # otherwise it is not diagnosed yet, and would be shown twice
                self._once(f"blocked: {_told(blocker)}")

    def hook(self, cluster: Object | None) -> None:
        """Show the last hook response."""
        message = hook_message(cluster)
        if message != self._hook:
            self._hook = message
            if message:
                self._once(f"hook response to Cluster API: {message}")

    def ask(self, text: str) -> None:
        """Show a prompt until the next one."""
        self._ask = text
        if text:
            self._line(text)

    def _once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._line(line)

    def _line(self, line: str) -> None:
        if self._live is None:
            self._console.print(f"{self.seconds:6.1f} s  {line}", markup=False)

    def _drawn(self) -> RenderableType:
        teardown = self._teardown
        if teardown is None or teardown.spec.plan is None:
            return Text(f"{self._title}: planning …", style="bold")
        status = teardown.status
        subtitle = f"{self.seconds:.0f} s · wave {status.wave or '?'} · {status.removed or '0'} objects removed"
        parts: list[RenderableType] = [
            rendered(of_plan(self._title, teardown.spec.plan, subtitle=subtitle, teardown=teardown)),
            Text(),
        ]
        said = Table.grid(padding=(0, 2, 0, 0))
        said.add_column(justify="right", no_wrap=True)
        said.add_column(overflow="fold")
        # The picture already shows the blockers: here is only who must act on the first one.
        if status.blockers and status.blockers[0].actor:
            said.add_row(Text("  must act", style="bold red"), status.blockers[0].actor)
        if told := self._hook.partition(";")[0] or ("the cluster may be deleted" if teardown.finished else ""):
            said.add_row(Text("  hook response", style="bold cyan"), told)
        parts.append(said)
        if self._ask:
            parts += [Text(), Text(f"  → {self._ask}", style="bold yellow")]
        return Group(*parts)


def _told(blocker: Blocker) -> str:
    told = blocker.message or str(blocker.object)
    return f"{told} (must act: {blocker.actor})" if blocker.actor else told


def summary(teardown: Teardown, ended: dict[str, float]) -> Table:
    """A table of the steps in order, with their times."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("WAVE", "ADD-ON", "OBJECTS", "AFTER", "RESULT"):
        table.add_column(heading, justify="right" if heading in ("OBJECTS", "AFTER") else "left")
    plan, states = teardown.spec.plan, {step.name: step for step in teardown.status.steps}
    for step in plan.steps if plan else ():
        now = states.get(step.name)
        after = f"{ended[step.name]:.1f} s" if step.name in ended else ""
        table.add_row(
            str(step.wave), step.name.rpartition("/")[2], str(step.objects), after, _became(now.state if now else "")
        )
    return table


def _became(state: str) -> Text:
    words = {
        StepState.REMOVED.value: ("removed (verified absent)", "green"),
        StepState.LEFT.value: ("left in place, recorded in the ledger", "bright_black"),
        StepState.GIVEN_UP.value: ("given up, recorded in the ledger", "yellow"),
    }
    return Text(*words.get(state, (state, "")))
