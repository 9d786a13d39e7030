"""Waiting for what a chain left off with: `raise Again(…, until=…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind import logs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from unwind.controllers.external.objects import Target
    from unwind.deleting.entering import Waiting
    from unwind.deleting.outcomes import Event

log = logs.get(__name__)


class Waits:
    """One wait for each object, given up when its chain is entered again or it is gone."""

    def __init__(self, tasks: asyncio.TaskGroup, again: Callable[[Target], None]) -> None:
        """`again` is told of an object whose wait is over."""
        self._tasks = tasks
        self._again = again
        self._waiting: dict[Target, tuple[Waiting, asyncio.Task[None]]] = {}

    def begin(self, target: Target, waiting: Waiting) -> None:
        """Wait for the event, if there is one."""
        self.give_up(target)
        if waiting.until is not None:
            self._waiting[target] = (waiting, self._tasks.create_task(self._wait(target, waiting.until)))

    def give_up(self, target: Target) -> None:
        """Wait no longer for what an object waited for."""
        if found := self._waiting.pop(target, None):
            waiting, task = found
            task.cancel()
            waiting.close()

    async def _wait(self, target: Target, event: Event) -> None:
        try:
            await event.wait()
        except Exception as error:  # noqa: BLE001 - events come from deleters: one that breaks takes nothing down
            log.warning("what was waited for broke", object=str(target), why=str(error) or type(error).__name__)
        self._again(target)
