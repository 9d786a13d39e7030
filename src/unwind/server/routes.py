"""HTTP routes, requests and responses as values, so that handlers need no sockets.

A webhook or a hook is a `Route`: an exact path and a function from the body to a `Response`. It is handed to the
process that runs (`unwind.manager.process`), whose listener bounds the size, the time and the number of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from unwind.api.resources import Resource

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
# The API server accepts objects of 3 MiB, and an AdmissionReview of an update contains the old and the new one.
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
    """An HTTP request without its body."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """As received: names in any case; of repeated headers, the last."""
    peer: str
    """The caller's address."""
    ends: float
    """The deadline of the response, on the monotonic clock."""

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.ends - time.monotonic())

    def header(self, name: str) -> str | None:
        """The value of a header, case-insensitive."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers.items() if key.lower() == wanted), None)


class Response(msgspec.Struct, frozen=True):
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def sentence(status: int, text: str) -> Response:
    """A plain text response."""
    return Response(f"{text}\n".encode(), status, TEXT)


def refusal(status: int, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """An error response as a Status, which the API server passes on to the user."""
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
"""An `async def`, or a `def` that answers without waiting, which costs a third less because it needs no task. A `def`
that has to wait after all returns a coroutine."""


def always_ready() -> bool:
    return True


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A path and its handler."""

    path: str
    handler: Handler
    name: str
    """The name in metrics."""
    methods: tuple[str, ...] = ("POST",)
    ready: Callable[[], bool] = always_ready
    """While this returns False, the response is 503, and the caller's failurePolicy applies."""
    timeout: float = 10.0
    """Seconds for a response if the caller sends no timeout (`?timeout=10s`)."""
    body_limit: int = BODY_LIMIT
    late: Response | None = None
    """The response on timeout, instead of 504."""
    busy: Response | None = None
    """The response when the listener is overloaded, instead of 429."""


class CABundleTarget(msgspec.Struct, frozen=True):
    """An object by which the API server or Cluster API calls us, and whose caBundle is kept current.

    Supported: webhook configurations, CRDs with a conversion webhook, APIServices and ExtensionConfigs.
    """

    resource: Resource
    name: str
