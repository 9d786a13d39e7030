"""Computes the status of a Teardown from its progress: phase, steps, blockers, conditions (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api import meta as conditions_
from unwind.api.annotation_values import OnDeadline
from unwind.api.meta import ObjectRef, with_condition, without_condition
from unwind.api.names import NO_CLUSTER_CLASS, ConditionType, Reason
from unwind.api.unwind import (
    BLOCKERS_SHOWN,
    Blocker,
    Cancellation,
    Gate,
    Phase,
    Plan,
    Release,
    StepState,
    StepStatus,
    Teardown,
    TeardownStatus,
)
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.planning import timeline
from unwind.planning.waves import circles
from unwind.teardown.drafts import TeardownNotice
from unwind.why.blocker_causes import actor_of, urgency

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.api.meta import Condition


UNPAUSES = "the user who paused it"
WRITES_POLICIES = "the users who may write these policies"
_DECIDES: dict[str, str] = {Reason.PAUSED: UNPAUSES, Reason.POLICY_CONFLICT: WRITES_POLICIES}
"""Who ends a pause, by its reason."""
UNSEALED = "all objects are removed; Unwind completes their record"


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one step."""

    name: str
    state: StepState
    total: int = 0
    removed: int = 0
    left: int = 0
    waits: Mapping[ObjectRef, Waiting | Failed] = {}
    for_steps: tuple[str, ...] = ()
    """The steps that it waits for."""
    unsealed: bool = False
    """Whether its objects are removed but its inventory is not sealed yet."""
    reason: str = ""
    """Why objects were left, as a CamelCase word."""
    why_left: str = ""
    """The same in one sentence."""


KnownBlockers = Mapping[tuple[str, ObjectRef, str], Blocker]
"""The blockers that were found, by step, object and wait message."""


class TeardownProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a teardown."""

    steps: tuple[StepView, ...]
    wave: int
    phase: Phase
    said: tuple[TeardownNotice, ...] = ()
    release: Release | None = None
    cancelled: Cancellation | None = None
    overdue: bool = False
    paused: bool = False
    """Whether nothing is removed because the target is paused."""
    gated: bool = True
    """Whether the target has a deletion gate."""
    known: KnownBlockers = {}


def status(teardown: Teardown, view: TeardownProgress, *, now: datetime) -> TeardownStatus:
    """The status for this progress. Timestamps change only when something started or ended."""
    before = teardown.status
    now = now.replace(microsecond=0)
    plan = teardown.spec.plan or Plan()
    blockers = _paused(teardown, before, now) if view.paused else _blockers(view, before, now)
    total = sum(step.total for step in view.steps)
    removed = sum(step.removed for step in view.steps)
    busy = any(step.state is StepState.REMOVING and not (step.waits or step.unsealed) for step in view.steps)
    held = view.paused or (bool(blockers) and not busy)
    phase = Phase.HELD if held and view.phase is Phase.REMOVING else view.phase
    after = TeardownStatus(
        phase=phase.value,
        observed_generation=teardown.metadata.generation,
        wave=f"{view.wave}/{plan.waves}" if plan.waves else "",
        removed=f"{removed}/{total}",
        blocked_by=_first(blockers),
        left=sum(step.left for step in view.steps),
        started_at=before.started_at or now,
        finished_at=(before.finished_at or now) if phase.finished else None,
        steps=_steps(view, before, now),
        blockers=blockers[:BLOCKERS_SHOWN],
        release=view.release,
        cancelled=view.cancelled,
        conditions=_conditions(teardown, view, phase, blockers, now),
    )
    course = timeline.recorded(before, after, plan, blockers=blockers, now=now)
    return msgspec.structs.replace(after, timeline=course.entries, timeline_omitted=course.omitted)


def guarded(teardown: Teardown) -> dict[str, str]:
    """The metadata to apply a status with: the uid and the resourceVersion of the record as last read or written.

    Without it, a delayed write by the former owner of a shard would overwrite the status of its successor.
    """
    meta = teardown.metadata
    version = {"resourceVersion": meta.resource_version} if meta.resource_version else {}
    return {"name": meta.name, "uid": meta.uid} | version


def same_but_for_counts(one: TeardownStatus, other: TeardownStatus) -> bool:
    """Whether two statuses differ only in object counts."""
    return _uncounted(one) == _uncounted(other)


def _uncounted(status: TeardownStatus) -> TeardownStatus:
    steps = tuple(msgspec.structs.replace(step, removed=0) for step in status.steps)
    return msgspec.structs.replace(status, removed="", left=0, steps=steps)


def _steps(view: TeardownProgress, before: TeardownStatus, now: datetime) -> tuple[StepStatus, ...]:
    known = {step.name: step for step in before.steps}
    statuses = []
    for step in view.steps:
        old = known.get(step.name)
        since = old.since if old and old.state == step.state else now
        reason = ""
        if step.state in _WITH_OBJECTS_LEFT:
            # After a restart, status is the only place that tells why.
            kept = old if old and old.state == step.state and not step.reason else None
            reason, message = (kept.reason, kept.message) if kept else (step.reason, step.why_left)
        else:
            message = f"waiting for {', '.join(step.for_steps)}" if step.for_steps else _first_wait(step.waits)
            message = message or (UNSEALED if step.unsealed else "")
        statuses.append(
            StepStatus(
                name=step.name,
                state=step.state.value,
                removed=step.removed,
                since=since,
                started_at=old.started_at if old and old.started_at else _started(step.state, now),
                reason=reason,
                message=message,
            )
        )
    return tuple(statuses)


def _started(state: StepState, now: datetime) -> datetime | None:
    return None if state is StepState.WAITING else now


_WITH_OBJECTS_LEFT = (StepState.LEFT, StepState.GIVEN_UP)


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one step as the status of its Teardown tells it, for the object that owns the step."""

    state: StepState
    reason: str = ""
    """Why it waits, or why objects were left, as a CamelCase word; empty if neither."""
    message: str = ""
    """The same in one sentence, with who must act."""


