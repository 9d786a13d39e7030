"""How a Work that is deleted goes: what a cache says of its member is no reason to remove anything."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unwind.api.karmada import Cluster, Work, WorkSpec
from unwind.api.meta import ObjectMeta
from unwind.api.names import Finalizer
from unwind.karmada.work_withdrawal import Withdrawing
from unwind.kube.errors import APIStatus, NotFoundError
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal import Manner

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STAYS = Cluster(metadata=ObjectMeta(name="m", uid="c"))
GOES = Cluster(metadata=ObjectMeta(name="m", uid="c", deletion_timestamp=NOW))


class World:
    """What the server says, what the caches say, and what was done."""

    def __init__(self, *, server: Cluster | None, cache: Cluster | None, needing: list[Work] | None = None) -> None:
        self.server = server
        self.cache = cache
        self.begun: list[Manner] = []
        self.freed: list[str] = []
        self.said: list[str] = []
        self.needing = needing or []
        caches = SimpleNamespace(cluster_of=lambda _: self.cache, needing=lambda _: self.needing, needed=lambda _: [])
        withdrawals = SimpleNamespace(get=lambda _: None, begin=self.begin, give_up=lambda _: None)
        words = SimpleNamespace(set_finalizer=self.set_finalizer, wait_for=self.wait_for)
        inventories = SimpleNamespace(of=self.chunks, namespace="unwind-system")
        records = SimpleNamespace(let_go=self.let_go, hold=lambda *_: None, follow=lambda *_: None, drop=lambda _: None)
        self.withdrawing = Withdrawing(
            cast("Any", self),
            cast("Any", caches),
            cast("Any", inventories),
            cast("Any", words),
            cast("Any", withdrawals),
            RecordKeys(cast("Any", self), namespace="unwind-system"),
            records=cast("Any", records),
            enqueue=lambda _: None,
        )

    async def get(self, *_: object, **__: object) -> Cluster:
        if self.server is None:
            raise NotFoundError(APIStatus(code=404, reason="NotFound"), request="GET")
        return self.server

    async def let_go(self, _: object, *, paused: bool) -> None:
        assert not paused

    async def chunks(self, _: str) -> list[object]:
        return []

    def begin(
        self, owner: object, step: str, cluster: str, target: object, manner: Manner, **_: object
    ) -> SimpleNamespace:
        self.begun.append(manner)
        return SimpleNamespace(done=False, error=None, free=SimpleNamespace(is_set=lambda: True), waits="")

    async def set_finalizer(self, work: Work, *, wanted: bool) -> None:
        assert not wanted
        self.freed.append(work.metadata.name)

    async def wait_for(self, _: Work, others: str) -> None:
        self.said.append(others)


def work(name: str = "web", *, preserved: bool = False) -> Work:
    meta = ObjectMeta(
        name=name,
        namespace="karmada-es-m",
        uid=name,
        deletion_timestamp=NOW,
        finalizers=(Finalizer.WORK.value,),
    )
    return Work(metadata=meta, spec=WorkSpec(preserve_resources_on_deletion=preserved))


async def test_a_work_of_a_member_that_stays_is_removed_from_it() -> None:
    world = World(server=STAYS, cache=STAYS)
    await world.withdrawing.withdraw(work())
    assert (world.begun, world.freed) == ([Manner.REMOVE], [])


@pytest.mark.parametrize("cache", [STAYS, GOES, None])
async def test_nothing_is_begun_where_the_server_says_that_the_member_is_unjoined(cache: Cluster | None) -> None:
    world = World(server=GOES, cache=cache)
    await world.withdrawing.withdraw(work())
    assert (world.begun, world.freed) == ([], []), "whatever a cache says that is behind"


async def test_one_whose_member_is_gone_is_not_let_go_because_a_cache_does_not_know_it() -> None:
    world = World(server=STAYS, cache=None)
    await world.withdrawing.withdraw(work())
    assert (world.begun, world.freed) == ([Manner.REMOVE], [])


async def test_one_whose_member_is_gone_goes_where_nothing_is_left_to_account_for() -> None:
    world = World(server=None, cache=None)
    await world.withdrawing.withdraw(work())
    assert (world.begun, world.freed) == ([], ["web"])


async def test_one_that_others_need_waits_for_them_and_one_that_is_preserved_does_not() -> None:
    world = World(server=STAYS, cache=STAYS, needing=[work("top")])
    await world.withdrawing.withdraw(work())
    assert world.begun == []
    assert world.said == ["waiting for removal of dependent Works: top"]
    await world.withdrawing.withdraw(work(preserved=True))
    assert world.begun == [Manner.RELEASE]
