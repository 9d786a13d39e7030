"""The removal of a step that ends with a check of its own, after its Inventories are removed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.api.unwind import Blocker
from unwind.deleters.chain_attempt import Failed
from unwind.removal.inventory_clusters import member_of
from unwind.teardown.step_removers import retry_forever

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Inventory
    from unwind.deleters.chain_attempt import Waiting
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import StepContext, StepProgress, StepRemoval

T = TypeVar("T")


class VerifiedRemoval:
    """A removal with an inner one, by the Inventories of the step. Subclasses implement `run` and `_actor`."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._target = context.target
        self._ref = context.step.object
        self._waits: dict[ObjectRef, Waiting | Failed] = {}
        """What it waits for besides its deletions."""
        self._inner: StepRemoval | None = None
        """The removal by the Inventories, after it has begun."""
        self._verified = False
        """Whether its own check has passed, too."""

    @property
    def progress(self) -> StepProgress | None:
        progress = self._inner.progress if self._inner else None
        if progress is None or self._verified:
            return progress
        return msgspec.structs.replace(progress, over=False, passed=False)

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        return {**self._own_waits, **(self._inner.waits if self._inner else {})}

    @property
    def _own_waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        return self._waits

    @property
    def removed(self) -> Collection[str]:
        return self._inner.removed if self._inner else frozenset()

    async def run(self) -> None:
        raise NotImplementedError

    def look_again(self) -> None:
        if self._inner:
            self._inner.look_again()

    def go_another_way(self, target: ClusterTarget) -> None:
        self._target = target
        if self._inner:
            self._inner.go_another_way(target)

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        known = list(before)
        own = own_blockers(self._own_waits, self._actor, step=self._context.step.name, before=known, now=now)
        return (*own, *(await self._inner.blockers(known, now) if self._inner else ()))

    def _actor(self, what: Waiting | Failed) -> str:
        """Who must act."""
        raise NotImplementedError

    @asynccontextmanager
    async def _member(self, chunks: Sequence[Inventory]) -> AsyncIterator[Member]:
        """The cluster that the objects are on, and no other one."""
        members, target = self._context.means.members, self._target
        chunk = next(iter(chunks), None)
        async with member_of(members, chunk, target) if chunk else members.member(target) as member:
            yield member

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_forever(
            work,
            waits=self._waits,
            about=self._ref,
            clock=self._context.means.clock,
            changed=self._context.changed,
        )


def own_blockers(
    waits: Mapping[ObjectRef, Waiting | Failed],
    actor: Callable[[Waiting | Failed], str],
    *,
    step: str,
    before: Iterable[Blocker],
    now: datetime,
) -> list[Blocker]:
    """What a step waits for besides its deletions. `before`: the blockers in status, which say since when."""
    since = {(blocker.object, blocker.step): blocker.since for blocker in before}
    return [
        Blocker(
            object=ref,
            step=step,
            reason=reason_of(what),
            message=what.told,
            actor=actor(what),
            since=since.get((ref, step)) or now.replace(microsecond=0),
        )
        for ref, what in waits.items()
    ]


def reason_of(what: Waiting | Failed) -> str:
    """The reason as a CamelCase word."""
    return str(what.reason if isinstance(what, Failed) else what.code)
