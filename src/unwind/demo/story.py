"""The steps of the demo, from an empty machine to a deleted cluster."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
from rich.padding import Padding
from rich.text import Text

from unwind.api.capi import CLUSTERS
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.concurrency import to_tell
from unwind.demo import scenario
from unwind.demo.show import Show, follow, heading, invite, release, say, summary, typed
from unwind.demo.stage import set_up
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from rich.console import Console

    from unwind.demo.stage import DemoStage
    from unwind.kube.client import Object
    from unwind.local.build import ProgressListener

_LONG = 240.0
# With its group, because other systems have a kind Cluster as well.
_DELETE = f"kubectl delete {CLUSTERS.plural}.{CLUSTERS.group} {scenario.CLUSTER} -n {scenario.NAMESPACE} --wait=false"


async def tell(console: Console, progress: ProgressListener, *, ask: bool, keep: bool) -> None:
    """Run the demo. `ask`: wait for key presses. `keep`: keep everything running until Ctrl-C."""
    try:
        await _tell(console, progress, ask=ask, keep=keep)
    except ExceptionGroup as failures:
        raise to_tell(failures) from None


async def _tell(console: Console, progress: ProgressListener, *, ask: bool, keep: bool) -> None:
    began = time.monotonic()
    heading(console, "Setup: a local control plane, Cluster API, a cluster with nodes, Unwind")
    async with set_up(progress, announce=lambda line: say(console, line)) as stage:
        cluster = await stage.cluster()
        count = await stage.deployed()
        say(console, f"Cluster {_name()} is running with {len(scenario.PROFILES)} add-ons ({count} objects)")
        invite(console, stage.plane.management.kubeconfig)
        await _refusal(console, stage)
        await _deletion(console, stage, cluster, ask=ask)
        console.print(Text(f"\nTotal time, including setup: {time.monotonic() - began:.0f}s", "bright_black"))
        if keep:
            await _stay(console, stage)


async def _refusal(console: Console, stage: DemoStage) -> None:
    heading(console, "Deletion protection: a protected namespace cannot be deleted")
    await stage.until_protected()
    said = Text(await _run(console, stage, f"kubectl delete namespace {scenario.PROTECTED}", refused=True), style="red")
    if console.is_terminal:
        console.print(Padding(said, (0, 0, 0, 2)), soft_wrap=False)
    else:
        console.print(Text("  ") + said)


async def _deletion(console: Console, stage: DemoStage, cluster: Object, *, ask: bool) -> None:
    heading(console, "Cluster deletion: add-ons are removed in dependency order, and the cluster waits")
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
    say(console, f"{removed} of {of} objects removed (verified absent) in {seconds:.0f}s, {left}")
    for chunk in await stage.inventories():
        for entry in chunk.spec.entries.values():
            if entry.ledger:
                say(console, f"left in place: {entry.object} ({entry.ledger.message}; decided by {entry.ledger.by})")
    say(console, f"remaining load balancers: {stage.load_balancers}")
    later = stage.infrastructure_after(addons)
    say(console, f"Cluster API deleted the infrastructure {later:.1f}s after the last add-on (from the audit logs)")
    say(console, f"Cluster {_name()} is gone")


async def _run(console: Console, stage: DemoStage, command: str, *, refused: bool = False) -> str:
    """Run a command as printed and return its output; raises UnwindError on an unexpected exit code."""
    typed(console, command)
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
            group.create_task(follow(stage.client, TEARDOWNS, uid, lambda obj: recorded(obj) if obj else None)),
            group.create_task(follow(stage.client, CLUSTERS, scenario.CLUSTER, seen, namespace=scenario.NAMESPACE)),
            group.create_task(release(stage.let_go, show, held, ask=ask)),
        ]
        await gone.wait()
        for task in tasks:
            task.cancel()
    found = await stage.client.get(TEARDOWNS, uid)
    recorded(found)
    if not last[-1].finished:
        raise UnwindError(f"the Teardown ended in phase {last[-1].status.phase}", remedy=f"see {stage.log}")
    return last[-1]


async def _stay(console: Console, stage: DemoStage) -> None:
    """Create another cluster and print commands to try, until Ctrl-C."""
    await stage.clear_member()
    await stage.cluster()
    heading(
        console,
        "The control plane keeps running until Ctrl-C, with another cluster of the same name. In another terminal:",
    )
    for line in (
        f"export KUBECONFIG={stage.plane.management.kubeconfig}",
        f"unwind plan cluster/{scenario.CLUSTER} -n {scenario.NAMESPACE}",
        _DELETE,
        "unwind dashboard",
        "unwind status --watch",
        f"unwind why cluster/{scenario.CLUSTER} -n {scenario.NAMESPACE}",
        "unwind ledger",
    ):
        console.print(Text(f"  {line}"))
    await asyncio.Event().wait()


def _name() -> str:
    return f"{scenario.NAMESPACE}/{scenario.CLUSTER}"
