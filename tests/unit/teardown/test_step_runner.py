"""What a step says about the objects that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.api.unwind import Blocker, Effort, Step
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Pace, Severity
from unwind.members.targets import ClusterTarget
from unwind.teardown.step_runner import StepRunner
from unwind.testing.clock import START

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from unwind.teardown.status import KnownBlockers

CLUSTER = ObjectRef(kind="Cluster", namespace="fleet", name="prod", uid="prod")
WIDGET = ObjectRef(group="example.dev", kind="Widget", namespace="a", name="one", uid="one")
WEB = ObjectRef(version="v1", kind="ConfigMap", namespace="a", name="web", uid="web")
AWAY = Failed("no answer; will retry", Reason.UNREACHABLE, Severity.WARNING, Pace.FAST)
DELETED = Waiting("ConfigMap a/web is being deleted")
FOUND = Blocker(object=WEB, step="web", reason=Reason.FINALIZER, message="blocked by finalizer example.dev/hold")


class Removal:
    """A removal that waits for these objects, and finds out why the ConfigMap is still there."""

    progress = None

    def __init__(self, waits: Mapping[ObjectRef, Waiting | Failed]) -> None:
        self.waits = waits
        self.asked = 0

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        self.asked += 1
        return (FOUND,)


async def blockers(
    waits: Mapping[ObjectRef, Waiting | Failed], known: KnownBlockers | None = None
) -> tuple[KnownBlockers, int]:
    step = Step(name="web", object=ObjectRef(kind="ClusterSummary", name="web", uid="s"), effort=Effort.ENFORCE.value)
    nothing = cast("Any", None)
    runner = StepRunner(
        step,
        ClusterTarget(ref=CLUSTER, secret=""),
        nothing,
        teardown="t",
        remover=nothing,
        terms=lambda: nothing,
    )
    runner._removal = removal = cast("Any", Removal(waits))
    return await runner.blockers(known or {}, (), START), removal.asked


async def test_an_object_that_cannot_be_read_does_not_hide_why_others_are_still_there() -> None:
    found, _ = await blockers({WIDGET: AWAY, WEB: DELETED})
    assert found == {("web", WEB, DELETED.told): FOUND}


async def test_what_was_found_out_stays_if_an_object_cannot_be_read() -> None:
    """It may be the first sign that the cluster does not answer."""
    other = ObjectRef(version="v1", kind="ConfigMap", namespace="a", name="other", uid="other")
    known = {("web", other, "other waits"): Blocker(object=other, step="web", reason=Reason.FINALIZER, message="held")}
    found, _ = await blockers({WIDGET: AWAY, WEB: DELETED, other: Waiting("other waits")}, known)
    assert found == {("web", WEB, DELETED.told): FOUND, **known}


@pytest.mark.parametrize("place", [CLUSTER, ObjectRef(kind="ClusterSummary", name="web", uid="s")])
async def test_while_the_cluster_does_not_answer_nothing_is_asked_of_it(place: ObjectRef) -> None:
    known = {("web", WEB, DELETED.told): FOUND}
    assert await blockers({place: AWAY, WEB: DELETED}, known) == (known, 0)
