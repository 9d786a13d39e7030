"""Probes whether an unreachable server answers again, once for all waiting tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.chance import CHANCE
from unwind.kube.errors import ApiError, UnreachableError
from unwind.kube.queue import Backoff

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.kube.client import Client

_RETRY = Backoff(first=1.0, limit=30.0)


class Probe:
    """Probes an unreachable server at growing intervals: one request at a time, however many tasks wait."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answers = 0

    async def until_answers(self) -> None:
        """Wait a moment, and then until the server answers, with any response."""
        before = self._answers
        async with self._asking:
            failures = 0
            while self._answers == before:
                failures += 1
                await self._clock.sleep(_RETRY.after(failures, CHANCE))
                try:
                    await self._client.cluster_uid()
                except UnreachableError:
                    continue
                except ApiError:
                    pass  # it answers
                self._answers += 1
