"""Standard HTTP error responses, and the response header on the wire."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

from unwind.routes import refusal

if TYPE_CHECKING:
    from unwind.routes import Response

AGAIN = (("retry-after", "1"),)
# The API server's client retries a request that was answered with Retry-After, within the webhook's timeout: load is
# spread over time instead of failing.
BUSY = refusal(429, "too many requests; retry in a second", headers=AGAIN)
# No Retry-After here, for the same reason: the failurePolicy must apply at once.
UNREADY = refusal(503, "not ready: caches are not synced yet")
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
