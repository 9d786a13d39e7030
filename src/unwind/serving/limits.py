"""Resource limits of a listener, which keep callers from harming each other."""

from __future__ import annotations

import msgspec

_MIB = 1 << 20


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
