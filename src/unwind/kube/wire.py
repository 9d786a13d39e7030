"""One HTTP/1.1 connection to a server: the way there, and the exchange that is under way on it.

Half of what a request cost us was spent in a general HTTP client. An API server needs little of HTTP: no redirects, no
cookies, no uploads; answers with a length or in chunks, and streams that end when somebody has had enough.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httptools
import msgspec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

# A stream whose reader is slower than the server: so much is kept here, the rest waits on the way.
_KEPT = 1 << 20


class BrokenError(Exception):
    """The connection came to its end before the answer did, or what came was no HTTP."""

    def __init__(self, what: str, *, unanswered: bool = False) -> None:
        """`unanswered`: nothing of an answer had come, on a connection that was used before."""
        super().__init__(what)
        self.unanswered = unanswered


class Reply(msgspec.Struct, frozen=True):
    """An answer: its body, or the stream that the body is."""

    status: int
    headers: dict[bytes, bytes]
    """Names in lower case."""
    body: bytes
    stream: AsyncIterator[bytes] | None = None


class Wire(asyncio.Protocol):
    """A connection. One exchange at a time: `ask`, or `open` for a stream."""

    def __init__(self, released: Callable[[Wire], None], lost: Callable[[Wire], None]) -> None:
        """`released` is told when an exchange is over and another one may begin, `lost` of the connection's end."""
        self._released = released
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._stream: _Stream | None = None
        self._streamed = False
        self._parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._begun = False
        self._used = False
        self.since = 0.0
        """When it was last used."""
        self.context: ssl.SSLContext | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._reply is None

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Send a request; the answer will be whole. Who gives up waiting has to `abort`."""
        return self._send(request, streamed=False)

    def open(self, request: bytes) -> asyncio.Future[Reply]:
        """Send a request; the answer is a stream, unless its status is not 200."""
        return self._send(request, streamed=True)

    def abort(self) -> None:
        """Break it off: what is on the way is of no use to anybody."""
        if self._transport:
            self._transport.abort()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _send(self, request: bytes, *, streamed: bool) -> asyncio.Future[Reply]:
        assert self._transport  # noqa: S101 - it is connected
        self._reply = reply = self._loop.create_future()
        self._streamed = streamed
        self._begun = False
        self._transport.write(request)
        return reply

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # of a stream

    def data_received(self, data: bytes) -> None:
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(BrokenError(f"no HTTP came: {error}"))
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        what = str(error) if error else "the server closed it"
        self._transport = None
        self._fail(BrokenError(what, unanswered=self._used and not self._begun))
        self._lost(self)

    def _fail(self, error: BrokenError) -> None:
        if self._reply and not self._reply.done():
            self._reply.set_exception(error)
        if self._stream:
            self._stream.end(error)

    # What the parser tells

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._streamed and self._parser.get_status_code() == 200 and self._reply and not self._reply.done():
            assert self._transport  # noqa: S101 - something came from it
            self._stream = _Stream(self._transport)
            self._reply.set_result(Reply(200, self._headers, b"", self._stream.pieces()))

    def on_body(self, piece: bytes) -> None:
        if self._stream:
            self._stream.add(piece)
        else:
            self._body.append(piece)

    def on_message_complete(self) -> None:
        reply, self._reply, self._used = self._reply, None, True
        if self._stream:
            self._stream.end(None)
            self._stream = None
            self.close()  # it has lived for minutes
            return
        if reply is None:
            self.abort()  # nobody has asked
            return
        if not reply.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            if self._headers.get(b"content-encoding") == b"gzip":
                try:
                    body = zlib.decompress(body, wbits=31)
                except zlib.error as error:
                    reply.set_exception(BrokenError(f"what came cannot be unpacked: {error}"))
                    self.abort()
                    return
            reply.set_result(Reply(self._parser.get_status_code(), self._headers, body))
        if self._parser.should_keep_alive():
            # A parser has its whole state reset by the next answer; it need not be made again.
            self._released(self)
        else:
            self.close()


class _Stream:
    """What has come of a stream and was not read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._over = False
        self._error: BrokenError | None = None
        self._news = asyncio.Event()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _KEPT and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._news.set()

    def end(self, error: BrokenError | None) -> None:
        if not self._over:
            self._over, self._error = True, error
            self._news.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All that has come, each time there is something; until the end."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._pieces:
                pieces, self._pieces, self._size = self._pieces, [], 0
                if self._paused and not self._over:
                    self._paused = False
                    self._transport.resume_reading()
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._over and not self._pieces:
                if self._error:
                    raise self._error
                return


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and what is on the way there."""

    host: str
    port: int
    secure: bool
    server_name: str
    """The name that its certificate has to be for."""
    proxy: str | None = None

    @property
    def through(self) -> bool:
        """Whether a request has to name the server, because a proxy reads it."""
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
                raise BrokenError("the proxy closed the tunnel")
            made.connection_made(after)
    made.context = context
    return made


class _Opening(asyncio.Protocol):
    """A connection to a proxy, until it is a tunnel: what answers there has no length, and is followed by TLS."""

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
            raise BrokenError(f"the proxy made no tunnel: {first.decode(errors='replace')}")

    def data_received(self, data: bytes) -> None:
        self._came += data
        if b"\r\n\r\n" in self._came and not self._head.done():
            self._head.set_result(self._came)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._head.done():
            self._head.set_exception(BrokenError(str(error) if error else "the proxy closed the connection"))


def proxy_headers(proxy: str) -> list[str]:
    """What a proxy wants to see of who asks."""
    url = urlsplit(proxy)
    if url.username is None:
        return []
    shown = base64.b64encode(f"{unquote(url.username)}:{unquote(url.password or '')}".encode()).decode()
    return [f"Proxy-Authorization: Basic {shown}"]


def host_header(way: Way) -> str:
    """What a request says it is for."""
    usual = 443 if way.secure else 80
    return _bracketed(way.host) if way.port == usual else f"{_bracketed(way.host)}:{way.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
