"""Reads what blocks a removal, on the cluster where it is, and returns blockers with a cause and who must act.

`blocker_causes` explains what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import Reason
from unwind.api.unwind import BLOCKERS_SHOWN
from unwind.concurrency import gather_limited
from unwind.deleters.chain_attempt import Failed
from unwind.errors import UnwindError
from unwind.why import blocker_causes, facts, finalizers
from unwind.why.controller_workloads import workloads_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker
    from unwind.deleters.chain_attempt import Waiting
    from unwind.inventory.inventories import Item
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.why.facts import ControllerWorkload, ObjectFacts

_AT_ONCE = 8
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")


async def what_blocks(
    member: Member,
    waits: Mapping[ObjectRef, Waiting | Failed],
    items: Collection[Item],
    *,
    step: str = "",
    before: Iterable[Blocker] = (),
    now: datetime,
) -> tuple[Blocker, ...]:
    """The first of what a step's removal waits for, each with why and who must act. `items`: the step's inventory.

    It only reads, and raises nothing: of what cannot be looked at, it says what the removal said.
    """
    told = [
        facts.StepWait(object=ref, message=what.told, step=step, failed=True, reason=what.reason)
        if isinstance(what, Failed)
        else facts.StepWait(object=ref, message=what.told, step=step, reason=what.code)
        for ref, what in waits.items()
    ]
    # First those that need a person: of many waits, only some are looked at.
    told.sort(
        key=lambda one: (
            not one.failed,
            one.reason == Reason.DELETING,
            one.object.namespace,
            one.object.kind,
            one.object.name,
        )
    )
    told = told[:BLOCKERS_SHOWN]
    seen: dict[ObjectRef, ObjectFacts] = {}

    async def look(ref: ObjectRef) -> None:
        if found := await _find(member, ref):
            seen[ref] = facts.object_facts(found)

    await gather_limited(
        (look(item.object) for item in told if not item.failed and item.reason == Reason.DELETING), limit=_AT_ONCE
    )
    held = {(name, ref.kind) for ref, item in seen.items() for name in item.finalizers}
    held = {item for item in held if finalizers.needs_workloads(*item)}
    workloads = await _workloads(member, items) if held else []
    if any(finalizers.found_workload(*item, workloads) is None for item in held):
        # Not of this step: its operator may belong to another step, or be unknown.
        known = {workload.object.uid for workload in workloads}
        workloads += [
            item for item in await workloads_of(member.client, lambda *_: None) if item.object.uid not in known
        ]
    return blocker_causes.blockers(told, seen=seen, workloads=workloads, before=before, now=now)


async def _workloads(member: Member, items: Collection[Item]) -> list[ControllerWorkload]:
    """The workloads of the step: who serves the finalizers of its custom resources is likely among them."""
    refs = [item.entry.object for item in items]
    groups = tuple({ref.name.partition(".")[2] for ref in refs if ref.kind == "CustomResourceDefinition"})
    found: list[ControllerWorkload] = []

    async def look(ref: ObjectRef) -> None:
        found.append(facts.workload(ref, await _find(member, ref), domains=groups))

    mine = [ref for ref in refs if ref.group == "apps" and ref.kind in _WORKLOADS]
    await gather_limited((look(ref) for ref in mine), limit=_AT_ONCE)
    return sorted(found, key=lambda one: str(one.object))


async def _find(member: Member, ref: ObjectRef) -> Object | None:
    try:
        resource = await member.discovery.resource(ref.kind, group=ref.group)
        found = await member.client.get(resource, ref.name, namespace=ref.namespace or None)
    except UnwindError:
        return None  # the wait itself names the cause
    return found if found["metadata"]["uid"] == ref.uid else None
