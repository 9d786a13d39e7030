"""Authorizes requests by the token of their caller: the API server authenticates it (TokenReview) and decides
(SubjectAccessReview), as for the metrics of Kubernetes' own components."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.api.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.errors import UnwindError
from unwind.server.routes import Response, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.server.routes import Handler, Request

log = logs.get(__name__)

# How long an answer is used again. A token that is revoked can read for that long.
_REMEMBERED = 10.0
# Answers that are kept. Callers without rights must not fill the memory.
_MOST = 256
_SCHEME = "bearer "


class TokenAuthorizer:
    """Decides by the caller's token whether a path may be read."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, Response | None]] = OrderedDict()
        """By the digest of path and token: when it was asked, and the refusal; None if the path may be read."""
        self._asking: SingleFlight[Response | None] = SingleFlight()

    def guarded(self, path: str, handler: Callable[[bytes, Request], Response]) -> Handler:
        """The handler, for callers that may `get` this nonResourceURL."""

        def answer(body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
            token = _token(request)
            if not token:
                return sentence(401, f"cannot read {path}: no token; send the header `Authorization: Bearer TOKEN`")
            return self._answer(path, token, handler, body, request)

        return answer

    async def _answer(
        self, path: str, token: str, handler: Callable[[bytes, Request], Response], body: bytes, request: Request
    ) -> Response:
        key = hashlib.sha256(f"{path}\n{token}".encode()).digest()
        asked, refused = self._answers.get(key, (None, None))
        if asked is None or self._clock.monotonic() - asked >= _REMEMBERED:
            try:
                refused = await self._asking.ask(key, lambda: self._review(path, token))
            except UnwindError as error:
                log.warning("API server not asked who may read this path, answered with 503", path=path, why=str(error))
                return sentence(
                    503, f"cannot read {path}: the API server could not be asked whether you may; try again"
                )
            self._answers[key] = (self._clock.monotonic(), refused)
            while len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        return refused or handler(body, request)

    async def _review(self, path: str, token: str) -> Response | None:
        """Ask the API server. The refusal; None if the path may be read."""
        reviewed = await self._create(TOKEN_REVIEWS, {"token": token})
        if not reviewed.get("authenticated"):
            return sentence(
                401,
                f"cannot read {path}: the token is not valid; send one that this cluster accepts",
            )
        user = reviewed.get("user") or {}
        who = {"user": user.get("username", ""), "groups": user.get("groups") or [], "uid": user.get("uid", "")}
        asked = {"nonResourceAttributes": {"path": path, "verb": "get"}, "extra": user.get("extra") or {}}
        decided = await self._create(SUBJECT_ACCESS_REVIEWS, who | asked)
        if decided.get("allowed") is True:
            return None
        return sentence(
            403, f"cannot read {path}: {who['user']} may not get it; bind a ClusterRole that allows it (docs/run.md)"
        )

    async def _create(self, resource: Any, spec: Object) -> Object:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
        made = await self._client.create(resource, body)
        status: Object = made.get("status") or {}
        return status


def _token(request: Request) -> str:
    given = request.header("authorization") or ""
    return given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""
