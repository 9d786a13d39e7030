"""What the metrics listener answers: whether the process lives, whether it is ready, and what it has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder

from unwind.routes import TEXT, Request, Response, Route, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from unwind.parts import Part

_READ = ("GET", "HEAD")


class Readiness:
    """Whether everything in this process can do its work."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.started = False
        self.stopping = False

    def add(self, parts: Sequence[Part]) -> None:
        self._parts += parts

    @property
    def missing(self) -> list[str]:
        """What is not ready yet, by name; nothing, if all is."""
        if self.stopping:
            return ["stopping"]
        if not self.started:
            return ["starting"]
        return sorted({part.name for part in self._parts if not part.ready})


def routes(readiness: Readiness, registry: CollectorRegistry, *, dead: Callable[[], str] = lambda: "") -> list[Route]:
    """`/healthz`, `/readyz` and `/metrics`. `dead` returns why the process should be restarted, or nothing."""

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

    return [
        Route(path=path, name=path, handler=handler, methods=_READ)
        for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics), ("/", index))
    ]
