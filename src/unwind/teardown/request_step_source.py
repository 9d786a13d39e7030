"""The step source for requests: all objects of one `unwind delete` are one step, owned by the Teardown itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.meta import ref_of
from unwind.api.unwind import TEARDOWNS, Cancellation, Effort, Teardown
from unwind.errors import UnwindError
from unwind.inventory.writer import Records
from unwind.members.targets import ClusterTarget
from unwind.planning.waves import Draft
from unwind.removal import volume_claims
from unwind.teardown import cancellation, request_refusals
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_sources import SourceStep, SourceSteps, StepSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.removal.deletion_scope import DeletionScope
    from unwind.teardown.request_refusals import Refusals
    from unwind.teardown.step_removers import RemovalDeps, StepRemover


class RequestSource(StepSource, Protocol):
    """The step source of one request. Subclasses inherit the defaults."""

    remover: StepRemover = InventoryRemover()
    rechecks: float | None = None
    """Seconds after which a running request looks again whether its target is gone; None if its steps find that out."""
    owners_by_uid: bool = False
    """Whether `owners` follow from the uid of the Teardown, and not from its plan."""

    async def target(self, teardown: Teardown) -> ClusterTarget | None:
        """The target, with the way to the cluster that its steps are on; None if it is gone and nothing more can be
        removed. By default, the steps are on the management cluster."""
        return management_target(teardown)

    def is_own(self) -> bool:
        """Whether the plan of the request names only what this source removes."""

    async def owners(self) -> Collection[str]:
        """The uids of the owners of the request's Inventories, after its plan was written."""

    async def cancel(self, now: datetime) -> Cancellation:
        """Restore what was stopped, and return what the deletion has done. Nothing deletes these objects any more."""
        return Cancellation(at=now.replace(microsecond=0))

    def owns(self, owner: ObjectRef) -> bool:
        del owner
        return False


def management_target(teardown: Teardown) -> ClusterTarget:
    """The target of a request about an object on the management cluster (pure)."""
    # No other controller handles the target. There are no credentials.
    return ClusterTarget(ref=teardown.spec.target, secret="", has_class=True)


class RequestedSteps(RequestSource):
    """The step of one request. Claims to delete are in its Inventory; a claim that is created later stays."""

    def __init__(self, client: Client, means: RemovalDeps, teardown: Teardown, *, refusals: Refusals) -> None:
        """`refusals`: the objects that may not be deleted, each with the reason."""
        self._client = client
        self._deps = means
        self._teardown = teardown
        self._owner = ref_of(TEARDOWNS, teardown.metadata)
        self._refusals = refusals

    def owns(self, owner: ObjectRef) -> bool:
        return owner.uid == self._owner.uid

    def is_own(self) -> bool:
        return is_own(self._teardown)

    async def owners(self) -> Collection[str]:
        return (self._owner.uid,)

    async def cancel(self, now: datetime) -> Cancellation:
        chunks = await self._deps.inventories.of(self._owner.uid) if self._teardown.spec.plan else []
        async with self._deps.members.management() as member:
            return await cancellation.cancel(member, self._teardown.spec.target, chunks, now=now)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        """Everything that is deleted with the requested object, as one step, after it is written into the Inventory.

        Raises RefusedError if the request is refused.
        """
        del target, gone  # the Teardown names it
        async with self._deps.members.management() as member:
            seen = await request_refusals.check(self._teardown, self._client, member, protected=self._refusals)
            await self._record(member, seen)
        one = step(self._owner, self._teardown.spec.title, objects=len(seen.entries))
        return SourceSteps(steps=(one,), warnings=tuple(volume_claims.retained_warnings(seen.retained)))

    async def _record(self, member: Member, seen: DeletionScope) -> None:
        """Write the Inventory. It must name every object before the plan is written."""
        records = Records(self._deps.inventories, self._owner, member, effort=Effort.ENFORCE)
        await records.load(exactly=True)
        # Including what stays: it goes into the ledger. An object that its policy keeps now is not part of the request,
        # so it is in the ledger at once, and stays if its policy is changed later.
        wanted = {entry.object.uid: entry for entry in (*seen.entries, *seen.retained, *self._dated(seen.kept))}
        # An earlier attempt may have been interrupted here, and objects may have changed since.
        await records.change({key: None for key in records.entries if key not in wanted})
        await records.put({key: entry for key, entry in wanted.items() if key not in records.entries})
        if records.entries.keys() != wanted.keys():
            raise UnwindError(
                f"cannot write the inventory of {self._owner}: it changed since it was written", remedy="will retry"
            )

    def _dated(self, kept: Iterable[Entry]) -> Iterator[Entry]:
        """The entries of objects that stay, with the time in their ledger note."""
        now = self._deps.clock.now().replace(microsecond=0)
        for entry in kept:
            yield msgspec.structs.replace(entry, ledger=entry.ledger and msgspec.structs.replace(entry.ledger, at=now))


def is_own(teardown: Teardown) -> bool:
    """Whether the plan of a request names only the inventory of this Teardown (pure)."""
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    return [step.object for step in steps] == [ref_of(TEARDOWNS, teardown.metadata)]


def step(owner: ObjectRef, title: str, *, objects: int) -> SourceStep:
    """One step for all objects: the removal orders them by kind (pure)."""
    return SourceStep(
        draft=Draft(name=title, object=owner, kind=owner.kind, declared=title, effort=Effort.ENFORCE, objects=objects)
    )
