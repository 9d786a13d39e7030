"""The status of a TeardownPolicy, and the policies that close a gate."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.unit.companions.test_policy_merge import policy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, find
from unwind.api.names import ConditionType
from unwind.api.policies import PolicyGate
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.companions import policy_status
from unwind.companions.policy_gate_source import _holders
from unwind.companions.policy_merge import Selection, StepDecision
from unwind.companions.policy_status import SelectedCluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER = ObjectRef(kind="Cluster", namespace="shops", name="a", uid="c1")


def test_the_status_names_clusters_steps_and_conflicts() -> None:
    both = StepDecision(enforced_by=("production",), left_by=("careful",))
    one = SelectedCluster(
        ref=CLUSTER,
        selection=Selection.MATCHES,
        gate=PolicyGate.ARMED,
        decisions={"Kustomization/shops/apps": both, "Kustomization/shops/base": StepDecision(enforced_by=("a",))},
    )
    found = policy_status.status(policy(), [one], now=NOW)
    assert (found.selected, found.steps, found.observed_generation) == (1, 2, 1)
    [conflict] = found.conflicts
    assert (conflict.cluster, conflict.step) == ("shops/a", "Kustomization/shops/apps")
    said = find(found.conditions, ConditionType.CONFLICT)
    assert said
    assert "Kustomization/shops/apps on shops/a" in said.message


def test_handles_in_namespaces_that_no_policy_names_are_listed_and_not_counted() -> None:
    names = tuple(f"HelmReleaseProxy/other/web-{number}" for number in range(7))
    one = SelectedCluster(ref=CLUSTER, selection=Selection.MATCHES, gate=PolicyGate.ARMED, not_steps=names)
    [shown] = policy_status.status(policy(), [one], now=NOW).clusters
    assert (shown.steps, shown.not_steps) == (0, names[:5])


def test_conditions_go_when_they_no_longer_apply() -> None:
    still = SelectedCluster(ref=CLUSTER, selection=Selection.STILL, gate=PolicyGate.NOT_AVAILABLE)
    before = policy_status.status(policy(), [still], now=NOW)
    assert before.clusters[0].no_longer_matches
    assert {item.type for item in before.conditions} == {"Accepted", "StillSelected", "GateNotAvailable"}
    now = policy(status={"conditions": [{"type": "StillSelected", "status": "True"}]})
    after = policy_status.status(now, [], now=NOW)
    assert {item.type: item.reason for item in after.conditions} == {"Accepted": "NothingSelected"}


def test_unknown_words_are_not_accepted() -> None:
    found = policy_status.status(policy(onDeadline="Panic"), [], now=NOW)
    said = find(found.conditions, ConditionType.ACCEPTED)
    assert said
    assert (said.status, said.reason) == ("False", "UnknownValue")


def test_a_policy_closes_the_gate_if_it_enforces_or_is_not_understood() -> None:
    tried = policy("tried", sources=({"kind": "Flux", "effort": "Try"},))
    unclear = policy("unclear", sources=({"kind": "Flux", "effort": "Must"},))
    enforced, unknown = _holders([policy(), tried, unclear])
    assert (enforced.name, enforced.behaviour) == ("TeardownPolicy/production", ClusterDeletionBehavior.ENFORCE)
    assert unknown.name == "TeardownPolicy/unclear"
    assert isinstance(unknown.behaviour, Unknown)
