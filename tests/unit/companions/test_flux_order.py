"""The order of nested handles of Flux: what contains a handle orders it, too."""

from __future__ import annotations

from unwind.companions.flux_order import nested_order
from unwind.planning.dependency_graph import all_needs


def needs(
    declared: dict[str, str], parents: dict[str, str], *, order_only: str = ""
) -> tuple[dict[str, set[str]], list[tuple[str, ...]]]:
    """All direct and indirect dependencies, and the groups whose order was dropped. Names in one word each."""
    names = {*declared, *parents, *" ".join([*declared.values(), *parents.values(), order_only]).split()}
    made = nested_order(
        {name: declared.get(name, "").split() for name in names},
        {name: parents.get(name, "").split() for name in names},
        order_only=order_only.split(),
    )
    return {name: all_needs(made.needs, name) for name in made.needs}, list(made.dropped)


NESTED = {"ingress": "infra", "store": "apps"}


def test_what_depends_on_a_handle_goes_before_everything_nested_in_it_with_all_that_it_contains() -> None:
    found, dropped = needs({"apps": "infra"}, {**NESTED, "deep": "ingress"})
    assert found == {
        "store": {"apps", "deep", "ingress", "infra"},
        "apps": {"deep", "ingress", "infra"},
        "deep": {"ingress", "infra"},
        "ingress": {"infra"},
        "infra": set(),
    }
    assert dropped == []


def test_order_is_inherited_over_several_levels_and_along_a_chain() -> None:
    found, _ = needs({"top": "mid", "mid": "base"}, {"a": "top-1", "top-1": "top", "b": "base-1", "base-1": "base"})
    assert {"mid", "base", "base-1", "b"} <= found["a"]
    assert "a" not in found["b"]


def test_a_handle_that_depends_on_what_contains_it_says_nothing_about_its_siblings() -> None:
    found, dropped = needs({"a": "fleet", "b": "fleet"}, {"a": "fleet", "b": "fleet", "c": "fleet"})
    assert found == {"a": {"fleet"}, "b": {"fleet"}, "c": {"fleet"}, "fleet": set()}
    assert dropped == []


def test_a_declared_dependency_wins_over_one_that_follows_from_nesting() -> None:
    found, dropped = needs({"apps": "infra", "ingress": "apps"}, {**NESTED, "dns": "infra"})
    assert found["ingress"] == {"apps", "dns", "infra"}
    assert found["apps"] == {"dns", "infra"}, "what is not part of the contradiction keeps its order"
    assert dropped == [("apps", "ingress", "store")]


def test_declared_cycles_stay_as_they_are() -> None:
    found, dropped = needs({"a": "b", "b": "a"}, {})
    assert found == {"a": {"a", "b"}, "b": {"a", "b"}}
    assert dropped == []


def test_a_handle_that_contains_what_it_depends_on_orders_nothing_more() -> None:
    found, dropped = needs({"apps": "infra"}, {"infra": "apps", "ingress": "infra"})
    assert found["ingress"] == {"apps", "infra"}
    assert dropped == []


def test_inventories_that_contain_each_other_do_not_hang() -> None:
    found, dropped = needs({"c": "a"}, {"a": "b", "b": "a"})
    assert found == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"a", "b"}}
    assert dropped == []


def test_parents_that_are_no_steps_order_their_children_and_are_not_in_the_result() -> None:
    found, dropped = needs({"apps": "mid", "mid": "infra"}, NESTED, order_only="apps mid infra")
    assert found == {"store": {"ingress"}, "ingress": set()}
    assert dropped == []


def test_parents_in_a_cycle_that_are_no_steps_order_nothing() -> None:
    found, dropped = needs({"apps": "infra", "infra": "apps"}, NESTED, order_only="apps infra")
    assert found == {"store": set(), "ingress": set()}
    assert dropped == [("ingress", "store")]


def test_a_step_that_depends_on_a_parent_that_is_none_goes_before_its_children() -> None:
    found, _ = needs({"apps": "infra", "infra": "base"}, {"ingress": "infra"}, order_only="infra")
    assert found == {"apps": {"ingress", "base"}, "ingress": {"base"}, "base": set()}
