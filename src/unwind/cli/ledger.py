"""`unwind ledger`: what was ever left behind, why, by whose decision, when."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from unwind.api.meta import ObjectRef
from unwind.api.names import SET_ASIDE_ANNOTATION
from unwind.api.unwind import INVENTORIES, TEARDOWNS, EntryState, Inventory, Release, Teardown
from unwind.cli import console, documents, records
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube import views
from unwind.kube.client import Client
from unwind.picturing.text import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from rich.console import RenderableType

Form = Literal["table", "json", "yaml"]

# Each has up to 500 entries in it.
_AT_ONCE = 50


class Left(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One object that was knowingly left behind."""

    cluster: str
    """The cluster that it is on, for people."""
    object: ObjectRef
    owner: str = ""
    """What had put it there."""
    kept: bool = False
    """On purpose; otherwise it should have gone, and somebody let its cluster go before."""
    reason: str
    message: str = ""
    by: str
    at: datetime | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A target that was let go before everything was removed."""

    target: ObjectRef
    title: str
    left: int = 0
    release: Release


class SetAside(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Teardown that has the place of a record, and that the manager did not write."""

    teardown: str
    target: ObjectRef
    message: str = ""


class Ledger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that is written down."""

    released: tuple[Released, ...] = ()
    left: tuple[Left, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


async def ledger(
    cluster: Annotated[
        str | None,
        Parameter(
            name="CLUSTER",
            help="Only of this one: NAME, NAMESPACE/NAME or KIND/NAME; it may be gone already.",
            completer=records.names,
        ),
    ] = None,
    /,
    *,
    namespace: Annotated[
        str | None, Parameter(name=["--namespace", "-n"], help="Only of clusters in this namespace.")
    ] = None,
    output: Annotated[Form, Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show what was knowingly left behind: each object with the reason, who decided it, and when.

    It is told from the inventories and the Teardowns; those go some days after their end (`unwind run
    --keep-teardowns`), and the ledger with them.
    """
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-ledger") as client:
        whole = await read(client, cluster, namespace)
    if output == "json":
        console.show_json(msgspec.to_builtins(whole))
    elif output == "yaml":
        documents.show([msgspec.to_builtins(whole)], "yaml")
    elif whole.left or whole.released or whole.set_aside:
        console.show(table(whole))
    else:
        console.announce(f"Nothing was left behind{records.described(cluster, namespace)}.")


async def read(client: Client, cluster: str | None, namespace: str | None) -> Ledger:
    """What is written down of a cluster, or of all; the latest first."""
    found = await records.listed(client, TEARDOWNS)
    every_one = records.readable(found)
    teardowns = records.chosen(every_one, cluster, namespace)
    # A cluster that went may be asked for by the name of its Teardown, too: that is its uid.
    uids = {one.spec.target.uid for one in teardowns}
    left: list[Left] = []
    async with aclosing(inventories(client)) as every:
        async for inventory in every:
            member = inventory.spec.member.object
            if records.meant(member, cluster, namespace) or member.uid in uids:
                left += of_inventory(inventory)
    return Ledger(
        released=tuple(sorted(map(_released, filter(_was_released, teardowns)), key=_when_released, reverse=True)),
        left=tuple(sorted(left, key=_when_left, reverse=True)),
        set_aside=tuple(
            SetAside(
                teardown=one.metadata.name,
                target=one.spec.target,
                message=one.metadata.annotations.get(SET_ASIDE_ANNOTATION, ""),
            )
            for one in every_one
            if records.is_set_aside(one) and records.meant(one.spec.target, cluster, namespace)
        ),
    )


async def inventories(client: Client, *, labels: str = "") -> AsyncGenerator[Inventory, None]:
    """The inventories of all namespaces, one after the other: they can be many and large. One that cannot be read is
    told of, and stops nobody from seeing the others."""
    async with aclosing(client.pages(INVENTORIES, labels=labels, limit=_AT_ONCE)) as pages:
        async for page in pages:
            for item in page.items or ():
                try:
                    inventory = msgspec.json.decode(item, type=Inventory)
                except msgspec.ValidationError as error:
                    where = views.stamp_of(item).key
                    console.announce(f"Inventory {where} cannot be read ({error}): what is in it is not shown")
                    continue
                yield inventory


def of_inventory(inventory: Inventory) -> Iterable[Left]:
    """What was left of one inventory."""
    for entry in inventory.spec.entries.values():
        note = entry.ledger
        if note is not None:
            yield Left(
                cluster=str(inventory.spec.member.object),
                object=entry.object,
                owner=str(inventory.spec.owner),
                kept=entry.kept or entry.adopted,
                reason=note.reason,
                message=note.message,
                by=note.by,
                at=note.at,
            )


def standing(inventory: Inventory) -> list[ObjectRef]:
    """What of an inventory is there still, as far as is written down, and would be left now."""
    return [
        entry.object
        for entry in inventory.spec.entries.values()
        if entry.state != EntryState.REMOVED and entry.ledger is None
    ]


def table(whole: Ledger) -> RenderableType:
    """The ledger for people: who let what go, then each object."""
    parts: list[RenderableType] = []
    for one in whole.released:
        release = one.release
        said = Text.assemble((one.title, "bold"), f" was let go by {release.by}")
        said.append(f"{_on(release.at)} ({release.reason}): {release.message}")
        if one.left:
            said.append(f"; {counted(one.left, 'object')} left behind", style="yellow")
        parts.append(said)
    parts += [Text(f"{one.target}: {one.message}") for one in whole.set_aside]
    if parts and whole.left:
        parts.append(Text())
    if whole.left:
        parts.append(_objects(whole.left))
    return Group(*parts)


def _objects(left: Sequence[Left]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("CLUSTER", "OBJECT", "WHY", "BY"):
        shown.add_column(heading, overflow="fold")
    shown.add_column("WHEN", no_wrap=True)
    for one in left:
        why = f"{one.reason}: {one.message}" if one.message else one.reason
        when = one.at.strftime("%Y-%m-%d %H:%M") if one.at else ""
        # None of it is markup, whatever is in it.
        shown.add_row(*(Text(cell) for cell in (one.cluster, str(one.object), why, one.by, when)))
    return shown


def _on(at: datetime | None) -> str:
    return f" on {at:%Y-%m-%d at %H:%M} UTC" if at else ""


def _was_released(teardown: Teardown) -> bool:
    return teardown.status.release is not None


def _released(teardown: Teardown) -> Released:
    status = teardown.status
    return Released(
        target=teardown.spec.target,
        title=teardown.spec.title,
        left=status.left,
        release=status.release or Release(),
    )


def _when_released(one: Released) -> tuple[float, str]:
    return _seconds(one.release.at), one.title


def _when_left(one: Left) -> tuple[float, str, str]:
    return _seconds(one.at), one.cluster, str(one.object)


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
