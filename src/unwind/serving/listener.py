"""The HTTPS listener: a socket, its connections, and their shared limits."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections import deque
from email.utils import formatdate
from typing import TYPE_CHECKING

from unwind.segments import segment
from unwind.serving.connection import Connection, State
from unwind.serving.limits import Limits
from unwind.serving.requests import Requests

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from unwind.routes import Route
    from unwind.segments import Segments
    from unwind.serving.tls import Tls

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
        requests: Requests | None = None,
        segments: Segments | None = None,
    ) -> None:
        """`segments`: if set, every path must begin with the secret segment of its route."""
        self.name = name
        self.limits = limits
        self.requests = requests or Requests()
        self.routes: dict[bytes, Route] = {}
        self.date = b""
        self._tls = tls
        self._segments = segments
        self._accepted: dict[str, list[bytes]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._queue: deque[Connection] = deque()
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
        for one in self._accepted[route.path]:
            found |= hmac.compare_digest(one, given)
        return route if found else None

    async def open(self, listening: socket.socket) -> None:
        """Start serving on this socket."""
        self.loop = asyncio.get_running_loop()
        self._look_around()
        secured = self._tls is not None
        self._server = await self.loop.create_server(
            lambda: Connection(self),
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

    def opened(self, connection: Connection) -> None:
        self._all_gone.clear()
        self._connections.add(connection)
        if len(self._connections) > self.limits.connections:
            # Close the longest idle connection, which is the new one if all others are busy.
            min((one for one in self._connections if one.state is State.IDLE), key=lambda one: one.began).finish()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    # Shared limits

    def admit(self, connection: Connection) -> bool:
        """Reserve a place for a request; if there is none, the connection is queued."""
        if self._under_way < self.limits.under_way:
            self._under_way += 1
            return True
        self._queue.append(connection)
        return False

    def leave_queue(self, connection: Connection) -> None:
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
        for connection in [one for one in self._connections if one.until < now]:
            connection.overdue()
        self._looking = self.loop.call_later(_LOOK_AROUND, self._look_around)
