"""A drain as a step source: load balancers, volumes and further kinds that TeardownPolicies name, each kind a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import Effort, Entry, LedgerNote
from unwind.drain import objects, rules, serving_steps
from unwind.drain.objects import DrainedObject
from unwind.drain.remover import DrainPolicies, DrainRemover
from unwind.errors import UnwindError
from unwind.inventory.inventories import items
from unwind.inventory.writer import Records
from unwind.kube.decoding import Key
from unwind.kube.errors import UnreachableError
from unwind.planning.drain_order import DrainOrder
from unwind.planning.waves import Draft
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.step_sources import FollowedSource, SourceStep, SourceSteps, StepTerms
from unwind.why import finalizers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.policies import TeardownPolicy
    from unwind.api.unwind import Inventory, Step
    from unwind.clock import Clock
    from unwind.companions.policy_merge import StepDecision
    from unwind.companions.policy_reader import ClusterPolicies
    from unwind.drain.rules import DrainDecision
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_sources import StepPause

_NOT_MENTIONED = "no TeardownPolicy of the cluster drains it"


class DrainStepPolicies(DrainPolicies, Protocol):
    """Reads the policies of clusters, also for the terms of their steps."""

    def pause(self, step: Step, decision: StepDecision | None) -> StepPause | None:
        """Why a step may not be removed now."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a policy changed."""


class DrainSteps(FollowedSource):
    """The drains of clusters that policies select. It must come after all other sources of a target: the Inventories of
    their steps tell which of them clean up for the drain."""

    def __init__(self, policies: DrainStepPolicies, members: Members, inventories: Inventories, clock: Clock) -> None:
        self._policies = policies
        self._members = members
        self._inventories = inventories
        self._clock = clock
        self.remover = DrainRemover(policies)
        self._targets: set[Key] = set()
        """The clusters whose steps were asked for their terms."""

    def owns(self, owner: ObjectRef) -> bool:
        return rules.is_drain(owner)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        there = await self._inventories.on(target.ref.uid)
        own = [chunk for chunk in there if self.owns(chunk.spec.owner)]
        if gone:
            return SourceSteps(steps=_recorded_steps(own, ()))
        policies = await self._policies.of(target)
        decided = rules.decisions(policies.policies)
        if not (decided and policies.drains and target.ready):
            # Nothing was deleted yet: a plan is made only once.
            return SourceSteps(steps=_recorded_steps(own, (), leave=True), said=policies.said, terms=policies.terms)
        try:
            async with self._members.member(target) as member:
                found = {name: await objects.read(member, decision) for name, decision in decided.items()}
                plan = drain_plan(policies.policies, decided, found, there, target.ref, now=self._clock.now())
                for step in plan.steps:
                    await self._record(member, step)
        except UnwindError as error:
            return _unknown(error, policies, decided, own)
        return SourceSteps(
            steps=(*(step.source for step in plan.steps), *_recorded_steps(own, plan.owners, leave=True)),
            said=policies.said,
            terms=policies.terms,
            warnings=plan.warnings,
            drain=plan.order,
        )

    async def _record(self, member: Member, step: PlannedDrain) -> None:
        """Write the objects of a step into its Inventory, before anything is deleted. A drain that has started keeps
        the Inventory that it has."""
        records = Records(self._inventories, step.source.draft.object, member, effort=step.source.draft.effort)
        await records.put_unless_sealed(step.entries)

    def follow_terms(self, changed: Callable[[Key], None]) -> None:
        def tell() -> None:
            for key in self._targets:
                changed(key)

        self._policies.follow(tell)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        self._targets.add(Key(target.ref.namespace, target.ref.name))
        return drain_terms(self._policies, step, target)


