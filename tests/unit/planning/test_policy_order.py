"""The order of TeardownPolicies: which steps it names, and what it does to a plan."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort
from unwind.planning.policy_order import order_dependencies
from unwind.planning.waves import Draft, plan


def draft(name: str, *needs: str, last: bool = False) -> Draft:
    return Draft(
        name=name,
        object=ObjectRef(kind="Handle", name=name),
        kind="Companion",
        declared=name,
        depends_on=needs,
        last=last,
        effort=Effort.ENFORCE,
    )


def waves(drafts: list[Draft], *orders: list[list[str]]) -> dict[str, int]:
    return {step.name: step.wave for step in plan(drafts, orders).steps}


def test_order_names_steps_by_name_namespace_or_kind() -> None:
    steps = ["Release/a/grafana", "Release/b/grafana", "HelmReleaseProxy/a/db", "Release/a/db"]
    assert order_dependencies([[["a/grafana"], ["HelmReleaseProxy/*/db"]]], steps) == {
        "Release/a/grafana": {"HelmReleaseProxy/a/db"}
    }
    first = order_dependencies([[["grafana"], ["*"]]], steps)
    assert first["Release/b/grafana"] == {"HelmReleaseProxy/a/db", "Release/a/db"}, "the first group counts"


def test_order_crosses_deployers_also_for_a_step_that_its_own_deployer_orders() -> None:
    drafts = [draft("base"), draft("apps", "base"), draft("db")]
    assert waves(drafts, [["apps"], ["db"], ["base"]]) == {"apps": 1, "db": 2, "base": 3}
    assert waves(drafts, [["db"], ["apps"]]) == {"db": 1, "apps": 2, "base": 3}


def test_order_applies_between_steps_of_a_deployer_wherever_it_says_nothing_about_the_two() -> None:
    drafts = [draft("apps", "base"), draft("base"), draft("store", "top"), draft("top")]
    assert waves(drafts, [["store"], ["apps"]]) == {"store": 1, "apps": 2, "top": 2, "base": 3}
    assert waves(drafts, [["top"], ["base"]]) == {"apps": 1, "store": 1, "top": 2, "base": 3}


def test_order_that_contradicts_the_deployer_of_the_two_is_not_applied_and_is_named() -> None:
    drafts = [draft("apps", "mid"), draft("mid", "base"), draft("base"), draft("web")]
    made = plan(drafts, [[["base"], ["apps", "web"]]])
    assert {step.name: step.wave for step in made.steps} == {"apps": 1, "mid": 2, "base": 3, "web": 4}
    [warning] = made.warnings
    assert "is not applied between these: apps, base, mid" in warning


def test_order_that_contradicts_a_deployer_is_not_applied_and_is_named() -> None:
    drafts = [draft("apps", "base"), draft("base"), draft("db"), draft("web")]
    made = plan(drafts, [[["web"], ["base"], ["db"], ["apps"]]])
    assert {step.name: step.wave for step in made.steps} == {"web": 1, "apps": 2, "db": 2, "base": 3}
    [warning] = made.warnings
    assert warning == (
        "the order of TeardownPolicies contradicts other dependencies and is not applied between these: apps, base, db;"
        " correct it"
    )


def test_policies_that_contradict_each_other_order_nothing() -> None:
    drafts = [draft("a"), draft("b")]
    made = plan(drafts, [[["a"], ["b"]], [["b"], ["a"]]])
    assert [step.wave for step in made.steps] == [1, 1]
    assert "contradicts" in made.warnings[0]


def test_the_network_of_a_cluster_goes_last_whatever_a_policy_says() -> None:
    drafts = [draft("cni", last=True), draft("apps")]
    assert waves(drafts, [["cni"], ["apps"]]) == {"apps": 1, "cni": 2}
