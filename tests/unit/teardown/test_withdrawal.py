"""Many withdrawals from one cluster."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from unwind.api.meta import ObjectRef
from unwind.inventory.in_memory import MemoryInventories
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.members.members import Members
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.withdrawal import Manner, Withdrawal, Withdrawals

if TYPE_CHECKING:
    import pytest

    from unwind.api.unwind import Inventory

MANY = 100
SLOW = "slow"


class EmptyInventories(MemoryInventories):
    """Inventories without objects, each read when a test says so."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.read: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def at_hand(self, owner: str) -> list[Inventory]:
        await self.read[owner].wait()
        return []


async def test_the_end_of_one_withdrawal_does_not_make_all_that_ended_before_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    is_busy: property = vars(Withdrawal)["busy"]

    def counted(it: Withdrawal) -> object:
        nonlocal looks
        looks += 1
        return is_busy.__get__(it)

    monkeypatch.setattr(Withdrawal, "busy", property(counted))
    client = Client(ClusterConnection(server="https://127.0.0.1:1"))
    inventories = EmptyInventories(client)
    deps = RemovalDeps(members=Members(client), inventories=inventories, deleters=())
    ended: list[str] = []
    changed = asyncio.Event()

    def progressed(uid: str) -> None:
        if (it := withdrawals.get(uid)) and it.done:
            ended.append(uid)
        changed.set()

    withdrawals = Withdrawals(deps, changed=progressed)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        withdrawals.tasks = tasks
        uids = [SLOW, *(f"owner-{number}" for number in range(MANY))]
        started = [
            withdrawals.begin(ObjectRef(kind="Work", name=uid, uid=uid), uid, "edge", None, Manner.REMOVE)
            for uid in uids
        ]
        for it in started[1:]:
            inventories.read[it.uid].set()
            while not it.absent:
                changed.clear()
                await changed.wait()
        assert ended == []  # they are sealed when no other one is busy
        # The slow one comes first and is busy, so that each look ends with it: a few looks for each that has ended.
        assert looks < 10 * MANY
        inventories.read[SLOW].set()
    assert sorted(ended) == sorted(uids)
