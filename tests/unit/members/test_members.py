"""Shared connections to members, without a cluster."""

from __future__ import annotations

import asyncio
import base64
import gc
from typing import TYPE_CHECKING, cast

import pytest

from tests.owners import Owner
from unwind.api.meta import ObjectRef
from unwind.api.resources import SECRETS
from unwind.kube import kubeconfig
from unwind.kube.errors import UnreachableError
from unwind.kube.fencing import Fences
from unwind.kube.kubeconfig import ClusterConnection
from unwind.members.member import Member
from unwind.members.members import Members
from unwind.members.targets import ClusterTarget
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.kube.client import Client
    from unwind.kube.transport import ServerAnswer


async def test_a_member_that_stays_open_does_not_keep_the_fence_of_its_first_user() -> None:
    fences, clock = Fences(Owner()), StillClock()
    async with Members(Objects(resources=()).client, clock=clock) as members:

        async def reconcile(_: str) -> float | None:
            async with members.management():
                return None

        await fences.around(reconcile, str)("key")
        gc.collect()
        assert members.open == 1
        assert not fences._fences


async def test_a_user_that_fails_or_is_cancelled_gives_the_member_back() -> None:
    clock = StillClock()
    async with Members(Objects(resources=()).client, clock=clock) as members:
        opened = asyncio.Event()

        async def fail() -> None:
            async with members.management():
                raise ValueError("it fails")

        async def hang() -> None:
            async with members.management():
                opened.set()
                await asyncio.Event().wait()

        with pytest.raises(ValueError, match="it fails"):
            await fail()
        hanging = asyncio.ensure_future(hang())
        await opened.wait()
        clock.advance(3600)
        assert members.open == 1
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        clock.advance(3600)
        assert members.open == 0


async def test_a_member_that_is_expected_is_connected_to_once_and_raises_its_errors_when_it_is_used() -> None:
    objects = Objects(resources=())
    ref = ObjectRef(kind="SveltosCluster", namespace="default", name="edge", uid="edge")
    target = ClusterTarget(ref=ref, secret="gone")  # noqa: S106 - a name
    async with Members(objects.client, clock=StillClock()) as members:
        members.expect(target)
        members.expect(target)
        async with asyncio.timeout(30):
            while not objects.requests:
                await asyncio.sleep(0)
        with pytest.raises(UnreachableError, match="not found"):
            async with members.member(target):
                pass
        read = f"GET {SECRETS.path('gone', namespace='default')}"
        assert objects.requests == [read, read]  # in the background, and by its user


async def test_a_user_that_comes_while_the_credentials_are_read_does_not_read_them_again() -> None:
    objects = Objects(resources=())
    nowhere = kubeconfig.document(ClusterConnection(server="https://127.0.0.1:1"), cluster="edge", user="admin")
    data = {"kubeconfig": base64.b64encode(nowhere.encode()).decode()}
    objects.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "edge"}, "data": data})
    ref = ObjectRef(kind="SveltosCluster", namespace="default", name="edge", uid="edge")
    target = ClusterTarget(ref=ref, secret="edge")  # noqa: S106 - a name
    async with asyncio.timeout(30), Members(objects.client, clock=StillClock()) as members:
        members.expect(target)
        while not objects.requests:
            await asyncio.sleep(0)
        with pytest.raises(UnreachableError, match="cannot connect"):
            async with members.member(target):
                pass
    assert objects.requests == [f"GET {SECRETS.path('edge', namespace='default')}"]


class SlowObjects(Objects):
    """An API server whose first answer is on its way until it is told to arrive."""

    def __init__(self) -> None:
        super().__init__(resources=())
        self.read = asyncio.Event()
        self.arrives = asyncio.Event()

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        answer = await super().request(method, target, body=body, headers=headers, within=within)
        if not self.read.is_set():
            self.read.set()
            await self.arrives.wait()
        return answer

    def rotate(self, server: str) -> None:
        text = kubeconfig.document(ClusterConnection(server=server), cluster="edge", user="admin")
        data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
        self.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "edge"}, "data": data})


async def test_credentials_that_were_read_before_the_secret_changed_are_not_used_after_it() -> None:
    """The old ones may be revoked, and nothing else tells a removal that waits to connect again."""
    objects = SlowObjects()
    objects.rotate("https://127.0.0.1:1")
    ref = ObjectRef(kind="SveltosCluster", namespace="default", name="edge", uid="edge")
    target = ClusterTarget(ref=ref, secret="edge")  # noqa: S106 - a name
    async with asyncio.timeout(30), Members(objects.client, clock=StillClock()) as members:
        before = asyncio.ensure_future(members._way(target))
        await objects.read.wait()
        objects.rotate("https://127.0.0.1:2")
        members.reread("edge")
        after = asyncio.ensure_future(members._way(target))
        await asyncio.sleep(0)
        objects.arrives.set()
        assert (await after)[0].server == "https://127.0.0.1:2"
        assert (await before)[0].server == "https://127.0.0.1:2"
        assert (await members._way(target))[0].server == "https://127.0.0.1:2"
    assert len(objects.requests) == 2


async def test_no_member_is_opened_after_the_end() -> None:
    members = Members(Objects(resources=()).client)
    async with members:
        pass
    with pytest.raises(UnreachableError, match="shutting down"):
        async with members.management():
            pass


class SlowClient:
    """A client of a cluster that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()

    async def cluster_uid(self) -> str:
        self.asked += 1
        await self.answers.wait()
        return "u"

    async def check_during_an_answer(self, *checks: float) -> None:
        """Check a member again while its first answer is awaited, once for each `within`."""
        ref = ObjectRef(kind="Cluster", name="edge")
        member = Member(ref, cast("Client", self), system_uid="u", clock=StillClock())
        first = asyncio.ensure_future(member.verify(within=2))
        while not self.asked:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(member.verify(within=within)) for within in checks]
        await asyncio.sleep(0)
        self.answers.set()
        await asyncio.gather(first, *others)


async def test_a_recent_answer_that_came_while_a_check_waited_for_its_turn_is_enough() -> None:
    client = SlowClient()
    await client.check_during_an_answer(2)
    assert client.asked == 1


async def test_a_check_that_needs_a_new_answer_does_not_take_an_earlier_one() -> None:
    client = SlowClient()
    await client.check_during_an_answer(2, 0)
    assert client.asked == 2
