"""The objects behind the steps of a teardown, from the Inventories."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Cause, EntryState
from unwind.cli.release import owners_of_removed_steps
from unwind.inventory.inventories import Inventories

if TYPE_CHECKING:
    from unwind.api.unwind import Entry, Inventory, Teardown
    from unwind.kube.client import Client

# The owner of a step may have Inventories on other clusters as well.
_OF_ONE_CLUSTER = (Cause.CLUSTER_DELETED.value, Cause.UNJOINED.value)


class ObjectState(StrEnum):
    """What is recorded about an object."""

    GONE = "gone"
    """Verified absent."""
    LEFT = "left behind"
    KEPT = "kept"
    REMAINING = "not gone yet"


class StepObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a step removes or leaves."""

    object: ObjectRef
    state: ObjectState
    source: str = ""
    """What it was deployed from."""
    note: str = ""
    """Why it was left."""


async def step_objects(client: Client, teardown: Teardown, *, home: str, step: str = "") -> list[StepObject]:
    """The objects of a Teardown, or of one of its steps; those that are not gone first. `home`: Unwind's namespace."""
    plan = teardown.spec.plan
    steps = [planned for planned in (plan.steps if plan else ()) if not step or planned.name == step]
    owners = {planned.object.uid for planned in steps} | (set() if step else {teardown.metadata.uid})
    owners.discard("")
    removed = owners_of_removed_steps(teardown)
    found = [
        _step_object(entry, removed=inventory.spec.owner.uid in removed)
        for inventory in await Inventories(client, namespace=home).owned(owners)
        if inventory.spec.owner.uid in owners and _belongs(inventory, teardown)
        for entry in inventory.spec.entries.values()
    ]
    return sorted(found, key=lambda it: (it.state is ObjectState.GONE, str(it.object)))


def _belongs(inventory: Inventory, teardown: Teardown) -> bool:
    spec = teardown.spec
    return spec.cause not in _OF_ONE_CLUSTER or inventory.spec.member.object.uid == spec.target.uid


def _step_object(entry: Entry, *, removed: bool) -> StepObject:
    """`removed`: the step is, which the Inventories tell later than the status."""
    note = entry.ledger
    if entry.state == EntryState.REMOVED:
        state = ObjectState.GONE
    elif entry.left:
        state = ObjectState.LEFT
    elif entry.kept or entry.adopted:
        state = ObjectState.KEPT
    elif removed:
        state = ObjectState.GONE
    else:
        state = ObjectState.REMAINING
    told = f"{note.reason}: {note.message}" if note and note.message else note.reason if note else ""
    return StepObject(object=entry.object, state=state, source=entry.source, note=told)
