"""Step sources: which steps a target has. This package defines the protocol and contains no source for clusters.

To add a source, implement `StepSource` and pass it to the controller of its targets. If an Inventory is not enough to
remove its steps, implement `StepRemover`, too.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.api.unwind import Blocker, Effort
from unwind.deleters.chain_attempt import Failed
from unwind.deleters.outcomes import Pace, Severity
from unwind.planning.drain_order import DrainOrder
from unwind.planning.waves import Draft
from unwind.teardown.drafts import PolicyTerms, TeardownNotice
from unwind.teardown.status import UNPAUSES, step_reports
from unwind.teardown.step_removers import InventoryRemover

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from unwind.api.policies import SourceKind
    from unwind.api.unwind import Step, StepState, Teardown
    from unwind.inventory.inventories import Item
    from unwind.kube.decoding import Key
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.status import StepReport
    from unwind.teardown.step_removers import StepContext, StepProgress, StepRemoval, StepRemover


class Elsewhere(Enum):
    """Whether the owner of a step may have Inventories for other clusters than the target."""

    NO = "no"
    PERHAPS = "perhaps"
    """Those are read if it has none for the target."""
    YES = "yes"


class SourceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a target, as its source found it."""

    draft: Draft
    """`draft.object` is the owner of the step's Inventories. `draft.depends_on` are names of steps of the same kind and
    namespace. The number of objects is counted from the Inventories, if there are any."""
    said: tuple[TeardownNotice, ...] = ()
    """Conditions of the Teardown. UnknownValue means that there is no plan."""
    elsewhere: Elsewhere = Elsewhere.NO
    required: bool = True
    """Whether it is a step even if its owner has no Inventory."""


class SourceSteps(msgspec.Struct, frozen=True, kw_only=True):
    """All steps that one source has for a target."""

    steps: tuple[SourceStep, ...] = ()
    said: tuple[TeardownNotice, ...] = ()
    """Conditions of the Teardown. UnknownValue means that there is no plan."""
    warnings: tuple[str, ...] = ()
    """Warnings of the plan."""
    effort: Effort | None = None
    """The effort for the target as a whole, if that does not follow from its steps."""
    terms: PolicyTerms | None = None
    """What policies say about the target as a whole, if one selects it. The first source that knows it counts."""
    drain: DrainOrder | None = None
    """What the order of a drain depends on, if this source has steps of one. At most one source has."""
    left_kinds: frozenset[str] = frozenset()
    """Kinds of owners whose objects stay in any case: one that is gone does not hold the target."""
    held_kinds: frozenset[str] = frozenset()
    """Kinds of owners whose objects must be removed in any case: one that is gone holds the target, whatever effort its
    Inventories record."""


class StepPause(msgspec.Struct, frozen=True):
    """Why nothing of a step may be removed for now."""

    object: ObjectRef
    """The object that is paused."""
    by: str
    """Who decided it, for the ledger."""
    why: str = ""
    """Why, in one sentence; empty if the object is paused."""
    reason: Reason = Reason.PAUSED
    actor: str = UNPAUSES
    passing: bool = False
    """Whether it ends by itself, soon: then a step that is only tried waits for it, too."""

    @property
    def message(self) -> str:
        return self.why or f"{self.object} is paused: nothing of it is removed until it is unpaused"

    @property
    def ledger(self) -> str:
        """Why objects are left, for the ledger."""
        return self.why or f"{self.object} is paused"

    @property
    def blocker(self) -> Blocker:
        """The blocker of a removal that waits for it."""
        return Blocker(object=self.object, reason=self.reason, message=self.message, actor=self.actor)


class StepTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a step's owner for its removal, besides the effort, which the plan records."""

    take_along: bool = False
    """Whether Namespaces and CRDs are deleted with their foreign content."""
    volumes: VolumePolicy | Unknown = VolumePolicy.RETAIN
    """The volume policy, for the claims of StatefulSets."""
    left: str = "left in place by policy"
    """Why objects stay if the effort is Leave, for the ledger."""
    left_reason: str = Reason.KEPT_BY_POLICY
    """The same as a CamelCase word."""
    gave_up: str = "best-effort time exceeded"
    """Why objects stay if the effort is Try and the time is up, for the ledger."""
    decided_by: str = "unwind"
    """Who decided that objects stay, for the ledger."""
    more_time: float = 0.0
    """Seconds that a step with the effort Try gets besides the best-effort time."""
    said: tuple[TeardownNotice, ...] = ()
    """Conditions of the Teardown while it runs."""
    paused: StepPause | None = None
    """Set while nothing of the step may be removed. An enforced step waits; the objects of any other step are left."""


class StepSource(Protocol):
    """Lists the steps of a target. Subclasses inherit the defaults."""

    remover: StepRemover
    """Removes the steps of this source."""

    def owns(self, owner: ObjectRef) -> bool:
        """Whether a step with this owner is from this source. No two sources of a target may own the same kind."""

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        """The steps of a target, read from the API server and not from a cache: a plan is written once.

        Raises if they cannot be read. `gone`: the target no longer exists, and the plan is made for the ledger.
        """

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        """The current settings of a step's owner. Called often; must not block."""
        del step, target
        return StepTerms()

    def step_changed(self, step: Step, state: StepState, target: ClusterTarget) -> None:
        """Called when a step has started or ended."""
        del step, state, target

    def step_reported(self, step: Step, report: StepReport, target: ClusterTarget) -> None:
        """Called when the status of the Teardown tells something new about a step."""
        del step, report, target

    async def run(self) -> None:
        """Work in the background, until cancelled."""
        return


