"""From what several step sources say of a target to one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import MEMBER_LABEL, OWNER_LABEL, ConditionType, Reason
from unwind.api.unwind import INVENTORIES, Effort, Entry, EntryState, Inventory, InventorySpec, MemberRef
from unwind.inventory.inventories import Inventories
from unwind.members.targets import ClusterTarget
from unwind.planning.waves import Draft
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.plan import combine, gather
from unwind.teardown.step_sources import Elsewhere, SourceStep, SourceSteps
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Iterable

TARGET = ObjectRef(group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="ns", name="prod", uid="u-c")
HERE = ObjectRef(version="v1", kind="Namespace", name="kube-system", uid="u-management")


def owner(kind: str, name: str) -> ObjectRef:
    return ObjectRef(group="example.dev", version="v1", kind=kind, namespace="ns", name=name, uid=f"u-{name}")


def step(kind: str, name: str, *depends_on: str, effort: Effort = Effort.ENFORCE) -> SourceStep:
    return SourceStep(
        draft=Draft(
            name=f"{kind}/{name}",
            object=owner(kind, name),
            kind=kind,
            namespace="ns",
            declared=name,
            depends_on=depends_on,
            effort=effort,
        )
    )


def chunk(of: ObjectRef, objects: int = 1, *, on: ObjectRef = TARGET) -> Inventory:
    there = Entry(object=ObjectRef(kind="ConfigMap", uid="u-1"), state=EntryState.CONFIRMED.value)
    return Inventory(
        metadata=ObjectMeta(
            name=f"{of.uid}-{on.uid}", namespace="home", labels={OWNER_LABEL: of.uid, MEMBER_LABEL: on.uid}
        ),
        spec=InventorySpec(
            owner=of,
            member=MemberRef(object=on, system_uid="system"),
            entries={str(number): there for number in range(objects)},
        ),
    )


def by_name(chunks: Iterable[Inventory]) -> dict[str, Inventory]:
    return {inventory.metadata.name: inventory for inventory in chunks}


def test_a_name_that_a_step_depends_on_is_one_of_its_own_source() -> None:
    apps = SourceSteps(steps=(step("App", "web", "db"), step("App", "db")))
    others = SourceSteps(steps=(step("Chart", "db"), step("Chart", "api", "db")))
    made = combine([apps, others], {}, ()).drafted().plan
    assert made
    assert {item.name: (item.needs, item.wave) for item in made.steps} == {
        "App/web": (("App/db",), 1),
        "App/db": ((), 2),
        "Chart/api": (("Chart/db",), 1),
        "Chart/db": ((), 2),
    }


def test_one_source_that_does_not_understand_something_holds_the_plan_of_all() -> None:
    said = TeardownNotice(
        ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, "effort of Chart api: 'Maybe' is not known"
    )
    others = SourceSteps(steps=(msgspec.structs.replace(step("Chart", "api"), said=(said,)),))
    found = combine([SourceSteps(steps=(step("App", "web"),)), others], {}, ())
    assert found.drafted().plan is None
    assert found.drafted().said == (said,)
    assert found.drafted(decided=True).plan is not None


def test_a_step_that_needs_an_inventory_is_none_without_and_says_nothing() -> None:
    said = TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, "not known")
    planted = msgspec.structs.replace(step("App", "planted"), required=False, said=(said,))
    without = combine([SourceSteps(steps=(planted,))], {}, ())
    assert (without.drafts, without.said) == ((), ())
    chunks = [chunk(owner("App", "planted"), 2)]
    [draft] = combine([SourceSteps(steps=(planted,))], by_name(chunks), chunks).drafts
    assert draft.objects == 2


def test_an_inventory_whose_owner_no_source_names_holds_unless_its_kind_stays_anyway() -> None:
    chunks = [chunk(owner("App", "web")), chunk(owner("Chart", "gone"), 3)]
    apps = SourceSteps(steps=(step("App", "web"),))
    held = combine([apps], by_name(chunks), chunks)
    assert held.drafted().plan is None
    assert "Chart ns/gone was deleted, but 3 objects" in held.said[0].message
    free = combine([apps, SourceSteps(left_kinds=frozenset({"Chart"}))], by_name(chunks), chunks)
    made = free.drafted().plan
    assert made
    assert {item.name: item.effort for item in made.steps} == {"App/web": "Enforce", "Chart/gone/u-gone": "Leave"}


def test_warnings_of_sources_are_warnings_of_the_plan() -> None:
    made = combine([SourceSteps(steps=(step("App", "web"),), warnings=("claim data-0 stays",))], {}, ()).drafted().plan
    assert made
    assert made.warnings == ("claim data-0 stays",)


@pytest.mark.parametrize(
    ("elsewhere", "on_target", "objects", "reads"),
    [
        (Elsewhere.NO, False, 0, 1),
        (Elsewhere.NO, True, 1, 1),
        (Elsewhere.PERHAPS, False, 4, 2),
        (Elsewhere.PERHAPS, True, 1, 1),
        (Elsewhere.YES, True, 5, 2),
    ],
)
async def test_inventories_about_other_clusters_are_read_only_where_the_step_may_have_some(
    elsewhere: Elsewhere, on_target: bool, objects: int, reads: int
) -> None:
    of = owner("App", "web")
    chunks = [chunk(of, 4, on=HERE), *([chunk(of, 1)] if on_target else [])]
    api = Objects(*(manifest(INVENTORIES, item) for item in chunks), resources=(INVENTORIES,))
    steps = SourceSteps(steps=(msgspec.structs.replace(step("App", "web"), elsewhere=elsewhere),))
    target = ClusterTarget(ref=TARGET, secret="")
    found = await gather(Inventories(api.client, namespace="home"), target, [steps])
    assert [draft.objects for draft in found.drafts] == [objects]
    assert len([request for request in api.requests if "inventories" in request]) == reads


async def test_an_inventory_that_names_another_target_with_this_uid_is_not_counted() -> None:
    forged = chunk(owner("App", "web"), on=msgspec.structs.replace(TARGET, name="other"))
    api = Objects(manifest(INVENTORIES, forged), resources=(INVENTORIES,))
    found = await gather(
        Inventories(api.client, namespace="home"), ClusterTarget(ref=TARGET, secret=""), [SourceSteps()]
    )
    assert (found.drafts, found.lost, dict(found.chunks)) == ((), (), {})
