"""Teardowns for commands: list and select them by their target, and follow the progress of one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.live import Live
from rich.text import Text

from unwind.api.meta import ObjectRef
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
from unwind.cli import console
from unwind.concurrency import to_tell
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, NotFoundError
from unwind.kube.informers import Informer
from unwind.members.members import Members
from unwind.render import teardowns as shown
from unwind.teardown import cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cyclopts.completion import CompletionContext
    from rich.console import RenderableType

    from unwind.api.resources import Resource
    from unwind.kube.cache import Change
    from unwind.kube.client import Object

# Kept short: shell completion waits for it.
_PATIENCE = 5.0


async def list_kind(client: Client, resource: Resource, **selected: Any) -> list[Object]:
    """All objects of one of Unwind's kinds; raises UnwindError if the CRD is not installed."""
    try:
        return await client.list(resource, **selected)
    except ApiError as error:
        if error.code == 404:
            raise UnwindError(
                f"the CRD of {resource.kind} is not installed", remedy="install it with `unwind install`"
            ) from error
        raise


def readable(found: Iterable[Object]) -> list[Teardown]:
    """Decoded Teardowns. One that cannot be decoded is reported and skipped."""
    read = []
    for obj in found:
        try:
            read.append(msgspec.convert(obj, Teardown))
        except msgspec.ValidationError as error:
            name = obj["metadata"]["name"]
            console.announce(f"cannot read Teardown {name}: {error}; see `kubectl get teardown {name} -o yaml`")
    return read


def is_selected(ref: ObjectRef, wanted: str | None, namespace: str | None) -> bool:
    """Whether `wanted` selects this object: name, namespace/name, Kind/name or uid; None selects any."""
    if namespace is not None and ref.namespace != namespace:
        return False
    if wanted is None:
        return True
    first, slash, name = wanted.rpartition("/")
    if not slash:
        return wanted in (ref.name, ref.uid)
    return name == ref.name and (first == ref.namespace or first.lower() == ref.kind.lower())


def chosen(
    all_: Iterable[Teardown], wanted: str | None, namespace: str | None, *, finished: bool = True
) -> list[Teardown]:
    """The selected Teardowns: by their target, or by the cluster that their objects are on. One that the manager did
    not write is selected by its own name only. `finished`: also finished ones of that cluster."""
    return [
        teardown
        for teardown in all_
        if teardown.metadata.name == wanted
        or (
            not is_set_aside(teardown)
            and (
                is_selected(teardown.spec.target, wanted, namespace)
                or _is_on(teardown.spec.member, wanted, namespace, shown=finished or not teardown.finished)
            )
        )
    ]


def picked(found: Iterable[Object], wanted: str | None, namespace: str | None) -> list[Object]:
    """The same selection on undecoded objects, without finished ones of a cluster."""

    def selected(obj: Object) -> bool:
        spec = obj["spec"]
        target, member = (msgspec.convert(spec.get(field) or {}, ObjectRef) for field in ("target", "member"))
        phase = Phase.read((obj.get("status") or {}).get("phase") or "")
        ended = isinstance(phase, Phase) and phase.finished
        return is_selected(target, wanted, namespace) or _is_on(member, wanted, namespace, shown=not ended)

    return [
        obj
        for obj in found
        if obj["metadata"]["name"] == wanted
        or (SET_ASIDE_LABEL not in (obj["metadata"].get("labels") or {}) and selected(obj))
    ]


def _is_on(member: ObjectRef | None, wanted: str | None, namespace: str | None, *, shown: bool) -> bool:
    """Whether `wanted` selects the cluster that the objects of a withdrawal are on."""
    return shown and member is not None and bool(member.name) and is_selected(member, wanted, namespace)


def is_set_aside(teardown: Teardown) -> bool:
    """Whether the manager ignores this Teardown, because it did not write it."""
    return SET_ASIDE_LABEL in teardown.metadata.labels


async def of_target(client: Client, uid: str) -> Teardown | None:
    """The manager's record of the target with this uid: named by it, unless that name was taken."""
    try:
        found = await client.get(TEARDOWNS, uid, type=Teardown)
    except NotFoundError:
        found = None
    if found and not is_set_aside(found):
        return found
    every = msgspec.convert(await client.list(TEARDOWNS, labels=f"!{SET_ASIDE_LABEL}"), list[Teardown])
    records = (item for item in every if item.spec.target.uid == uid and item.spec.cause != Cause.REQUESTED)
    return next(records, None)


def selection_suffix(wanted: str | None, namespace: str | None) -> str:
    """The selection as a suffix for messages."""
    of = f" of {wanted!r}" if wanted else ""
    return f"{of} in namespace {namespace}" if namespace else of


