"""The metrics listener says whether the process lives and is ready, and what it has counted."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.unit.server.calling import ECHO, Caller, post
from unwind.manager import health
from unwind.manager.health import new_registry
from unwind.server.listener import Listener, RequestMetrics

if TYPE_CHECKING:
    from tests.unit.server.calling import Answer


class Part:
    def __init__(self, name: str, *, ready: bool) -> None:
        self.name, self.ready = name, ready

    async def run(self) -> None:
        raise NotImplementedError


async def get(caller: Caller, path: str, headers: str = "") -> Answer:
    await caller.send(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
    return await caller.answer()


async def test_readiness_names_what_is_missing_until_nothing_is() -> None:
    readiness = health.Readiness()
    pods, nodes = Part("pods", ready=False), Part("nodes", ready=False)
    readiness.add([pods, nodes])
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener("metrics", health.routes(readiness, new_registry()))
    await listener.open(listening)
    caller = await Caller.connect(listening.getsockname()[1])

    async def ready() -> tuple[int, bytes]:
        answer = await get(caller, "/readyz")
        return answer.status, answer.body

    assert (await get(caller, "/healthz")).status == 200
    assert await ready() == (503, b"not ready: starting\n")
    readiness.started = True
    assert await ready() == (503, b"not ready: nodes, pods\n")
    nodes.ready = True
    assert await ready() == (503, b"not ready: pods\n")
    pods.ready = True
    assert await ready() == (200, b"ok\n")
    readiness.stopping = True
    assert await ready() == (503, b"not ready: stopping\n")
    assert (await get(caller, "/healthz")).status == 200
    await caller.close()
    await listener.close(grace=0)


async def test_requests_are_counted_by_route_and_class_of_status_whatever_paths_are_asked_for() -> None:
    registry, requests = new_registry(), RequestMetrics()
    registry.register(requests)
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener("https", [*health.routes(health.Readiness(), registry), ECHO], requests=requests)
    requests.watch(listener)
    await listener.open(listening)
    caller = await Caller.connect(listening.getsockname()[1])
    for number in range(3):
        await caller.post("/echo", b"x")
        await caller.post(f"/nowhere/{number}")
    await get(caller, "/echo")
    text = (await get(caller, "/metrics")).body.decode()
    for line in (
        'unwind_http_requests_total{listener="https",route="echo",status="2xx"} 3.0',
        'unwind_http_requests_total{listener="https",route="echo",status="4xx"} 1.0',
        'unwind_http_requests_total{listener="https",route="",status="4xx"} 3.0',
        'unwind_http_request_duration_seconds_count{listener="https",route="echo"} 4.0',
        'unwind_http_request_duration_seconds_bucket{le="+Inf",listener="https",route="echo"} 4.0',
        'unwind_http_connections{listener="https"} 1.0',
        'unwind_http_under_way{listener="https"} 0.0',
    ):
        assert line in text.splitlines()
    assert "nowhere" not in text
    assert "process_resident_memory_bytes" in text
    asked = await get(caller, "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.body.endswith(b"# EOF\n")
    assert (await caller.post("/metrics")).status == 405
    await caller.send(post("/echo"))
    await caller.close()
    await listener.close(grace=0)
