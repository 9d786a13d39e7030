"""What a plan has to name and only the member knows: foreign objects that go along, and claims that stay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.policies import VolumePolicy
from unwind.api.resources import NAMESPACES, STATEFUL_SETS
from unwind.api.unwind import Effort, Step
from unwind.concurrency import side_by_side
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.removing import claims
from unwind.removing.foreign import foreigners
from unwind.removing.inventories import items

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from unwind.api.unwind import Entry, Inventory, Plan
    from unwind.controllers.teardowns.drafting import Drafted
    from unwind.fleet.fleet import Fleet
    from unwind.fleet.member import Member
    from unwind.fleet.targets import Anchor

# A plan is not held up by a member that does not answer: whatever goes along does so because somebody wants it.
_PATIENCE = 5.0
_AT_ONCE = 16


async def with_what_goes_along(
    fleet: Fleet,
    target: Anchor,
    drafted: Drafted,
    chunks: Collection[Inventory],
    *,
    takes_along: Callable[[Step], bool],
    volumes: Callable[[Step], VolumePolicy | Unknown] | None = None,
) -> Drafted:
    """The same draft, whose plan says what goes along with its steps and which claims stay.

    `chunks`: all inventories of the target. `volumes`: what becomes of the claims of a step's StatefulSets; without it,
    claims are not looked at.
    """
    plan = drafted.plan
    going = [step for step in plan.steps if step.effort != Effort.LEAVE] if plan else []
    takers = [step for step in going if takes_along(step)]
    sets = _stateful_sets(target, going, takers, chunks) if volumes else []
    if plan is None or not (takers or sets):
        return drafted
    warnings: list[str] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            if takers:
                warnings += await _looked_for(fleet, target, plan, takers, chunks)
            if sets and volumes:
                warnings += claims.warnings(await _staying(fleet, target, sets, chunks, volumes))
    except (UnwindError, TimeoutError) as error:
        why = str(error) or "there was no answer in time"
        warnings = []
        if takers:
            names = ", ".join(step.name for step in takers)
            warnings.append(f"what others put into Namespaces and CRDs of {names} goes along; nobody could look: {why}")
        if sets:
            names = ", ".join(dict.fromkeys(one.step.name for one in sets))
            warnings.append(f"cannot list the PersistentVolumeClaims that stay after StatefulSets of {names}: {why}")
    made = msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings))
    return msgspec.structs.replace(drafted, plan=made)


async def _looked_for(
    fleet: Fleet, target: Anchor, plan: Plan, takers: list[Step], chunks: Collection[Inventory]
) -> list[str]:
    there = [chunk for chunk in chunks if chunk.spec.member.object.uid == target.ref.uid]
    going = {step.object.uid for step in plan.steps if step.effort != Effort.LEAVE}
    ours = {item.entry.object.uid: item.entry.object for item in items(there) if item.entry.object.uid}
    steps = {step.object.uid: step.name for step in takers}
    theirs = [chunk for chunk in there if chunk.spec.owner.uid in steps]
    async with fleet.member(target) as member:
        return sorted(
            [
                f"{steps[chunk.spec.owner.uid]}: {item.entry.object} takes along what is not ours: {found}"
                for chunk in theirs
                for item in items([chunk])
                if not item.done and (found := await foreigners(member, item, removed=ours, going=going))
            ]
        )


class _StatefulSet(msgspec.Struct, frozen=True):
    """A StatefulSet that a step deletes."""

    step: Step
    object: ObjectRef
    local: bool
    """Whether it is on the management cluster."""


def _stateful_sets(
    target: Anchor, going: Iterable[Step], takers: Iterable[Step], chunks: Iterable[Inventory]
) -> list[_StatefulSet]:
    """The StatefulSets whose claims may stay: not those in a Namespace that goes with everything in it (pure)."""
    steps = {step.object.uid: step for step in going}
    emptying = {step.object.uid for step in takers}
    todo = [(chunk.spec, item.entry) for chunk in chunks for item in items([chunk]) if not item.done]
    emptied = {
        (spec.owner.uid, one.object.name)
        for spec, one in todo
        if spec.owner.uid in emptying and one.object.kind == NAMESPACES.kind
    }
    return [
        _StatefulSet(steps[spec.owner.uid], one.object, local)
        for spec, one in todo
        if (one.object.group, one.object.kind) == (STATEFUL_SETS.group, STATEFUL_SETS.kind)
        and not (one.kept or one.adopted)
        and spec.owner.uid in steps
        and (spec.owner.uid, one.object.namespace) not in emptied
        and ((local := spec.member.object.kind == NAMESPACES.kind) or spec.member.object.uid == target.ref.uid)
    ]


async def _staying(
    fleet: Fleet,
    target: Anchor,
    sets: Collection[_StatefulSet],
    chunks: Iterable[Inventory],
    volumes: Callable[[Step], VolumePolicy | Unknown],
) -> list[Entry]:
    """The claims of these StatefulSets that stay."""
    found: list[Entry] = []

    async def look(member: Member, one: _StatefulSet) -> None:
        try:
            it = await member.client.get(STATEFUL_SETS, one.object.name, namespace=one.object.namespace)
        except NotFoundError:
            return
        if it["metadata"]["uid"] == one.object.uid:
            policy = volumes(one.step)
            # With an unknown value nothing is deleted.
            policy = VolumePolicy.RETAIN if isinstance(policy, Unknown) else policy
            found.extend(await claims.of_set(member, it, order=0, policy=policy))

    for local in sorted({one.local for one in sets}):
        async with fleet.management() if local else fleet.member(target) as member:
            await side_by_side((look(member, one) for one in sets if one.local is local), limit=_AT_ONCE)
    # A claim that was deployed itself goes as any other object does.
    deployed = {item.entry.object.uid for item in items(chunks) if not item.entry.kept}
    return [one for one in found if one.object.uid not in deployed]
