"""`unwind ledger`: list the objects that were left behind, why, by whose decision and when."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from unwind.api.meta import ObjectRef, find
from unwind.api.names import SET_ASIDE_ANNOTATION, ConditionType
from unwind.api.unwind import INVENTORIES, TEARDOWNS, EntryState, Inventory, Release, Teardown
from unwind.cli import console, teardowns
from unwind.cli.archives import ArchiveOption, read_archive
from unwind.cli.arguments import OUTPUT, Context, Flag, Kubeconfig
from unwind.drain import rules
from unwind.kube import decoding
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from rich.console import RenderableType

    from unwind.teardown.archive_documents import ArchivedTeardown, LeftObject

Form = Literal["table", "json", "yaml"]

# Inventories per page; each holds up to 500 entries.
_AT_ONCE = 50


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One object that was left behind by decision."""

    cluster: str
    """The cluster of the object, as display text."""
    object: ObjectRef
    owner: str = ""
    """The owner that deployed it."""
    kept: bool = False
    """Kept on purpose. If false, it should have been removed, but its cluster was force-released first."""
    removed: bool = False
    """Not left behind: it is gone, and the entry records what Unwind did for that, such as removing the finalizer of
    an operator that was not running."""
    costs: str = ""
    """What it stands for outside the cluster, and who created it, if it costs money."""
    reason: str
    message: str = ""
    by: str
    at: datetime | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A target that was force-released before everything was removed."""

    target: ObjectRef
    title: str
    left: int = 0
    release: Release


class SetAside(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Teardown with the name of a record that the manager did not write."""

    teardown: str
    target: ObjectRef
    message: str = ""


