"""Who may talk to the dashboard: one browser, from one origin, with a session that only its pages know.

Every user of the machine can connect to a loopback port, and every web page can make a browser do so. A cookie would
not help: browsers send it to all ports of a host. So the session is a header, with a value that the page keeps in its
sessionStorage, which belongs to scheme, host and port.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_HEADER = "X-Unwind-Session"
API = "/api/"
EXCHANGE = "/api/session"

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types unwind"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), clipboard-write=(self)",
    "Cache-Control": "no-store",
}


class Sessions:
    """A token that is exchanged once, and the session that it is exchanged for."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._session = ""
        self._used = False

    def exchange(self, token: str) -> str | None:
        """The session for the token; None for another token, or if it was used before."""
        if self._used or not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self._used = True
        self._session = secrets.token_urlsafe(32)
        return self._session

    def knows(self, session: str) -> bool:
        return bool(self._session) and hmac.compare_digest(session.encode(), self._session.encode())


class Guard:
    """ASGI middleware: refuses requests for another host or from another origin, and everything without the session.

    What holds no data (the page itself, its script and its style) needs no session: a browser cannot send a header when
    it opens an address.
    """

    def __init__(self, app: ASGIApp, *, sessions: Sessions, hosts: Iterable[str]) -> None:
        """`hosts`: the values of the Host header that lead here. Any other is an address that was made to lead here."""
        self._app = app
        self._sessions = sessions
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if refusal := self._refusal(scope):
            status, reason = refusal
            await JSONResponse({"error": reason}, status_code=status)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is refused; None if it is not."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "wrong host"
        origins = headers.getlist("origin")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return 403, "wrong origin"
        if not scope["path"].startswith(API):
            return None if scope["method"] in ("GET", "HEAD") else (405, "method not allowed")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "wrong origin"
        if scope["method"] not in ("GET", "POST"):
            return 405, "method not allowed"
        # Browsers send an Origin with every POST.
        if scope["method"] == "POST" and len(origins) != 1:
            return 403, "no origin"
        if scope["path"] == EXCHANGE:
            return None
        if not self._sessions.knows(headers.get(SESSION_HEADER, "")):
            return 401, "no session"
        return None
