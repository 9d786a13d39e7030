"""Companions as a step source: each handle that a TeardownPolicy mentions is one step of the cluster's teardown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.names import ConditionType, Reason
from unwind.api.resources import SECRETS
from unwind.api.unwind import Effort
from unwind.companions import snapshots
from unwind.companions.companion import step_name
from unwind.companions.handle_kinds import count_handles
from unwind.companions.helm_release_drivers import without_driven
from unwind.errors import UnwindError
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError, UnreachableError
from unwind.planning.dependency_graph import without
from unwind.planning.waves import Draft
from unwind.teardown.drafts import HANDLES_NOT_REMOVED, ORDER_LOST, TeardownNotice
from unwind.teardown.step_sources import FollowedSource, SourceStep, SourceSteps, StepTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.api.policies import SourceKind
    from unwind.api.unwind import Inventory, Step
    from unwind.companions.companion import Companion, Handle
    from unwind.companions.snapshots import Snapshot
    from unwind.inventory.inventories import Inventories
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import PolicyTerms
    from unwind.teardown.step_sources import StepPause

# Names of objects in one warning.
_SHOWN = 5
NOT_SELECTED = "no TeardownPolicy selects this cluster"
_POLICY = "TeardownPolicy/"
SCOPE = "Companion"
"""The scope of dependencies: handles of all deployers can depend on each other."""


class HandleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies of a cluster say about one handle."""

    effort: Effort
    policies: tuple[str, ...]
    """Names of the policies that decided it."""
    removes_suspended: bool = False
    """Whether Unwind itself removes what the deployer would leave."""
    suspended_held_by: tuple[str, ...] = ()
    """The policies that do not want that."""


class HandleDecisions(Protocol):
    """What all policies that select a cluster say about its handles."""

    def namespaces(self, source: SourceKind) -> Collection[str]:
        """The namespaces of the management cluster whose handles of a deployer count."""

    def decide(self, handle: Handle) -> HandleDecision | None:
        """What the policies say about a handle; None if none of them mentions it."""


class PolicyDecisions(HandleDecisions, Protocol):
    """What all policies that select a cluster say."""

    @property
    def sources(self) -> Collection[SourceKind]:
        """The deployers that a policy mentions."""

    @property
    def enforced(self) -> bool:
        """Whether a policy enforces anything."""

    @property
    def said(self) -> tuple[TeardownNotice, ...]:
        """Conditions of the Teardown. UnknownValue means that there is no plan."""

    @property
    def terms(self) -> PolicyTerms | None:
        """What they say about the cluster as a whole; None if no policy selects it."""


class PolicyReader(Protocol):
    """Reads the policies of clusters."""

    async def of(self, target: ClusterTarget) -> PolicyDecisions:
        """What the policies of a cluster say, read from the API server."""

    def conflict(self, step: Step, source: SourceKind, target: ClusterTarget) -> StepPause | None:
        """Why policies do not allow to remove a step now: one of them leaves it. From the cache."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a policy changed."""


