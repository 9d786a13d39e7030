"""A member behind a proxy that now and then sends something else than events: what is removed goes all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from tests.eventually import eventually
from tests.plane.support.removals import RemovalLog, RemovalScene
from unwind.api.resources import CONFIG_MAPS
from unwind.clock import SYSTEM
from unwind.kube.client import Client
from unwind.testing.proxy import Interceptor

if TYPE_CHECKING:
    from unwind.kube.kubeconfig import ClusterConnection

HTML = b"<html>\n<body>Session expired</body>\n</html>\n"
FOREIGN = (
    b'{"type": "MODIFIED", "object": '
    b'{"metadata": {"name": "x", "namespace": "n", "uid": "1", "resourceVersion": "a-1"}}}\n'
)
EXPIRED = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}\n'
ODD = {
    "html": HTML,
    "a version that is no number": FOREIGN,
    "expired": EXPIRED,
    "nothing": b"",
    "packed": b"\x1f\x8b\x08\n",
}


async def _nothing(method: str, path: str, body: bytes) -> None:
    pass


class Odd(Interceptor):
    """Answers the first watches itself."""

    def __init__(self, server: ClusterConnection, text: bytes, times: int) -> None:
        super().__init__(server, before=_nothing, after=_nothing)
        self._text = text
        self.left = times
        self.watches = 0

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            self.watches += 1
            if self.left > 0:
                self.left -= 1
                response = web.StreamResponse(status=200, headers={"Content-Type": "application/json"})
                await response.prepare(request)
                await response.write(self._text)
                return response
        return await super()._pass(request)


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
async def test_odd_watches_delay_a_removal_and_do_not_end_it(scene: RemovalScene, room: str, text: bytes) -> None:
    await scene.cluster.create_namespace(room)
    metadata = {"name": "held", "namespace": room, "finalizers": ["example.dev/hold"]}
    held = await scene.put(CONFIG_MAPS, {"metadata": metadata})
    other = await scene.config_map(room, "other")
    await scene.write()
    told = RemovalLog()
    async with (
        Odd(scene.client.connection, text, 3) as odd,
        Client(odd.connection) as client,
        scene.removal(client=client, clock=SYSTEM, told=told) as removal,
        asyncio.TaskGroup() as tasks,
        asyncio.timeout(60),
    ):
        running = tasks.create_task(removal.run())
        await told.until("example.dev/hold")
        await eventually(lambda: not odd.left, "all odd answers to be given")
        await scene.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=room)
        await running
        assert odd.watches <= 10, "each time it waits longer"
    assert removal.progress.removed == 2
    assert not await scene.there(CONFIG_MAPS, held)
    assert not await scene.there(CONFIG_MAPS, other)
