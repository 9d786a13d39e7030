"""A member that is also a Cluster of Cluster API: the recorded pair, and its step."""

from __future__ import annotations

import pytest

from unwind.api.karmada import Cluster, ClusterSpec, ClusterStatus
from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.names import CAPI_CLUSTER_ANNOTATION, ConditionType
from unwind.api.unwind import Effort
from unwind.karmada.cluster_pairs import Pair, can_be_paired, pairs_of
from unwind.karmada.member_step_source import step_of

WORK = ObjectRef(kind="Work", namespace="karmada-es-m1", name="web", uid="u-web")


def member(
    strategy: str | None = "Required",
    *,
    pair: str = "",
    ready: str = "True",
    identity: str = "s-1",
    sync_mode: str = "Push",
) -> Cluster:
    annotations = {CAPI_CLUSTER_ANNOTATION: pair} if pair else {}
    return Cluster(
        metadata=ObjectMeta(name="m1", uid="u-m1", annotations=annotations),
        spec=ClusterSpec(remove_strategy=strategy, id=identity, sync_mode=sync_mode),
        status=ClusterStatus(conditions=(Condition(type="Ready", status=ready),)),
    )


def test_a_pair_is_read_as_it_was_written() -> None:
    pair = Pair("team", "prod", "u-prod")
    assert pairs_of(member(pair=str(pair))) == (pair,)
    other = Pair("team", "test", "u-test")
    assert pairs_of(member(pair=f"{pair},{other}")) == (pair, other)


@pytest.mark.parametrize("text", ["", "prod", "team/prod", "team/prod/", "/prod/u", "team/prod/u/more"])
def test_anything_else_is_no_pair(text: str) -> None:
    assert pairs_of(member(pair=text)) == ()


def test_only_a_member_whose_identity_was_confirmed_is_paired() -> None:
    assert can_be_paired(member())
    assert not can_be_paired(member(ready="False"))
    assert not can_be_paired(member(identity=""))
    assert not can_be_paired(member(sync_mode="Pull"))


def test_required_is_one_enforced_step_with_or_without_works() -> None:
    for works in ([], [WORK]):
        [step] = step_of(member(), works).steps
        assert (step.draft.name, step.draft.effort, step.draft.objects) == ("Member/m1", Effort.ENFORCE, len(works))
        assert step.draft.object.uid == "u-m1"


@pytest.mark.parametrize("strategy", [None, "Needless"])
def test_needless_is_no_step(strategy: str | None) -> None:
    assert step_of(member(strategy), [WORK]).steps == ()


def test_an_unknown_strategy_makes_no_plan() -> None:
    [said] = step_of(member("Requierd"), [WORK]).said
    assert said.type is ConditionType.UNKNOWN_VALUE
    assert "Requierd" in said.message
