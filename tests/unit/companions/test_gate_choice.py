"""Which gate holds the deletion of a cluster."""

from __future__ import annotations

from typing import Any

from tests.unit.companions.test_policy_merge import policy
from unwind.api.fields import Unknown
from unwind.api.unwind import Gate
from unwind.companions import gate_choice, policy_merge


def gate(*words: str, has_class: bool = False) -> gate_choice.EffectiveGate:
    found = [policy(name, gate=word) for name, word in zip("abc", words, strict=False)]
    return gate_choice.effective_gate(found, has_class=has_class)


def test_auto_is_the_hook_where_cluster_api_calls_it_and_nothing_elsewhere() -> None:
    assert gate("Auto", has_class=True).kind is Gate.HOOK
    without = gate("Auto")
    assert (without.kind, without.asked) == (Gate.NONE, True)
    assert without.why.endswith("Cluster API calls no hooks for a Cluster without a ClusterClass")


def test_no_gate_can_be_chosen_on_purpose_but_the_hook_holds_where_it_is_called() -> None:
    assert (gate("None").kind, gate("None").asked) == (Gate.NONE, False)
    assert gate("None", has_class=True).kind is Gate.HOOK


def test_the_strictest_gate_counts_and_conflicts_are_named() -> None:
    found = gate("None", "Machines", "Auto")
    assert found.kind is Gate.MACHINES
    assert found.conflict == "TeardownPolicy b says Machines and a says None: Machines counts"
    assert not gate("Machines", "Auto").conflict
    assert gate("Machines", has_class=True).kind is Gate.MACHINES


def test_an_unknown_gate_neither_arms_nor_disarms_and_holds() -> None:
    found = gate("Machines", "Moat")
    assert isinstance(found.kind, Unknown)
    assert policy_merge.unknown_words(policy(gate="Moat")) == [
        "gate: 'Moat' is not known (valid: Auto, Hook, Machines, Admission, None)"
    ]


def test_the_gate_admission_is_the_strictest() -> None:
    found = gate("Machines", "Admission", has_class=True)
    assert found.kind is Gate.ADMISSION
    assert found.conflict == "TeardownPolicy b says Admission and a says Machines: Admission counts"


ADMISSION: dict[str, Any] = {"sources": (), "gate": "Admission"}
REQUEST: dict[str, Any] = {**ADMISSION, "admission": {"onDelete": "Request"}}


def test_a_deletion_is_the_request_only_if_all_policies_with_that_gate_say_so() -> None:
    assert gate_choice.requesting([policy("a", **REQUEST)]) == ("a",)
    assert gate_choice.requesting([policy("a", **REQUEST), policy("b", **REQUEST), policy("c")]) == ("a", "b")
    assert gate_choice.requesting([policy("a", **REQUEST), policy("b", **ADMISSION)]) == ()
    assert gate_choice.requesting([policy("a", **REQUEST), policy("b", gate="Often")]) == ()
    assert gate_choice.requesting([policy("a", **{**REQUEST, "admission": {"onDelete": "Perhaps"}})]) == ()
    assert gate_choice.requesting([policy("a")]) == ()
    assert gate_choice.requesting([]) == ()


def test_an_unknown_answer_of_the_gate_holds() -> None:
    found = policy_merge.unknown_words(policy("a", **{**REQUEST, "admission": {"onDelete": "Perhaps"}}))
    assert found == ["admission.onDelete: 'Perhaps' is not known (valid: Refuse, Request)"]
