"""What goes along with Namespaces and CRDs whose owner says so: the plan names it before anything goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.unwind import Effort
from unwind.errors import UnwindError
from unwind.removing.foreign import foreigners
from unwind.removing.inventories import items

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from unwind.api.unwind import Inventory, Plan, Step
    from unwind.controllers.teardowns.drafting import Drafted
    from unwind.fleet.fleet import Fleet
    from unwind.fleet.targets import Anchor

# A plan is not held up by a member that does not answer: whatever goes along does so because somebody wants it.
_PATIENCE = 5.0


async def with_what_goes_along(
    fleet: Fleet,
    target: Anchor,
    drafted: Drafted,
    chunks: Collection[Inventory],
    *,
    takes_along: Callable[[Step], bool],
) -> Drafted:
    """The same draft, whose plan says what goes along with its steps. `chunks`: all inventories of the target."""
    plan = drafted.plan
    takers = [step for step in plan.steps if step.effort != Effort.LEAVE and takes_along(step)] if plan else []
    if plan is None or not takers:
        return drafted
    try:
        async with asyncio.timeout(_PATIENCE):
            warnings = await _looked_for(fleet, target, plan, takers, chunks)
    except (UnwindError, TimeoutError) as error:
        names = ", ".join(step.name for step in takers)
        why = str(error) or "there was no answer in time"
        warnings = [f"what others put into Namespaces and CRDs of {names} goes along; nobody could look: {why}"]
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
