"""Transports that hold requests back, fail them, or end with a process that dies."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import MANAGER_USER_AGENT
from unwind.api.rights import HOME
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.errors import UnreachableError
from unwind.kube.transport import HttpTransport, ServerAnswer
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from unwind.api.meta import ObjectRef
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.cluster import LocalCluster


class WrappedTransport:
    """Passes everything on to a transport. Subclasses change what happens to some requests."""

    def __init__(self, inner: HttpTransport) -> None:
        self._inner = inner

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        return await self._inner.request(method, target, body=body, headers=headers, within=within)

    def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AbstractAsyncContextManager[ServerAnswer | AsyncIterator[list[bytes]]]:
        return self._inner.stream(target, headers=headers, silence=silence)

    def pin(self, cluster: str) -> None:
        self._inner.pin(cluster)

    async def close(self) -> None:
        await self._inner.close()


class Delay:
    """Holds back the requests that match, until they may go; counts them."""

    def __init__(self, matches: Callable[[str, str, bytes], bool]) -> None:
        """`matches` is called with the method, the target and the body."""
        self.matches = matches
        self.held = 0
        self.reached = asyncio.Event()
        """Set when the first request is held back."""
        self.go = asyncio.Event()

    async def until_reached(self) -> None:
        async with asyncio.timeout(60):
            await self.reached.wait()


class DelayedTransport(WrappedTransport):
    """Matching requests wait before they are sent."""

    def __init__(self, inner: HttpTransport, delay: Delay) -> None:
        super().__init__(inner)
        self._delay = delay

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        if self._delay.matches(method, target, body or b""):
            self._delay.held += 1
            self._delay.reached.set()
            await self._delay.go.wait()
        return await super().request(method, target, body=body, headers=headers, within=within)


@asynccontextmanager
async def delayed(cluster: LocalCluster, delay: Delay, *, namespace: str = HOME) -> AsyncIterator[Client]:
    """A client for the manager of a namespace whose matching requests are held back."""
    connection = await manager_connection(cluster.client, namespace)
    inner = HttpTransport(connection, user_agent=MANAGER_USER_AGENT)
    async with Client(connection, transport=DelayedTransport(inner, delay)) as client:
        yield client


def seals(*owners: ObjectRef) -> Callable[[str, str, bytes], bool]:
    """Matches the requests that seal an inventory of one of these owners."""

    def matches(method: str, target: str, body: bytes) -> bool:
        return (
            method == "PATCH" and b"sealedFor" in body and any(f"/inventories/{ref.uid}-" in target for ref in owners)
        )

    return matches


class Life:
    """A process that dies after a number of answered writes: nothing that it sends afterwards leaves it."""

    def __init__(self, writes: int = 1) -> None:
        self.left = writes
        self.died = asyncio.Event()


class MortalTransport(WrappedTransport):
    """The transport of a process that dies."""

    def __init__(self, inner: HttpTransport, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        # A review of the own rights is a read.
        if method == "GET" or "/selfsubject" in target:
            return await super().request(method, target, body=body, headers=headers, within=within)
        if self._life.left > 0:
            self._life.left -= 1
            last = self._life.left == 0
            answer = await super().request(method, target, body=body, headers=headers, within=within)
            if not last:
                return answer
            self._life.died.set()
        # It never sees the answer, nor sends anything again.
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def mortal(cluster: LocalCluster, life: Life, *, namespace: str = "") -> AsyncIterator[Client]:
    """A client of a process that dies: an administrator's, or that of the manager of a namespace."""
    connection, agent = kubeconfig.load(cluster.kubeconfig), "mortal"
    if namespace:
        connection, agent = await manager_connection(cluster.client, namespace), MANAGER_USER_AGENT
    transport = MortalTransport(HttpTransport(connection, user_agent=agent), life)
    async with Client(connection, transport=transport) as client:
        yield client


class Killed(BaseException):
    """The process is gone: nothing is done after it."""


class FailingTransport(WrappedTransport):
    """One write fails: `how` is refused, killed before, killed after, or unanswered."""

    def __init__(self, connection: ClusterConnection, count: list[int], how: str) -> None:
        super().__init__(HttpTransport(connection, user_agent="test"))
        self._count = count
        self._how = how

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        fails = False
        if method != "GET":
            self._count[0] -= 1
            fails = self._count[0] == 0
        if fails and self._how == "refused":
            return ServerAnswer(403, msgspec.json.encode({"kind": "Status", "code": 403, "message": "for once"}))
        if fails and self._how == "killed before":
            raise Killed
        answer = await super().request(method, target, body=body, headers=headers, within=within)
        if fails and self._how == "killed after":
            raise Killed
        if fails and self._how == "unanswered":
            raise UnreachableError("no answer came")
        return answer
