"""Health and readiness probes, and the Prometheus registry of the process.

Label values are small, fixed sets: verbs, kinds, routes, status classes. Never a name or uid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from unwind.server.routes import TEXT, Request, Response, Route, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unwind.components import Component
    from unwind.server.authorization import TokenAuthorizer


def new_registry() -> CollectorRegistry:
    """A registry with the process metrics: memory, CPU time and open files. One per process."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


# The routes of the metrics listener: liveness, readiness and metrics.

_READ = ("GET", "HEAD")


class Readiness:
    """Whether all components of this process are ready."""

    def __init__(self) -> None:
        self._parts: list[Component] = []
        self.started = False
        self.stopping = False

    def add(self, parts: Sequence[Component]) -> None:
        self._parts += parts

    @property
    def missing(self) -> list[str]:
        """The names of components that are not ready; empty if all are."""
        if self.stopping:
            return ["stopping"]
        if not self.started:
            return ["starting"]
        return sorted({part.name for part in self._parts if not part.ready})


def routes(
    readiness: Readiness,
    registry: CollectorRegistry,
    *,
    dead: Callable[[], str] = lambda: "",
    authorizer: TokenAuthorizer | None = None,
) -> list[Route]:
    """`/healthz`, `/readyz` and `/metrics`. `dead` returns why the process should be restarted, or nothing.
    `authorizer`: decides who may read the metrics; everyone may without it."""

    def healthz(body: bytes, request: Request) -> Response:
        why = dead()
        return sentence(503, why) if why else sentence(200, "ok")

    def readyz(body: bytes, request: Request) -> Response:
        missing = readiness.missing
        return sentence(503, f"not ready: {', '.join(missing)}") if missing else sentence(200, "ok")

    def metrics(body: bytes, request: Request) -> Response:
        encode, content_type = choose_encoder(request.header("accept") or "")
        return Response(encode(registry), content_type=content_type)

    def index(body: bytes, request: Request) -> Response:
        return Response(b"/healthz\n/readyz\n/metrics\n", content_type=TEXT)

    guarded = authorizer.guarded("/metrics", metrics) if authorizer else metrics
    return [
        Route(path=path, name=path, handler=handler, methods=_READ)
        for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", guarded), ("/", index))
    ]
