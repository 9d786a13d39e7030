"""Waiting for what a chain left off with: `raise Again(…, until=…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleting.deletion import happened

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from unwind.clock import Clock
    from unwind.controllers.external.objects import Target
    from unwind.deleting.entering import Waiting
    from unwind.deleting.outcomes import Event


class Waits:
    """One wait for each object, given up when its chain is entered again or it is gone."""

    def __init__(self, tasks: asyncio.TaskGroup, again: Callable[[Target], None], clock: Clock) -> None:
        """`again` is told of an object whose wait is over."""
        self._tasks = tasks
        self._clock = clock
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
        await happened(event, self._clock)
        self._again(target)
