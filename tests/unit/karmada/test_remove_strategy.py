"""From a member's Works to the plan by which it is unjoined: as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.api.karmada import Cluster, ClusterSpec, Work, WorkSpec
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import DEPENDS_ON_ANNOTATION, REMOVE_STRATEGY_ANNOTATION, ConditionType
from unwind.api.unwind import Effort, Entry, EntryState, Inventory, InventorySpec, Plan
from unwind.karmada.remove_strategy import decided_by, is_enforced, lowered, needs, raised, recorded_effort, steps_of
from unwind.teardown.plan import combine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.teardown.drafts import Drafted


def cluster(strategy: str | None = None, annotation: str | None = None) -> Cluster:
    annotations = {REMOVE_STRATEGY_ANNOTATION: annotation} if annotation else {}
    return Cluster(
        metadata=ObjectMeta(name="m1", uid="u-m1", annotations=annotations),
        spec=ClusterSpec(remove_strategy=strategy),
    )


def work(name: str, *depends_on: str, preserved: bool | None = None) -> Work:
    annotations = {DEPENDS_ON_ANNOTATION: ",".join(depends_on)} if depends_on else {}
    return Work(
        metadata=ObjectMeta(name=name, namespace="karmada-es-m1", uid=f"u-{name}", annotations=annotations),
        spec=WorkSpec(preserve_resources_on_deletion=preserved),
    )


def drafted(
    it: Cluster,
    works: Iterable[Work],
    objects: Mapping[str, int],
    there: Iterable[Inventory] = (),
    *,
    decided: bool = False,
) -> Drafted:
    """The plan. `objects`: how many each has. `there`: further inventories about the member."""
    chunks = {uid: chunk(ObjectRef(uid=uid), count) for uid, count in objects.items()}
    return combine([steps_of(it, works)], chunks, there).drafted(decided=decided)


def chunk(owner: ObjectRef, objects: int) -> Inventory:
    there = Entry(state=EntryState.CONFIRMED.value)
    return Inventory(spec=InventorySpec(owner=owner, entries={str(number): there for number in range(objects)}))


def plan_of(it: Cluster, *works: Work) -> Plan:
    made = drafted(it, works, {}).plan
    assert made
    return made


LOST = chunk(ObjectRef(kind="Work", namespace="karmada-es-m1", name="gone", uid="u-gone"), 3)


@pytest.mark.parametrize(
    ("strategy", "annotation", "effort"),
    [
        (None, None, "Leave"),
        ("Needless", None, "Leave"),
        ("Required", None, "Enforce"),
        (None, "Required", "Enforce"),
        (None, "Needless", "Leave"),
        # Where the field is served, it is what people write.
        ("Required", "Needless", "Enforce"),
    ],
)
def test_the_strategy_decides_what_becomes_of_each_work(
    strategy: str | None, annotation: str | None, effort: str
) -> None:
    assert [step.effort for step in plan_of(cluster(strategy, annotation), work("a"), work("b")).steps] == [effort] * 2


def test_a_work_goes_before_what_it_depends_on() -> None:
    made = plan_of(cluster("Required"), work("base"), work("web", "base"), work("shop", "web", "elsewhere"))
    assert {step.name: step.wave for step in made.steps} == {"Work/shop": 1, "Work/web": 2, "Work/base": 3}


def test_objects_are_counted_by_the_uid_of_their_work() -> None:
    made = drafted(cluster("Required"), [work("a"), work("b")], {"u-a": 7}).plan
    assert made
    assert {step.name: step.objects for step in made.steps} == {"Work/a": 7, "Work/b": 0}


def test_a_work_that_preserves_its_objects_leaves_them_whatever_the_cluster_says() -> None:
    made = plan_of(cluster("Required"), work("a"), work("b", preserved=True))
    assert {step.name: step.effort for step in made.steps} == {"Work/a": "Enforce", "Work/b": "Leave"}


@pytest.mark.parametrize("word", ["required", "Requierd", ""])
def test_a_strategy_that_is_not_known_holds(word: str) -> None:
    made = drafted(cluster(word), [work("a")], {})
    assert made.plan is None
    assert [said.type for said in made.said] == [ConditionType.UNKNOWN_VALUE]
    assert word in made.said[0].message


def test_a_strategy_that_is_not_known_leaves_everything_where_a_person_decided() -> None:
    made = drafted(cluster("Requierd"), [work("a")], {}, decided=True).plan
    assert made
    assert [step.effort for step in made.steps] == ["Leave"]


def test_what_a_vanished_work_left_holds_only_where_all_has_to_go() -> None:
    held = drafted(cluster("Required"), [work("a")], {}, [LOST])
    assert held.plan is None
    assert "Work karmada-es-m1/gone was deleted" in held.said[0].message
    free = drafted(cluster("Needless"), [work("a")], {}, [LOST])
    assert free.said == ()
    assert free.plan
    assert [(step.effort, step.objects) for step in free.plan.steps if step.object.uid == "u-gone"] == [("Leave", 3)]


def test_a_member_without_works_has_a_plan_of_nothing() -> None:
    assert plan_of(cluster("Required")) == Plan(effort="Enforce")
    assert plan_of(cluster("Needless")) == Plan()


@pytest.mark.parametrize(
    ("text", "names"), [("a", ("a",)), ("a,b", ("a", "b")), (" a , b,, a ", ("a", "b")), ("", ()), (",", ())]
)
def test_names_are_separated_by_commas(text: str, names: tuple[str, ...]) -> None:
    it = Work(metadata=ObjectMeta(annotations={DEPENDS_ON_ANNOTATION: text}))
    assert needs(it) == names


def test_required_that_became_needless_lets_go() -> None:
    made = plan_of(cluster("Required"), work("a"))
    assert lowered(cluster("Needless"), made)
    assert lowered(cluster(None, "Needless"), made)
    assert not lowered(cluster("Required"), made)


@pytest.mark.parametrize("now", [cluster(None), cluster("needless"), cluster("")])
def test_a_field_that_is_not_served_or_not_understood_lets_nobody_go(now: Cluster) -> None:
    assert not lowered(now, plan_of(cluster("Required"), work("a")))


def test_nothing_is_let_go_that_was_not_held() -> None:
    assert not lowered(cluster("Needless"), plan_of(cluster("Needless"), work("a")))
    assert not lowered(cluster("Needless"), None)


def test_needless_that_became_required_is_noticed() -> None:
    left, enforced_ = plan_of(cluster("Needless"), work("a")), plan_of(cluster("Required"), work("a"))
    assert raised(cluster("Required"), left, [work("a")])
    assert not raised(cluster("Required"), enforced_, [work("a")])
    assert not raised(cluster("Needless"), left, [work("a")])
    assert not raised(cluster("Required"), left, [])


def test_a_work_that_keeps_its_objects_itself_was_not_overruled() -> None:
    kept = work("a", preserved=True)
    assert not raised(cluster("Required"), plan_of(cluster("Required"), kept), [kept])


def test_a_plan_that_is_not_made_may_hold_anything() -> None:
    assert is_enforced(None)
    assert not is_enforced(plan_of(cluster("Needless"), work("a")))


@pytest.mark.parametrize("works", [[], [work("a", preserved=True)]], ids=["no Works", "only preserved ones"])
def test_required_is_strict_without_an_enforced_step(works: list[Work]) -> None:
    assert is_enforced(plan_of(cluster("Required"), *works))
    assert not is_enforced(plan_of(cluster("Needless"), *works))
    assert not is_enforced(Plan()), "a plan of an earlier release has only its steps"


def test_the_inventory_of_a_work_records_the_strategy_unless_the_work_preserves() -> None:
    assert recorded_effort(cluster("Required"), work("a")) is Effort.ENFORCE
    assert recorded_effort(cluster("Needless"), work("a")) is Effort.LEAVE
    assert recorded_effort(cluster("Requierd"), work("a")) is Effort.ENFORCE
    assert recorded_effort(cluster("Required"), work("a", preserved=True)) is Effort.LEAVE


def test_it_is_said_who_decided_that_something_stays() -> None:
    assert decided_by(work("a"), "Cluster m1") == "removeStrategy of Cluster m1"
    assert decided_by(None, "Cluster m1") == "removeStrategy of Cluster m1"
    assert decided_by(work("a", preserved=True), "Cluster m1") == (
        "preserveResourcesOnDeletion of Work karmada-es-m1/a"
    )
