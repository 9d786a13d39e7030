"""Opens connections to a server, directly or through a proxy, and probes whether an unreachable one answers again."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from unwind.kube.errors import ApiError, UnreachableError
from unwind.kube.http1 import MOST_HEAD, BrokenError, Wire
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from unwind.clock import Clock
    from unwind.kube.client import Client


_RETRY = Backoff(first=1.0, limit=30.0)
_CHECK_PROXY = "check the proxy, and its address in proxy-url of the kubeconfig or in HTTPS_PROXY"


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
                await self._clock.sleep(_RETRY.after(failures, JITTER))
                try:
                    await self._client.cluster_uid()
                except UnreachableError:
                    continue
                except ApiError:
                    pass  # it answers
                self._answers += 1


# Opens connections to a server, directly or through an HTTP proxy.


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, and the proxy to it."""

    host: str
    port: int
    secure: bool
    server_name: str
    """The name that its certificate must have."""
    proxy: str | None = None

    @property
    def through(self) -> bool:
        """Whether a request must name the server, because a proxy reads it."""
        return self.proxy is not None and not self.secure


def way_to(server: str, *, server_name: str | None, proxy: str | None) -> Way:
    """The way to a server by its address."""
    url = urlsplit(server)
    secure = url.scheme == "https"
    host = url.hostname or ""
    return Way(
        host=host,
        port=url.port or (443 if secure else 80),
        secure=secure,
        server_name=server_name or host,
        proxy=proxy,
    )


async def connect(
    way: Way, context: ssl.SSLContext | None, released: Callable[[Wire], None], lost: Callable[[Wire], None]
) -> Wire:
    """A new connection. Raises OSError, ssl.SSLError or BrokenError."""
    loop = asyncio.get_running_loop()

    def wire() -> Wire:
        return Wire(released, lost)

    if way.proxy is None:
        name = way.server_name if context else None
        _, made = await loop.create_connection(wire, way.host, way.port, ssl=context, server_hostname=name)
    else:
        url = urlsplit(way.proxy)
        secure, proxy = url.scheme == "https", url.hostname or ""
        port = url.port or (443 if secure else 80)
        if context is None:
            _, made = await loop.create_connection(wire, proxy, port, ssl=secure or None)
        else:
            transport, opening = await loop.create_connection(_Opening, proxy, port, ssl=secure or None)
            try:
                await opening.tunnel(transport, way)
                made = wire()
                after = await loop.start_tls(transport, made, context, server_hostname=way.server_name)
            except BaseException:
                transport.abort()
                raise
            if after is None:
                raise BrokenError("the proxy closed the tunnel", remedy=_CHECK_PROXY)
            made.connection_made(after)
    made.context = context
    return made


class _Opening(asyncio.Protocol):
    """A connection to a proxy until it becomes a tunnel: the response has no length, and is followed by TLS."""

    def __init__(self) -> None:
        self._came = b""
        self._head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def tunnel(self, transport: asyncio.WriteTransport, way: Way) -> None:
        assert way.proxy  # noqa: S101 - this is the connection to it
        target = f"{_bracketed(way.host)}:{way.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *proxy_headers(way.proxy)]
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        first = (await self._head).split(b"\r\n", 1)[0]
        if first.split(b" ")[1:2] != [b"200"]:
            told = without_password(first[:200].decode(errors="replace"), way.proxy)
            raise BrokenError(f"the proxy refused the tunnel: {told}", remedy=_CHECK_PROXY)

    def data_received(self, data: bytes) -> None:
        if len(self._came) > MOST_HEAD:
            if not self._head.done():
                self._head.set_exception(BrokenError("the response of the proxy is too long", remedy=_CHECK_PROXY))
            return
        self._came += data
        if b"\r\n\r\n" in self._came and not self._head.done():
            self._head.set_result(self._came)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._head.done():
            what = str(error) if error else "the proxy closed the connection"
            self._head.set_exception(BrokenError(what, remedy=_CHECK_PROXY))


def without_password(text: str, proxy: str) -> str:
    """A text from or about a proxy, without the password."""
    url = urlsplit(proxy)
    for secret in (url.password, unquote(url.password or "")):
        if secret:
            text = text.replace(secret, "…")
    return text


def proxy_headers(proxy: str) -> list[str]:
    """The headers that authenticate a request at a proxy."""
    url = urlsplit(proxy)
    if url.username is None:
        return []
    proof = base64.b64encode(f"{unquote(url.username)}:{unquote(url.password or '')}".encode()).decode()
    return [f"Proxy-Authorization: Basic {proof}"]


def host_header(way: Way) -> str:
    """The Host header of a request."""
    usual = 443 if way.secure else 80
    return _bracketed(way.host) if way.port == usual else f"{_bracketed(way.host)}:{way.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
