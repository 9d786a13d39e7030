"""The deletion gate: whether Cluster API may delete a Cluster, or must wait for add-on cleanup (pure).

GateClosed may be computed from caches. GateOpen must be computed from fresh reads (docs/architecture.md, Fresh reads
open gates).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.features import Feature
from unwind.api.fields import Unknown
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Cause, Effort, Phase, StepState
from unwind.hooks import LONGEST
from unwind.render.text import counted
from unwind.why.blocker_causes import urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.unwind import Blocker, Gate, Step, Teardown
    from unwind.members.targets import AddonTarget

SOON = 1
"""Seconds. The shortest retryAfterSeconds that can be sent to Cluster API."""
_WAITING = "waiting for add-on cleanup: "
_NAMED = 5
_MAX_TEXT = 500
# Cluster API does not ask again before retryAfterSeconds, so that must not be longer than the remaining removal. These
# are upper bounds of the removal rate: a removal that is faster than expected is noticed at once, and a slower one only
# costs more requests.
_OBJECTS_A_SECOND = 5000
_WAVES_A_SECOND = 8
_WHY = (ConditionType.UNKNOWN_VALUE, ConditionType.FIELD_NOT_SERVED, ConditionType.PLANNED)


class GateOpen(msgspec.Struct, frozen=True):
    """The cluster may be deleted."""


class GateClosed(msgspec.Struct, frozen=True):
    """The cluster must wait."""

    message: str
    """What it waits for. Equal for equal states: it contains no times and no object counts."""
    seconds: int = SOON
    """When Cluster API asks again."""


class GateHolder(msgspec.Struct, frozen=True):
    """The deletion policy of one ClusterSummary, used while there is no plan."""

    name: str
    """The name of its step."""
    behaviour: ClusterDeletionBehavior | Unknown


Verdict = GateOpen | GateClosed


class GateSource(Protocol):
    """Lists what closes the gate of a cluster that has no Teardown yet."""

    @property
    def synced(self) -> bool:
        """Whether its caches are synced."""

    @property
    def settled(self) -> bool:
        """Whether everything that its answers depend on is loaded."""

    def known(self, target: AddonTarget) -> list[GateHolder]:
        """All holders of a cluster in the caches."""

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        """The holders in the caches that certainly close the gate."""

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        """The holders that close the gate, read from the API server, and deleted owners whose objects close it.

        `reading`: called with what is read next, for the message if that fails.
        """


class UncachedGateSource:
    """A gate source that has no caches: only what it reads from the API server closes the gate."""

    synced = True
    settled = True

    def known(self, target: AddonTarget) -> list[GateHolder]:
        del target
        return []

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        del target
        return []


class GateSources:
    """Several gate sources as one."""

    def __init__(self, *sources: GateSource) -> None:
        self._sources = sources

    @property
    def synced(self) -> bool:
        return all(source.synced for source in self._sources)

    @property
    def settled(self) -> bool:
        return all(source.settled for source in self._sources)

    def known(self, target: AddonTarget) -> list[GateHolder]:
        return [holder for source in self._sources for holder in source.known(target)]

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        return [holder for source in self._sources for holder in source.holding(target)]

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        found = [await source.read(target, reading=reading) for source in self._sources]
        return [holder for holders, _ in found for holder in holders], [owner for _, lost in found for owner in lost]


def closed(why: str, seconds: int = SOON) -> GateClosed:
    """The verdict that the cluster must wait, with the reason."""
    return GateClosed(f"{_WAITING}{why}", seconds)


def of_teardown(uid: str, teardown: Teardown) -> Verdict:
    """Whether the cluster with this uid may be deleted, according to its Teardown."""
    if not uid or teardown.spec.target.uid != uid:
        return closed(f"Teardown {teardown.metadata.name} belongs to another cluster; Cluster API asks again")
    if teardown.spec.cause == Cause.MOVED:
        # Its plan was made for the ledger: what could not be read is not in it. A Cluster that is here was not moved.
        return closed("the Cluster was being moved to another management cluster; there is no plan of its deletion yet")
    if teardown.finished:
        return GateOpen()
    if teardown.spec.plan is None:
        return closed(_unplanned(teardown))
    removed = _removed(teardown)
    left = [step for step in teardown.spec.plan.steps if _closes(step, removed)]
    if not left:
        return GateOpen()
    why = _some(step.name for step in left)
    if blocker := _first_blocker(teardown, {step.name for step in left}):
        why = f"{why}; {_blocker_text(blocker)}"
    return closed(why, _retry_after_seconds(teardown, left))


def is_unenforced(uid: str, teardown: Teardown | None) -> bool:
    """Whether the plan of a Teardown shows that nothing on the cluster is enforced.

    The plan is frozen and signed, so it is as true in a cache as on the API server.
    """
    if teardown is None or not uid or teardown.spec.target.uid != uid or teardown.spec.plan is None:
        return False
    if teardown.spec.cause == Cause.MOVED:
        return False
    plan = teardown.spec.plan
    return not plan.effort and all(Effort.read(step.effort) in (Effort.LEAVE, Effort.TRY) for step in plan.steps)


def of_summaries(uid: str, standing: Iterable[GateHolder], lost: Iterable[str] = ()) -> Verdict:
    """Whether the cluster with this uid may be deleted while it has no Teardown.

    `lost`: deleted owners that left objects on it, which are enforced or have an unknown deletion policy.
    """
    if not uid:
        return closed("the request contains no Cluster uid; Cluster API asks again")
    closing = [holder for holder in standing if holder.behaviour not in _NOT_CLOSING]
    unknown = [f"{holder.name} ({holder.behaviour})" for holder in closing if isinstance(holder.behaviour, Unknown)]
    enforced = [holder.name for holder in closing if not isinstance(holder.behaviour, Unknown)]
    found = [*enforced, *unknown, *(f"{owner} (deleted, but its objects remain)" for owner in lost)]
    return closed(_some(found)) if found else GateOpen()


_NOT_CLOSING = (ClusterDeletionBehavior.LEAVE, ClusterDeletionBehavior.REMOVE)


def _removed(teardown: Teardown) -> set[str]:
    """The steps that are removed: verified absent, with sealed inventories. No other state opens the gate, nor does a
    state of a step that status lists twice."""
    steps = teardown.status.unambiguous_steps
    return {name for name, step in steps.items() if StepState.read(step.state) is StepState.REMOVED}


def _closes(step: Step, removed: set[str]) -> bool:
    """Whether a step closes the gate. A step that status lists never, or twice, is not removed."""
    return Effort.read(step.effort) not in (Effort.LEAVE, Effort.TRY) and step.name not in removed


def _retry_after_seconds(teardown: Teardown, left: list[Step]) -> int:
    waves = len({step.wave for step in left})
    # A blocked step may be unblocked at any moment, and the last wave may end at any moment, however wide it is.
    if waves <= 1 or teardown.phase is Phase.HELD:
        return SOON
    gone = {step.name: step.removed for step in teardown.status.steps}
    objects = sum(max(0, step.objects - gone.get(step.name, 0)) for step in left)
    return min(LONGEST, SOON + max(objects // _OBJECTS_A_SECOND, waves // _WAVES_A_SECOND))


def _unplanned(teardown: Teardown) -> str:
    messages = {condition.type: condition.message for condition in teardown.status.conditions if condition.message}
    shown = [messages[type_] for type_ in _WHY if type_ in messages]
    return f"there is no plan: {_cut('; '.join(shown))}" if shown else "there is no plan yet"


def _first_blocker(teardown: Teardown, steps: set[str]) -> Blocker | None:
    found = [blocker for blocker in teardown.status.blockers if blocker.step in steps]
    if teardown.phase is not Phase.HELD:
        # Objects that are being deleted change all the time while the removal makes progress.
        found = [blocker for blocker in found if blocker.reason != Reason.DELETING]
    return min(
        found,
        key=lambda blocker: (urgency(blocker.reason, blocker.actor), blocker.step, str(blocker.object)),
        default=None,
    )


def _blocker_text(blocker: Blocker) -> str:
    actor = f" (must act: {blocker.actor})" if blocker.actor else ""
    return f"{_cut(blocker.message or f'{blocker.object}: {blocker.reason}')}{_cut(actor)}"


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


# Whether Cluster API calls the BeforeClusterDelete hook at all: the answer. `capi.extension_config_faults` finds it.


class GateFault(msgspec.Struct, frozen=True):
    """Why Cluster API does not call the hook."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return self.message