def step_reports(teardown: Teardown) -> dict[str, StepReport]:
    """The reports of all planned steps, by name, from the status of a Teardown (pure).

    A step that status does not name, or names twice, or whose state is unknown has none.
    """
    status = teardown.status
    blockers: dict[str, Blocker] = {}
    for blocker in status.blockers:  # the most urgent one comes first
        blockers.setdefault(blocker.step, blocker)
    planned = {step.name for step in teardown.spec.plan.steps} if teardown.spec.plan else set()
    reports: dict[str, StepReport] = {}
    for name, step in status.unambiguous_steps.items():
        state = StepState.read(step.state)
        if name in planned and isinstance(state, StepState):
            # A blocker without a step is the target itself: it is paused.
            reports[name] = _report(state, step, blockers.get(name) or blockers.get(""))
    return reports


def _report(state: StepState, step: StepStatus, blocker: Blocker | None) -> StepReport:
    if state in _WITH_OBJECTS_LEFT:
        return StepReport(state=state, reason=step.reason or state.value, message=step.message)
    if state is StepState.REMOVED:
        return StepReport(state=state)
    if blocker:
        actor = f" (must act: {blocker.actor})" if blocker.actor else ""
        return StepReport(
            state=state, reason=blocker.reason, message=f"{blocker.message or str(blocker.object)}{actor}"
        )
    return StepReport(state=state, reason=Reason.WAITING.value if step.message else "", message=step.message)


def _paused(teardown: Teardown, before: TeardownStatus, now: datetime) -> tuple[Blocker, ...]:
    since = next((blocker.since for blocker in before.blockers if blocker.reason == Reason.PAUSED), None)
    target = teardown.spec.member or teardown.spec.target
    return (
        Blocker(
            object=target,
            reason=Reason.PAUSED,
            message=f"{target} is paused: nothing is removed until it is unpaused",
            actor=UNPAUSES,
            since=since or now,
        ),
    )


def _blockers(view: TeardownProgress, before: TeardownStatus, now: datetime) -> tuple[Blocker, ...]:
    since = {(blocker.object, blocker.step, blocker.reason): blocker.since for blocker in before.blockers}
    found = []
    for step in view.steps:
        for ref, what in step.waits.items():
            if blocker := view.known.get((step.name, ref, what.told)):
                found.append(blocker)
                continue
            reason = str(what.code if isinstance(what, Waiting) else what.reason)
            found.append(
                Blocker(
                    object=ref,
                    step=step.name,
                    reason=reason,
                    message=what.told,
                    actor=_DECIDES.get(reason) or (actor_of(reason) if isinstance(what, Failed) else ""),
                    since=since.get((ref, step.name, reason), now),
                )
            )
    return tuple(
        sorted(
            found,
            key=lambda blocker: (
                urgency(blocker.reason, blocker.actor),
                blocker.step,
                blocker.object.namespace,
                blocker.object.kind,
                blocker.object.name,
            ),
        )
    )


