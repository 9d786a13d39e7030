"""Requests that are held back on purpose, by a transport: what happens between two of them can be decided."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.names import MANAGER_USER_AGENT
from unwind.api.rights import HOME
from unwind.kube.client import Client
from unwind.kube.transport import HttpTransport
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from unwind.api.meta import ObjectRef
    from unwind.kube.transport import ServerAnswer
    from unwind.local.cluster import LocalCluster


class Delay:
    """Holds back the requests that match, until they may go; counts them."""

    def __init__(self, matches: Callable[[str, str, bytes], bool]) -> None:
        """`matches` is given the method, the target and the body."""
        self.matches = matches
        self.held = 0
        self.reached = asyncio.Event()
        """Set when the first request is held back."""
        self.go = asyncio.Event()

    async def until_reached(self) -> None:
        async with asyncio.timeout(60):
            await self.reached.wait()


class Delayed:
    """A transport whose matching requests wait before they are sent."""

    def __init__(self, inner: HttpTransport, delay: Delay) -> None:
        self._inner = inner
        self._delay = delay

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        if self._delay.matches(method, target, body or b""):
            self._delay.held += 1
            self._delay.reached.set()
            await self._delay.go.wait()
        return await self._inner.request(method, target, body=body, headers=headers, within=within)

    def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AbstractAsyncContextManager[ServerAnswer | AsyncIterator[list[bytes]]]:
        return self._inner.stream(target, headers=headers, silence=silence)

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def delayed(cluster: LocalCluster, delay: Delay, *, namespace: str = HOME) -> AsyncIterator[Client]:
    """A client for the manager of a namespace whose matching requests are held back."""
    connection = await manager_connection(cluster.client, namespace)
    inner = HttpTransport(connection, user_agent=MANAGER_USER_AGENT)
    async with Client(connection, transport=Delayed(inner, delay)) as client:
        yield client


def seals(*owners: ObjectRef) -> Callable[[str, str, bytes], bool]:
    """Whether a request seals an inventory of one of these."""

    def matches(method: str, target: str, body: bytes) -> bool:
        return (
            method == "PATCH" and b"sealedFor" in body and any(f"/inventories/{ref.uid}-" in target for ref in owners)
        )

    return matches
