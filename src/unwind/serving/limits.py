"""How much a listener takes on. Every number here is a bound that keeps callers from harming each other."""

from __future__ import annotations

import msgspec

_MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds for one listener."""

    connections: int = 2000
    """Open at once. Above it the one that has been idle longest is closed; if none is idle, the new one."""
    under_way: int = 256
    """Requests being answered at once. What comes on top waits for its turn."""
    patience: float = 2.0
    """Seconds a request waits for its turn before it is answered 429, with the advice to come again."""
    head_bytes: int = 32 << 10
    """The request line and the headers."""
    head_seconds: float = 10.0
    """From the first byte of a request to the end of its headers; and from the connection to its first request."""
    idle_seconds: float = 120.0
    """A connection without a request. Longer than the 90 s of Go's clients, so that it is they who close: a server
    that closes first may do so in the moment in which the next request is on its way, and a POST is not repeated."""
    handshake_seconds: float = 10.0
    bodies_bytes: int = 64 * _MIB
    """All bodies in memory together. Above it, the request whose body grows is answered 429."""
    longest: float = 30.0
    """The most time a caller can ask for (`?timeout=`), and for an answer to be taken off our hands."""
