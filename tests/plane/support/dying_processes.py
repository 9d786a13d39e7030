"""Processes that die in the middle of their work, played by a transport."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.names import MANAGER_USER_AGENT
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.transport import HttpTransport
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from unwind.kube.transport import ServerAnswer
    from unwind.local.cluster import LocalCluster


class Life:
    """A process that dies when so many of its writes were answered: nothing that it sends afterwards leaves it."""

    def __init__(self, writes: int = 1) -> None:
        self.left = writes
        self.died = asyncio.Event()


class Mortal:
    """A transport of such a process."""

    def __init__(self, inner: HttpTransport, life: Life) -> None:
        self._inner = inner
        self._life = life

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        # To ask for one's rights is to read.
        if method == "GET" or "/selfsubject" in target:
            return await self._inner.request(method, target, body=body, headers=headers, within=within)
        if self._life.left > 0:
            self._life.left -= 1
            last = self._life.left == 0
            answer = await self._inner.request(method, target, body=body, headers=headers, within=within)
            if not last:
                return answer
            self._life.died.set()
        # It never hears of the answer, nor sends anything again.
        await asyncio.Event().wait()
        raise AssertionError

    def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AbstractAsyncContextManager[ServerAnswer | AsyncIterator[list[bytes]]]:
        return self._inner.stream(target, headers=headers, silence=silence)

    def pin(self, cluster: str) -> None:
        self._inner.pin(cluster)

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def mortal(cluster: LocalCluster, life: Life, *, namespace: str = "") -> AsyncIterator[Client]:
    """A client of such a process: an administrator's, or that of the manager of a namespace."""
    connection, agent = kubeconfig.load(cluster.kubeconfig), "mortal"
    if namespace:
        connection, agent = await manager_connection(cluster.client, namespace), MANAGER_USER_AGENT
    async with Client(connection, transport=Mortal(HttpTransport(connection, user_agent=agent), life)) as client:
        yield client
