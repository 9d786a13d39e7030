"""The HTTPS listener: its address and socket, its connections, and their shared limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import socket
import time
from bisect import bisect_left
from collections import deque
from email.utils import formatdate
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from unwind.errors import UnwindError, UsageError
from unwind.server.connection import ConnectionState, ServerConnection
from unwind.server.path_segments import segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from unwind.server.path_segments import Segments
    from unwind.server.routes import Route
    from unwind.server.tls import Tls

# Resource limits of a listener, which keep callers from harming each other.

_MIB = 1 << 20


class Address(msgspec.Struct, frozen=True):
    """A host, as IP address or name, and a port; port 0 selects a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether it is the wildcard address."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def parse_address(text: str, *, option: str) -> Address:
    """Parse the value of an option. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed):
        raise UsageError(f"invalid {option} {text!r}", remedy="use HOST:PORT, such as 0.0.0.0:9443 or [::1]:9443")
    return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - a webhook is called from elsewhere


def bind(address: Address, *, option: str) -> socket.socket:
    """A socket bound to the address. Raises UnwindError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UnwindError(
            f"cannot resolve host {address.host!r} of {option}: {error.strerror}",
            remedy="use an address of this machine, or 0.0.0.0 for all",
        ) from error
    family, _, _, _, where = found[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(1024)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        remedies = {
            errno.EADDRINUSE: f"stop the process that listens there, or choose another port with {option}",
            errno.EACCES: f"choose a port above 1023 with {option}",
            errno.EADDRNOTAVAIL: "use an address of this machine, or 0.0.0.0 for all",
        }
        raise UnwindError(
            f"cannot listen on {address}: {error.strerror}", remedy=remedies.get(error.errno or 0, "")
        ) from error
    return listening


def address_of(listening: socket.socket) -> Address:
    """The address of a listening socket, with its actual port."""
    host, port, *_ = listening.getsockname()
    return Address(host, port)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one listener."""

    connections: int = 2000
    """Maximal open connections. Above it, the longest idle one is closed; if none is idle, the new one."""
    under_way: int = 256
    """Maximal requests in flight. Others are queued."""
    patience: float = 2.0
    """Seconds that a request stays in the queue before it is answered 429 with Retry-After."""
    head_bytes: int = 32 << 10
    """Maximal size of the request line and headers."""
    head_seconds: float = 10.0
    """Seconds from the first byte of a request to the end of its headers, and from connecting to the first request."""
    idle_seconds: float = 120.0
    """Seconds that a connection may be idle. Longer than the 90 s of Go's clients, so that the client closes first: a
    server that closes first may do so while the next request is on its way, and a POST is not retried."""
    handshake_seconds: float = 10.0
    bodies_bytes: int = 64 * _MIB
    """Maximal size of all request bodies in memory. Above it, a request whose body grows is answered 429."""
    longest: float = 30.0
    """Maximal seconds that a caller can request (`?timeout=`), and that sending a response may take."""


# Metrics of HTTP requests.
#
# Plain numbers, because everything runs on one thread; the Prometheus types lock and look up on every count, which is a
# tenth of the time of a whole request.

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS = [*(str(bound) for bound in _BUCKETS), "+Inf"]


class _Count:
    __slots__ = ("buckets", "statuses", "total")

    def __init__(self) -> None:
        self.statuses = [0] * 6
        self.buckets = [0] * len(_BOUNDS)
        self.total = 0.0


class RequestMetrics(Collector):
    """Metrics of requests by listener, route and status class: count, duration, in flight."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Count] = {}
        self._listeners: list[Listener] = []

    def watch(self, listener: Listener) -> None:
        """Also collect the gauges of this listener."""
        self._listeners.append(listener)

    def observe(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count a response. `route`: the name of a route, empty for unknown paths."""
        count = self._counts.get((listener, route))
        if count is None:
            count = self._counts[listener, route] = _Count()
        count.statuses[status // 100] += 1
        count.buckets[bisect_left(_BUCKETS, seconds)] += 1
        count.total += seconds

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "unwind_http_requests", "Number of HTTP requests answered.", labels=("listener", "route", "status")
        )
        times = HistogramMetricFamily(
            "unwind_http_request_duration_seconds",
            "Seconds from the first byte of a request to its response.",
            labels=("listener", "route"),
        )
        for (listener, route), count in self._counts.items():
            for number, answered in enumerate(count.statuses):
                if answered:
                    answers.add_metric((listener, route, f"{number}xx"), answered)
            buckets = list(zip(_BOUNDS, accumulate(count.buckets), strict=True))
            times.add_metric((listener, route), buckets, sum_value=count.total)
        yield answers
        yield times
        for gauge in (
            GaugeMetricFamily("unwind_http_under_way", "Number of HTTP requests in flight.", labels=("listener",)),
            GaugeMetricFamily("unwind_http_waiting", "Number of queued HTTP requests.", labels=("listener",)),
            GaugeMetricFamily("unwind_http_connections", "Number of open connections.", labels=("listener",)),
        ):
            for item in self._listeners:
                gauge.add_metric((item.name,), getattr(item, gauge.name.removeprefix("unwind_http_")))
            yield gauge


_LOOK_AROUND = 0.1


class Listener:
    """Serves routes on one socket."""

    def __init__(
        self,
        name: str,
        routes: Iterable[Route],
        *,
        tls: Tls | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        requests: RequestMetrics | None = None,
        segments: Segments | None = None,
    ) -> None:
        """`segments`: if set, every path must begin with the secret segment of its route."""
        self.name = name
        self.limits = limits
        self.requests = requests or RequestMetrics()
        self.routes: dict[bytes, Route] = {}
        self.date = b""
        self._tls = tls
        self._segments = segments
        self._accepted: dict[str, list[bytes]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[ServerConnection] = set()
        self._queue: deque[ServerConnection] = deque()
        self._under_way = 0
        self._bodies = 0
        self._all_gone = asyncio.Event()
        self._looking: asyncio.TimerHandle | None = None
        for route in routes:
            self.add(route)
        if segments:
            segments.subscribe(self._derive)
            self._derive()

    def add(self, route: Route) -> None:
        """Add a route."""
        path = route.path.encode()
        if path in self.routes:
            raise ValueError(f"two routes for {route.path}")
        self.routes[path] = route
        if self._segments:
            self._derive()

    def _derive(self) -> None:
        assert self._segments  # noqa: S101 - called only where there are any
        keys = self._segments.keys
        paths = [route.path for route in self.routes.values()]
        self._accepted = {path: [segment(key, path).encode() for key in keys] for path in paths}

    def route_at(self, path: bytes) -> Route | None:
        """The route at a path, if its secret segment is accepted."""
        if self._segments is None:
            return self.routes.get(path)
        given, slash, rest = path[1:].partition(b"/")
        route = self.routes.get(slash + rest)
        if route is None:
            return None
        found = False
        for item in self._accepted[route.path]:
            found |= hmac.compare_digest(item, given)
        return route if found else None

    async def open(self, listening: socket.socket) -> None:
        """Start serving on this socket."""
        self.loop = asyncio.get_running_loop()
        self._look_around()
        secured = self._tls is not None
        self._server = await self.loop.create_server(
            lambda: ServerConnection(self),
            sock=listening,
            ssl=self._tls.context if self._tls else None,
            ssl_handshake_timeout=self.limits.handshake_seconds if secured else None,
            ssl_shutdown_timeout=1.0 if secured else None,
            backlog=1024,
        )

    async def close(self, *, grace: float) -> None:
        """Accept no more requests, let those in flight finish within `grace` seconds, and close."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._all_gone.wait()
        self.abort()
        if self._looking:
            self._looking.cancel()
        await self._server.wait_closed()
        self._server = None

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self._connections):
            connection.abort()

    @property
    def under_way(self) -> int:
        """The number of requests in flight."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """The number of queued requests."""
        return len(self._queue)

    @property
    def connections(self) -> int:
        return len(self._connections)

    # Callbacks of connections

    def opened(self, connection: ServerConnection) -> None:
        self._all_gone.clear()
        self._connections.add(connection)
        if len(self._connections) > self.limits.connections:
            # Close the longest idle connection, which is the new one if all others are busy.
            min(
                (connection for connection in self._connections if connection.state is ConnectionState.IDLE),
                key=lambda one: one.began,
            ).finish()

    def lost(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    # Shared limits

    def admit(self, connection: ServerConnection) -> bool:
        """Reserve a place for a request; if there is none, the connection is queued."""
        if self._under_way < self.limits.under_way:
            self._under_way += 1
            return True
        self._queue.append(connection)
        return False

    def leave_queue(self, connection: ServerConnection) -> None:
        """Remove a connection from the queue."""
        with contextlib.suppress(ValueError):
            self._queue.remove(connection)

    def release(self) -> None:
        """Release a place, which goes to the longest waiting connection."""
        if self._queue:
            self._queue.popleft().start()
        else:
            self._under_way -= 1

    def hold(self, number: int) -> bool:
        """Account for the bytes of a body; False, without counting them, if the limit is exceeded."""
        if number > 0 and self._bodies + number > self.limits.bodies_bytes:
            return False
        self._bodies += number
        return True

    def _look_around(self) -> None:
        now = time.monotonic()
        self.date = formatdate(usegmt=True).encode()
        for connection in [connection for connection in self._connections if connection.until < now]:
            connection.overdue()
        self._looking = self.loop.call_later(_LOOK_AROUND, self._look_around)
