"""Follow the progress of a Teardown: live view on a terminal, one line per change in a pipe."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
from unwind.cli import console
from unwind.cli.teardown_lookup import is_set_aside
from unwind.concurrency import to_tell
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer
from unwind.members.members import Members
from unwind.render import teardowns as shown
from unwind.teardown import cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import RenderableType

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.cache import Change
    from unwind.kube.client import Client


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
