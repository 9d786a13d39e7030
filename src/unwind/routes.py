"""Questions over HTTPS and what answers them: values only, so that whoever decides never meets a socket.

A webhook or a hook is a `Route`: an exact path and a function from the body to a `Response`. It is handed to the
process that runs (`unwind.serving.running`), whose listener bounds the size, the time and the number of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
# The API server accepts objects of 3 MiB, and a review of an update carries the old and the new one.
BODY_LIMIT = 7 << 20
_REASONS = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request besides its body."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """As they came: names in any case. Of those that came twice, the last."""
    peer: str
    """The caller's address."""
    ends: float
    """When the answer has to be out, on the monotonic clock."""

    @property
    def remaining(self) -> float:
        """Seconds until then: what a fresh read may take."""
        return max(0.0, self.ends - time.monotonic())

    def header(self, name: str) -> str | None:
        """What the header of that name says."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers.items() if key.lower() == wanted), None)


class Response(msgspec.Struct, frozen=True):
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def sentence(status: int, text: str) -> Response:
    """An answer in words."""
    return Response(f"{text}\n".encode(), status, TEXT)


def refusal(status: int, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """What is wrong, in words and in the form in which the API server passes them on to whoever asked it."""
    told = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": _REASONS.get(status, ""),
        "code": status,
    }
    return Response(msgspec.json.encode(told), status, JSON, headers)


Handler = Callable[[bytes, Request], Response | Coroutine[Any, Any, Response]]
"""An `async def`, or a `def` for what is known without waiting, which costs a third less: a task is made only for what
has to wait. A `def` that finds that it does have to wait returns the coroutine of the function that does."""


def always() -> bool:
    return True


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One path and what answers there."""

    path: str
    handler: Handler
    name: str
    """What metrics call it."""
    methods: tuple[str, ...] = ("POST",)
    ready: Callable[[], bool] = always
    """While this says no, the answer is 503, and the caller's failurePolicy decides."""
    timeout: float = 10.0
    """Seconds for an answer where the caller does not say (`?timeout=10s`)."""
    body_limit: int = BODY_LIMIT
    late: Response | None = None
    """What is answered when the time is up, instead of 504."""
    busy: Response | None = None
    """What is answered when there is no room for the request, instead of 429."""
