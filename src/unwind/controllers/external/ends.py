"""The ends that are open: what is outside the cluster is reached through them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from unwind import logs
from unwind.deleting.outcomes import TransientError
from unwind.errors import UnwindError
from unwind.plugins import Cancellation, described

if TYPE_CHECKING:
    from unwind.deleting.protocol import End
    from unwind.deleting.registering import External
    from unwind.kube.client import Client

log = logs.get(__name__)

# Credentials are looked for in several places, some of which answer slowly or never.
_OPENED_WITHIN = 60.0


class Ends:
    """Opens each end when it is first needed, and keeps it open."""

    def __init__(self, client: Client, tasks: asyncio.TaskGroup) -> None:
        """The ends are closed when the task group is done with."""
        self._client = client
        self._tasks = tasks
        self._open: dict[External, asyncio.Future[End]] = {}

    async def get(self, external: External) -> End:
        """The end, open. Raises if it cannot be opened; the next who asks tries again."""
        if external not in self._open:
            opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()
            self._open[external] = opened
            # In a task of its own: what was entered in one task must not be left in another, and whoever asked first
            # may be cancelled.
            self._tasks.create_task(self._keep(external, opened))
        # Several may wait for it, and one of them that is cancelled must not cancel it for all.
        return await asyncio.shield(self._open[external])

    async def _keep(self, external: External, opened: asyncio.Future[End]) -> None:
        cancellation = Cancellation()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(_OPENED_WITHIN):
                    end = await stack.enter_async_context(external.open(self._client))
                opened.set_result(end)
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - an end of another package may raise anything
            cancellation.check(error)
            self._open.pop(external, None)
            why = described(error)
            if opened.done():
                log.warning("an end broke, it is opened again when it is needed", end=external.name, why=why)
                return
            remedy = "" if isinstance(error, UnwindError) else "the log of the manager may say more"
            opened.set_exception(TransientError(f"{external.name} cannot be reached: {why}", remedy=remedy))
            # Whoever waited for it may have been cancelled meanwhile.
            opened.exception()
        finally:
            opened.cancel()
