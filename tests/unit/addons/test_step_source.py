"""From the ClusterSummaries of a cluster to the steps of its teardown: as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.addons.cluster_deletion_behavior import effort
from unwind.addons.step_source import step_of
from unwind.api.meta import ObjectMeta, ObjectRef, OwnerReference
from unwind.api.names import DELETION_BEHAVIOR_ANNOTATION, ConditionType
from unwind.api.sveltos import ClusterSummary, ClusterSummarySpec, ClusterType, ProfileSpec
from unwind.api.unwind import Effort, Entry, EntryState, Inventory, InventorySpec, LedgerNote, Plan
from unwind.teardown.drafts import lost
from unwind.teardown.plan import combine
from unwind.teardown.step_sources import SourceSteps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.teardown.drafts import Drafted


def summary(
    profile: str,
    behaviour: str | None = None,
    *,
    kind: str = "ClusterProfile",
    depends_on: tuple[str, ...] = (),
    remembered: str | None = None,
) -> ClusterSummary:
    owner = OwnerReference(api_version="config.projectsveltos.io/v1beta1", kind=kind, name=profile, uid=f"p-{profile}")
    annotations = {DELETION_BEHAVIOR_ANNOTATION: remembered} if remembered else {}
    return ClusterSummary(
        metadata=ObjectMeta(
            name=f"{profile}-capi-prod",
            namespace="ns",
            uid=f"s-{profile}",
            annotations=annotations,
            owner_references=(owner,) if kind else (),
        ),
        spec=ClusterSummarySpec(
            cluster_namespace="ns",
            cluster_name="prod",
            cluster_type=ClusterType.CAPI.value,
            cluster_profile_spec=ProfileSpec(cluster_deletion_behavior=behaviour, depends_on=depends_on),
        ),
    )


def drafted(
    summaries: Iterable[ClusterSummary],
    objects: Mapping[str, int],
    there: Iterable[Inventory] = (),
    *,
    decided: bool = False,
) -> Drafted:
    """The plan. `objects`: how many each has. `there`: further inventories about the cluster."""
    chunks = {
        uid: Inventory(
            spec=InventorySpec(owner=ObjectRef(uid=uid), entries={str(number): THERE for number in range(count)})
        )
        for uid, count in objects.items()
    }
    found = SourceSteps(steps=tuple(map(step_of, summaries)))
    return combine([found], chunks, there).drafted(decided=decided)


def plan_of(*summaries: ClusterSummary) -> Plan:
    made = drafted(summaries, {}).plan
    assert made
    return made


@pytest.mark.parametrize(
    ("behaviour", "effort"),
    [
        ("LeavePolicies", "Leave"),
        ("RemovePolicies", "Try"),
        ("EnforceRemovePolicies", "Enforce"),
        (None, "Try"),
    ],
)
def test_each_behaviour_is_an_effort(behaviour: str | None, effort: str) -> None:
    [step] = plan_of(summary("web", behaviour)).steps
    assert step.effort == effort


@pytest.mark.parametrize("behaviour", ["Leave", "enforceRemovePolicies", "", "Delete"])
def test_a_word_that_is_not_known_makes_no_plan_for_anything_on_the_cluster(behaviour: str) -> None:
    made = drafted([summary("web", behaviour), summary("db", "RemovePolicies")], {})
    assert made.plan is None
    [said] = made.said
    assert said.type is ConditionType.UNKNOWN_VALUE
    assert "ClusterProfile web" in said.message


def test_a_field_that_is_not_served_any_more_holds_to_what_it_said() -> None:
    made = drafted([summary("web", None, remembered="EnforceRemovePolicies")], {})
    assert made.plan
    assert [step.effort for step in made.plan.steps] == ["Enforce"]
    assert [said.type for said in made.said] == [ConditionType.FIELD_NOT_SERVED]


def test_a_remembered_word_that_is_not_known_makes_no_plan() -> None:
    assert drafted([summary("web", None, remembered="Enforce")], {}).plan is None


def test_what_is_said_now_counts_more_than_what_was_remembered() -> None:
    made = drafted([summary("web", "LeavePolicies", remembered="EnforceRemovePolicies")], {})
    assert made.plan
    assert [step.effort for step in made.plan.steps] == ["Leave"]
    assert made.said == ()


def test_a_profile_and_a_cluster_profile_of_one_name_are_two_steps_that_do_not_know_each_other() -> None:
    both = summary("web"), summary("web", kind="Profile"), summary("top", depends_on=("web",))
    steps = {step.name: step.needs for step in plan_of(*both).steps}
    assert steps == {
        "ClusterProfile/web": (),
        "Profile/ns/web": (),
        "ClusterProfile/top": ("ClusterProfile/web",),
    }


def test_a_summary_without_an_owner_stands_for_itself() -> None:
    [step] = plan_of(summary("web", kind="")).steps
    assert step.name == "ClusterSummary/web-capi-prod"


def test_the_plan_does_not_depend_on_the_order_in_which_summaries_come() -> None:
    ones = [summary("a"), summary("b", depends_on=("a",)), summary("c", depends_on=("a", "b"))]
    objects = {"s-a": 3, "s-b": 2}
    assert drafted(ones, objects) == drafted(reversed(ones), objects)


def test_the_plan_counts_the_objects_of_each() -> None:
    made = drafted([summary("a"), summary("b")], {"s-a": 3})
    assert made.plan
    assert {step.name: step.objects for step in made.plan.steps} == {"ClusterProfile/a": 3, "ClusterProfile/b": 0}


# What vanished summaries left


def chunk(owner: str, *entries: Entry) -> Inventory:
    ref = ObjectRef(kind="ClusterSummary", namespace="ns", name=f"{owner}-capi-prod", uid=f"s-{owner}")
    return Inventory(spec=InventorySpec(owner=ref, entries={str(number): one for number, one in enumerate(entries)}))


THERE = Entry(state=EntryState.CONFIRMED.value)
GONE = Entry(state=EntryState.REMOVED.value)
NOTED = Entry(state=EntryState.CONFIRMED.value, ledger=LedgerNote(reason="Forced", by="jane"))


def test_only_what_is_not_done_and_has_no_summary_is_lost() -> None:
    inventories = [chunk("web", THERE, GONE), chunk("web", THERE), chunk("done", GONE, NOTED), chunk("here", THERE)]
    assert [(item.name, item.objects) for item in lost({"s-here"}, inventories)] == [("web-capi-prod", 2)]


def test_what_a_vanished_summary_left_makes_no_plan_and_is_named() -> None:
    made = drafted([summary("here")], {}, [chunk("web", THERE)])
    assert made.plan is None
    [said] = made.said
    assert said.type is ConditionType.UNKNOWN_VALUE
    assert "ns/web-capi-prod" in said.message
    assert "unwind.dev/force-release" in said.message


def test_what_a_vanished_summary_left_stays_and_holds_nothing_if_it_was_not_enforced() -> None:
    there = chunk("gone", THERE)
    for recorded in (Effort.TRY, Effort.LEAVE):
        spec = msgspec.structs.replace(there.spec, effort=recorded.value)
        made = drafted([summary("web", "EnforceRemovePolicies")], {}, [Inventory(spec=spec)])
        assert made.plan
        assert {step.effort for step in made.plan.steps if step.object.uid == "s-gone"} == {"Leave"}
        assert made.said == ()


@pytest.mark.parametrize(
    ("behaviour", "wanted"),
    [
        ("LeavePolicies", Effort.LEAVE),
        ("RemovePolicies", Effort.TRY),
        (None, Effort.TRY),
        ("EnforceRemovePolicies", Effort.ENFORCE),
        ("RemovePolicy", Effort.ENFORCE),
    ],
)
def test_an_inventory_records_an_unknown_behaviour_as_enforced(behaviour: str | None, wanted: Effort) -> None:
    assert effort(summary("web", behaviour)) is wanted


def test_once_it_is_decided_what_is_not_understood_is_left_and_the_rest_goes_as_it_says() -> None:
    gone = [chunk("web", THERE)]
    made = drafted([summary("typo", "Enforce"), summary("here", "EnforceRemovePolicies")], {}, gone, decided=True)
    assert made.plan
    assert {step.name: step.effort for step in made.plan.steps} == {
        "ClusterProfile/here": "Enforce",
        "ClusterProfile/typo": "Leave",
        "ClusterSummary/web-capi-prod/s-web": "Leave",
    }
