"""The web server of the dashboard: routes, live streams, and how it starts and ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from unwind.api.annotation_values import VolumePolicy
from unwind.api.unwind import TEARDOWNS
from unwind.cli import arguments
from unwind.cli.ledger import read_ledger
from unwind.clock import SYSTEM
from unwind.dashboard.guard import EXCHANGE, Guard
from unwind.dashboard.pages import Pages, ledger_csv, picture_css
from unwind.errors import UnwindError, UsageError
from unwind.kube.discovery import Named
from unwind.kube.errors import ApiError
from unwind.preview.cluster_preview import foresee
from unwind.why.diagnosis import why
from unwind.why.reachable_clusters import ReachableCluster
from unwind.why.stuck import find_stuck

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import FrameType

    from starlette.requests import Request

    from unwind.dashboard.guard import Sessions
    from unwind.dashboard.live import LiveTeardowns
    from unwind.kube.client import Client
    from unwind.members.members import Members
    from unwind.why.answers import Kubectl

_SHELL = ("/", "/plan", "/stuck", "/ledger", "/teardowns/{name}")
_STATIC = {
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# Changes come in bursts: a page is sent at most so often.
_CALM = 0.2
# A comment on a quiet stream: a browser that is gone is noticed, and troubles of the watch are shown.
_KEEP_ALIVE = 15.0
_LONGEST_BODY = 16 << 10
# Explaining and planning take many requests each.
_AT_ONCE = 2


class Dashboard:
    """The pages for one person: everything is read with the rights of their kubeconfig."""

    def __init__(
        self,
        client: Client,
        *,
        live: LiveTeardowns,
        fleet: Members,
        sessions: Sessions,
        kubectl: Kubectl,
        home: str,
        exchanged: Callable[[], None] = lambda: None,
    ) -> None:
        """`kubectl`: for printed commands. `home`: Unwind's namespace. `exchanged`: called when the token was used."""
        self._client = client
        self._live = live
        self._fleet = fleet
        self._sessions = sessions
        self._kubectl = kubectl
        self._home = home
        self._exchanged = exchanged
        self._pages = Pages()
        self._heavy = asyncio.Semaphore(_AT_ONCE)

    def app(self, hosts: list[str]) -> Guard:
        static = resources.files("unwind.dashboard") / "static"
        shell = (static / "index.html").read_bytes()
        files = {name: (static / name).read_bytes() for name in _STATIC}
        types = _STATIC | {"picture.css": _STATIC["app.css"]}
        files["picture.css"] = picture_css().encode()

        async def page(_: Request) -> Response:
            return Response(shell, media_type="text/html")

        async def file(request: Request) -> Response:
            name = request.path_params["name"]
            if name not in files:
                return Response(status_code=404)
            return Response(files[name], headers={"Content-Type": types[name]})

        routes = [
            *(Route(path, page) for path in _SHELL),
            Route("/static/{name}", file),
            Route(EXCHANGE, self._session, methods=["POST"]),
            Route("/api/fleet", self._fleet_stream),
            Route("/api/teardowns/{name}", self._teardown_stream),
            Route("/api/teardowns/{name}/why", _told(self._why)),
            Route("/api/stuck", _told(self._stuck)),
            Route("/api/ledger", _told(self._ledger)),
            Route("/api/plan", _told(self._plan)),
        ]
        return Guard(Starlette(routes=routes), sessions=self._sessions, hosts=hosts)

    # The session

    async def _session(self, request: Request) -> Response:
        try:
            token = msgspec.json.decode(await _body(request), type=dict[str, str]).get("token", "")
        except (msgspec.DecodeError, UnicodeDecodeError):
            token = ""
        session = self._sessions.exchange(token)
        if session is None:
            return JSONResponse({"error": "this address was used already, or is not valid"}, status_code=403)
        self._exchanged()
        return JSONResponse({"session": session})

    # Live pages

    async def _fleet_stream(self, _: Request) -> Response:
        def parts() -> dict[str, str]:
            return self._pages.fleet(self._live.all())

        return _stream(self._updates(parts))

    async def _teardown_stream(self, request: Request) -> Response:
        name = request.path_params["name"]

        def parts() -> dict[str, str]:
            found = self._live.get(name)
            return self._pages.teardown(found) if found else self._pages.gone(name)

        return _stream(self._updates(parts, name=name))

    async def _updates(self, parts: Callable[[], dict[str, str]], *, name: str = "") -> AsyncIterator[bytes]:
        """Server-sent events: the parts of a page that have changed, and the order of all of them."""
        live = self._live
        sent: dict[str, str] = {}
        order: list[str] | None = None
        trouble: str | None = None
        with live.listening(name) as changed:
            while not live.closing:
                changed.clear()
                if live.trouble != trouble:
                    trouble = live.trouble
                    yield _event("trouble", trouble)
                if live.synced:
                    now = parts()
                    update = {key: html for key, html in now.items() if sent.get(key) != html}
                    if update or order != list(now):
                        order, sent = list(now), now
                        yield _event("update", {"order": order, "parts": update})
                try:
                    async with asyncio.timeout(_KEEP_ALIVE):
                        await changed.wait()
                    await asyncio.sleep(_CALM)
                except TimeoutError:
                    yield b": still here\n\n"
        yield _event("end", "")

    # What is read when it is asked for

    async def _why(self, request: Request) -> Response:
        named = Named(resource=TEARDOWNS, name=request.path_params["name"])
        async with self._heavy:
            return _page(self._pages.why(await why(self._place(), named, clock=SYSTEM)))

    async def _stuck(self, request: Request) -> Response:
        query = request.query_params
        older = arguments.duration(query.get("older", "10m"), option="older")
        async with self._heavy:
            report = await find_stuck(
                self._place(), older_than=max(older, timedelta(0)), members=query.get("members") == "true"
            )
        return _page(self._pages.stuck(report))

    async def _ledger(self, request: Request) -> Response:
        whole = await read_ledger(self._client, None, None)
        match request.query_params.get("form"):
            case "csv":
                return Response(ledger_csv(whole.left), headers={"Content-Type": "text/csv; charset=utf-8"})
            case "json":
                body = msgspec.json.format(msgspec.json.encode(whole))
                return Response(body, headers={"Content-Type": "application/json"})
            case _:
                return _page(self._pages.ledger(whole))

    async def _plan(self, request: Request) -> Response:
        query = request.query_params
        target = query.get("target", "").strip()
        if not target:
            raise UsageError("no target", remedy="use KIND/NAME, such as cluster/prod-7 or ns/shop")
        place = self._place()
        async with self._heavy:
            named = await arguments.resolve_target(
                self._client,
                place.discovery,
                target,
                namespace=query.get("namespace", "").strip() or None,
                otherwise=self._client.connection.namespace,
            )
            seen = await foresee(self._client, named, home=self._home, volumes=VolumePolicy.RETAIN)
        return _page(self._pages.plan(seen))

    def _place(self) -> ReachableCluster:
        return ReachableCluster(self._client, kubectl=self._kubectl, fleet=self._fleet)


def _told(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Answer errors for people as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except UnwindError as error:
            status = error.code if isinstance(error, ApiError) and error.code in (403, 404) else 502
            return JSONResponse({"error": str(error)}, status_code=400 if isinstance(error, UsageError) else status)

    return answer


async def _body(request: Request) -> bytes:
    """The body of a request; empty if it is too long."""
    body = b""
    with suppress(ClientDisconnect):
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_BODY:
                return b""
    return body


def _page(html: str) -> Response:
    return Response(html, media_type="text/html")


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream")


class Server(uvicorn.Server):
    """uvicorn, ending the live streams when it is told to end: it would wait for them."""

    def __init__(self, app: Guard, live: LiveTeardowns) -> None:
        # No access log: it would contain the token. No Server header: it says nothing of use.
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3,
            )
        )
        self._live = live
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int | signal.Signals, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._live.close)
        super().handle_exit(int(sig), frame)


async def serve(server: Server, bound: socket.socket, live: LiveTeardowns) -> None:
    """Serve until a signal ends it."""
    following = asyncio.create_task(live.run())
    try:
        await server.serve(sockets=[bound])
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
