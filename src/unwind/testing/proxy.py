"""Proxies to a server: one that can be cut, stalled or closed, and one that can end the client at a request."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from unwind.certificates import Authority
from unwind.kube.kubeconfig import ClusterConnection, Token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Seen = Callable[[str, str, bytes], Awaitable[None]]

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Headers of one connection, which are not forwarded.
_OWN = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive", "authorization"}


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

    async def __aexit__(self, *raised: object) -> None:
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


class Interceptor:
    """Forwards requests to an API server with its own credentials; use it as an async context manager.

    TLS ends here, which makes the requests visible: the program must use `connection`.
    """

    def __init__(self, server: ClusterConnection, *, before: Seen, after: Seen, user_agent: str = "") -> None:
        """`before` is awaited with the method, path and body of every write before it is forwarded, `after` when it was
        answered, before the program gets the response. What they raise becomes the response. `user_agent`: only for
        writes with this user agent, if other programs use the connection, too."""
        self._server = server
        self._user_agent = user_agent
        self._before = before
        self._after = after
        self._authority = Authority("unwind-testing-interceptor")
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0

    @property
    def connection(self) -> ClusterConnection:
        """The connection for the program."""
        return ClusterConnection(server=f"https://127.0.0.1:{self._port}", authority=self._authority.certificate)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._server.ssl_context(), limit=0)
        self._session = aiohttp.ClientSession(
            self._server.server, connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._pass)
        # A program that has ended must not leave its watches behind.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls())
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._runner  # noqa: S101 - made above
        assert self._session  # noqa: S101 - made above
        await self._runner.cleanup()
        await self._session.close()

    def _tls(self) -> ssl.SSLContext:
        pair = self._authority.server("interceptor", hosts=["127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "pair.pem"
            path.write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(path)
        return context

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        assert self._session  # noqa: S101 - made above
        writes = request.method in _WRITES and self._user_agent in ("", request.headers.get("User-Agent"))
        body = await request.read()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _OWN}
        if isinstance(self._server.credential, Token):
            headers["Authorization"] = f"Bearer {self._server.credential.token}"
        if writes:
            await self._before(request.method, request.path, body)
        async with self._session.request(
            request.method, request.rel_url, data=body or None, headers=headers, allow_redirects=False
        ) as answer:
            passed = {key: value for key, value in answer.headers.items() if key.lower() not in _OWN}
            if "Content-Encoding" in answer.headers:
                passed["Content-Encoding"] = answer.headers["Content-Encoding"]
            if writes:
                content = await answer.read()
                await self._after(request.method, request.path, body)
                return web.Response(status=answer.status, headers=passed, body=content)
            response = web.StreamResponse(status=answer.status, headers=passed)
            await response.prepare(request)
            with suppress(ConnectionError):  # the client is gone
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response