def complete_teardowns(context: CompletionContext) -> list[tuple[str, str]]:
    """Completions for a target: the names of torn-down targets, with their phases."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        return sorted({item.spec.target.name: f"{item.spec.target.kind}, {item.phase}" for item in found}.items())

    return complete(context, ask)


def complete(
    context: CompletionContext, ask: Callable[[Client], Awaitable[list[tuple[str, str]]]]
) -> list[tuple[str, str]]:
    """Completions from the cluster; none if it does not answer quickly."""
    file, name = context.get("kubeconfig"), context.get("context")
    path = Path(file.raw).expanduser() if file and file.raw else None

    async def asked() -> list[tuple[str, str]]:
        connection = kubeconfigs.load(path, context=name.raw if name else None)
        async with asyncio.timeout(_PATIENCE), Client(connection, user_agent="unwind-completion") as client:
            return await ask(client)

    try:
        return asyncio.run(asked())
    except (UnwindError, TimeoutError, OSError, msgspec.ValidationError):
        return []  # an error message would disturb the line that is being typed


class TeardownFollower:
    """Watches one Teardown and prints its progress."""

    def __init__(self, client: Client, *, name: str = "", target: str = "", title: str, quiet: bool = False) -> None:
        """`name`: of the Teardown; or `target`: the uid of its target. `quiet`: print nothing, because standard output
        is for a program."""
        self._client = client
        self._name = name
        self._target = target
        self._title = title
        self._quiet = quiet
        self._changed = asyncio.Event()
        self._lines: list[str] = []
        self._troubles: set[str] = set()
        self._seen = False
        self._informer = Informer(client, decoding.typed(TEARDOWNS, Teardown), troubled=self._troubled)
        self._informer.subscribe(self._note)

    @property
    def teardown(self) -> Teardown | None:
        """The Teardown as last seen."""
        if self._name:
            return self._informer.cache.get(Key("", self._name))
        return next((item for item in self._informer.cache if self._is_followed(item)), None)

    async def until_finished(self) -> Teardown:
        """Return when it is finished. Raises UnwindError if the Teardown is deleted before that."""
        await self._until(None)
        found = self.teardown
        if found is None or found.phase is Phase.CANCELLED:
            done = found.status.cancelled if found else None
            why = cancellation.message(done) if done else "its Teardown was deleted"
            raise UnwindError(
                f"deletion of {self._title} was cancelled: {why}", remedy="list what is left with `unwind plan`"
            )
        return found

    async def until(self, over: asyncio.Event) -> None:
        """Return when `over` is set; there may never be such a Teardown."""
        await self._until(over)

    async def until_absent(
        self, resource: Resource, ref: ObjectRef, *, ask: Callable[[], Awaitable[None]], within: float | None = None
    ) -> None:
        """Call `ask` to delete an object and return when it is verified absent; there may never be a Teardown.

        `within`: seconds to wait, counted from the request; raises TimeoutError after that.
        """
        async with Members(self._client) as fleet, fleet.management() as here:
            # Start watching before the request, so that the DELETED event is not missed.
            absence = await here.watches.absence(resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)
            await ask()
            over = asyncio.Event()

            async def wait() -> None:
                # The object may be gone before the watch began, and the watch does not report that.
                seen = await here.client.sighting(
                    resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=here.system_uid
                )
                if not seen.absent:
                    await absence.wait()
                over.set()

            try:
                async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                    group.create_task(wait())
                    group.create_task(self.until(over))
            except ExceptionGroup as failures:
                raise to_tell(failures) from None

    async def _until(self, over: asyncio.Event | None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._informer.run())]
                if over:
                    tasks.append(group.create_task(self._wake_at(over)))
                await self._informer.until_synced()
                # A caller that waits for the end has seen the Teardown before: if it is absent now, it was deleted.
                self._seen = self._seen or over is None
                with self._shown() as live:
                    while not self._is_over(over):
                        await self._changed.wait()
                        self._changed.clear()
                        self._tell(live)
                    self._tell(live)
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as failures:
            raise to_tell(failures) from None

    def _is_over(self, over: asyncio.Event | None) -> bool:
        if over:
            return over.is_set()
        found = self.teardown
        return found.finished if found else self._seen

    async def _wake_at(self, over: asyncio.Event) -> None:
        await over.wait()
        self._changed.set()

    def _shown(self) -> Live | nullcontext[None]:
        if self._quiet or not console.out.is_terminal:
            return nullcontext()
        return Live(get_renderable=self._picture, console=console.out, refresh_per_second=2)

    def _picture(self) -> RenderableType:
        found = self.teardown
        return shown.detail(found, now=datetime.now(UTC)) if found else Text(f"deleting {self._title}")

    def _tell(self, live: Live | None) -> None:
        if live:
            live.refresh()
        elif not self._quiet:
            sys.stdout.writelines(f"{line}\n" for line in self._lines)
            sys.stdout.flush()
        self._lines.clear()

    def _is_followed(self, one: Teardown) -> bool:
        if self._name:
            return one.metadata.name == self._name
        record = one.spec.cause != Cause.REQUESTED and not is_set_aside(one)
        return record and one.spec.target.uid == self._target

    def _note(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it is None or not self._is_followed(it):
            return
        self._seen = True
        if change.new:
            self._lines += shown.changes(change.old, change.new)
        self._changed.set()

    def _troubled(self, error: Exception) -> None:
        # Print each error once, not at every retry: the watch retries by itself.
        if str(error) not in self._troubles:
            self._troubles.add(str(error))
            console.announce(f"watch failed, will retry: {error}")