def _conditions(
    teardown: Teardown, view: TeardownProgress, phase: Phase, blockers: tuple[Blocker, ...], now: datetime
) -> tuple[Condition, ...]:
    conditions = teardown.status.conditions
    plan = teardown.spec.plan
    broken = circles(plan) if plan else ()
    wanted: dict[ConditionType, tuple[bool, str, str]] = {
        ConditionType.PLANNED: (
            plan is not None,
            "Planned" if plan else Reason.UNKNOWN_VALUE,
            "; ".join(plan.warnings) if plan else "the plan cannot be made: the condition UnknownValue says why",
        ),
        ConditionType.COMPLETE: (phase is Phase.COMPLETE, phase.value, _ended(phase, view)),
    }
    if blockers:
        wanted[ConditionType.BLOCKED] = (True, blockers[0].reason, _first(blockers))
    if view.paused:
        wanted[ConditionType.PAUSED] = (True, Reason.PAUSED, blockers[0].message)
    elif conditions_.find(conditions, ConditionType.PAUSED):
        # Kept: a deadline starts at the time of this transition.
        wanted[ConditionType.PAUSED] = (False, "Unpaused", "unpaused; a deadline counts from this transition")
    if broken:
        wanted[ConditionType.CYCLE_BROKEN] = (True, "Cycle", "; ".join(broken))
    if not view.gated and teardown.spec.gate not in (Gate.MACHINES, Gate.ADMISSION):
        message = (
            f"{NO_CLUSTER_CLASS}, so it does not wait for the removal; to hold such Clusters, choose a gate in a"
            " TeardownPolicy"
        )
        wanted[ConditionType.GATE_NOT_AVAILABLE] = (True, Reason.NO_CLUSTER_CLASS, message)
    if view.overdue:
        then = (
            "it is released"
            if teardown.spec.on_deadline == OnDeadline.RELEASE
            else "it stays blocked: resolve what blocks it, or release it"
        )
        message = (
            f"deadline of {teardown.spec.deadline} exceeded; on-deadline is {teardown.spec.on_deadline}, so {then}"
        )
        wanted[ConditionType.DEADLINE_EXCEEDED] = (True, Reason.DEADLINE, message)
    unreachable = [blocker for blocker in blockers if blocker.reason == Reason.UNREACHABLE]
    if unreachable:
        wanted[ConditionType.UNREACHABLE] = (True, Reason.UNREACHABLE, unreachable[0].message)
    for type_, (reason, messages) in _grouped(view.said).items():
        wanted[type_] = (True, reason, "; ".join(messages))
    # GateNotArmed is never wanted here. Another field manager applies it, so it stays on the object.
    for type_ in ConditionType:
        if type_ in wanted:
            true, reason, message = wanted[type_]
            conditions = with_condition(
                conditions,
                type=type_,
                status=true,
                reason=reason,
                message=message,
                generation=teardown.metadata.generation,
                now=now,
            )
        else:
            conditions = without_condition(conditions, type_)
    return conditions


def _grouped(said: Iterable[TeardownNotice]) -> dict[ConditionType, tuple[str, list[str]]]:
    grouped: dict[ConditionType, tuple[str, list[str]]] = {}
    for notice in said:
        grouped.setdefault(notice.type, (notice.reason, []))[1].append(notice.message)
    return grouped


def _ended(phase: Phase, view: TeardownProgress) -> str:
    left = sum(step.left for step in view.steps)
    words = {
        Phase.COMPLETE: "all required steps are removed (verified absent)",
        Phase.RELEASED: "the target was released before everything was removed",
        Phase.TARGET_GONE: "the target was gone before everything was verified absent",
        Phase.MOVED: "the target was moved to another management cluster",
        Phase.REFUSED: "nothing was deleted",
        Phase.CANCELLED: "the deletion was cancelled",
    }
    ending = words.get(phase, "")
    if phase is Phase.CANCELLED:
        return ending
    return f"{ending}; {left} objects were left behind, see `unwind ledger`" if ending and left else ending


def _first(blockers: tuple[Blocker, ...]) -> str:
    if not blockers:
        return ""
    more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    return f"{blockers[0].message or blockers[0].object}{more}"


def _first_wait(waits: Mapping[ObjectRef, Waiting | Failed]) -> str:
    return min((what.told for what in waits.values()), default="")
