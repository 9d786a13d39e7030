"""The deletion policy of an object."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.api.annotation_values import DeletePolicy
from unwind.api.fields import Unknown
from unwind.api.names import DELETE_POLICY_ANNOTATION as OURS
from unwind.api.names import RECONCILE_POLICY_ANNOTATION as AZURES
from unwind.deleters.builtin import EffectivePolicy, effective_policy

MANAGE, SKIP, DETACH = DeletePolicy.MANAGE, DeletePolicy.SKIP, DeletePolicy.DETACH_ON_DELETE


def test_who_says_nothing_is_deleted_by_default() -> None:
    assert effective_policy({}) == EffectivePolicy(MANAGE, "the manager's default")


@pytest.mark.parametrize("annotation", [OURS, AZURES])
@pytest.mark.parametrize("policy", list(DeletePolicy))
def test_the_object_has_the_first_word(annotation: str, policy: DeletePolicy) -> None:
    said = effective_policy({annotation: policy}, namespace={OURS: "skip"}, default=SKIP)
    assert said == EffectivePolicy(policy, f"the annotation {annotation}")


def test_then_its_namespace_has_it_then_the_process() -> None:
    assert effective_policy({}, namespace={AZURES: "skip"}, default=MANAGE).policy is SKIP
    assert effective_policy({}, namespace={}, default=DETACH).policy is DETACH


def test_of_two_annotations_that_disagree_the_one_that_keeps_holds() -> None:
    assert effective_policy({OURS: "manage", AZURES: "detach-on-delete"}) == EffectivePolicy(
        DETACH, f"the annotation {AZURES}"
    )
    assert effective_policy({OURS: "skip", AZURES: "manage"}) == EffectivePolicy(SKIP, f"the annotation {OURS}")


@pytest.mark.parametrize("typo", ["", "Manage", "manage ", "delete", "detach_on_delete"])
def test_a_word_that_is_not_known_is_never_taken_for_manage(typo: str) -> None:
    assert effective_policy({OURS: typo}).policy == Unknown(typo, "manage, skip, detach-on-delete")
    assert effective_policy({OURS: "manage", AZURES: typo}).policy == Unknown(typo, "manage, skip, detach-on-delete")
    assert effective_policy({}, namespace={AZURES: typo}).policy == Unknown(typo, "manage, skip, detach-on-delete")
    assert effective_policy({}, default=Unknown(typo)).policy == Unknown(typo)


_words = st.one_of(st.none(), st.sampled_from([*DeletePolicy, "Manage", "typo"]))


def _said(ours: str | None, azures: str | None) -> dict[str, str]:
    return {name: word for name, word in ((OURS, ours), (AZURES, azures)) if word is not None}


@given(_words, _words, _words, _words)
def test_deletion_is_the_answer_only_if_all_who_have_a_say_allow_it(
    ours: str | None, azures: str | None, ns_ours: str | None, ns_azures: str | None
) -> None:
    answer = effective_policy(_said(ours, azures), namespace=_said(ns_ours, ns_azures)).policy
    level = [word for word in (ours, azures) if word is not None] or [
        word for word in (ns_ours, ns_azures) if word is not None
    ]
    assert (answer is MANAGE) == all(word == "manage" for word in level)