class FollowedSource(StepSource, Protocol):
    """A step source with caches that tell which targets it has steps for."""

    def follow(self, changed: Callable[[Key], None]) -> None:
        """Call `changed` with the key of a target whose steps may have changed."""
        del changed

    def follow_terms(self, changed: Callable[[Key], None]) -> None:
        """Call `changed` with the key of a target if one of its steps was paused or unpaused."""
        del changed

    def targets(self) -> Collection[Key]:
        """The keys of targets that it has steps for, including deleted targets."""
        return ()

    def target_uids(self, key: Key) -> Collection[str]:
        """The uids of targets with this key for which it still has steps."""
        del key
        return ()

    def was_paused(self, key: Key, uid: str) -> bool:
        """Whether the target with this uid was paused when its steps were last reconciled."""
        del key, uid
        return False


class OwnSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's own setting says, such as the clusterDeletionBehavior of a profile."""

    named: ObjectRef
    """The object by which policies name the step."""
    effort: Effort | None
    """None if the setting is not known."""
    origin: str
    """The setting and its object, for messages."""


class ClusterVoices(Protocol):
    """What the TeardownPolicies of a cluster say about steps that have settings of their own, such as profiles."""

    def merged(self, source: SourceKind, named: ObjectRef, step: SourceStep, *, own_from: str) -> SourceStep:
        """The step with the effort that its own setting and the policies decide together. Leave keeps, Enforce holds.

        `named`: the object by which policies name it. `own_from`: its own setting.
        """


class StepPolicies(Protocol):
    """Reads what TeardownPolicies say about steps that have settings of their own."""

    async def of(self, target: ClusterTarget) -> ClusterVoices:
        """What the policies of a cluster say, read from the API server."""

    def conflict(self, step: Step, source: SourceKind, target: ClusterTarget, own: OwnSetting) -> StepPause | None:
        """Why a step is not removed now: a policy or its own setting leaves it. From the cache."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a policy changed."""


class Sources:
    """The step sources of one kind of targets."""

    def __init__(self, sources: Iterable[StepSource]) -> None:
        self._sources = tuple(sources)

    def of(self, step: Step) -> StepSource:
        """The source of a step. A step without a source is held, unless its objects stay anyway."""
        return next((source for source in self._sources if source.owns(step.object)), _UNOWNED)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        """The current settings of a step's owner."""
        return self.of(step).terms(step, target)

    def said(self, teardown: Teardown, target: ClusterTarget) -> tuple[TeardownNotice, ...]:
        """The current notices of the owners of all planned steps."""
        steps = teardown.spec.plan.steps if teardown.spec.plan else ()
        by_owner = sorted(steps, key=lambda step: step.object.name)
        return tuple(said for step in by_owner for said in self.terms(step, target).said)

    def report(self, teardown: Teardown, target: ClusterTarget, told: dict[str, StepReport] | None = None) -> None:
        """Tell each source what the status of a Teardown says about its steps. `told`: the reports that the sources
        have already; it is updated."""
        told = {} if told is None else told
        reports = step_reports(teardown)
        for step in teardown.spec.plan.steps if teardown.spec.plan else ():
            report = reports.get(step.name)
            if report and told.get(step.name) != report:
                told[step.name] = report
                self.of(step).step_reported(step, report, target)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> list[SourceSteps]:
        """The steps of a target by source, read from the API server."""
        return [await source.steps(target, gone=gone) for source in self._sources]

    async def run(self) -> None:
        """Run all sources, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(source.run())


class _Unowned(StepSource):
    """The source of steps that no other source owns: the feature that planned them may be disabled."""

    def __init__(self) -> None:
        self.remover = _HoldingRemover()

    def owns(self, owner: ObjectRef) -> bool:
        del owner
        return False

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        del target, gone
        return SourceSteps()


class _HoldingRemover:
    """Removes nothing: the proper remover of the step might do more than delete the objects in the Inventory."""

    def begin(self, context: StepContext) -> StepRemoval:
        return _Held(context)

    async def leave(self, member: Member, those: Sequence[Item], *, owner: str) -> None:
        await InventoryRemover().leave(member, those, owner=owner)


class _Held:
    """The removal of a step that nothing removes."""

    removed: frozenset[str] = frozenset()
    progress: StepProgress | None = None

    def __init__(self, context: StepContext) -> None:
        owner = context.step.object
        message = (
            f"cannot remove {owner}: the running manager has no feature for kind {owner.kind}; run it with all"
            " installed features"
        )
        self.waits = {owner: Failed(message, Reason.HELD, Severity.ERROR, Pace.SLOW)}
        self._changed = context.changed

    async def run(self) -> None:
        self._changed()
        await asyncio.Event().wait()

    def look_again(self) -> None:
        pass

    def go_another_way(self, target: ClusterTarget) -> None:
        pass

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        del before, now
        return ()


_UNOWNED = _Unowned()
