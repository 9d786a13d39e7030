"""A TCP proxy to a server that can be cut, stalled or closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType


class Proxy:
    """Forwards connections on loopback to a server; use it as an async context manager.

    TLS passes through untouched, so that clients verify the server behind it.
    """

    def __init__(self, server: str) -> None:
        self._target = _target(server)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._open = True
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener  # noqa: S101 - made above
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._listener  # noqa: S101 - made above
        return f"https://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def lead_to(self, server: str) -> None:
        """Lead new connections to another server; existing ones stay."""
        self._target = _target(server)

    def hold(self) -> None:
        """Stop forwarding in both directions, silently."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, first what was held back."""
        self._flowing.set()

    def cut(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.cancel()

    def close(self) -> None:
        """Close all connections, and every new one at once."""
        self._open = False
        self.cut()

    def reopen(self) -> None:
        self._open = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task  # noqa: S101 - we run in one
        self._connections.add(task)
        self.accepted += 1
        onward: asyncio.StreamWriter | None = None
        try:
            if self._open:
                back, onward = await asyncio.open_connection(*self._target)
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(self._pass(reader, onward))
                    directions.create_task(self._pass(back, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # one of the two sides is gone, or the connection was cut
        finally:
            self._connections.discard(task)
            for side in (writer, onward):
                if side:
                    side.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            await self._flowing.wait()
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError  # the end of one direction ends both


def _target(server: str) -> tuple[str, int]:
    address = urlsplit(server)
    assert address.hostname  # noqa: S101 - a mistake in the test
    assert address.port  # noqa: S101
    return address.hostname, address.port
