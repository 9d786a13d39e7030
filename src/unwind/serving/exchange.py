"""One request on a connection, and its response."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from unwind.api import durations
from unwind.api.fields import Unknown

if TYPE_CHECKING:
    from unwind.routes import Route


class Exchange:
    """A request whose headers were received, and its response."""

    __slots__ = ("answered", "began", "body", "headers", "held", "keep_alive", "method", "query", "route", "until")

    def __init__(
        self,
        *,
        began: float,
        method: str,
        query: bytes,
        headers: dict[bytes, bytes],
        route: Route | None,
        until: float,
        keep_alive: bool,
    ) -> None:
        self.began = began
        self.method = method
        self.query = query
        self.headers = headers
        self.route = route
        self.until = until
        self.keep_alive = keep_alive
        self.body: bytes | bytearray = b""
        self.held = 0
        """The accounted bytes of the body."""
        self.answered = False


@lru_cache(maxsize=256)
def seconds_for(query: bytes, default: float, longest: float) -> float:
    """The seconds for a response: slightly less than the caller's timeout, so that it arrives before that.

    The API server and Cluster API both send their timeout.
    """
    waits = default
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == b"timeout":
            asked = durations.parse(value.decode("latin-1"))
            waits = default if isinstance(asked, Unknown) else asked.total_seconds() or default
    waits = min(waits, longest)
    return waits - min(1.0, max(0.2, 0.1 * waits))
