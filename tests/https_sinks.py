"""A real HTTPS server on loopback that receives notifications, and answers them well, badly or never."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unwind.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NEVER = -1
"""An answer that does not come."""


class Received(NamedTuple):
    """A request."""

    at: float
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class HttpsSink:
    """What it received, and how it answers: with a status, a text as it is, or never."""

    def __init__(self, host: str) -> None:
        self.authority = Authority("sinks")
        self.host = host
        self.port = 0
        self.received: list[Received] = []
        self.answer: int | bytes = 204
        self.arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}/hooks/unwind?team=platform"

    @property
    def ids(self) -> list[str]:
        return [one.headers["webhook-id"] for one in self.received]

    def tls(self) -> ssl.SSLContext:
        pair = self.authority.server("sink", hosts=[self.host])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
        return context

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            first, *lines = head.split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            self.received.append(Received(time.monotonic(), first.split(" ")[1], headers, body))
            self.arrived.set()
            answer = self.answer
            if answer == NEVER:
                await asyncio.Event().wait()
            if isinstance(answer, int):
                answer = (
                    f"HTTP/1.1 {answer} Whatever\r\nLocation: https://{self.host}:{self.port}/other\r\n\r\n".encode()
                )
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the manager has gone
        finally:
            writer.close()


@asynccontextmanager
async def https_sink(host: str = "127.0.0.1") -> AsyncIterator[HttpsSink]:
    """A sink on loopback, with a certificate for this host."""
    sink = HttpsSink(host)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await sink.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=sink.tls())
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield sink
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
