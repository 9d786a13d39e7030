"""The stages of a requested deletion, as the demo on an existing cluster shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Blocker, Phase, Plan, Step, StepState, Teardown, TeardownStatus
from unwind.demo.cluster_story import by_stages
from unwind.planning.blast_radius import blast_radius
from unwind.preview.object_preview import Foreseen

_DATABASES = (ObjectRef(kind="Database", name="a", uid="1"), ObjectRef(kind="Database", name="b", uid="2"))
_WEB = (ObjectRef(kind="Deployment", name="web", uid="3"),)
_SEEN = Foreseen(
    title="Namespace shop",
    target=ObjectRef(kind="Namespace", name="shop"),
    requested=True,
    plan=Plan(steps=(Step(name="custom objects", wave=1, objects=2), Step(name="workloads", wave=2, objects=1))),
    objects={"custom objects": _DATABASES, "workloads": _WEB},
    radius=blast_radius([], custom_resources={}),
)


def _states(phase: Phase, *gone: str) -> list[tuple[str, int]]:
    status = TeardownStatus(phase=phase.value, started_at=datetime(2026, 1, 1, tzinfo=UTC))
    shown = by_stages(Teardown(status=status), _SEEN, set(gone))
    return [(step.state, step.removed) for step in shown.status.steps]


def test_a_stage_waits_until_the_one_before_it_is_gone() -> None:
    assert _states(Phase.REMOVING, "1") == [(StepState.REMOVING, 1), (StepState.WAITING, 0)]
    assert _states(Phase.REMOVING, "1", "2") == [(StepState.REMOVED, 2), (StepState.REMOVING, 0)]


def test_all_stages_are_removed_when_the_teardown_is_finished() -> None:
    assert _states(Phase.COMPLETE, "1") == [(StepState.REMOVED, 2), (StepState.REMOVED, 1)]


def test_a_blocker_is_shown_at_the_stage_of_its_object() -> None:
    record = Teardown(status=TeardownStatus(blockers=(Blocker(object=_WEB[0], step="Namespace/shop"),)))
    assert [blocker.step for blocker in by_stages(record, _SEEN, set()).status.blockers] == ["workloads"]
