"""Combines the steps of all sources into a plan, and adds warnings from the member: foreign content, retained PVCs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import ConditionType, Reason
from unwind.api.resources import NAMESPACES, STATEFUL_SETS
from unwind.api.unwind import Effort, Inventory, Step
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.inventory.inventories import items
from unwind.kube.errors import NotFoundError
from unwind.planning.drain_order import DrainOrder
from unwind.planning.waves import Draft, drain_conflicts, plan
from unwind.removal import volume_claims
from unwind.removal.foreign_content import foreign_names
from unwind.teardown.drafts import Drafted, Lost, PolicyTerms, TeardownNotice, lost
from unwind.teardown.step_sources import Elsewhere, SourceStep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from unwind.api.unwind import Entry, Plan
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import Sources, SourceSteps


# A member that does not answer must not delay the plan: foreign content is only removed where a policy says so.
_PATIENCE = 5.0
_AT_ONCE = 16


async def with_what_goes_along(
    fleet: Members,
    target: ClusterTarget,
    drafted: Drafted,
    chunks: Collection[Inventory],
    *,
    takes_along: Callable[[Step], bool],
    volumes: Callable[[Step], VolumePolicy | Unknown] | None = None,
) -> Drafted:
    """The same draft, with warnings about foreign content that its steps delete and claims that stay.

    `chunks`: all inventories of the target. `volumes`: the volume policy of a step's StatefulSets; without it, claims
    are not read.
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
                warnings += volume_claims.retained_warnings(await _staying(fleet, target, sets, chunks, volumes))
    except (UnwindError, TimeoutError) as error:
        why = str(error) or f"no answer within {_PATIENCE:.0f}s"
        warnings = []
        if takers:
            names = ", ".join(step.name for step in takers)
            warnings.append(
                f"cannot list foreign content that is deleted with Namespaces and CRDs of {names}: {why};"
                " list it with kubectl"
            )
        if sets:
            names = ", ".join(dict.fromkeys(item.step.name for item in sets))
            warnings.append(
                f"cannot list the PersistentVolumeClaims that stay after StatefulSets of {names}: {why};"
                " list them with kubectl"
            )
    made = msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings))
    return msgspec.structs.replace(drafted, plan=made)


async def _looked_for(
    fleet: Members, target: ClusterTarget, plan: Plan, takers: list[Step], chunks: Collection[Inventory]
) -> list[str]:
    there = [chunk for chunk in chunks if chunk.spec.member.object.uid == target.ref.uid]
    going = {step.object.uid for step in plan.steps if step.effort != Effort.LEAVE}
    ours = {item.entry.object.uid: item.entry.object for item in items(there) if item.entry.object.uid}
    steps = {step.object.uid: step.name for step in takers}
    theirs = [chunk for chunk in there if chunk.spec.owner.uid in steps]
    async with fleet.member(target) as member:
        return sorted(
            [
                f"{steps[chunk.spec.owner.uid]}: {item.entry.object} is deleted with foreign content: {found}"
                for chunk in theirs
                for item in items([chunk])
                if not item.done and (found := await foreign_names(member, item, removed=ours, going=going))
            ]
        )


class _StatefulSet(msgspec.Struct, frozen=True):
    """A StatefulSet that a step deletes."""

    step: Step
    object: ObjectRef
    local: bool
    """Whether it is on the management cluster."""


def _stateful_sets(
    target: ClusterTarget, going: Iterable[Step], takers: Iterable[Step], chunks: Iterable[Inventory]
) -> list[_StatefulSet]:
    """The StatefulSets whose claims may stay: not those in a Namespace that is deleted with its content (pure)."""
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
    fleet: Members,
    target: ClusterTarget,
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
            # An unknown value deletes nothing.
            policy = VolumePolicy.RETAIN if isinstance(policy, Unknown) else policy
            found.extend(await volume_claims.of_set(member, it, order=0, policy=policy))

    for local in sorted({item.local for item in sets}):
        async with fleet.management() if local else fleet.member(target) as member:
            await gather_limited((look(member, item) for item in sets if item.local is local), limit=_AT_ONCE)
    # A claim that was deployed itself is removed like any other object.
    deployed = {item.entry.object.uid for item in items(chunks) if not item.entry.kept}
    return [entry for entry in found if entry.object.uid not in deployed]