class CompanionSteps(FollowedSource):
    """The steps of clusters that policies select."""

    def __init__(
        self, companion: Companion, policies: PolicyReader, members: Members, inventories: Inventories
    ) -> None:
        self.remover = companion.remover
        self._companion = companion
        self._policies = policies
        self._members = members
        self._inventories = inventories
        self._targets: set[Key] = set()
        """The clusters whose steps were asked for."""

    def owns(self, owner: ObjectRef) -> bool:
        return self._companion.owns(owner)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        recorded = [chunk for chunk in await self._inventories.on(target.ref.uid) if self.owns(chunk.spec.owner)]
        if gone:
            return SourceSteps(steps=tuple(_recorded_steps(recorded, ())))
        self._targets.add(_key(target))  # before policies are read, so that no change is missed
        decisions = await self._policies.of(target)
        nothing = SourceSteps(steps=tuple(_recorded_steps(recorded, ())), said=decisions.said, terms=decisions.terms)
        if self._companion.source not in decisions.sources:
            return msgspec.structs.replace(nothing, warnings=await self._not_removed(target, decisions))
        try:
            if await self._was_never_there(target, decisions):
                return nothing
            handles, unplaced, found = await self._snapshot(target, decisions)
        except UnwindError as error:
            return _unknown(self._companion.source, error, decisions, recorded)
        found_steps = [step_of(handle, decisions.decide(handle)) for handle in handles]
        known = {handle.ref.uid for handle in handles}
        return SourceSteps(
            steps=(*found_steps, *_recorded_steps(recorded, known)),
            terms=decisions.terms,
            said=(*decisions.said, *held_by(unplaced, decisions.decide)),
            warnings=(
                *_order_lost(handles),
                *_warnings(handles, found, decisions),
                *unplaced_warnings(unplaced, decisions.decide),
            ),
        )

    async def _was_never_there(self, target: ClusterTarget, decisions: PolicyDecisions) -> bool:
        """Whether nothing can have been deployed on a cluster: by its status it was never reachable, it has no
        kubeconfig, and no handle says otherwise. A restored Cluster may have an empty status."""
        if target.ready:
            return False
        async with self._members.management() as home:
            try:
                await home.client.get_metadata(SECRETS, target.secret, namespace=target.home)
            except NotFoundError:
                await check_not_stranded(self._companion, target, decisions)
                return True
        return False

    async def _snapshot(
        self, target: ClusterTarget, decisions: PolicyDecisions
    ) -> tuple[list[Handle], list[Handle], dict[str, Snapshot]]:
        """The handles that policies mention, those of them that are unplaced, and what each of the others deployed."""
        companion = self._companion
        async with self._members.member(target) as member:
            listed = await companion.handles(target, member, decisions.namespaces(companion.source))
            found = without_driven(listed, decisions)
            decided = {handle.ref.uid: decisions.decide(handle) for handle in found}
            # Order is by the names of steps, and a handle that is no step may have the name of one.
            placed = mentioned((it for it in found if not it.unplaced), lambda it: bool(decided[it.ref.uid]))
            placed.sort(key=lambda handle: handle.step)
            unplaced = sorted((it for it in found if it.unplaced and decided[it.ref.uid]), key=lambda it: it.step)

            def effort(handle: Handle) -> Effort:
                decision = decided[handle.ref.uid]
                return decision.effort if decision and not handle.stays else Effort.LEAVE

            taken = await snapshots.record_all(self._inventories, member, placed, lambda _: companion, effort)
        return placed, unplaced, taken

    async def _not_removed(self, target: ClusterTarget, decisions: PolicyDecisions) -> tuple[str, ...]:
        """A warning about the handles that are no steps. Only of the management cluster: without a policy, nothing is
        asked of the cluster itself, and nothing waits."""
        source = self._companion.source
        try:
            async with self._members.management() as home:
                found = await count_handles(home.client, source, _key(target))
        except (UnwindError, msgspec.ValidationError):
            return ()  # for example, the deployer is not installed: nothing waits for a remark
        who = f"no TeardownPolicy of this cluster mentions {source.value}" if decisions.terms else NOT_SELECTED
        handles = f"{found} handle{'' if found == 1 else 's'}"
        return (f"{source.value}: {handles}{HANDLES_NOT_REMOVED}{who}",) if found else ()

    def follow(self, changed: Callable[[Key], None]) -> None:
        self._policies.follow(lambda: self._tell(changed))

    def follow_terms(self, changed: Callable[[Key], None]) -> None:
        self._policies.follow(lambda: self._tell(changed))

    def _tell(self, changed: Callable[[Key], None]) -> None:
        for key in self._targets:
            changed(key)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        self._targets.add(_key(target))
        by_policy = not step.effort_from or step.effort_from.startswith(_POLICY)
        return StepTerms(
            left="a TeardownPolicy says Leave" if by_policy else step.effort_from,
            gave_up="best-effort time of its TeardownPolicy exceeded",
            decided_by=(step.effort_from or "a TeardownPolicy") if by_policy else "unwind",
            paused=self._policies.conflict(step, self._companion.source, target),
        )


