"""A scripted server on loopback."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.kube.kubeconfig import ClusterConnection, Token
from unwind.kube.transport import HttpTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.kube.transport import ServerAnswer

    Talk = Callable[["Call"], Awaitable[None]]

HEADERS = {"Accept": "application/json"}
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Call:
    """One connection, on the server's side."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def asked(self) -> str:
        """The next request: its first line and its body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
        body = await self.reader.readexactly(length)
        return f"{first} {body.decode()}".strip()


class Server:
    """Sends scripted responses, and records the requests."""

    def __init__(self, *talks: Talk) -> None:
        self._talks = list(talks)
        self.connections = 0
        self.ended = 0
        self.heard: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = Call(self.connections, reader, writer)
        self.connections += 1
        talk = self._talks[min(call.number, len(self._talks) - 1)]
        asked = call.asked

        async def hear() -> str:
            self.heard.append(await asked())
            return self.heard[-1]

        call.asked = hear  # type: ignore[method-assign]
        try:
            await talk(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def served(*talks: Talk) -> AsyncIterator[tuple[HttpTransport, Server]]:
    server = Server(*talks)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    transport = HttpTransport(
        ClusterConnection(server=f"http://127.0.0.1:{port}", credential=Token("secret")), user_agent="test"
    )
    try:
        yield transport, server
    finally:
        await transport.close()
        listening.close()


def saying(*answers: bytes) -> Talk:
    """One response per request on a connection, which is closed after the last one."""

    async def talk(call: Call) -> None:
        for answer in answers:
            await call.asked()
            call.writer.write(answer)
            await call.writer.drain()

    return talk


def forever(answer: bytes) -> Talk:
    async def talk(call: Call) -> None:
        while True:
            await call.asked()
            call.writer.write(answer)

    return talk


async def get(transport: HttpTransport, target: str = "/x", *, within: float = 10.0) -> ServerAnswer:
    return await transport.request("GET", target, headers=HEADERS, within=within)


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
