"""One HTTP/1.1 connection to a server, and the exchange in progress on it.

Half of the cost of a request was spent in a general HTTP client. An API server needs little of HTTP: no redirects, no
cookies, no uploads; responses with a length or in chunks, and streams that the reader ends.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httptools
import msgspec

from unwind.kube.errors import CHECK_SERVER

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

# A stream whose reader is slower than the server: this much is buffered here, the rest waits in the network.
_KEPT = 1 << 20
# Limits on what a server may send. An object is at most a few MiB; a larger page of a list is read again in smaller
# pages.
MOST_BODY = 32 << 20
MOST_HEAD = 64 << 10
_MOST_INFORMATIONAL = 16
_DAMAGED = "check the proxies between Unwind and the API server: one of them damages responses"


class BrokenError(Exception):
    """The connection ended before the response did, or what came was not HTTP."""

    def __init__(self, what: str, *, remedy: str = "", unanswered: bool = False) -> None:
        """`unanswered`: no part of a response had come, on a reused connection."""
        super().__init__(what)
        self.remedy = remedy
        self.unanswered = unanswered


class TooLargeError(BrokenError):
    """The response exceeds the client's limit."""


class HTTPReply(msgspec.Struct, frozen=True):
    """A response: its body, or the stream of its body."""

    status: int
    headers: dict[bytes, bytes]
    """Names in lower case."""
    body: bytes
    stream: AsyncIterator[bytes] | None = None


def extended(body: bytes | bytearray, piece: bytes) -> bytes | bytearray:
    """A body with one more piece. Pieces may be as small as a byte: a list of them would be many times the size of the
    body."""
    if not body:
        return piece
    whole = bytearray(body) if isinstance(body, bytes) else body
    whole += piece
    return whole


class Wire(asyncio.Protocol):
    """A connection. One exchange at a time: `ask`, or `open` for a stream."""

    def __init__(self, released: Callable[[Wire], None], lost: Callable[[Wire], None]) -> None:
        """`released` is called when an exchange is over and another one may start, `lost` when the connection ends."""
        self._released = released
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._check: Callable[[HTTPReply], Exception | None] | None = None
        self._checking: asyncio.Future[None] | None = None
        self._reply: asyncio.Future[HTTPReply] | None = None
        self._stream: _Stream | None = None
        self._streamed = False
        self._parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._unseen = 0
        self._head = 0
        self._informational = 0
        self._begun = False
        self._used = False
        self.since = 0.0
        """When it was last used."""
        self.context: ssl.SSLContext | None = None
        self.cluster = ""
        """The cluster at its other end, if verified on this very connection."""

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._reply is None

    @property
    def checking(self) -> bool:
        """Whether the response to `check_first` is pending."""
        return self._check is not None

    def ask(self, request: bytes) -> asyncio.Future[HTTPReply]:
        """Send a request for a complete response. A caller that stops waiting must `abort`."""
        return self._send(request, streamed=False)

    def open(self, request: bytes) -> asyncio.Future[HTTPReply]:
        """Send a request; the response is a stream, unless its status is not 200."""
        return self._send(request, streamed=True)

    def check_first(self, request: bytes, check: Callable[[HTTPReply], Exception | None]) -> asyncio.Future[None]:
        """Send a request ahead of the next one, which need not wait for its response.

        `check` gets that response. If it returns an error, the connection is closed and the next request fails with it.
        """
        self._check = check
        self._checking = checking = self._loop.create_future()
        checking.add_done_callback(_retrieved)
        if self._transport is None:
            checking.set_exception(_closed(unanswered=self._used))
        else:
            self._transport.write(request)
        return checking

    def abort(self) -> None:
        """Close it immediately: pending data is of no use."""
        if self._transport:
            self._transport.abort()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _send(self, request: bytes, *, streamed: bool) -> asyncio.Future[HTTPReply]:
        self._reply = reply = self._loop.create_future()
        if self._transport is None:
            # Lost between two turns of the loop: `connection_lost` was called, and nothing else will be.
            reply.set_exception(_closed(unanswered=self._used))
            return reply
        self._streamed = streamed
        self._begun = False
        self._informational = 0
        self._transport.write(request)
        return reply

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # of a stream

    def data_received(self, data: bytes) -> None:
        if not self._expecting:
            # It must not be taken for the response to the next request.
            self._break(_not_requested())
            return
        self._begun = True
        self._unseen += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(
                BrokenError(
                    f"invalid HTTP: {error}",
                    remedy=CHECK_SERVER,
                )
            )
            return
        # The parser buffers an unfinished header or trailer, so received bytes count, not parsed ones.
        if self._unseen > MOST_HEAD:
            self._break(_head_too_large())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(_closed(error, unanswered=self._used and not self._begun))
        self._lost(self)

    @property
    def _expecting(self) -> bool:
        return self._reply is not None or self._check is not None or self._stream is not None

    def _break(self, error: Exception) -> None:
        self._fail(error)
        self.abort()

    def _fail(self, error: Exception) -> None:
        for waiting in (self._reply, self._checking):
            if waiting and not waiting.done():
                waiting.set_exception(error)
        if self._stream:
            self._stream.end(error)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if not self._expecting:
            self._break(_not_requested())
        self._headers = {}
        self._body = b""
        self._head = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head += len(name) + len(value) + 4
        if self._head > MOST_HEAD:
            self._break(_head_too_large())
        elif name == b"content-length" and int(value) > MOST_BODY:
            self._break(_too_large())
        else:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._unseen = 0
        if not self._streamed or self._check or self._parser.get_status_code() != 200:
            return
        if not self._reply or self._reply.done() or self._transport is None:
            return
        if encoding := self._encoding():
            self._break(
                BrokenError(
                    f"the stream has the unexpected Content-Encoding {encoding}",
                    remedy="turn off compression in the proxy between Unwind and the API server",
                )
            )
            return
        self._stream = _Stream(self._transport)
        self._reply.set_result(HTTPReply(200, self._headers, b"", self._stream.pieces()))

    def on_body(self, piece: bytes) -> None:
        self._unseen = 0
        if self._stream:
            self._stream.add(piece)
        elif len(self._body) + len(piece) > MOST_BODY:
            self._break(_too_large())
        else:
            self._body = extended(self._body, piece)

    def on_message_complete(self) -> None:
        self._unseen = 0
        if 100 <= self._parser.get_status_code() < 200:
            self._informational += 1
            if self._informational > _MOST_INFORMATIONAL:
                self._break(
                    BrokenError(
                        f"more than {_MOST_INFORMATIONAL} informational responses (HTTP 1xx)",
                        remedy="check the proxies between Unwind and the API server",
                    )
                )
            return
        if self._check:
            self._checked()
            return
        reply, self._reply, self._used = self._reply, None, True
        if self._stream:
            self._stream.end(None)
            self._stream = None
            self.close()  # it has been open for minutes
            return
        if reply is None:
            return  # aborted before
        if not reply.done():
            try:
                reply.set_result(self._whole())
            except BrokenError as error:
                reply.set_exception(error)
                self.abort()
                return
        if self._parser.should_keep_alive():
            # The next response resets the parser completely; it need not be created again.
            self._released(self)
        else:
            self.close()

    def _checked(self) -> None:
        check, self._check = self._check, None
        assert check  # noqa: S101 - looked at above
        try:
            error = check(self._whole())
        except BrokenError as broken:
            error = broken
        if error is None and not self._parser.should_keep_alive():
            error = BrokenError(
                "the server, or a proxy before it, closes the connection after each response",
                remedy="turn on HTTP keep-alive there",
            )
        if error:
            self._break(error)
        elif self._checking and not self._checking.done():
            self._checking.set_result(None)

    def _whole(self) -> HTTPReply:
        body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        encoding = self._encoding()
        if encoding == "gzip":
            body = unpacked(body, most=MOST_BODY)
        elif encoding:
            raise BrokenError(
                f"the response has the unexpected Content-Encoding {encoding}",
                remedy="turn off compression, except gzip, in the proxy between Unwind and the API server",
            )
        return HTTPReply(self._parser.get_status_code(), self._headers, body)

    def _encoding(self) -> str:
        """The encoding of the response; empty if it has none."""
        encoding = self._headers.get(b"content-encoding", b"").strip().lower()
        return "" if encoding in (b"", b"identity") else encoding[:20].decode("ascii", "replace")


