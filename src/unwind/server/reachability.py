"""Whether the manager answers: what calls it is registered only then.

A webhook that fails closed refuses every deletion while nothing answers it, and a Cluster API manager does not start
while a registered extension does not answer. What is registered stays registered when replicas go: a hook without an
answer holds, and without a registration Cluster API deletes every cluster at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind import logs
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.object_watch import backoff
from unwind.server import path_segments
from unwind.server.manager_names import SERVICE_PORT
from unwind.server.routes import Request, Response, Route, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.server.path_segments import Segments

log = logs.get(__name__)

PATH = "/admit/answering"
"""Answered by every replica that serves. It has a secret segment of its own."""
_LOOK = 0.2
# The wait between two attempts stays short: without a registration, nothing is held.
_SLOWEST = 3


class Answering:
    """Becomes true when this replica is ready and, if it must be called through the Service, a replica answers there.
    Then it stays true."""

    name = "answering"
    ready = True

    def __init__(
        self,
        client: Client,
        is_ready: Callable[[], bool],
        segments: Segments,
        *,
        namespace: str = "",
        clock: Clock = SYSTEM,
    ) -> None:
        """`namespace`: that of the Service; empty for a manager that is not called through a Service."""
        self._client = client
        self._is_ready = is_ready
        self._segments = segments
        self._namespace = namespace
        self._clock = clock
        self._told: list[Callable[[], None]] = []
        self.answered = False

    @property
    def through_service(self) -> bool:
        return bool(self._namespace)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the manager answers."""
        self._told.append(changed)

    async def run(self) -> None:
        while not self._is_ready():
            await self._clock.sleep(_LOOK)
        failures = 0
        while self._namespace and not await self._answers(failures):
            failures += 1
            await backoff(min(failures, _SLOWEST))
        self.answered = True
        for told in self._told:
            told()

    async def _answers(self, failures: int) -> bool:
        """Whether the API server reaches a ready replica through the Service, as it does for webhooks."""
        service = f"/api/v1/namespaces/{self._namespace}/services/{SERVICE_PORT}/proxy"
        try:
            await self._client.raw(f"{service}{path_segments.prefix(self._segments.key, PATH)}{PATH}")
        except UnwindError as error:
            if not failures:
                why = path_segments.redacted(str(error))
                log.info("not reached through the Service, will retry; nothing is registered until then", why=why)
            return False
        log.info("answering through the Service", namespace=self._namespace)
        return True


def route() -> Route:
    def answer(body: bytes, request: Request) -> Response:
        return sentence(200, "ok")

    return Route(path=PATH, handler=answer, name="answering", methods=("GET",))
