"""Answers that no handler has to make, and how an answer begins on the wire."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

from unwind.routes import refusal

if TYPE_CHECKING:
    from unwind.routes import Response

AGAIN = (("retry-after", "1"),)
# The API server's client repeats a request that was answered with Retry-After, within the webhook's timeout: load is
# spread over time instead of failing.
BUSY = refusal(429, "Too much is going on here: try again in a second.", headers=AGAIN)
# No Retry-After here, for the same reason: what to do without us is the failurePolicy's to decide, and at once.
UNREADY = refusal(503, "This process does not know the cluster yet: its caches are being filled.")
LATE = refusal(504, "There was no answer in time.")
UNEXPECTED = refusal(500, "Something unexpected happened; the log of this process says what.")


def head(response: Response, date: bytes, *, keep: bool) -> bytes:
    """The status line and the headers."""
    start = _start(response.status, response.content_type, response.headers, keep)
    return b"%bdate: %b\r\ncontent-length: %d\r\n\r\n" % (start, date, len(response.body))


@lru_cache(maxsize=256)
def _start(status: int, content_type: str, headers: tuple[tuple[str, str], ...], keep: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not keep:
        lines.append("connection: close")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header with a line break in it")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")
