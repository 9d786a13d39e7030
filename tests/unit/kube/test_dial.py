"""Thousands of tasks that wait for one server: only one of them probes it, at growing intervals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS
from unwind.deleters.context import Resolver
from unwind.deleters.deletion import Deletions
from unwind.deleters.memo import Memo
from unwind.deleters.registry import DeleterRegistry
from unwind.kube import transport as transport_module
from unwind.kube.client import Client
from unwind.kube.dial import Probe, Way, connect
from unwind.kube.errors import ApiError, APIStatus, UnreachableError
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.watches import Watches
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Mapping


class Server:
    """Does not answer until the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Exception | str = UnreachableError("no")

    async def cluster_uid(self) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("answer", ["uid", ApiError(APIStatus(code=403), request="GET")])
async def test_one_asks_for_all(answer: str | Exception) -> None:
    server, clock = Server(), StillClock()
    probe = Probe(cast("Client", server), clock=clock)
    waiting = [asyncio.create_task(probe.until_answers()) for _ in range(5_000)]
    for _ in range(10):
        await turns()
        clock.advance(40)
    await turns()
    assert server.asked == 10
    assert not any(item.done() for item in waiting)
    waiting[0].cancel()  # the next one takes over
    server.answer = answer
    await turns()
    clock.advance(40)
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), 10)
    assert server.asked == 11


async def test_whoever_comes_later_does_not_rely_on_an_earlier_answer() -> None:
    server, clock = Server(), StillClock()
    server.answer = "uid"
    probe = Probe(cast("Client", server), clock=clock)
    for asked in (1, 2):
        waiting = asyncio.create_task(probe.until_answers())
        await turns()
        clock.advance(2)
        await waiting
        assert server.asked == asked


class Dead:
    """A transport to a member that does not answer; counts the attempts."""

    def __init__(self) -> None:
        self.requests = 0

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> transport_module.ServerAnswer:
        self.requests += 1
        raise UnreachableError("it does not answer")

    def stream(self, target: str, *, headers: Mapping[str, str], silence: float) -> object:
        raise UnreachableError("it does not answer")

    def pin(self, cluster: str) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_five_thousand_deletions_on_a_dead_member_cost_few_requests() -> None:
    dead, clock = Dead(), StillClock()
    said: list[object] = []
    async with (
        Client(
            ClusterConnection(server="https://dead.invalid"), transport=cast("transport_module.Transport", dead)
        ) as client,
        Watches(client, cluster="it", clock=clock) as watches,
    ):
        deletions = Deletions(
            DeleterRegistry([]), watches, Resolver(client), clock=clock, say=lambda ref, what: said.append(what)
        )
        refs = [
            ObjectRef(version="v1", kind="ConfigMap", namespace="n", name=f"c{n}", uid=f"u{n}") for n in range(5_000)
        ]

        async def forget(_: object) -> None:
            pass

        tasks = [asyncio.create_task(deletions.delete(CONFIG_MAPS, ref, Memo({}, forget))) for ref in refs]
        for _ in range(60):  # ten minutes
            await turns()
            clock.advance(10)
        await turns()
        assert len(said) == 5_000, "each of them says what it waits for"
        # The watch and the probe, each at most every thirty seconds; without the probe there were 5,000 retries each
        # time.
        assert dead.requests < 150
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_that_swallows_packets_is_not_waited_for_by_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "_CONNECTING", 0.3)
    monkeypatch.setattr(transport_module, "_DOWN", 5.0)
    tried = 0

    async def swallow(way: Way, *rest: Any) -> Any:
        nonlocal tried
        if way.host != "dead.invalid":
            return await connect(way, *rest)  # of a control plane that other tests share
        tried += 1
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(transport_module, "connect", swallow)
    async with Client(ClusterConnection(server="https://dead.invalid")) as client:
        async with asyncio.timeout(5):
            results = await asyncio.gather(
                *(client.get(CONFIG_MAPS, "a", namespace="n") for _ in range(1_000)), return_exceptions=True
            )
    assert all(isinstance(result, UnreachableError) for result in results)
    assert tried <= 128