async def check_not_stranded(companion: Companion, target: ClusterTarget, decisions: HandleDecisions) -> None:
    """Raise if a handle may have deployed something on a cluster that was never reachable by its status, and whose
    kubeconfig is missing. Those that no policy mentions, or that are left, do not count."""
    found = await companion.stranded(target, decisions.namespaces(companion.source))
    names = [it.step for it in found if (one := decisions.decide(it)) and one.effort is not Effort.LEAVE]
    if names:
        raise UnwindError(
            f"{_some(names)} may have deployed something there, but Secret {target.home}/{target.secret} with its"
            " kubeconfig not found",
            remedy="restore the Secret, or force-release the Cluster if its cluster is gone",
        )


def _key(target: ClusterTarget) -> Key:
    return Key(target.ref.namespace, target.ref.name)


def mentioned(handles: Iterable[Handle], is_mentioned: Callable[[Handle], bool]) -> list[Handle]:
    """The handles that policies mention; order passes through the others (pure)."""
    handles = list(handles)
    needs: dict[str, tuple[str, ...]] = {name: () for handle in handles for name in handle.depends_on}
    needs |= {handle.step: handle.depends_on for handle in handles}
    found = [handle for handle in handles if is_mentioned(handle)]
    between = without(needs, {it.step for it in handles} - {it.step for it in found})
    return [msgspec.structs.replace(it, depends_on=tuple(sorted(between[it.step]))) for it in found]


def step_of(handle: Handle, decision: HandleDecision | None, *, objects: int | None = None) -> SourceStep:
    """The step of a handle (pure). `decision`: None if no policy mentions it: then it is left. `objects`: how many it
    deployed."""
    if handle.stays or decision is None:
        effort, effort_from = Effort.LEAVE, handle.stays
    else:
        effort, effort_from = decision.effort, ", ".join(f"{_POLICY}{name}" for name in decision.policies)
    draft = draft_of(handle, effort, objects=(handle.objects or 0) if objects is None else objects)
    return SourceStep(draft=msgspec.structs.replace(draft, last=handle.last, effort_from=effort_from))


def draft_of(handle: Handle, effort: Effort, *, objects: int) -> Draft:
    """The step of a handle, without what policies need to know about it (pure)."""
    return Draft(
        name=handle.step,
        object=handle.ref,
        kind=SCOPE,
        declared=handle.step,
        depends_on=handle.depends_on,
        effort=effort,
        objects=objects,
    )


def _recorded_steps(chunks: Iterable[Inventory], known: Collection[str]) -> list[SourceStep]:
    """The steps of handles that are gone, by their Inventories: what they deployed must be verified all the same."""
    owners = {chunk.spec.owner.uid: chunk for chunk in chunks if chunk.spec.owner.uid not in known}
    return [
        SourceStep(
            draft=Draft(
                name=step_name(chunk.spec.owner),
                object=chunk.spec.owner,
                kind=SCOPE,
                declared=step_name(chunk.spec.owner),
                # An effort that cannot be read holds.
                effort=effort if isinstance(effort := Effort.read(chunk.spec.effort), Effort) else Effort.ENFORCE,
            )
        )
        for chunk in owners.values()
    ]


def _order_lost(handles: Iterable[Handle]) -> list[str]:
    """A warning if handles are being deleted already: then their order cannot be kept."""
    going = sorted(handle.step for handle in handles if handle.terminating)
    began = "were being deleted before the teardown began; what they deployed is verified all the same"
    return [f"{ORDER_LOST}{_some(going)} {began}"] if going else []


