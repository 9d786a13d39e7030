"""Teardowns with times, for timelines."""

from __future__ import annotations

import datetime as dt

from unwind.api.meta import ObjectRef
from unwind.api.unwind import (
    Blocker,
    Phase,
    Plan,
    Step,
    StepState,
    StepStatus,
    Teardown,
    TeardownSpec,
    TeardownStatus,
    TimelineEntry,
    TimelineEvent,
)
from unwind.testing.clock import START


def at(seconds: int) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def step(name: str, *needs: str, wave: int = 1, effort: str = "Enforce") -> Step:
    return Step(name=name, needs=needs, wave=wave, effort=effort, objects=4)


def ran(name: str, start: int, end: int | None = None, state: StepState = StepState.REMOVED) -> StepStatus:
    if end is None:
        return StepStatus(name=name, state=StepState.REMOVING.value, started_at=at(start), since=at(start))
    return StepStatus(name=name, state=state.value, started_at=at(start), since=at(end))


def waits(name: str) -> StepStatus:
    return StepStatus(name=name, state=StepState.WAITING.value, since=START)


def blocked(step_: str, start: int, end: int | None = None, *, name: str = "data") -> TimelineEntry:
    return TimelineEntry(
        at=at(start),
        until=None if end is None else at(end),
        event=TimelineEvent.BLOCKED.value,
        step=step_,
        object=ref(name),
        reason="Finalizer",
        message=f"{name} has a finalizer",
        by="the storage controller",
    )


def ref(name: str) -> ObjectRef:
    return ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="shop", name=name, uid=name)


def blocker(step_: str, since: int, name: str = "data") -> Blocker:
    return Blocker(object=ref(name), step=step_, reason="Finalizer", message=f"{name} has a finalizer", since=at(since))


def teardown(
    steps: tuple[Step, ...],
    states: tuple[StepStatus, ...],
    *timeline: TimelineEntry,
    end: int | None = None,
    blockers: tuple[Blocker, ...] = (),
    title: str = "Cluster shop/prod-7",
    omitted: int = 0,
) -> Teardown:
    status = TeardownStatus(
        phase=(Phase.REMOVING if end is None else Phase.COMPLETE).value,
        steps=states,
        timeline=timeline,
        timeline_omitted=omitted,
        blockers=blockers,
        started_at=START,
        finished_at=None if end is None else at(end),
    )
    plan = Plan(steps=steps, waves=max((item.wave for item in steps), default=0))
    return Teardown(spec=TeardownSpec(title=title, requested_at=START, plan=plan), status=status)


def over() -> Teardown:
    """Four steps: the database was blocked, and the operator waited for it."""
    return teardown(
        (
            step("shop", "db", "ingress"),
            step("db", "operator", wave=2),
            step("ingress", wave=2),
            step("operator", wave=3),
        ),
        (ran("shop", 0, 20), ran("db", 20, 100), ran("ingress", 20, 50), ran("operator", 100, 119)),
        blocked("db", 40, 90),
        end=120,
    )
