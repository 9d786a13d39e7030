"""Who may talk to the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from starlette.responses import PlainTextResponse

from unwind.dashboard.guard import SESSION_HEADER, Guard, Sessions

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

HOST = "127.0.0.1:8123"


class Site:
    """A guarded application that answers everything, and one request to it."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.reached = 0
        self._guard = Guard(self._app, sessions=self.sessions, hosts=[HOST, "localhost:8123"])

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached += 1
        await PlainTextResponse("data")(scope, receive, send)

    async def ask(self, path: str, *, method: str = "GET", host: str = HOST, **headers: str) -> Answer:
        raw = [(b"host", host.encode())]
        raw += [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        return await self.send(path, method, raw)

    async def send(self, path: str, method: str, raw: list[tuple[bytes, bytes]]) -> Answer:
        scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b""}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._guard(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(status=sent[0]["status"], headers=headers, body=sent[1]["body"])

    @property
    def session(self) -> dict[str, str]:
        session = self.sessions.exchange(self.sessions.token)
        assert session
        return {SESSION_HEADER.replace("-", "_"): session}


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return msgspec.json.decode(self.body)["error"]


def test_the_token_is_exchanged_once() -> None:
    sessions = Sessions()
    assert sessions.exchange("another") is None
    session = sessions.exchange(sessions.token)
    assert session
    assert session != sessions.token
    assert sessions.exchange(sessions.token) is None
    assert sessions.knows(session)
    assert not sessions.knows(sessions.token)


def test_without_an_exchange_no_session_is_known() -> None:
    assert not Sessions().knows("")


async def test_data_needs_the_session_in_the_header() -> None:
    site = Site()
    session = site.session
    assert (await site.ask("/api/fleet")).status == 401
    assert (await site.ask("/api/fleet", X_Unwind_Session="wrong")).status == 401
    name, value = next(iter(session.items()))
    assert (await site.ask("/api/fleet", Cookie=f"{name}={value}")).status == 401
    assert site.reached == 0
    assert (await site.ask("/api/fleet", **session)).status == 200


async def test_the_page_itself_needs_no_session_and_can_only_be_read() -> None:
    site = Site()
    assert (await site.ask("/")).status == 200
    assert (await site.ask("/", method="POST", Origin=f"http://{HOST}")).status == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8123.evil.example", ""])
async def test_another_host_name_is_refused_also_with_the_session(host: str) -> None:
    site = Site()
    answer = await site.ask("/api/fleet", host=host, **site.session)
    assert (answer.status, answer.error) == (403, "wrong host")
    assert (await site.ask("/", host=host)).status == 403
    assert site.reached == 0


async def test_two_host_headers_are_refused() -> None:
    site = Site()
    answer = await site.send("/", "GET", [(b"host", HOST.encode()), (b"host", b"evil.example")])
    assert answer.status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:9999", "http://localhost:8123", "https://127.0.0.1:8123", "null", "http://evil.example"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_another_origin_is_refused_also_with_the_session(origin: str, method: str) -> None:
    site = Site()
    answer = await site.ask("/api/fleet", method=method, Origin=origin, **site.session)
    assert (answer.status, answer.error) == (403, "wrong origin")
    assert site.reached == 0


@pytest.mark.parametrize("site_", ["cross-site", "same-site", "none"])
async def test_a_request_that_another_page_has_caused_is_refused(site_: str) -> None:
    # Another port of the same host is the same site.
    site = Site()
    assert (await site.ask("/api/fleet", Sec_Fetch_Site=site_, **site.session)).status == 403


async def test_a_post_without_an_origin_is_refused() -> None:
    site = Site()
    assert (await site.ask("/api/session", method="POST")).status == 403
    assert (await site.ask("/api/session", method="POST", Origin=f"http://{HOST}")).status == 200


async def test_a_preflight_request_is_refused_and_allows_nothing() -> None:
    site = Site()
    answer = await site.ask("/api/fleet", method="OPTIONS", Origin=f"http://{HOST}", **site.session)
    assert answer.status == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("path", ["/", "/api/fleet", "/nothing"])
async def test_every_answer_has_the_security_headers(path: str) -> None:
    headers = (await Site().ask(path)).headers
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_a_websocket_is_not_accepted() -> None:
    site = Site()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await site._guard({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert not sent
    assert site.reached == 0
