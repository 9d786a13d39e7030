"""From what is on a cluster to its Teardown: as tables."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION, ConditionType
from unwind.api.sveltos import ClusterType
from unwind.api.unwind import Entry, Inventory, InventorySpec, Plan, PolicyRef, Step
from unwind.members.targets import AddonTarget
from unwind.teardown.drafts import (
    HANDLES_NOT_REMOVED,
    PolicyTerms,
    handles_not_removed,
    lost,
    lost_step,
    misunderstood,
    orphaned,
    teardown,
    with_terms,
)

CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="ns", name="prod", uid="u-c")
AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def target(**annotations: str) -> AddonTarget:
    return AddonTarget(type=ClusterType.CAPI, ref=CLUSTER, secret="s", annotations=annotations, deleted_at=AT)  # noqa: S106


def test_a_teardown_is_named_by_the_uid_of_its_target_and_counts_from_its_deletion() -> None:
    made = teardown(target(**{DEADLINE_ANNOTATION: "30m", ON_DEADLINE_ANNOTATION: "Release"}), None)
    spec = made.spec
    assert made.metadata.name == "u-c"
    assert (spec.title, spec.cause, spec.requested_at) == ("Cluster ns/prod", "ClusterDeleted", AT)
    assert (spec.deadline, spec.on_deadline) == ("30m", "Release")
    assert misunderstood(target(**{DEADLINE_ANNOTATION: "30m", ON_DEADLINE_ANNOTATION: "Release"})) == ()


def test_without_annotations_it_waits_for_ever() -> None:
    made = teardown(target(), None)
    assert (made.spec.deadline, made.spec.on_deadline) == ("", "Hold")
    assert misunderstood(target()) == ()


@pytest.mark.parametrize("text", ["", "half an hour", "30", "-5m", "1.5h"])
def test_a_deadline_that_is_no_span_is_none_and_says_so(text: str) -> None:
    annotations = {DEADLINE_ANNOTATION: text}
    assert teardown(target(**annotations), None).spec.deadline == ""
    [said] = misunderstood(target(**annotations))
    assert (said.type, DEADLINE_ANNOTATION in said.message) == (ConditionType.UNKNOWN_VALUE, True)


@pytest.mark.parametrize("text", ["", "release", "Free"])
def test_an_unknown_word_releases_nothing_at_the_deadline(text: str) -> None:
    annotations = {DEADLINE_ANNOTATION: "1h", ON_DEADLINE_ANNOTATION: text}
    assert teardown(target(**annotations), None).spec.on_deadline == "Hold"
    [said] = misunderstood(target(**annotations))
    assert ON_DEADLINE_ANNOTATION in said.message


def test_it_records_what_policies_say_and_a_later_plan_changes_all_of_it_but_the_gate() -> None:
    policies = (PolicyRef(name="production", uid="u-p", generation=3),)
    terms = PolicyTerms(
        policies=policies,
        deadline="2h",
        deadline_from="TeardownPolicy/production",
        on_deadline_from="TeardownPolicy/production",
        order_from="TeardownPolicy/production",
        gate="Machines",
        gate_from="TeardownPolicy/production",
    )
    spec = teardown(target(), None, terms=terms).spec
    assert (spec.policies, spec.deadline, spec.deadline_from) == (policies, "2h", "TeardownPolicy/production")
    assert (spec.on_deadline, spec.on_deadline_from) == ("Hold", "TeardownPolicy/production")
    assert (spec.gate, spec.gate_from) == ("Machines", "TeardownPolicy/production")
    assert spec.order_from == "TeardownPolicy/production"
    later = with_terms(spec, PolicyTerms(deadline="3h", gate="Hook", gate_from="TeardownPolicy/other"))
    assert (later.deadline, later.gate, later.gate_from) == ("3h", "Machines", "TeardownPolicy/production")
    assert later.order_from == ""


def test_handles_that_no_policy_mentions_are_a_condition_of_the_teardown() -> None:
    warning = f"Flux: 6 handles{HANDLES_NOT_REMOVED}no TeardownPolicy selects this cluster"
    [said] = handles_not_removed(Plan(warnings=("something else", warning)))
    assert (said.type, said.reason) == (ConditionType.HANDLES_NOT_REMOVED, "NoPolicy")
    assert said.message == (
        "Flux: 6 handles found on the management cluster, not removed: no TeardownPolicy selects this cluster"
    )
    assert handles_not_removed(None) == ()


# Owners that are gone

OWNER = ObjectRef(kind="ClusterSummary", namespace="ns", name="web", uid="u-web")


def chunk(effort: str, *, state: str = "Confirmed") -> Inventory:
    return Inventory(spec=InventorySpec(owner=OWNER, effort=effort, entries={"a": Entry(state=state)}))


@pytest.mark.parametrize(
    ("efforts", "holds"),
    [
        (["Try"], False),
        (["Leave"], False),
        (["Leave", "Try"], False),
        (["Enforce"], True),
        (["Try", "Enforce", "Try"], True),
        ([""], True),
        (["Try", ""], True),
        (["Sometimes"], True),
        (["Enforce", "Sometimes"], True),
    ],
)
def test_only_a_recorded_effort_shows_that_the_objects_of_a_deleted_owner_do_not_hold(
    efforts: list[str], holds: bool
) -> None:
    for order in (efforts, efforts[::-1]):
        [found] = lost((), map(chunk, order))
        assert (found.holds, found.objects) == (holds, len(efforts))


def test_an_inventory_without_remaining_objects_decides_nothing() -> None:
    [found] = lost((), [chunk("Try"), chunk("Enforce", state="Removed")])
    assert not found.holds


def test_what_holds_says_what_is_known() -> None:
    enforced, unknown = (lost((), [chunk(effort)])[0].said.message for effort in ("Enforce", ""))
    assert "they must be removed, but how is unknown" in enforced
    assert "their deletion policy is unknown" in unknown


def test_the_plan_names_the_owners_that_were_gone_when_it_was_made() -> None:
    steps = (Step(name="ClusterProfile/db", object=ObjectRef(uid="u-db")), Step(name=lost_step(OWNER), object=OWNER))
    [said] = orphaned(Plan(steps=steps))
    assert said.type is ConditionType.OWNER_GONE
    assert said.message.startswith("ClusterSummary ns/web was deleted")
    assert orphaned(None) == ()