# Builds the plan from the steps of all sources of a target and the Inventories about it.


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of a target, and the Inventories of their owners."""

    drafts: tuple[Draft, ...] = ()
    chunks: Mapping[str, Inventory] = {}
    """By name: of all owners with objects on the target, and of the steps' owners on any cluster."""
    lost: tuple[Lost, ...] = ()
    """Deleted owners that left objects on the target, whose deletion policy is unknown."""
    said: tuple[TeardownNotice, ...] = ()
    warnings: tuple[str, ...] = ()
    effort: str = ""
    """The effort for the target as a whole."""
    terms: PolicyTerms | None = None
    drain: DrainOrder | None = None

    def drafted(self, *, decided: bool = False, with_terms: bool = False) -> Drafted:
        """The plan, or why there is none.

        `decided`: the target is released or gone. Then the plan is made for the ledger, and objects with unknown values
        stay. `with_terms`: with what policies say, although it is decided.
        """
        unknown = any(item.type is ConditionType.UNKNOWN_VALUE for item in self.said)
        if unknown and not decided:
            return Drafted(
                plan=None, said=self.said, terms=self.terms
            )  # a plan is written once: not before every value in it is known
        orders = self.terms.order if self.terms else ()
        made = plan([*self.drafts, *(item.draft for item in self.lost)], orders, self.drain)
        made = msgspec.structs.replace(made, effort=self.effort, warnings=(*made.warnings, *self.warnings))
        # By what policies said until then, it was decided.
        return Drafted(plan=made, said=self.said, terms=self.terms if with_terms or not decided else None)


async def draft(
    sources: Sources,
    means: RemovalDeps,
    target: ClusterTarget,
    *,
    decided: bool = False,
    with_terms: bool = False,
    gone: bool = False,
) -> Drafted:
    """The plan of a target from all its sources, or why there is none. `decided`, `with_terms`: see
    `Gathered.drafted`."""
    found = await gather(means.inventories, target, await sources.steps(target, gone=gone))
    drafted = found.drafted(decided=decided, with_terms=with_terms)
    if decided:
        return drafted  # nothing is removed
    drafted = await with_what_goes_along(
        means.members,
        target,
        drafted,
        found.chunks.values(),
        takes_along=lambda step: sources.terms(step, target).take_along,
        volumes=lambda step: sources.terms(step, target).volumes,
    )
    return msgspec.structs.replace(drafted, read=tuple(found.chunks.values()))


async def gather(inventories: Inventories, target: ClusterTarget, found: Iterable[SourceSteps]) -> Gathered:
    """The steps of the plan, with their object counts. `found`: the steps from each source.

    The Inventories are read after the owners: an owner whose last object was removed in between is not counted as lost.
    """
    found = list(found)
    # A uid alone may be forged on an owner; the member in the Inventory names the target, too.
    there = [chunk for chunk in await inventories.on(target.ref.uid) if _is_about(chunk, target)]
    chunks = {chunk.metadata.name: chunk for chunk in there}
    accounted = {chunk.spec.owner.uid for chunk in there if chunk.spec.entries}
    steps = [step for steps in found for step in steps.steps]
    for step in steps:
        if _is_elsewhere(step, accounted):
            chunks |= {chunk.metadata.name: chunk for chunk in await inventories.of(step.draft.object.uid)}
    return combine(found, chunks, there)


def combine(found: Iterable[SourceSteps], chunks: Mapping[str, Inventory], there: Iterable[Inventory]) -> Gathered:
    """The steps of the plan and their notices (pure). `there`: the Inventories about the target."""
    found = list(found)
    owners = {chunk.spec.owner.uid for chunk in chunks.values()}
    objects = Counter(chunk.spec.owner.uid for chunk in chunks.values() for _ in chunk.spec.entries)
    steps = [step for steps in found for step in steps.steps if step.required or step.draft.object.uid in owners]
    gone = lost({step.draft.object.uid for step in steps}, there)
    left_kinds = {kind for steps in found for kind in steps.left_kinds}
    held_kinds = {kind for steps in found for kind in steps.held_kinds}
    drafts = tuple(
        msgspec.structs.replace(step.draft, objects=objects.get(step.draft.object.uid, step.draft.objects))
        for step in steps
    )
    drain = next((steps.drain for steps in found if steps.drain), None)
    terms = next((steps.terms for steps in found if steps.terms), None)
    contradictions = drain_conflicts(drafts, terms.order if terms else (), drain) if drain else []
    holding = contradictions if drain and drain.enforced else []
    return Gathered(
        drafts=drafts,
        drain=drain,
        chunks=chunks,
        lost=tuple(gone),
        said=(
            # Several sources may say the same about the target.
            *dict.fromkeys(said for steps in found for said in steps.said),
            *(said for step in steps for said in step.said),
            *(
                item.said
                for item in gone
                if item.owner.kind in held_kinds or (item.holds and item.owner.kind not in left_kinds)
            ),
            *(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.ORDER_CONFLICT, why) for why in holding),
        ),
        warnings=(
            *(warning for steps in found for warning in steps.warnings),
            *(why for why in contradictions if why not in holding),
        ),
        effort=next((steps.effort.value for steps in found if steps.effort), ""),
        terms=terms,
    )


def _is_elsewhere(step: SourceStep, accounted: set[str]) -> bool:
    if step.elsewhere is Elsewhere.PERHAPS:
        return step.draft.object.uid not in accounted
    return step.elsewhere is Elsewhere.YES


def _is_about(chunk: Inventory, target: ClusterTarget) -> bool:
    there, ref = chunk.spec.member.object, target.ref
    return (there.kind, there.namespace, there.name) == (ref.kind, ref.namespace, ref.name)
