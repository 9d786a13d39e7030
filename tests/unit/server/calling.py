"""Listeners on real sockets, and callers that send bytes as they like."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

import msgspec

from unwind.server.listener import Limits, Listener
from unwind.server.routes import Request, Response, Route

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from unwind.server.tls import Tls


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, *, tls: ssl.SSLContext | None = None, name: str | None = "localhost") -> Self:
        return cls(
            *await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname=name if tls else None, limit=1 << 24
            )
        )

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: bytes = b"", headers: str = "") -> Answer:
        await self.send(post(path, body, headers))
        return await self.answer()

    async def answer(self, *, to_head: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = b"" if to_head else await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)

    async def ended(self) -> bytes:
        """What else comes until the other side closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


def post(path: str, body: bytes = b"", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: here\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def echo(body: bytes, request: Request) -> Response:
    return Response(body)


ECHO = Route(path="/echo", name="echo", handler=echo)


class Served:
    """A listener, and connections to it that are closed with it."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener, self.port = listener, port
        self._callers: list[Caller] = []

    async def caller(self, *, tls: ssl.SSLContext | None = None, name: str | None = "localhost") -> Caller:
        caller = await Caller.connect(self.port, tls=tls, name=name)
        self._callers.append(caller)
        return caller

    async def close(self) -> None:
        for caller in self._callers:
            await caller.close()


@asynccontextmanager
async def serving(
    *routes: Route,
    tls: Tls | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> AsyncIterator[Served]:
    listener = Listener("test", routes or (ECHO,), tls=tls, limits=limits)
    listening = socket.create_server(("127.0.0.1", 0))
    await listener.open(listening)
    served = Served(listener, listening.getsockname()[1])
    try:
        yield served
    finally:
        await served.close()
        await listener.close(grace=0.0)
        assert (listener.under_way, listener.waiting, listener._bodies) == (0, 0, 0), "room was not given back"


class Held:
    """A handler that does not answer until it is let go; it says who has come."""

    def __init__(self) -> None:
        self.came = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, body: bytes, request: Request) -> Response:
        self.came.release()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(body)


@asynccontextmanager
async def handling() -> AsyncIterator[tuple[Held, Served, Caller]]:
    """A listener that handles one request, and the connection that it came over."""
    held = Held()
    async with serving(Route(path="/held", name="held", handler=held)) as served:
        caller = await served.caller()
        await caller.send(post("/held"))
        await held.came.acquire()
        yield held, served, caller
