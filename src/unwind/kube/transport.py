"""HTTP transport of the API client: requests and streams over pooled connections."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from unwind.errors import UnwindError
from unwind.kube.auth import Credentials, RequestCredentials
from unwind.kube.dial import connect, host_header, proxy_headers, way_to
from unwind.kube.errors import AnotherClusterError, TooLargeAnswerError, UnreachableError
from unwind.kube.http1 import BrokenError, TooLargeError
from unwind.kube.kubeconfig import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from unwind.kube.http1 import HTTPReply, Wire
    from unwind.kube.kubeconfig import ClusterConnection

_CONNECTING = 10.0
# After a connection attempt has timed out, none is tried for so many seconds: thousands of requests would otherwise
# wait for it one after the other.
_DOWN = 1.0
# Maximum number of concurrent requests to one API server. Others wait here, where waiting is free, and not there.
# Watches do not count, nor do health probes: behind thousands of requests they would make the server seem unreachable.
_IN_FLIGHT = 128
# Seconds for which an idle connection is kept: the last few used, and all others.
_KEEP_ALIVE = 75.0
_LINGER = 30.0
_FEW = 4
# The longest line of a stream: an event contains one object.
MOST_LINE = 16 << 20
# Characters that could split a request in two.
_UNFIT = re.compile(r"[^\x21-\x7e]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The identity of a cluster. Read from the server's cache when a connection is opened: it never changes.
SYSTEM_PATH = "/api/v1/namespaces/kube-system"
_IDENTITY = f"{SYSTEM_PATH}?resourceVersion=0"
_PROBES = (SYSTEM_PATH, "/version")
_JSON = {"Accept": "application/json", "Accept-Encoding": "gzip"}
# Idempotent methods.
_REPEATABLE = ("GET", "DELETE")


class ServerAnswer(msgspec.Struct, frozen=True):
    """A response of a server."""

    status: int
    body: bytes
    retry_after: float | None = None
    date: bytes = b""
    """The Date header: the server's time."""


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Identity(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _RefusedError(Exception):
    """The server did not reveal its identity, in a response that says nothing about any object."""

    def __init__(self, reply: HTTPReply) -> None:
        super().__init__(str(reply.status))
        self.reply = reply


class Transport(Protocol):
    """Sends requests to a server."""

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        """Send one request. Raises UnreachableError if there was no response."""

    def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AbstractAsyncContextManager[ServerAnswer | AsyncIterator[list[bytes]]]:
        """Open a stream: whole lines, in batches as they arrive; or the response that refuses it.

        Raises UnreachableError after `silence` seconds without data, or if the connection broke.
        """

    async def close(self) -> None:
        """Close all connections."""


@runtime_checkable
class Pinning(Protocol):
    """A transport that verifies the cluster behind each connection."""

    def pin(self, cluster: str) -> None:
        """Accept from now on only this cluster, identified by the uid of its kube-system namespace."""


class HttpTransport:
    """Requests over pooled HTTP/1.1 connections."""

    def __init__(self, connection: ClusterConnection, *, user_agent: str) -> None:
        connection.check()
        self.connection = connection
        self._credentials = Credentials(connection)
        self._bound = asyncio.Semaphore(_IN_FLIGHT)
        self._contexts: dict[bytes | None, ssl.SSLContext] = {}
        self._way = way_to(connection.server, server_name=connection.server_name, proxy=_proxy(connection))
        # An address may have a path: a proxy in front of many API servers.
        self._prefix = (
            connection.server.rstrip("/") if self._way.through else urlsplit(connection.server).path.rstrip("/")
        )
        base = {"Host": host_header(self._way), "User-Agent": user_agent}
        if connection.impersonate:
            base["Impersonate-User"] = connection.impersonate
        for name, value in base.items():
            _check_header(name, value)
        lines = [f"{name}: {value}" for name, value in base.items()]
        if self._way.through and self._way.proxy:
            lines += proxy_headers(self._way.proxy)
        self._base = "\r\n".join(lines)
        self._cluster = ""
        self._ahead = True
        self._idle: list[Wire] = []
        self._open: set[Wire] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        self._down = 0.0

    def pin(self, cluster: str) -> None:
        self._cluster = cluster

    async def close(self) -> None:
        self._closed = True
        if self._sweeping:
            self._sweeping.cancel()
        for wire in list(self._open):
            wire.abort()
        self._idle.clear()

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        try:
            async with asyncio.timeout(within), nullcontext() if target in _PROBES else self._bound:
                answer, proof = await self._ask(method, target, body, headers)
                if answer.status == 401 and self._credentials.renewable:
                    self._credentials.refused(proof)
                    answer, _ = await self._ask(method, target, body, headers)
                return answer
        except (BrokenError, TimeoutError, OSError) as error:
            raise self._unreachable(f"{method} {target}", error) from error

    @asynccontextmanager
    async def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[ServerAnswer | AsyncIterator[list[bytes]]]:
        wire: Wire | None = None
        try:
            proof = await self._credentials.proof()
            # A connection of its own: it is closed in the end, and an idle one may already be closed.
            wire = await self._connect(proof)
            async with asyncio.timeout(silence):
                self._identify(wire, proof)
                try:
                    # With compression, an event would wait in the server until there is enough data.
                    request = self._head("GET", target, None, {**headers, "Accept-Encoding": "identity"}, proof)
                    reply = await wire.open(request)
                except _RefusedError as refused:
                    reply = refused.reply
            if reply.stream:
                yield _lines(reply.stream, silence)
                return
            if reply.status == 401:
                self._credentials.refused(proof)
            yield _answer(reply)
        except (BrokenError, TimeoutError, OSError) as error:
            raise self._unreachable(f"watch {target}", error) from error
        finally:
            if wire is not None:
                wire.abort()

    async def _ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[ServerAnswer, RequestCredentials]:
        if self._closed:
            raise RuntimeError("the client is closed")  # a bug in the caller
        proof = await self._credentials.proof()
        request = self._head(method, target, body, {"Accept-Encoding": "gzip", **headers}, proof)
        while True:
            wire = self._waiting(proof)
            if wire is None:
                wire = await self._connect(proof)
            try:
                if target != SYSTEM_PATH:
                    checked = self._identify(wire, proof)
                    # Another cluster has no object with that uid, so a DELETE is harmless there.
                    if checked and not (self._ahead and method in _REPEATABLE):
                        await checked
                reply = await wire.ask(request)
                if target == SYSTEM_PATH:
                    wire.cluster = _uid(reply)
                return _answer(reply), proof
            except _RefusedError as refused:
                return _answer(refused.reply), proof
            except BrokenError as error:
                if wire.checking:
                    self._ahead = False  # a proxy may not accept a request before the last one was answered
                # The idle connection was closed. Idempotent requests are sent again: a DELETE carries the uid.
                if error.unanswered and method in _REPEATABLE:
                    continue
                raise
            except BaseException:
                wire.abort()  # its response may still arrive, and must not be taken for that of another request
                raise

    def _identify(self, wire: Wire, proof: RequestCredentials) -> asyncio.Future[None] | None:
        """Verify the cluster behind a new connection, ahead of the first request.

        An address may lead to several clusters, with each connection to another one.
        """
        if not self._cluster or wire.cluster == self._cluster:
            return None

        def check(reply: HTTPReply) -> Exception | None:
            if reply.status in (401, 429) or reply.status >= 500:
                return _RefusedError(reply)
            wire.cluster = found = _uid(reply)
            if not found:
                return BrokenError(
                    f"cannot verify which cluster answered: GET {_IDENTITY} returned {reply.status}",
                    remedy="allow this user to get Namespace kube-system, and check the proxies before the API server",
                )
            if found != self._cluster:
                return AnotherClusterError(self.connection.server, found=found, expected=self._cluster)
            return None

        return wire.check_first(self._head("GET", _IDENTITY, None, _JSON, proof), check)

    def _head(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], proof: RequestCredentials
    ) -> bytes:
        proven = {"Authorization": proof.authorization} if proof.authorization else {}
        said = []
        for name, value in (*headers.items(), *proven.items()):
            _check_header(name, value)
            said.append(f"{name}: {value}")
        if _UNFIT.search(target):
            raise UnwindError(
                f"cannot send {method} {target!r}: invalid characters in request path",
                remedy="correct the name or namespace",
            )
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", self._base, *said]
        if body is None:
            return ("\r\n".join(lines) + "\r\n\r\n").encode()
        return ("\r\n".join(lines) + f"\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body

    def _waiting(self, proof: RequestCredentials) -> Wire | None:
        """The most recently used idle connection, if it can be reused."""
        context = self._context(proof)
        now = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle.pop()
            if wire.usable and wire.context is context and now - wire.since < _KEEP_ALIVE:
                return wire
            wire.close()
        return None

    async def _connect(self, proof: RequestCredentials) -> Wire:
        loop = asyncio.get_running_loop()
        if loop.time() < self._down:
            raise TimeoutError
        try:
            async with asyncio.timeout(_CONNECTING):
                wire = await connect(self._way, self._context(proof), self._released, self._open.discard)
        except TimeoutError:
            self._down = loop.time() + _DOWN
            raise
        self._open.add(wire)
        return wire

    def _released(self, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        wire.since = loop.time()
        self._idle.append(wire)
        if self._sweeping is None and not self._closed:
            self._sweeping = loop.call_later(_LINGER, self._sweep)

    def _sweep(self) -> None:
        """Close idle connections: a burst opens a hundred, and each costs both sides some 100 KB."""
        loop = asyncio.get_running_loop()
        kept: list[Wire] = []
        few = len(self._idle) - _FEW  # the most recently used are at the end
        for place, wire in enumerate(self._idle):
            patience = _LINGER if place < few else _KEEP_ALIVE
            if wire.usable and loop.time() - wire.since < patience:
                kept.append(wire)
            else:
                wire.close()
        self._idle = kept
        self._sweeping = loop.call_later(_LINGER, self._sweep) if kept else None

    def _context(self, proof: RequestCredentials) -> ssl.SSLContext | None:
        if not self._way.secure:
            return None
        if proof.certificate not in self._contexts:
            # A plugin may return another certificate one day: the connections with the old one are then useless.
            context = self.connection.ssl_context(certificate=proof.certificate, key=proof.key)
            self._contexts = {proof.certificate: context}
        return self._contexts[proof.certificate]

    def _unreachable(self, request: str, error: BaseException) -> UnreachableError:
        server = self.connection.server
        if isinstance(error, ssl.SSLCertVerificationError):
            what = f"the certificate of {server} is not trusted ({error.verify_message})"
            remedy = "check certificate-authority and tls-server-name in the kubeconfig"
        elif isinstance(error, TimeoutError):
            what, remedy = (
                f"{server} does not answer",
                "check its load, and for a firewall that drops packets",
            )
        elif isinstance(error, TooLargeError):
            return TooLargeAnswerError(
                f"the connection to {server} was closed ({error}) ({request})", remedy=error.remedy
            )
        elif isinstance(error, BrokenError):
            what, remedy = f"the connection to {server} broke ({error})", error.remedy
        else:
            told = error.strerror if isinstance(error, OSError) and error.strerror else error
            what, remedy = f"cannot connect to {server} ({told})", "check that it is running, and its address"
        return UnreachableError(f"{what} ({request})", remedy=remedy)


async def _lines(pieces: AsyncIterator[bytes], silence: float) -> AsyncIterator[list[bytes]]:
    """Whole lines, one list per piece of data: awaiting each line would cost more than reading it."""
    rest = bytearray()
    while True:
        try:
            async with asyncio.timeout(silence):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        first, *lines = piece.split(b"\n")
        if len(rest) + len(first) > MOST_LINE:
            raise BrokenError(
                f"a line of the stream is longer than {MOST_LINE >> 20} MiB",
                remedy="reduce the size of the watched objects, and check the proxies before the API server",
            )
        if lines:
            if rest:
                first = bytes(rest) + first
            rest = bytearray(lines.pop())
            yield [first, *lines]
        else:
            rest += first


def _answer(reply: HTTPReply) -> ServerAnswer:
    headers = reply.headers
    retry_after = _retry_after(headers) if reply.status >= 400 else None
    return ServerAnswer(reply.status, reply.body, retry_after, headers.get(b"date", b""))


def _proxy(connection: ClusterConnection) -> str | None:
    """The proxy to use: the kubeconfig's, else the environment's. Never for this machine, as with kubectl."""
    url = urlsplit(connection.server)
    proxy, host = connection.proxy, url.hostname or ""
    if not proxy and host not in ("localhost", "127.0.0.1", "::1") and not proxy_bypass(host):
        proxy = getproxies().get(url.scheme)
    if proxy and not proxy.startswith(("http://", "https://")):
        raise UnwindError(f"unsupported proxy {shown(proxy)}", remedy="use an HTTP proxy")
    return proxy


def _check_header(name: str, value: str) -> None:
    """Raise UnwindError for a value that would end the header and start another one. The value may be secret."""
    if _CONTROL.search(value):
        raise UnwindError(
            f"cannot send header {name}: its value contains control characters",
            remedy="correct the credentials in the kubeconfig",
        )


def _uid(reply: HTTPReply) -> str:
    """The uid of the object in a response; empty if there is none."""
    try:
        return msgspec.json.decode(reply.body, type=_Identity).metadata.uid if reply.status == 200 else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    try:
        return max(0.0, float(headers[b"retry-after"]))
    except (KeyError, ValueError):  # missing, or a date, which no API server sends
        return None