def _unknown(
    source: SourceKind, error: UnwindError, decisions: PolicyDecisions, recorded: Iterable[Inventory]
) -> SourceSteps:
    """What is known if the handles of a deployer cannot be read: without an enforcing policy, nothing waits for it."""
    reason = Reason.UNREACHABLE if isinstance(error, UnreachableError) else Reason.READ_FAILED
    message = f"cannot read what {source.value} deployed on this cluster: {error}"
    if not decisions.enforced:
        steps = tuple(_recorded_steps(recorded, ()))
        warning = f"{message}; no policy enforces it, so nothing waits for it"
        return SourceSteps(steps=steps, warnings=(warning,), said=decisions.said, terms=decisions.terms)
    notice = TeardownNotice(
        ConditionType.UNKNOWN_VALUE, reason, f"{message}; nothing is removed from this cluster until it can be read"
    )
    return SourceSteps(said=(*decisions.said, notice), terms=decisions.terms)


def held_by(unplaced: Iterable[Handle], decide: Callable[[Handle], HandleDecision | None]) -> list[TeardownNotice]:
    """The notices that nothing is removed because of handles that may deploy on this cluster or another one (pure).
    `decide`: what the policies say about each."""
    return [
        TeardownNotice(
            ConditionType.UNKNOWN_VALUE,
            Reason.CLUSTER_UNKNOWN,
            f"{handle.step} {handle.unplaced}; nothing is removed from this cluster until that is known:"
            f" {handle.remedy}, or exclude it with the selector of"
            f" {', '.join(f'{_POLICY}{it}' for it in decision.policies)}",
        )
        for handle in unplaced
        if (decision := decide(handle)) and _holds(handle, decision)
    ]


def unplaced_warnings(unplaced: Iterable[Handle], decide: Callable[[Handle], HandleDecision | None]) -> list[str]:
    """The warnings of the plan about handles that policies mention, but are no steps, one for each reason (pure). Not
    about those that hold the cluster: `held_by` says that."""
    steps: dict[str, list[str]] = {}
    for handle in unplaced:
        if (decision := decide(handle)) and not _holds(handle, decision):
            steps.setdefault(handle.unplaced, []).append(handle.step)
    return [f"not a step, and not waited for: {_some(names)} {why}" for why, names in steps.items()]


def _holds(unplaced: Handle, decision: HandleDecision) -> bool:
    return bool(unplaced.remedy) and decision.effort is Effort.ENFORCE


def warnings_of(handle: Handle, decision: HandleDecision | None) -> list[str]:
    """The warnings of the plan about a handle (pure)."""
    found = [*handle.warnings, *([left_message(handle, decision)] if handle.left else [])]
    return [f"{handle.step}: {warning}" for warning in found]


def removed_by_unwind(handle: Handle, decision: HandleDecision | None) -> bool:
    """Whether Unwind, and not the deployer, removes what a handle deployed (pure)."""
    removes = decision is not None and decision.removes_suspended and decision.effort is not Effort.LEAVE
    return removes and bool(handle.left) and not handle.stays


def left_message(handle: Handle, decision: HandleDecision | None) -> str:
    """What becomes of the objects that the deployer of a handle would leave, as the rest of a sentence (pure)."""
    if decision is None or decision.effort is Effort.LEAVE:
        return f"it {handle.left}"
    if removed_by_unwind(handle, decision):
        return f"it {handle.left}: Unwind removes its objects (suspended: Remove)"
    names = ", ".join(f"{_POLICY}{name}" for name in decision.suspended_held_by)
    why = f"; {names} does not say suspended: Remove" if names else ""
    return f"it {handle.left}: it is held until a user changes it, or sets suspended: Remove{why}"


def _warnings(handles: Iterable[Handle], found: Mapping[str, Snapshot], decisions: PolicyDecisions) -> list[str]:
    warnings: list[str] = []
    for handle in handles:
        warnings += warnings_of(handle, decisions.decide(handle))
        if foreign := found[handle.ref.uid].foreign:
            warnings.append(
                f"{handle.step} lists objects that do not have its labels, and are not removed with it:"
                f" {_some(map(str, foreign))}"
            )
    return warnings


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"
