"""What the demo prints: headings, commands, the live view of a deletion, and the prompt while it is held."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import time
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unwind.api.unwind import StepState
from unwind.kube.errors import ApiError, UnreachableError
from unwind.render.picture import of_plan
from unwind.render.terminal import rendered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from rich.console import Console, RenderableType

    from unwind.api.resources import Resource
    from unwind.api.unwind import Blocker, Teardown
    from unwind.kube.client import Client, Object

# Without input, how long the blocked state is shown.
_LOOKED_AT = 5.0
_RETRY = 0.2
_HOOK = "BeforeClusterDelete: "
_SAID = {
    StepState.REMOVING.value: "is being removed",
    StepState.REMOVED.value: "removed (verified absent)",
    StepState.LEFT.value: "is left in place, as its profile says",
    StepState.GIVEN_UP.value: "was given up",
}


def heading(console: Console, text: str) -> None:
    """Print a heading."""
    console.print(Text(f"\n{text}", style="bold"))


def typed(console: Console, command: str) -> None:
    """Print a command as a user types it."""
    console.print(Text.assemble(("  $ ", "bright_black"), command))


def say(console: Console, line: str) -> None:
    """Print what was done."""
    if not console.is_terminal:
        console.print(Text(f"  {line}"))
        return
    said = Table.grid(padding=(0, 1, 0, 0))
    said.add_row(Text("  ✓", style="green"), Text(line))
    console.print(said, soft_wrap=False)


def invite(console: Console, kubeconfig: Path) -> None:
    """Print the command that shows the demo in a browser, as it works in another terminal."""
    command = f"{own_command()} dashboard --kubeconfig {shlex.quote(str(kubeconfig))}"
    console.print(
        Text.assemble("\nTo follow the deletion in a browser, run in another terminal:\n  ", (command, "bold"))
    )


def own_command() -> str:
    """How a shell in the current directory starts this program."""
    program = Path(sys.argv[0])
    found = shutil.which(program.name)
    if found and Path(found).resolve() == program.resolve():
        return program.name
    return shlex.quote(str(program))


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
        wave = f" · wave {status.wave}" if status.wave else ""
        subtitle = f"{self.seconds:.0f} s{wave} · {status.removed or '0'} objects removed"
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


def summary(teardown: Teardown, ended: dict[str, float], *, title: str = "ADD-ON") -> Table:
    """A table of the steps in order, with their times. `title`: what a step is."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("WAVE", title, "OBJECTS", "AFTER", "RESULT"):
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


async def follow(
    client: Client,
    resource: Resource,
    name: str | None,
    seen: Callable[[Object | None], None],
    *,
    namespace: str | None = None,
) -> None:
    """Watch one object, or all of a kind, and report each change until cancelled."""
    while True:
        try:
            async with aclosing(client.watch(resource, namespace=namespace, name=name)) as events:
                async for event in events:
                    if event.type == "DELETED":
                        seen(None)
                    elif event.type in ("ADDED", "MODIFIED"):
                        seen(event.object)
        except (ApiError, UnreachableError):
            pass  # watches end from time to time
        await asyncio.sleep(_RETRY)


async def release(let_go: Callable[[], Awaitable[None]], show: Show, held: asyncio.Event, *, ask: bool) -> None:
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
    await let_go()
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
