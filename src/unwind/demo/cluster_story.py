"""The steps of the demo on an existing cluster: a refused deletion, a preview, an ordered deletion, the clean-up."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from rich.padding import Padding
from rich.text import Text

from unwind.api.unwind import TEARDOWNS, Phase, StepState, StepStatus, Teardown
from unwind.concurrency import to_tell
from unwind.demo import scenario
from unwind.demo.cluster_stage import set_up
from unwind.demo.show import Show, follow, heading, release, say, summary, typed
from unwind.errors import UnwindError
from unwind.render.picture import of_plan
from unwind.render.terminal import rendered

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from rich.console import Console

    from unwind.demo.cluster_objects import DemoRun
    from unwind.demo.cluster_stage import ClusterStage
    from unwind.kube.client import Client, Object
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.preview.object_preview import Foreseen

_LONG = 240.0
_LOOK_AGAIN = 0.3
_HELD = f"blocked by finalizer {scenario.BACKUP}"


async def tell(console: Console, connection: ClusterConnection, client: Client, run: DemoRun, *, ask: bool) -> None:
    """Run the demo on an existing cluster, and delete all of its objects. `ask`: wait for key presses."""
    try:
        await _tell(console, connection, client, run, ask=ask)
    except ExceptionGroup as failures:
        raise to_tell(failures) from None


async def _tell(console: Console, connection: ClusterConnection, client: Client, run: DemoRun, *, ask: bool) -> None:
    began = time.monotonic()
    heading(console, "Setup: Unwind, and a namespace with a web shop")
    async with set_up(connection, client, run, announce=lambda line: _announce(console, line)) as stage:
        await _refusal(console, stage)
        seen = await _preview(console, stage)
        await stage.grant(seen)
        await _deletion(console, stage, seen, ask=ask)
        heading(console, "Clean-up: nothing of the demo stays on the cluster")
    console.print(Text(f"\nTotal time, including setup: {time.monotonic() - began:.0f}s", "bright_black"))


async def _refusal(console: Console, stage: ClusterStage) -> None:
    heading(console, "Deletion protection: a protected namespace cannot be deleted")
    typed(console, f"kubectl delete namespace {stage.run.protected}")
    said = Text(await stage.refusal(), style="red")
    if console.is_terminal:
        console.print(Padding(said, (0, 0, 0, 2)), soft_wrap=False)
    else:
        console.print(Text("  ") + said)


async def _preview(console: Console, stage: ClusterStage) -> Foreseen:
    heading(console, "Preview: what a deletion would remove, in order. Nothing is deleted")
    typed(console, f"unwind plan ns/{stage.run.shop}")
    seen = await stage.preview()
    console.print(rendered(of_plan(seen.title, seen.plan)))
    say(console, f"{seen.radius.total} objects, with those that Kubernetes deletes with their owners")
    return seen


async def _deletion(console: Console, stage: ClusterStage, seen: Foreseen, *, ask: bool) -> None:
    heading(console, "Deletion: databases are removed while their operator runs, and each object is verified absent")
    typed(console, f"unwind delete ns/{stage.run.shop}")
    console.print()
    with Show(console, f"{seen.title} is being deleted") as show:
        record = await _watched(stage, show, seen, ask=ask)
        seconds = show.seconds
    console.print()
    console.print(summary(record, show.ended, title="STAGE"))
    console.print()
    removed, _, of = record.status.removed.partition("/")
    say(console, f"{removed} of {of} objects removed (verified absent) in {seconds:.0f}s")
    say(console, f"{seen.title} is gone")


async def _watched(stage: ClusterStage, show: Show, seen: Foreseen, *, ask: bool) -> Teardown:
    """Request the deletion, and show the progress until it is finished; returns the final record by stages."""
    held, over = asyncio.Event(), asyncio.Event()
    gone: set[str] = set()
    record = await stage.delete(seen)

    def progressed() -> None:
        show.teardown(by_stages(record, seen, gone))
        if any(_HELD in blocker.message for blocker in record.status.blockers):
            held.set()
        if record.finished:
            over.set()

    def recorded(obj: Object | None) -> None:
        nonlocal record
        if obj is None:
            raise UnwindError(f"Teardown {record.metadata.name} was deleted", remedy="run the demo again")
        record = msgspec.convert(obj, Teardown)
        progressed()

    async def look() -> None:
        nonlocal gone
        while True:
            gone = await stage.absent(seen, gone)
            progressed()
            await asyncio.sleep(_LOOK_AGAIN)

    async with asyncio.timeout(_LONG), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(follow(stage.client, TEARDOWNS, record.metadata.name, recorded)),
            group.create_task(look()),
            group.create_task(release(stage.let_go, show, held, ask=ask)),
        ]
        await over.wait()
        for task in tasks:
            task.cancel()
    if record.phase is not Phase.COMPLETE:
        message = record.status.blocked_by or record.status.phase
        raise UnwindError(f"the deletion of {seen.title} ended early: {message}", remedy=f"see {stage.log}")
    final = by_stages(record, seen, gone)
    show.teardown(final)
    return final


def by_stages(record: Teardown, seen: Foreseen, gone: AbstractSet[str]) -> Teardown:
    """A requested Teardown, which has one step, with the stages of its preview as steps (pure). `gone`: uids."""
    stages: dict[str, str] = {}
    steps: list[StepStatus] = []
    before = bool(gone) or bool(record.status.started_at)
    for step in seen.plan.steps:
        uids = {ref.uid for ref in seen.objects[step.name]}
        stages |= dict.fromkeys(uids, step.name)
        removed = step.objects if record.finished else len(uids & gone)
        state = StepState.REMOVED if removed == step.objects else StepState.REMOVING if before else StepState.WAITING
        steps.append(StepStatus(name=step.name, state=state.value, removed=removed))
        before = before and state is StepState.REMOVED
    blockers = tuple(
        msgspec.structs.replace(blocker, step=stages.get(blocker.object.uid, "")) for blocker in record.status.blockers
    )
    status = msgspec.structs.replace(record.status, steps=tuple(steps), blockers=blockers, wave="")
    return msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, plan=seen.plan), status=status)


def _announce(console: Console, line: str) -> None:
    with suppress(OSError):  # the terminal was closed: the clean-up must not fail for that
        say(console, line)
