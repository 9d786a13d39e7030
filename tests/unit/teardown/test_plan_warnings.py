"""When a plan needs a look at the member."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.annotation_values import VolumePolicy
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import Effort, Entry, EntryState, Inventory, InventorySpec, MemberRef, Plan, Step
from unwind.kube.errors import UnreachableError
from unwind.members.targets import ClusterTarget
from unwind.teardown.drafts import Drafted
from unwind.teardown.plan import with_what_goes_along

CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta1", kind="Cluster", namespace="shops", name="c", uid="c-1")
SUMMARY = ObjectRef(kind="ClusterSummary", namespace="shops", name="db", uid="s-1")
SET = ObjectRef(group="apps", version="v1", kind="StatefulSet", namespace="shop", name="db", uid="set")
ROOM = ObjectRef(version="v1", kind="Namespace", name="shop", uid="room")


class Dead:
    """A fleet whose members do not answer."""

    asked = 0

    def member(self, target: ClusterTarget) -> Any:
        self.asked += 1
        raise UnreachableError(f"{target} does not answer")


def chunk(*entries: Entry) -> Inventory:
    return Inventory(
        metadata=ObjectMeta(name="s-1-0"),
        spec=InventorySpec(
            owner=SUMMARY,
            member=MemberRef(object=CLUSTER, system_uid="m"),
            entries={item.object.uid: item for item in entries},
        ),
    )


def entry(ref: ObjectRef, **more: Any) -> Entry:
    return Entry(object=ref, resource="x", **({"state": EntryState.CONFIRMED.value} | more))


async def planned(
    *entries: Entry, effort: Effort = Effort.ENFORCE, takes_along: bool = False
) -> tuple[int, tuple[str, ...]]:
    """How often the member was asked for, and what the plan warns of."""
    fleet: Any = Dead()
    step = Step(name="db", object=SUMMARY, effort=effort.value, wave=1, objects=len(entries))
    drafted = await with_what_goes_along(
        fleet,
        ClusterTarget(ref=CLUSTER, secret=""),
        Drafted(plan=Plan(steps=(step,), waves=1)),
        [chunk(*entries)],
        takes_along=lambda _: takes_along,
        volumes=lambda _: VolumePolicy.RETAIN,
    )
    assert drafted.plan
    return fleet.asked, drafted.plan.warnings


@pytest.mark.parametrize(
    ("entries", "effort"),
    [
        ([], Effort.ENFORCE),
        ([entry(ROOM)], Effort.ENFORCE),
        ([entry(SET)], Effort.LEAVE),
        ([entry(SET, adopted=True)], Effort.ENFORCE),
        ([entry(SET, kept=True)], Effort.ENFORCE),
        ([entry(SET, state=EntryState.REMOVED.value)], Effort.ENFORCE),
    ],
    ids=["nothing", "no StatefulSet", "left", "adopted", "kept", "removed"],
)
async def test_a_member_is_not_asked_where_no_stateful_set_is_deleted(entries: list[Entry], effort: Effort) -> None:
    assert await planned(*entries, effort=effort) == (0, ())


async def test_a_member_that_does_not_answer_is_a_warning() -> None:
    asked, [warning] = await planned(entry(SET), entry(ROOM))
    assert asked == 1
    assert warning.startswith("cannot list the PersistentVolumeClaims that stay after StatefulSets of db: ")
    assert "does not answer" in warning


async def test_claims_in_a_namespace_that_goes_with_everything_in_it_do_not_stay() -> None:
    asked, [warning] = await planned(entry(SET), entry(ROOM), takes_along=True)
    assert asked == 1
    assert warning.startswith("cannot list foreign content that is deleted with Namespaces and CRDs of db: ")
