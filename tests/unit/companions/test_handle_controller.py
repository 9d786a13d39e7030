"""Which handles the controller of their finalizers must not let go."""

from __future__ import annotations

import pytest

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import Phase, Plan, Step, Teardown, TeardownSpec, TeardownStatus
from unwind.companions.handle_controller import is_step


def _teardown(*uids: str, phase: Phase = Phase.REMOVING) -> Teardown:
    steps = tuple(Step(name=uid, object=ObjectRef(kind="Kustomization", uid=uid)) for uid in uids)
    return Teardown(
        metadata=ObjectMeta(name="record"),
        spec=TeardownSpec(plan=Plan(steps=steps)),
        status=TeardownStatus(phase=phase.value),
    )


def test_a_handle_in_a_running_plan_is_a_step_wherever_its_cluster_is() -> None:
    assert is_step("apps", [_teardown("base"), _teardown("apps", "web")])


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.finished])
def test_a_handle_of_a_teardown_that_has_ended_is_no_step(phase: Phase) -> None:
    assert not is_step("apps", [_teardown("apps", phase=phase)])


def test_a_teardown_without_a_plan_has_no_steps() -> None:
    assert not is_step("apps", [Teardown(), _teardown("base")])