def _retrieved(future: asyncio.Future[None]) -> None:
    """The following request fails with the same error: no caller need wait for both."""
    if not future.cancelled():
        future.exception()


def unpacked(packed: bytes, *, most: int) -> bytes:
    """Decompress gzip; raises BrokenError if it is damaged, TooLargeError if the result is too large."""
    unpacking = zlib.decompressobj(wbits=31)
    try:
        body = unpacking.decompress(packed, most + 1)
    except zlib.error as error:
        raise BrokenError(f"cannot decompress the response: {error}", remedy=_DAMAGED) from error
    if len(body) > most:
        raise _too_large()
    if not unpacking.eof:
        raise BrokenError("cannot decompress the response: it is incomplete", remedy=_DAMAGED)
    return body


def _closed(error: Exception | None = None, *, unanswered: bool) -> BrokenError:
    return BrokenError(
        str(error) if error else "the server closed the connection",
        remedy="retry; if it happens again, see the logs of the API server and of the proxies before it",
        unanswered=unanswered,
    )


def _not_requested() -> BrokenError:
    return BrokenError(
        "the server sent a response without a request",
        remedy="check the proxies between Unwind and the API server",
    )


def _head_too_large() -> TooLargeError:
    return TooLargeError(
        f"the response headers are larger than {MOST_HEAD >> 10} KiB",
        remedy="check the proxies between Unwind and the API server, which may add headers",
    )


def _too_large() -> TooLargeError:
    return TooLargeError(
        f"the response is larger than {MOST_BODY >> 20} MiB",
        remedy="reduce the size of the requested object",
    )


class _Stream:
    """The unread data of a stream."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._over = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _KEPT and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._news.set()

    def end(self, error: Exception | None) -> None:
        if not self._over:
            self._over, self._error = True, error
            self._news.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All received data, whenever there is some, until the end."""
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
