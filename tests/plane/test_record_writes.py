"""What a manager writes into Teardowns: by the API server's clock, and only over what it has read."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from tests.eventually import eventually
from tests.owners import Owner
from tests.plane.support.controllers import HOLD, controller_deps, removal_deps
from tests.plane.support.transports import WrappedTransport
from unwind.addons.caches import AddonCaches
from unwind.addons.step_source import SummarySteps
from unwind.api.resources import CONFIG_MAPS
from unwind.api.rights import HOME
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.clock import ServerClock, SystemClock
from unwind.kube.client import Client
from unwind.kube.transport import HttpTransport
from unwind.testing.managers import manager_client, manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.clock import Clock
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.transport import ServerAnswer


class Skewed(SystemClock):
    """The clock of a machine that is wrong by hours."""

    def __init__(self, hours: float) -> None:
        self._skew = dt.timedelta(hours=hours)

    def now(self) -> dt.datetime:
        return super().now() + self._skew


class Slow(WrappedTransport):
    """A transport that holds back what is written into the status of Teardowns, once it is told to."""

    def __init__(self, inner: HttpTransport) -> None:
        super().__init__(inner)
        self.holding = False
        self.held = asyncio.Event()
        self.free = asyncio.Event()
        self.sent: list[int] = []

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        if not (self.holding and method == "PATCH" and "/teardowns/" in target and "/status" in target):
            return await super().request(method, target, body=body, headers=headers, within=within)
        # On its way: it arrives even if the program that sent it does not wait for it any more.
        return await asyncio.shield(asyncio.ensure_future(self._late(method, target, body, headers)))

    async def _late(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> ServerAnswer:
        self.held.set()
        await self.free.wait()
        answer = await self._inner.request(method, target, body=body, headers=headers, within=30)
        self.sent.append(answer.status)
        return answer


@asynccontextmanager
async def running(client: Client, *, owner: ShardOwner, clock: Clock) -> AsyncIterator[None]:
    caches = AddonCaches(client, clock=clock)
    async with removal_deps(client, HOME, clock=clock) as deps:
        shared, sources = controller_deps(client, owner=owner, clock=clock), (SummarySteps(client, caches),)
        controller = ClusterTeardownController(shared, caches, deps, sources=sources)
        tasks = [asyncio.ensure_future(item.run()) for item in (caches, controller)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_deadline_counts_by_the_clock_of_the_api_server(it: TeardownScene) -> None:
    await it.add_on("base", finalizers=(HOLD,))
    it.annotations = {"unwind.dev/deadline": "30m", "unwind.dev/on-deadline": "Release"}
    async with manager_client(it.client, HOME) as own:
        clock = ServerClock(own.time, Skewed(hours=2))
        async with running(own, owner=Owner(), clock=clock):
            await it.delete()
            # By the local clock the deadline has passed before the teardown began.
            held = await it.teardown(lambda one: one.phase is Phase.HELD or one.finished, "held")
            assert held.phase is Phase.HELD
            assert "DeadlineExceeded" not in {condition.type for condition in held.status.conditions}
            assert held.status.started_at
            assert abs(held.status.started_at - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=10)
            await it.unblock()
            assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_a_delayed_write_of_a_former_owner_changes_nothing(it: TeardownScene) -> None:
    await it.add_on("base", finalizers=(HOLD,))
    clock = SystemClock()
    connection = await manager_connection(it.client, HOME)
    slow = Slow(HttpTransport(connection, user_agent="unwind-run"))
    shard = Owner()
    async with (
        manager_client(it.client, HOME) as successor,
        Client(connection, transport=slow) as former,
        running(former, owner=shard, clock=clock),
    ):
        await it.delete()
        await it.teardown(lambda one: one.phase is Phase.HELD, "held")
        slow.holding = True
        first = min(await it.objects())
        await it.member.client.patch(CONFIG_MAPS, first, {"metadata": {"finalizers": None}}, namespace=it.on_member)
        async with asyncio.timeout(60):
            await slow.held.wait()
        shard.lose_all()
        async with running(successor, owner=Owner(), clock=clock):
            await it.unblock()
            ended = await it.ended()
        slow.free.set()
        await eventually(lambda: slow.sent, "the delayed write")
    assert slow.sent[0] == 409
    now = await it.client.get(TEARDOWNS, it.uid, type=Teardown)
    assert (now.phase, now.status) == (Phase.COMPLETE, ended.status)
    assert msgspec.to_builtins(now.metadata) == msgspec.to_builtins(ended.metadata)
    await it.let_go()
