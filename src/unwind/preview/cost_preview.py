"""Previews what costs money outside a cluster, and what becomes of it when the cluster is deleted. Only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.policies import DrainPhase
from unwind.api.unwind import Effort, Inventory, InventorySpec, MemberRef
from unwind.clock import SYSTEM
from unwind.companions.policy_merge import StepDecision
from unwind.companions.policy_reader import ClusterPolicies
from unwind.drain import objects, rules
from unwind.drain.objects import DrainedObject
from unwind.drain.rules import DrainDecision, KindName
from unwind.drain.step_source import DrainPlan, drain_plan, recorded_by
from unwind.errors import UnwindError
from unwind.teardown.step_sources import SourceSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Entry
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.planning.waves import Draft

LOAD_BALANCER, VOLUME, NODES, DNS_NAME, OTHER = "load balancer", "volume", "node pool", "DNS name", "object"
# Kinds that are shown even if no policy names them.
_KNOWN = (
    (KindName("karpenter.sh", "NodePool"), DrainPhase.NODES),
    (KindName("externaldns.k8s.io", "DNSEndpoint"), DrainPhase.LOAD_BALANCERS),
)
NOT_DRAINED = "no TeardownPolicy drains it"


class Cost(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something outside the cluster that costs money."""

    what: str
    """A load balancer, volume, node pool, DNS name or another object."""
    object: ObjectRef
    """The object that stands for it."""
    names: tuple[str, ...] = ()
    """Addresses, DNS names or the name of the volume."""
    size: str = ""
    storage_class: str = ""
    made_by: str = ""
    fate: str = ""
    """What becomes of it, in one sentence."""
    left: bool = False
    """Whether it stays when the cluster is gone."""
    left_by: str = ""
    """What decided that it stays: a TeardownPolicy, the volume or a step. Empty: nothing did."""

    def __str__(self) -> str:
        about = " ".join(part for part in (*self.names, self.size, self.storage_class) if part)
        return f"{self.what} {self.object}{f' ({about})' if about else ''}, made by {self.made_by}: {self.fate}"


class _Fate(msgspec.Struct, frozen=True):
    """What becomes of an object."""

    text: str
    left: bool = False
    left_by: str = ""


class CostPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The drain of a cluster as steps, and everything on it that costs money."""

    steps: SourceSteps = SourceSteps()
    chunks: tuple[Inventory, ...] = ()
    """The objects of the drain. These Inventories exist only in the preview."""
    found: tuple[tuple[DrainDecision, DrainedObject], ...] = ()
    policies: ClusterPolicies = ClusterPolicies(target=ObjectRef())
    unknown: tuple[str, ...] = ()
    """What could not be read."""

    def with_chunks(self, others: Iterable[Inventory]) -> list[Inventory]:
        """These Inventories in place of those that are recorded already, and all others."""
        known = {chunk.spec.owner.uid for chunk in self.chunks}
        return [*(chunk for chunk in others if chunk.spec.owner.uid not in known), *self.chunks]

    def costs(self, drafts: Iterable[Draft], chunks: Iterable[Inventory]) -> tuple[Cost, ...]:
        """Everything that costs money, and what becomes of it (pure). `drafts`: all steps of the plan."""
        steps = {draft.object.uid: draft for draft in drafts}
        elsewhere = recorded_by(chunk for chunk in chunks if not rules.is_drain(chunk.spec.owner))
        uids = {item.ref.uid: item for _, item in self.found}
        costs: list[Cost] = []
        for decision, item in self.found:
            owner = next((uids[uid] for uid in item.owners if uid in uids), None)
            fate = self._fate(decision, item, owner, elsewhere.get(item.ref.uid), steps)
            costs += _costs(decision, item, fate)
        return tuple(sorted(costs, key=lambda cost: (cost.what, str(cost.object))))

    def costs_of_drain(self, drafts: Iterable[Draft], recorded: Iterable[Inventory]) -> tuple[Cost, ...]:
        """The same for a requested drain of a cluster that stays (pure). `recorded`: the Inventories of the cluster."""
        chunks = list(recorded)
        deployed = recorded_by(chunk for chunk in chunks if not rules.is_drain(chunk.spec.owner))
        return tuple(
            msgspec.structs.replace(
                cost,
                fate=f"stays: {deployed[cost.object.uid][0]} deployed it",
                left=True,
                left_by=str(deployed[cost.object.uid][0]),
            )
            if cost.object.uid in deployed
            else cost
            for cost in self.costs(drafts, chunks)
        )

    def _fate(
        self,
        decision: DrainDecision,
        item: DrainedObject,
        owner: DrainedObject | None,
        recorded: tuple[ObjectRef, Entry] | None,
        steps: dict[str, Draft],
    ) -> _Fate:
        step = steps.get(recorded[0].uid) if recorded else None
        if recorded and step:
            stays = recorded[1].kept or step.effort is Effort.LEAVE
            return _left(f"{step.name} leaves it", step.name) if stays else _Fate(f"removed with step {step.name}")
        if not item.reclaims:
            return _left("the reclaim policy of its volume is Retain", f"PersistentVolume {item.volume}")
        if not decision.drains:
            by = ", ".join(decision.said.left_by)
            return _left(f"TeardownPolicy {by} says Leave", f"TeardownPolicy {by}") if by else _left(NOT_DRAINED)
        excluded = rules.excluded(self.policies.policies, decision, item.labels)
        if decision.said.conflict or (excluded and excluded.conflict):
            why = decision.said.conflict or (excluded.conflict if excluded else "")
            return _Fate(f"holds the deletion: {why}")
        if excluded:
            return _left(excluded.message, f"TeardownPolicy {', '.join(excluded.by)}")
        if owner:
            return _Fate(f"deleted with {owner.ref}")
        proof = (
            ""
            if item.finalizer or decision.settle
            else "; no finalizer shows when it is cleaned up: set settle in the TeardownPolicy to wait for it"
        )
        return _Fate(f"deleted by step {rules.step_name(decision.name)} ({decision.effort.value}){proof}")


def _left(why: str, by: str = "") -> _Fate:
    return _Fate(f"left behind: {why}", left=True, left_by=by)


def _costs(decision: DrainDecision, item: DrainedObject, fate: _Fate) -> list[Cost]:
    if decision.name == rules.LOAD_BALANCERS:
        what = LOAD_BALANCER
    elif decision.name == rules.VOLUMES:
        what = VOLUME
    elif decision.phase is DrainPhase.NODES:
        what = NODES
    else:
        what = OTHER
    cost = Cost(
        what=what,
        object=item.ref,
        names=item.addresses or ((item.volume,) if item.volume else ()),
        size=item.size,
        storage_class=item.storage_class,
        made_by=item.made_by,
        fate=fate.text,
        left=fate.left,
        left_by=fate.left_by,
    )
    name = msgspec.structs.replace(cost, what=DNS_NAME, size="", storage_class="")
    names = [msgspec.structs.replace(name, names=(host,)) for host in item.hostnames]
    return names if what == OTHER and names else [cost, *names]


async def preview_costs(
    members: Members, target: ClusterTarget, policies: ClusterPolicies, chunks: Iterable[Inventory]
) -> CostPreview:
    """The drain of a cluster, and what costs money there. `chunks`: the Inventories of all other steps."""
    if not target.ready:
        return CostPreview(policies=policies)
    decided = rules.decisions(policies.policies)
    kinds = {kind for decision in decided.values() for kind in decision.kinds}
    shown = {
        **{decision.name: decision for decision in rules.nothing_decided()},
        **{
            f"{kind.kind}.{kind.group}": DrainDecision(
                name=f"{kind.kind}.{kind.group}", kinds=(kind,), phase=phase, said=StepDecision()
            )
            for kind, phase in _KNOWN
            if kind not in kinds
        },
        **decided,
    }
    try:
        async with members.member(target) as member:
            found = {name: await objects.read(member, decision, retained=True) for name, decision in shown.items()}
            plan = drain_plan(
                policies.policies,
                decided,
                {name: [item for item in found[name] if item.reclaims] for name in decided},
                chunks,
                target.ref,
                now=SYSTEM.now(),
            )
            made = tuple(_chunk(member, target.ref, plan))
    except UnwindError as error:
        return CostPreview(policies=policies, unknown=(f"cannot read what costs money on this cluster: {error}",))
    return CostPreview(
        steps=SourceSteps(steps=tuple(step.source for step in plan.steps), warnings=plan.warnings, drain=plan.order),
        chunks=made,
        found=tuple((shown[name], item) for name, some in found.items() for item in some),
        policies=policies,
    )


def _chunk(member: Member, cluster: ObjectRef, plan: DrainPlan) -> Iterable[Inventory]:
    for step in plan.steps:
        owner = step.source.draft.object
        where = MemberRef(object=cluster, system_uid=member.system_uid)
        spec = InventorySpec(owner=owner, member=where, entries=dict(step.entries))
        yield Inventory(metadata=ObjectMeta(name=owner.uid), spec=spec)