NOT_INSTALLED = GateFault(
    Reason.NOT_INSTALLED, f"the feature {Feature.GATES} is not installed; add it to `unwind install --features`"
)
"""The feature of a gate without a hook."""


class GateStatus(Protocol):
    """Tells whether Cluster API calls the hook."""

    @property
    def known(self) -> bool:
        """Whether this is known. Nothing is reported before."""

    def why_not(self, namespace: str) -> GateFault | None:
        """Why Cluster API does not call the hook for clusters in a namespace; None if it does."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the answer may have changed."""


class MachineShape(msgspec.Struct, frozen=True, kw_only=True):
    """The Machines and MachinePools of a Cluster, as far as they matter to the gate Machines."""

    machines: int = 0
    """Machines that are not being deleted."""
    armed: int = 0
    """Those of them that Cluster API does not terminate without Unwind."""
    pools: int = 0

    @property
    def fault(self) -> GateFault | None:
        """Why the Machines do not hold the Cluster; None if they do."""
        if self.pools:
            pools = counted(self.pools, "MachinePool")
            message = (
                f"{self}; the Cluster has {pools}, whose infrastructure Cluster API deletes at once: choose another"
                " gate in the TeardownPolicy"
            )
            return GateFault(Reason.MACHINE_POOLS, message)
        if not self.machines:
            return GateFault(
                Reason.NO_MACHINES,
                "the Cluster has no Machines that could hold it; if it never has any, choose another gate in the"
                " TeardownPolicy",
            )
        if self.armed == self.machines:
            return None
        missing = f"{self}: the manager adds its pre-terminate hook to the others; if this lasts, see its log"
        return GateFault(Reason.MACHINES_NOT_ARMED, missing)

    def __str__(self) -> str:
        return f"{self.armed}/{self.machines} Machines armed"


class MachineGates(Protocol):
    """Tells which Machines and MachinePools Clusters have."""

    @property
    def known(self) -> bool:
        """Whether this is known. Nothing is reported before."""

    def shape(self, namespace: str, name: str) -> MachineShape:
        """The shape of a Cluster."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the shape of a Cluster may have changed."""


class ChosenGates(Protocol):
    """Which gates the policies of Clusters choose."""

    @property
    def settled(self) -> bool:
        """Whether all policies are known."""

    def of(self, target: AddonTarget) -> Gate | Unknown | None:
        """The gate of a Cluster; None if no policy selects it."""

    def holds(self, target: AddonTarget) -> bool:
        """Whether policies choose a gate that needs no hook."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the answers may have changed."""
