"""The records of teardowns: written with the plan before anything is deleted, kept for a while after the end."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import manifest
from unwind.api.unwind import TEARDOWNS, Cause, Teardown
from unwind.controllers.teardowns import drafting, projecting
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from unwind.clock import Clock
    from unwind.controllers.teardowns.drafting import Drafted
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer
    from unwind.removing.inventories import Inventories

KEEP = timedelta(days=7)
"""How long the record of a teardown stays."""


class TeardownRecords:
    """The Teardowns of targets of one kind. Others look after those of other kinds."""

    def __init__(
        self,
        client: Client,
        teardowns: Informer[Teardown],
        inventories: Inventories,
        *,
        group: str,
        cause: Cause,
        keep: timedelta,
        clock: Clock,
    ) -> None:
        """`group`: the API group of the targets. `cause`: why these go. `keep`: how long a record stays."""
        self._client = client
        self._teardowns = teardowns
        self._inventories = inventories
        self._group = group
        self._cause = cause
        self._keep = keep
        self._clock = clock
        self.cleaned: set[str] = set()
        """Targets, by uid, that are gone and after which nothing is left to be taken away."""

    def concerns(self, teardown: Teardown) -> bool:
        """Whether it is one of these, and not asked for by somebody: a Machine is of the same group as a Cluster."""
        return teardown.spec.target.group == self._group and teardown.spec.cause != Cause.REQUESTED

    def of(self, key: Key) -> list[Teardown]:
        """Those of the targets that have, or had, this name."""
        return [one for one in self._teardowns.cache.by("target", key) if self.concerns(one)]

    def keys(self) -> set[Key]:
        """Where the targets are, or were."""
        return {target_of(one) for one in self._teardowns.cache if self.concerns(one)}

    def get(self, uid: str) -> Teardown | None:
        """The record of the target with this uid, as far as the cache knows."""
        return self._teardowns.cache.get(Key("", uid))

    async def written(self, target: Anchor, draft: Callable[[], Awaitable[Drafted]]) -> Teardown:
        """The target's Teardown; written with its plan before anything is deleted. If `draft` made none, it has none,
        and says why."""
        found = self.get(target.ref.uid)
        if found and found.spec.plan:
            return found
        drafted = await draft()
        if found is None:
            wanted = drafting.teardown(target, drafted.plan, cause=self._cause)
            try:
                made = await self._client.create(TEARDOWNS, manifest(TEARDOWNS, wanted))
            except AlreadyExistsError:
                made = await self._client.get(TEARDOWNS, target.ref.uid)
        elif drafted.plan:
            read = await self._client.get(TEARDOWNS, target.ref.uid)
            made = await self._client.revise(TEARDOWNS, read, {"spec": {"plan": msgspec.to_builtins(drafted.plan)}})
        else:
            await self._hold(found, drafted, target)
            return found
        teardown = msgspec.convert(made, Teardown)
        self._teardowns.take(teardown)
        if teardown.spec.plan is None:
            await self._hold(teardown, drafted, target)
        return teardown

    async def retain(self, key: Key) -> float | None:
        """See to it that finished records go when their time is over; in how many seconds the next one is due."""
        due: list[float] = []
        for teardown in self.of(key):
            left = left_of(teardown, keep=self._keep, now=self._clock.now())
            if left:
                due.append(left)
            elif left is not None:
                await forget(self._client, self._inventories, teardown)
                self.cleaned.discard(teardown.spec.target.uid)
        return min(due, default=None)

    async def _hold(self, teardown: Teardown, drafted: Drafted, target: Anchor) -> None:
        now = self._clock.now()
        await projecting.hold(self._client, teardown, drafted.said, gated=target.gated, now=now)


def left_of(teardown: Teardown, *, keep: timedelta, now: datetime) -> float | None:
    """For how many seconds a record is still kept; None if it is not finished (pure)."""
    ended = teardown.status.finished_at
    return max(0.0, (ended + keep - now).total_seconds()) if teardown.finished and ended else None


async def forget(client: Client, inventories: Inventories, teardown: Teardown) -> None:
    """Take a record away, with its ledger."""
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    await inventories.discard_all(await inventories.owned(step.object.uid for step in steps))
    with suppress(NotFoundError):  # somebody was faster
        await client.delete(TEARDOWNS, teardown.metadata.name, uid=teardown.metadata.uid)


def target_of(teardown: Teardown) -> Key:
    """Where the target of a teardown is."""
    return Key(teardown.spec.target.namespace, teardown.spec.target.name)
