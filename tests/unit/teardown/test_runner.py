"""When a teardown starts its steps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import TEARDOWNS, Effort, Phase, Plan, Step, Teardown, TeardownSpec
from unwind.inventory.in_memory import MemoryInventories
from unwind.members.members import Members
from unwind.members.targets import ClusterTarget
from unwind.teardown.runner import TeardownRunner
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.step_sources import Sources, SourceSteps, StepSource
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.unwind import Blocker, Inventory
    from unwind.deleters.chain_attempt import Failed, Waiting
    from unwind.inventory.inventories import Item
    from unwind.members.member import Member
    from unwind.teardown.step_removers import StepContext, StepProgress

MANY = 100
# Turns of the event loop until a removal of these tests is over.
TURNS = 5


class NoInventories(MemoryInventories):
    """There are no Inventories."""

    async def by_owner(self, member: str) -> dict[str, list[Inventory]]:
        del member
        return {}


class Removing:
    """Removes nothing, and takes a few turns of the event loop for it."""

    def __init__(self) -> None:
        self.started = 0
        self.started_at_the_first_end: int | None = None

    def begin(self, context: StepContext) -> OneRemoval:
        del context
        self.started += 1
        return OneRemoval(self)

    async def leave(self, member: Member, those: Sequence[Item], *, owner: str) -> None:
        raise NotImplementedError


class OneRemoval:
    progress: StepProgress | None = None
    removed: frozenset[str] = frozenset()

    def __init__(self, of: Removing) -> None:
        self.waits: Mapping[ObjectRef, Waiting | Failed] = {}
        self._of = of

    async def run(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._of.started_at_the_first_end is None:
            self._of.started_at_the_first_end = self._of.started

    def look_again(self) -> None:
        pass

    def go_another_way(self, target: ClusterTarget) -> None:
        raise NotImplementedError

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        del before, now
        return ()


class Works(StepSource):
    def __init__(self, remover: Removing) -> None:
        self.remover = remover

    def owns(self, owner: ObjectRef) -> bool:
        del owner
        return True

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        raise NotImplementedError


async def test_the_first_of_many_steps_removes_its_objects_before_the_last_one_has_started() -> None:
    objects, remover = Objects(resources=(TEARDOWNS,)), Removing()
    steps = tuple(
        Step(name=name, object=ObjectRef(kind="Work", name=name, uid=name), effort=Effort.ENFORCE.value, wave=1)
        for name in (f"work-{number:03}" for number in range(MANY))
    )
    teardown = Teardown(metadata=ObjectMeta(name="t", uid="t"), spec=TeardownSpec(plan=Plan(steps=steps, waves=1)))
    deps = RemovalDeps(
        members=Members(objects.client), inventories=NoInventories(objects.client), deleters=(), clock=objects.clock
    )
    target = ClusterTarget(ref=ObjectRef(kind="Cluster", name="edge", uid="edge"), secret="")
    runner = TeardownRunner(teardown, target, deps, objects.client, sources=Sources((Works(remover),)))
    async with asyncio.timeout(10):
        await runner.run()
    assert runner.teardown.phase is Phase.COMPLETE
    assert remover.started == MANY
    assert remover.started_at_the_first_end is not None
    assert remover.started_at_the_first_end < MANY
