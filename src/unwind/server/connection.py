"""One HTTP/1.1 connection: read, bound and route requests, and answer them in order.

Written directly on httptools, not on an ASGI server, for speed: see bench/listener.py. There is no timer per request or
connection either. Each states until when it may stay in its state (`until`), and the listener checks all of them ten
times a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum, auto
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
import msgspec

from unwind import logs
from unwind.api import annotation_values
from unwind.api.fields import Unknown
from unwind.kube.http1 import extended
from unwind.server.routes import Request, Response, Route, refusal

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from unwind.server.listener import Listener


# One request on a connection, and its response.


class Exchange(msgspec.Struct, kw_only=True):
    """A request whose headers were received, and its response."""

    began: float
    method: str
    query: bytes
    headers: dict[bytes, bytes]
    route: Route | None
    until: float
    keep_alive: bool
    body: bytes | bytearray = b""
    held: int = 0
    """The accounted bytes of the body."""
    answered: bool = False


@lru_cache(maxsize=256)
def seconds_for(query: bytes, default: float, longest: float) -> float:
    """The seconds for a response: slightly less than the caller's timeout, so that it arrives before that.

    The API server and Cluster API both send their timeout.
    """
    waits = default
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == b"timeout":
            asked = annotation_values.parse_duration(value.decode("latin-1"))
            waits = default if isinstance(asked, Unknown) else asked.total_seconds() or default
    waits = min(waits, longest)
    return waits - min(1.0, max(0.2, 0.1 * waits))


# Standard HTTP error responses, and the response header on the wire.

AGAIN = (("retry-after", "1"),)
# The API server's client retries a request that was answered with Retry-After, within the webhook's timeout: load is
# spread over time instead of failing.
BUSY = refusal(429, "too many requests; retry in a second", headers=AGAIN)
# No Retry-After here, for the same reason: the failurePolicy must apply at once.
UNREADY = refusal(503, "not ready: caches are not synced yet; retry")
LATE = refusal(504, "timed out")
UNEXPECTED = refusal(500, "internal error; see the log of the manager")


def head(response: Response, date: bytes, *, keep: bool) -> bytes:
    """The status line and headers of a response."""
    start = _start(response.status, response.content_type, response.headers, keep)
    return b"%bdate: %b\r\ncontent-length: %d\r\n\r\n" % (start, date, len(response.body))


@lru_cache(maxsize=256)
def _start(status: int, content_type: str, headers: tuple[tuple[str, str], ...], keep: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not keep:
        lines.append("connection: close")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("header contains a line break")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


log = logs.get(__name__)

# A refused caller may still be sending: closing at once would reset the connection and lose the response.
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 16 << 20
_PIPELINED = 16
# Bodies up to this size are not accounted for: the limit of connections bounds them.
_SMALL = 64 << 10


class ConnectionState(Enum):
    """What a connection is waiting for."""

    IDLE = auto()
    READING = auto()
    QUEUED = auto()
    """Waits in the queue."""
    WORKING = auto()
    LINGERING = auto()
    """Waits for a refused caller to stop sending."""


# Enum members are looked up in the class each time, which is measurable at ten times per request.
_IDLE, _READING, _QUEUED, _WORKING, _LINGERING = ConnectionState


class ServerConnection(asyncio.Protocol):
    """The protocol of one connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self.began = 0.0
        """When the last request ended, or the connection began."""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        # Called for each header of each request: a method here would cost more than all other work on headers.
        self.on_header = self._headers.__setitem__
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._peer = ""
        self._reading: Exchange | None = None
        self._current: Exchange | None = None
        self._pipeline: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None
        self._awaited: Coroutine[Any, Any, Response] | None = None
        self._in_head = False
        self._head_bytes = 0
        self._linger_bytes = 0
        self._congested = False
        self._paused = False
        self._last = False
        self.state = ConnectionState.IDLE
        self.until = 0.0
        """The deadline of the current state."""

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self.began = time.monotonic()
        self.until = self.began + self._limits.head_seconds
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.lost(self)
        self._abandon()

    def data_received(self, data: bytes) -> None:
        if self.state is _LINGERING:
            self._linger_bytes += len(data)
            if self._linger_bytes > _LINGER_BYTES:
                self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # a protocol upgrade was offered: the request is answered in HTTP/1.1, and the rest is not read
        except httptools.HttpParserError:
            self._refuse(refusal(400, "not an HTTP/1.1 request; use HTTP/1.1"))
        else:
            if self._in_head:
                # The parser does not report an unfinished header, so the received bytes are counted.
                self._head_bytes += len(data)
                if self._head_bytes > self._limits.head_bytes:
                    self._refuse(refusal(431, "request headers too large; send fewer"))

    def pause_writing(self) -> None:
        """The caller does not read its responses: send no more until it does."""
        self._congested = True
        self._pause()

    def resume_writing(self) -> None:
        self._congested = False
        self._go_on()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.began = began = time.monotonic()
        self._url = b""
        self._in_head = True
        self._head_bytes = 0
        self._headers.clear()
        if self.state is _IDLE:
            self.state = _READING
            self.until = began + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.state is _LINGERING:
            return
        headers = self._headers.copy()
        path, _, query = self._url.partition(b"?")
        route = self._listener.route_at(path)
        until = self.began + seconds_for(query, route.timeout if route else 0.0, self._limits.longest)
        self._reading = Exchange(
            began=self.began,
            method=self._parser.get_method().decode("latin-1"),
            query=query,
            headers=headers,
            route=route,
            until=until,
            keep_alive=self._parser.should_keep_alive() and not self._parser.should_upgrade(),
        )
        if self.state is _READING:
            self.until = until
            if b"Expect" in headers or b"expect" in headers:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        exchange = self._reading
        if exchange is None:
            return  # refused already
        length = len(exchange.body) + len(piece)
        limit = exchange.route.body_limit if exchange.route else self._limits.head_bytes
        if length > limit:
            self._refuse(refusal(413, f"request body too large (limit: {limit} bytes)"))
        elif length > _SMALL and not self._hold(exchange, length):
            self._refuse((exchange.route and exchange.route.busy) or BUSY)
        else:
            exchange.body = extended(exchange.body, piece)

    def on_message_complete(self) -> None:
        exchange, self._reading = self._reading, None
        if exchange is None:
            return  # refused already
        if self._current is None and not self._congested:
            self._take_on(exchange)
        elif len(self._pipeline) < _PIPELINED:
            self._pipeline.append(exchange)
            self._pause()
        else:
            self._refuse(
                refusal(429, "too many pipelined requests on one connection; wait for the responses", headers=AGAIN)
            )

    # Requests, one at a time

    def _take_on(self, exchange: Exchange) -> None:
        self._current = exchange
        route = exchange.route
        if route is None:
            self._answer(exchange, refusal(404, "not found"))
        elif exchange.method not in route.methods:
            allowed = ", ".join(route.methods)
            wrong = refusal(405, f"method not allowed; use {allowed}", headers=(("allow", allowed),))
            self._answer(exchange, wrong)
        elif not route.ready():
            self._answer(exchange, UNREADY)
        else:
            answer = self._ask(exchange, route)
            if isinstance(answer, Response):
                self._answer(exchange, answer)
                return
            self._awaited = answer
            if self._listener.admit(self):
                self.start()
            else:
                self.state = _QUEUED
                self.until = min(exchange.until, time.monotonic() + self._limits.patience)

    def _ask(self, exchange: Exchange, route: Route) -> Response | Coroutine[Any, Any, Response]:
        body = exchange.body
        request = Request(
            method=exchange.method,
            path=route.path,
            query=exchange.query.decode("latin-1"),
            headers=exchange.headers,
            peer=self._peer,
            ends=exchange.until,
        )
        try:
            return route.handler(body if isinstance(body, bytes) else bytes(body), request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            return _unexpected(route, error)

    def start(self) -> None:
        """Start the queued request: the listener has a free place for it."""
        exchange, handler = self._current, self._awaited
        assert exchange and exchange.route and handler  # noqa: PT018, S101 - for the type checker
        self.state = _WORKING
        self.until = exchange.until
        self._task = self._listener.loop.create_task(self._work(exchange, exchange.route, handler))

    async def _work(self, exchange: Exchange, route: Route, handler: Coroutine[Any, Any, Response]) -> None:
        self._awaited = None
        try:
            answer = await handler
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            answer = _unexpected(route, error)
        finally:
            self._listener.release()
        # A done callback on the task would cost one more loop iteration, a fifth of the whole request.
        if not exchange.answered:
            self._task = None
            self._answer(exchange, answer)

    def _answer(self, exchange: Exchange, response: Response) -> None:
        """Write the response; the connection is then free for the next request."""
        exchange.answered = True
        self._current = None
        if exchange.held:
            self._hold(exchange, 0)
        listener, route, now = self._listener, exchange.route, time.monotonic()
        listener.requests.observe(listener.name, route.name if route else "", response.status, now - exchange.began)
        keep = exchange.keep_alive and not self._last
        start = head(response, listener.date, keep=keep)
        self._transport.write(start + response.body if exchange.method != "HEAD" else start)
        if not keep:
            self.state = _LINGERING
            self.until = now + self._limits.longest
            self._transport.close()
            return
        self.state = _IDLE
        self.until = now + self._limits.idle_seconds
        if self._reading or self._in_head:
            self.state = _READING
            self.until = self._reading.until if self._reading else now + self._limits.head_seconds
        self._go_on()

    def _go_on(self) -> None:
        """Start the next request that was received, or resume reading."""
        if not (self._pipeline or self._paused) or self._congested or self._current or self._transport.is_closing():
            return
        if self._pipeline:
            self._take_on(self._pipeline.popleft())
        if self._paused and not self._pipeline:
            self._paused = False
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _hold(self, exchange: Exchange, length: int) -> bool:
        """Account for a body that has grown to this length, or is released."""
        if not self._listener.hold(length - exchange.held):
            return False
        exchange.held = length
        return True

    # Closing and errors

    def overdue(self) -> None:
        """Handle the deadline of the current state."""
        exchange = self._current
        if self.state is _QUEUED and exchange and exchange.route:
            self._give_up("no free place in time")
            self._answer(exchange, exchange.route.busy or BUSY)
        elif self.state is _WORKING and exchange and exchange.route:
            exchange.answered = True
            self._give_up("timed out")
            self._answer(exchange, exchange.route.late or LATE)
        elif self.state is _READING:
            self._refuse(refusal(408, "request not received in time; retry"))
        elif self.state is _LINGERING:
            self._transport.abort()
        else:
            self.state = _LINGERING
            self.until = time.monotonic() + _LINGER_SECONDS
            self._transport.close()

    def finish(self) -> None:
        """Finish the current request, if any, then close."""
        self._last = True
        if self.state is _IDLE:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _refuse(self, response: Response) -> None:
        """Answer a request that is not read to its end, and read no more."""
        exchange, now = self._reading, time.monotonic()
        route = exchange.route if exchange else None
        self._listener.requests.observe(
            self._listener.name, route.name if route else "", response.status, now - self.began
        )
        self._abandon()
        self._transport.write(head(response, self._listener.date, keep=False) + response.body)
        # Closed when the caller closes, or after the time to read the response.
        self.state = _LINGERING
        self.until = now + _LINGER_SECONDS
        if self._paused:
            self._transport.resume_reading()

    def _abandon(self) -> None:
        """The caller is gone: drop all requests."""
        self._give_up("connection closed by the caller")
        for exchange in (self._reading, self._current, *self._pipeline):
            if exchange:
                exchange.answered = True
                self._hold(exchange, 0)
        self._reading = self._current = None
        self._pipeline.clear()

    def _give_up(self, why: str) -> None:
        """Cancel the handler in any state: queued, about to start, or running."""
        handler, self._awaited = self._awaited, None
        task, self._task = self._task, None
        if task:
            task.cancel(why)
        if handler:
            # A task that is cancelled before it starts never runs, so it cannot release its place itself.
            handler.close()
            if task:
                self._listener.release()
            else:
                self._listener.leave_queue(self)


def _unexpected(route: Route, error: BaseException) -> Response:
    """Log the error; the caller gets only a 500."""
    log.error("request handler failed", route=route.name, exc_info=error)
    return UNEXPECTED
