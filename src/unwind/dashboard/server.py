"""The web server of the dashboard: routes, live streams, and how it starts and ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from unwind.api.annotation_values import VolumePolicy
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.cli import arguments, helm_release_target
from unwind.cli.ledger import read_ledger
from unwind.clock import SYSTEM
from unwind.companions.helm_release_rules import ReleaseName
from unwind.dashboard.actions import Action, Actions, Confirmation, NotAllowedError
from unwind.dashboard.guard import EXCHANGE, Guard
from unwind.dashboard.ledger_export import LedgerFilter, ledger_csv
from unwind.dashboard.pages import Pages, picture_css
from unwind.dashboard.step_objects import step_objects
from unwind.errors import UnwindError, UsageError
from unwind.kube.discovery import Named
from unwind.kube.errors import ApiError
from unwind.members import cluster_lookup
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
    from unwind.preview.object_preview import Foreseen
    from unwind.why.answers import Kubectl

_SHELL = ("/", "/plan", "/stuck", "/ledger", "/teardowns/{name}")
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
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
        self._pages = Pages(kubectl.options)
        self._actions = Actions(client, home=home)
        self._heavy = asyncio.Semaphore(_AT_ONCE)

    def app(self, hosts: list[str]) -> Guard:
        static = resources.files("unwind.dashboard") / "static"
        shell = (static / "index.html").read_bytes()
        files = {it.name: it.read_bytes() for it in static.iterdir() if PurePath(it.name).suffix in _TYPES}
        files["picture.css"] = picture_css().encode()

        async def page(_: Request) -> Response:
            return Response(shell, media_type="text/html")

        async def file(request: Request) -> Response:
            name = request.path_params["name"]
            if name not in files:
                return Response(status_code=404)
            return Response(files[name], headers={"Content-Type": _TYPES[PurePath(name).suffix]})

        routes = [
            *(Route(path, page) for path in _SHELL),
            Route("/static/{name}", file),
            Route(EXCHANGE, self._session, methods=["POST"]),
            Route("/api/fleet", self._fleet_stream),
            Route("/api/teardowns/{name}", self._teardown_stream),
            Route("/api/teardowns/{name}/why", _told(self._why)),
            Route("/api/teardowns/{name}/objects", _told(self._objects)),
            Route("/api/teardowns/{name}/actions", _told(self._offered)),
            *(
                Route(f"/api/teardowns/{{name}}/{action}", _told(partial(do, action)), methods=[method])
                for action in Action
                for method, do in (("GET", self._preview), ("POST", self._carry_out))
            ),
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
            return JSONResponse(
                {"error": "this address was used already, or is not valid; run `unwind dashboard` again for a new one"},
                status_code=403,
            )
        self._exchanged()
        return JSONResponse({"session": session})

    # Live pages

    async def _fleet_stream(self, _: Request) -> Response:
        def parts() -> dict[str, str]:
            return self._pages.fleet(self._live.all(), self._live.labels)

        return _stream(self._updates(parts))

    async def _teardown_stream(self, request: Request) -> Response:
        name = request.path_params["name"]

        def parts() -> dict[str, str]:
            found = self._live.get(name)
            return self._pages.teardown(found, self._live.labels) if found else self._pages.gone(name)

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

    async def _objects(self, request: Request) -> Response:
        teardown, step = await self._read(request), request.query_params.get("step", "")
        async with self._heavy:
            objects = await step_objects(self._client, teardown, home=self._home, step=step)
        return _page(self._pages.step_objects(step, objects))

    async def _stuck(self, request: Request) -> Response:
        query = request.query_params
        older = arguments.duration(query.get("older", "10m"), option="older")
        async with self._heavy:
            report = await find_stuck(
                self._place(), older_than=max(older, timedelta(0)), members=query.get("members") == "true"
            )
        return _page(self._pages.stuck(report))

    async def _ledger(self, request: Request) -> Response:
        query = request.query_params
        wanted = LedgerFilter(
            cluster=query.get("cluster", ""),
            by=query.get("by", ""),
            reason=query.get("reason", ""),
            words=tuple(query.get("q", "").lower().split()),
        )
        whole = await read_ledger(self._client, None, None)
        match query.get("form"):
            case "csv":
                text = ledger_csv(wanted.selected(whole).left)
                return Response(text, headers={"Content-Type": "text/csv; charset=utf-8"})
            case "json":
                body = msgspec.json.format(msgspec.json.encode(wanted.selected(whole)))
                return Response(body, headers={"Content-Type": "application/json"})
            case _:
                return _page(self._pages.ledger(whole))

    async def _plan(self, request: Request) -> Response:
        query = request.query_params
        target = query.get("target", "").strip()
        if not target:
            raise UsageError("no target", remedy="use KIND/NAME, such as cluster/prod-7 or ns/shop")
        namespace, cluster = (query.get(field, "").strip() or None for field in ("namespace", "cluster"))
        helm_release_target.check_cluster(target, cluster)
        place = self._place()
        async with self._heavy:
            if helm_release_target.release_name(target):
                return _page(self._pages.plan(await self._release_plan(target, namespace, cluster)))
            named = await arguments.resolve_target(
                self._client,
                place.discovery,
                target,
                namespace=namespace,
                otherwise=self._client.connection.namespace,
            )
            seen = await foresee(self._client, named, home=self._home, volumes=VolumePolicy.RETAIN)
        return _page(self._pages.plan(seen))

    async def _release_plan(self, target: str, namespace: str | None, cluster: str | None) -> Foreseen:
        """The preview of the deletion of a Helm release, here or on a member."""
        found = await cluster_lookup.find_cluster(self._client, self._place().discovery, cluster) if cluster else None
        where = namespace or ("default" if found else self._client.connection.namespace)
        name = ReleaseName(where, helm_release_target.release_name(target))
        return await helm_release_target.ReleasePlace(self._client, self._fleet, found, name).foresee(
            VolumePolicy.RETAIN
        )

    # Release and cancel

    async def _offered(self, request: Request) -> Response:
        teardown = await self._read(request)
        return _page(self._pages.actions(teardown.metadata.name, await self._actions.offered(teardown)))

    async def _preview(self, action: Action, request: Request) -> Response:
        async with self._heavy:
            preview, confirmation = await self._actions.preview(action, request.path_params["name"])
        return _page(self._pages.confirm(preview, confirmation))

    async def _carry_out(self, action: Action, request: Request) -> Response:
        # A form of another page cannot have this type, in addition to what the guard has checked.
        if request.headers.get("content-type", "") != "application/json":
            raise UsageError(f"cannot {action}: the request is not JSON", remedy="use the page")
        try:
            sent = msgspec.json.decode(await _body(request), type=Confirmation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot {action}: the request cannot be read", remedy="use the page") from error
        return JSONResponse({"message": await self._actions.carry_out(action, request.path_params["name"], sent)})

    async def _read(self, request: Request) -> Teardown:
        return await self._client.get(TEARDOWNS, request.path_params["name"], type=Teardown)

    def _place(self) -> ReachableCluster:
        return ReachableCluster(self._client, kubectl=self._kubectl, fleet=self._fleet)


def _told(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Answer errors for people as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except UnwindError as error:
            return JSONResponse({"error": str(error)}, status_code=_status(error))

    return answer


def _status(error: UnwindError) -> int:
    match error:
        case UsageError():
            return 400
        case NotAllowedError():
            return 403
        case ApiError(code=403 | 404 | 409 as code):
            return code
        case _:
            return 502


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
