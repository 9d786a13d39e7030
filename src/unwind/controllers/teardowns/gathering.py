"""From the steps of all sources of a target, and the Inventories about it, to its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import ConditionType
from unwind.api.unwind import Inventory
from unwind.controllers.teardowns.along import with_what_goes_along
from unwind.controllers.teardowns.drafting import Drafted, Lost, Said, lost
from unwind.controllers.teardowns.sources import Elsewhere, SourceStep
from unwind.planning.plans import Draft, plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.controllers.teardowns.removers import Means
    from unwind.controllers.teardowns.sources import Sources, SourceSteps
    from unwind.fleet.targets import Anchor
    from unwind.removing.inventories import Inventories


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of a target, and the Inventories of their owners."""

    drafts: tuple[Draft, ...] = ()
    chunks: Mapping[str, Inventory] = {}
    """By name: of all owners that have something on the target, and of the steps' owners wherever they put it."""
    lost: tuple[Lost, ...] = ()
    """Owners that are gone and left objects on the target: what becomes of them is not known."""
    said: tuple[Said, ...] = ()
    warnings: tuple[str, ...] = ()

    def drafted(self, *, decided: bool = False) -> Drafted:
        """The plan, or why there is none.

        `decided`: the target goes without it, because a person said so or because it is gone. The plan is made then for
        the ledger, and what is not understood is left.
        """
        unknown = any(one.type is ConditionType.UNKNOWN_VALUE for one in self.said)
        if unknown and not decided:
            return Drafted(plan=None, said=self.said)  # a plan is made once: not before every word in it is understood
        made = plan([*self.drafts, *(one.draft for one in self.lost)])
        if self.warnings:
            made = msgspec.structs.replace(made, warnings=(*made.warnings, *self.warnings))
        return Drafted(plan=made, said=self.said)


async def draft(
    sources: Sources, means: Means, target: Anchor, *, decided: bool = False, gone: bool = False
) -> Drafted:
    """The plan of a target from all its sources, or why there is none. `decided`: see `Gathered.drafted`."""
    found = await gather(means.inventories, target, await sources.steps(target, gone=gone))
    drafted = found.drafted(decided=decided)
    if decided:
        return drafted  # nothing goes
    return await with_what_goes_along(
        means.fleet,
        target,
        drafted,
        found.chunks.values(),
        takes_along=lambda step: sources.terms(step, target).take_along,
        volumes=lambda step: sources.terms(step, target).volumes,
    )


async def gather(inventories: Inventories, target: Anchor, found: Iterable[SourceSteps]) -> Gathered:
    """The steps that count, with the number of their objects. `found`: what the sources say.

    The Inventories are read after the owners: one whose last object was removed in between is not taken for lost.
    """
    found = list(found)
    # A uid alone may be forged on an owner; the record of the member names the target, too.
    there = [chunk for chunk in await inventories.on(target.ref.uid) if _is_about(chunk, target)]
    chunks = {chunk.metadata.name: chunk for chunk in there}
    accounted = {chunk.spec.owner.uid for chunk in there if chunk.spec.entries}
    steps = [step for one in found for step in one.steps]
    for step in steps:
        if _is_elsewhere(step, accounted):
            chunks |= {chunk.metadata.name: chunk for chunk in await inventories.of(step.draft.object.uid)}
    return combine(found, chunks, there)


def combine(found: Iterable[SourceSteps], chunks: Mapping[str, Inventory], there: Iterable[Inventory]) -> Gathered:
    """The steps that count, and what is said of them (pure). `there`: the Inventories about the target."""
    found = list(found)
    owners = {chunk.spec.owner.uid for chunk in chunks.values()}
    objects = Counter(chunk.spec.owner.uid for chunk in chunks.values() for _ in chunk.spec.entries)
    steps = [step for one in found for step in one.steps if step.required or step.draft.object.uid in owners]
    gone = lost({step.draft.object.uid for step in steps}, there)
    left_kinds = {kind for one in found for kind in one.left_kinds}
    return Gathered(
        drafts=tuple(
            msgspec.structs.replace(step.draft, objects=objects.get(step.draft.object.uid, step.draft.objects))
            for step in steps
        ),
        chunks=chunks,
        lost=tuple(gone),
        said=(
            *(said for one in found for said in one.said),
            *(said for step in steps for said in step.said),
            *(one.said for one in gone if one.owner.kind not in left_kinds),
        ),
        warnings=tuple(warning for one in found for warning in one.warnings),
    )


def _is_elsewhere(step: SourceStep, accounted: set[str]) -> bool:
    if step.elsewhere is Elsewhere.PERHAPS:
        return step.draft.object.uid not in accounted
    return step.elsewhere is Elsewhere.YES


def _is_about(chunk: Inventory, target: Anchor) -> bool:
    there, ref = chunk.spec.member.object, target.ref
    return (there.kind, there.namespace, there.name) == (ref.kind, ref.namespace, ref.name)