def drain_terms(policies: DrainStepPolicies, step: Step, target: ClusterTarget) -> StepTerms:
    """What policies say about a step of a drain now."""
    decision = rules.decisions(policies.known(target).policies).get(step.object.name)
    return StepTerms(
        left=f"{step.effort_from} says Leave" if step.effort_from else _NOT_MENTIONED,
        gave_up="best-effort time of its TeardownPolicy exceeded",
        decided_by=step.effort_from or "unwind",
        more_time=decision.settle.total_seconds() if decision else 0.0,
        # What is left anyway does not wait for a policy to change.
        paused=None if step.effort == Effort.LEAVE else policies.pause(step, decision.said if decision else None),
    )


# The plan of a drain, from what was read (pure).


class PlannedDrain(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a drain, and its objects."""

    source: SourceStep
    entries: Mapping[str, Entry]
    objects: tuple[DrainedObject, ...]


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a drain."""

    steps: tuple[PlannedDrain, ...] = ()
    warnings: tuple[str, ...] = ()
    order: DrainOrder | None = None

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(step.source.draft.object.uid for step in self.steps)


def drain_plan(
    policies: Sequence[TeardownPolicy],
    decided: Mapping[str, DrainDecision],
    found: Mapping[str, Sequence[DrainedObject]],
    there: Iterable[Inventory],
    cluster: ObjectRef,
    *,
    now: datetime,
) -> DrainPlan:
    """The steps of a drain. `found`: the objects of each. `there`: all Inventories of the cluster."""
    others = [chunk for chunk in there if not rules.is_drain(chunk.spec.owner)]
    elsewhere = recorded_by(others)
    excluded = {
        item.ref.uid: why
        for name, decision in decided.items()
        for item in found[name]
        if decision.drains and (why := rules.excluded(policies, decision, item.labels))
    }
    # What a drained object owns goes with it, and what an excluded object owns stays with it: its controller would
    # create it again.
    going = {item.ref.uid for some in found.values() for item in some} - excluded.keys()
    steps: list[PlannedDrain] = []
    warnings: list[str] = []
    for name, decision in decided.items():
        own = [item for item in found[name] if item.ref.uid not in elsewhere and not item.owners & going]
        if not own and not decision.drains:
            continue
        exclusions = {
            item.key: next((excluded[uid] for uid in (item.ref.uid, *item.owners) if uid in excluded), None)
            for item in own
        }
        entries = {item.key: _entry(item, exclusions[item.key], decision, now) for item in own}
        unproven = [
            item for item in own if decision.drains and not (item.finalizer or decision.settle or exclusions[item.key])
        ]
        warnings += _warnings(decision, unproven)
        draft = Draft(
            name=rules.step_name(name),
            object=rules.owner_of(cluster, name),
            kind=rules.KIND,
            declared=rules.step_name(name),
            depends_on=rules.needs_of(decision, decided.values()) if decision.drains else (),
            drains=True,
            effort=decision.effort,
            effort_from=decision.effort_from,
            objects=len(entries),
        )
        steps.append(PlannedDrain(source=SourceStep(draft=draft), entries=entries, objects=tuple(own)))
    drained = [decision for decision in decided.values() if decision.drains]
    return DrainPlan(
        steps=tuple(steps), warnings=tuple(warnings), order=_order(policies, drained, found, others, elsewhere)
    )


def recorded_by(chunks: Iterable[Inventory]) -> dict[str, tuple[ObjectRef, Entry]]:
    """The objects of other steps, by uid, each with the owner of its Inventory and its entry."""
    return {
        item.entry.object.uid: (chunk.spec.owner, item.entry)
        for chunk in chunks
        for item in items([chunk])
        if item.entry.object.uid
    }


def _entry(item: DrainedObject, exclusion: rules.Exclusion | None, decision: DrainDecision, now: datetime) -> Entry:
    if exclusion is None or exclusion.conflict or not decision.drains:
        return item.entry
    by = ", ".join(f"TeardownPolicy/{name}" for name in exclusion.by)
    note = LedgerNote(reason=Reason.KEPT_BY_POLICY, message=exclusion.message, by=by, at=now.replace(microsecond=0))
    return msgspec.structs.replace(item.entry, kept=True, ledger=note)


def _warnings(decision: DrainDecision, unproven: Sequence[DrainedObject]) -> list[str]:
    return [
        f"{item.ref} has no finalizer that shows when it is cleaned up outside the cluster: it is deleted, and the"
        f" ledger names it; to wait instead, set settle in the drain of {decision.effort_from}"
        for item in unproven
    ]


def _order(
    policies: Iterable[TeardownPolicy],
    drained: Sequence[DrainDecision],
    found: Mapping[str, Sequence[DrainedObject]],
    others: Iterable[Inventory],
    elsewhere: Mapping[str, tuple[ObjectRef, Entry]],
) -> DrainOrder | None:
    if not drained:
        return None
    programs = {
        program
        for decision in drained
        for item in found[decision.name]
        if item.finalizer and (duty := finalizers.known_controller(item.finalizer, item.ref.kind))
        for program in duty.programs
    }
    owners: dict[str, list[ObjectRef]] = {}
    for chunk in others:
        owners.setdefault(chunk.spec.owner.uid, []).extend(entry.object for entry in chunk.spec.entries.values())
    having: dict[str, set[str]] = {}
    for decision in drained:
        for item in found[decision.name]:
            if item.ref.uid in elsewhere:
                having.setdefault(elsewhere[item.ref.uid][0].uid, set()).add(decision.name)
    serving = {
        uid: serving_steps.serves(refs, drained, programs) | serving_steps.serves_finalizers(refs, drained, found)
        for uid, refs in owners.items()
    }
    return DrainOrder(
        serving={uid: kinds for uid, kinds in serving.items() if kinds},
        having={uid: frozenset(kinds) for uid, kinds in having.items()},
        named=tuple(pattern for policy in policies if policy.spec.drain for pattern in policy.spec.drain.serving),
        enforced=any(decision.effort is Effort.ENFORCE for decision in drained),
    )


def _recorded_steps(
    chunks: Iterable[Inventory], known: Collection[str], *, leave: bool = False
) -> tuple[SourceStep, ...]:
    """The steps of drains that were recorded before, and that policies no longer mention or whose cluster is gone.
    `leave`: nothing of them is deleted."""
    owners = {chunk.spec.owner.uid: chunk for chunk in chunks if chunk.spec.owner.uid not in known}
    return tuple(
        SourceStep(
            draft=Draft(
                name=rules.step_name(chunk.spec.owner.name),
                object=chunk.spec.owner,
                kind=rules.KIND,
                declared=rules.step_name(chunk.spec.owner.name),
                drains=True,
                effort=Effort.LEAVE
                if leave
                else effort
                if isinstance(effort := Effort.read(chunk.spec.effort), Effort)
                else Effort.ENFORCE,
            )
        )
        for chunk in owners.values()
    )


def _unknown(
    error: UnwindError, policies: ClusterPolicies, decided: Mapping[str, DrainDecision], own: Iterable[Inventory]
) -> SourceSteps:
    """What is known if the cluster cannot be read: without an enforced drain, nothing waits for it."""
    reason = Reason.UNREACHABLE if isinstance(error, UnreachableError) else Reason.READ_FAILED
    message = f"cannot read what the drain of this cluster deletes: {error}"
    if not any(decision.effort is Effort.ENFORCE for decision in decided.values()):
        steps = _recorded_steps(own, (), leave=True)
        warning = f"{message}; no policy enforces it, so nothing waits for it"
        return SourceSteps(steps=steps, warnings=(warning,), said=policies.said, terms=policies.terms)
    notice = TeardownNotice(
        ConditionType.UNKNOWN_VALUE, reason, f"{message}; nothing is removed from this cluster until it can be read"
    )
    return SourceSteps(said=(*policies.said, notice), terms=policies.terms)