class NotVerified(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A cluster whose gate opened although a check failed."""

    target: ObjectRef
    title: str
    reason: str
    message: str = ""
    at: datetime | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything recorded as released, left behind, not verified or set aside."""

    released: tuple[Released, ...] = ()
    left: tuple[LedgerRow, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    not_verified: tuple[NotVerified, ...] = ()


async def ledger(
    cluster: Annotated[
        str | None,
        Parameter(
            name="CLUSTER",
            help="Show only this cluster: NAME, NAMESPACE/NAME or KIND/NAME; it may be gone already.",
            completer=teardowns.complete_teardowns,
        ),
    ] = None,
    /,
    *,
    namespace: Annotated[
        str | None, Parameter(name=["--namespace", "-n"], help="Show only clusters in this namespace.")
    ] = None,
    costs: Annotated[
        Flag, Parameter(help="Show only objects that cost money: load balancers, volumes, node pools.")
    ] = False,
    output: Annotated[Form, OUTPUT] = "table",
    archive: ArchiveOption = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List the objects that were left behind, each with the reason, the decision maker and the time.

    Read from Inventories and Teardowns, which are deleted some days after they finish (`unwind run --keep-teardowns`),
    or from an archive of finished Teardowns (`unwind run --archive`).
    """
    if archive:
        whole = archived_ledger(read_archive(archive, kubeconfig=kubeconfig, context=context), cluster, namespace)
    else:
        async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-ledger") as client:
            whole = await read_ledger(client, cluster, namespace)
    if costs:
        whole = Ledger(left=tuple(row for row in whole.left if row.costs))
    if output == "json":
        console.show_json(msgspec.to_builtins(whole))
    elif output == "yaml":
        console.show_objects([msgspec.to_builtins(whole)], "yaml")
    elif whole.left or whole.released or whole.set_aside or whole.not_verified:
        console.show(ledger_table(whole, costs=costs))
    else:
        what = "Nothing that costs money was" if costs else "No objects were"
        console.announce(f"{what} left behind{teardowns.selection_suffix(cluster, namespace)}.")


async def read_ledger(client: Client, cluster: str | None, namespace: str | None) -> Ledger:
    """The ledger of a cluster, or of all clusters; the latest entries first."""
    found = await teardowns.list_kind(client, TEARDOWNS)
    every_one = teardowns.readable(found)
    selected = teardowns.chosen(every_one, cluster, namespace)
    # A deleted cluster may also be given by the name of its Teardown, which is its uid.
    uids = {teardown.spec.target.uid for teardown in selected}
    left: list[LedgerRow] = []
    async with aclosing(inventories(client)) as every:
        async for inventory in every:
            member = inventory.spec.member.object
            if teardowns.is_selected(member, cluster, namespace) or member.uid in uids:
                left += of_inventory(inventory)
    return _assembled(every_one, selected, left, cluster, namespace)


def archived_ledger(documents: Iterable[ArchivedTeardown], cluster: str | None, namespace: str | None) -> Ledger:
    """The ledger of an archive: as that of a cluster, but of all Teardowns that have finished."""
    by_uid = {document.teardown.metadata.uid: document for document in documents}
    every_one = [document.teardown for document in by_uid.values()]
    selected = teardowns.chosen(every_one, cluster, namespace)
    chosen = {teardown.metadata.uid for teardown in selected}
    # A withdrawal from a cluster and its deletion may both have an object in their ledgers.
    left = dict.fromkeys(
        _left_row(line)
        for uid, document in by_uid.items()
        for line in document.ledger
        if uid in chosen or teardowns.is_selected(line.cluster, cluster, namespace)
    )
    return _assembled(every_one, selected, list(left), cluster, namespace)


def _left_row(line: LeftObject) -> LedgerRow:
    return LedgerRow(
        cluster=str(line.cluster),
        object=line.object,
        owner=str(line.owner),
        kept=line.kept,
        removed=line.removed,
        costs=_costs(line.owner, line.object, line.source),
        reason=line.reason,
        message=line.message,
        by=line.by,
        at=line.at,
    )


def _assembled(
    every_one: list[Teardown],
    selected: list[Teardown],
    left: list[LedgerRow],
    cluster: str | None,
    namespace: str | None,
) -> Ledger:
    return Ledger(
        released=tuple(sorted(map(_released, filter(_was_released, selected)), key=_when_released, reverse=True)),
        left=tuple(sorted(left, key=_when_left, reverse=True)),
        set_aside=tuple(
            SetAside(
                teardown=item.metadata.name,
                target=item.spec.target,
                message=item.metadata.annotations.get(SET_ASIDE_ANNOTATION, ""),
            )
            for item in every_one
            if teardowns.is_set_aside(item) and teardowns.is_selected(item.spec.target, cluster, namespace)
        ),
        not_verified=tuple(
            NotVerified(
                target=item.spec.target,
                title=item.spec.title,
                reason=said.reason,
                message=said.message,
                at=said.last_transition_time,
            )
            for item in selected
            if (said := find(item.status.conditions, ConditionType.NOT_VERIFIED))
        ),
    )


async def inventories(
    client: Client, *, labels: str = "", unreadable: Callable[[str], None] = console.announce
) -> AsyncGenerator[Inventory, None]:
    """The inventories of all namespaces, one at a time, because they can be many and large. One that cannot be read
    is reported to `unreadable` and skipped."""
    async with aclosing(client.pages(INVENTORIES, labels=labels, limit=_AT_ONCE)) as pages:
        async for page in pages:
            for item in page.items or ():
                try:
                    inventory = msgspec.json.decode(item, type=Inventory)
                except msgspec.ValidationError as error:
                    where = decoding.stamp_of(item).key
                    unreadable(
                        f"cannot read Inventory {where}, its entries are not shown: {error}; look at it with"
                        " `kubectl get inventories -A`"
                    )
                    continue
                yield inventory


def of_inventory(inventory: Inventory) -> Iterable[LedgerRow]:
    """The ledger entries of one inventory."""
    for entry in inventory.spec.entries.values():
        note = entry.ledger
        removed = entry.state == EntryState.REMOVED
        if note is not None and not (note.provisional and removed):
            yield LedgerRow(
                cluster=str(inventory.spec.member.object),
                object=entry.object,
                owner=str(inventory.spec.owner),
                kept=entry.kept or entry.adopted,
                removed=removed,
                costs=_costs(inventory.spec.owner, entry.object, entry.source),
                reason=note.reason,
                message=note.message,
                by=note.by,
                at=note.at,
            )


# Besides what drains record. Whether a Service has a load balancer is not recorded.
_COSTLY = frozenset({"PersistentVolumeClaim", "PersistentVolume", "Ingress", "Gateway", "NodePool"})


def _costs(owner: ObjectRef, ref: ObjectRef, source: str) -> str:
    if owner.group == INVENTORIES.group and owner.kind == rules.KIND:
        return source or ref.kind
    return ref.kind if ref.kind in _COSTLY else ""


def standing(inventory: Inventory) -> list[ObjectRef]:
    """The objects of an inventory that are not recorded as removed, and would be left behind now."""
    return [
        entry.object
        for entry in inventory.spec.entries.values()
        if entry.state != EntryState.REMOVED and not entry.left
    ]


def ledger_table(whole: Ledger, *, costs: bool = False) -> RenderableType:
    """The ledger as text: force-releases first, then each object. `costs`: with what it stands for."""
    parts: list[RenderableType] = []
    for item in whole.released:
        release = item.release
        said = Text.assemble((item.title, "bold"), f" was released by {release.by}")
        said.append(f"{_on(release.at)} ({release.reason}): {release.message}")
        if item.left:
            said.append(f"; {counted(item.left, 'object')} left behind", style="yellow")
        parts.append(said)
    parts += [
        Text.assemble((item.title, "bold"), f" was deleted{_on(item.at)} although a check failed: {item.message}")
        for item in whole.not_verified
    ]
    parts += [Text(f"{item.target}: {item.message}") for item in whole.set_aside]
    if parts and whole.left:
        parts.append(Text())
    if whole.left:
        parts.append(_objects(whole.left, costs=costs))
    return Group(*parts)


def _objects(left: Sequence[LedgerRow], *, costs: bool) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("CLUSTER", "OBJECT", *(["COSTS"] if costs else []), "REASON", "BY"):
        shown.add_column(heading, overflow="fold")
    shown.add_column("TIME", no_wrap=True)
    for row in left:
        why = f"{row.reason}: {row.message}" if row.message else row.reason
        when = row.at.strftime("%Y-%m-%d %H:%M") if row.at else ""
        # Cells are plain text, never markup.
        shown.add_row(
            *(Text(cell) for cell in (row.cluster, str(row.object), *([row.costs] if costs else []), why, row.by, when))
        )
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


def _when_left(one: LedgerRow) -> tuple[float, str, str]:
    return _seconds(one.at), one.cluster, str(one.object)


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
