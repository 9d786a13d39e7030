"""A proxy between a program and an API server that sees every request, to end the program before or after one."""

from __future__ import annotations

import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp
from aiohttp import web

from unwind.certificates import Authority
from unwind.kube.kubeconfig import ClusterConnection, Token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    Seen = Callable[[str, str, bytes], Awaitable[None]]

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Headers of one connection, which are not forwarded.
_OWN = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive", "authorization"}


class Interceptor:
    """Forwards requests to an API server with its own credentials; use it as an async context manager.

    TLS ends here, which makes the requests visible: the program must use `connection`.
    """

    def __init__(self, server: ClusterConnection, *, before: Seen, after: Seen) -> None:
        """`before` is awaited with the method, path and body of every write before it is forwarded, `after` when it was
        answered, before the program gets the response. What they raise becomes the response."""
        self._server = server
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        writes = request.method in _WRITES
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
