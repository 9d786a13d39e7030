"""Works as a source of TeardownPolicies: the member is a step, and its removeStrategy is one of the voices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unwind.api.karmada import Cluster
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.policies import TeardownPolicy
from unwind.companions.policy_reader import ClusterPolicies
from unwind.karmada.member_step_source import step_of

ENFORCED = {"kind": "Work", "effort": "Enforce"}


def voices(*sources: dict[str, Any]) -> ClusterPolicies:
    policies = [{"metadata": {"name": "prod"}, "spec": {"sources": [it]}} for it in sources]
    found = msgspec.convert(policies, list[TeardownPolicy])
    return ClusterPolicies(target=ObjectRef(kind="Cluster", namespace="shops", name="a"), policies=tuple(found))


def member(strategy: str) -> Cluster:
    made = Cluster(metadata=ObjectMeta(name="prod-7", uid="u"))
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, remove_strategy=strategy))


@pytest.mark.parametrize(
    ("strategy", "sources", "step"),
    [
        ("Needless", (), None),
        ("Needless", ({"kind": "Profile", "effort": "Enforce"},), None),
        ("Needless", ({**ENFORCED, "selector": {"names": ["other"]}},), None),
        ("Needless", (ENFORCED,), ("Enforce", "TeardownPolicy/prod")),
        ("Required", (), ("Enforce", "")),
        ("Required", (ENFORCED,), ("Enforce", "TeardownPolicy/prod")),
    ],
)
def test_a_policy_makes_the_cluster_wait_for_the_works_of_its_member(
    strategy: str, sources: tuple[dict[str, Any], ...], step: tuple[str, str] | None
) -> None:
    found = step_of(member(strategy), (), voices(*sources)).steps
    assert [(it.draft.effort.value, it.draft.effort_from) for it in found] == ([step] if step else [])
