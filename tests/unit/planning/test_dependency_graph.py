from __future__ import annotations

from unwind.planning.dependency_graph import Declared, closes_cycle, spelled


def profile(name: str, needs: str = "", *, kind: str = "ClusterProfile", namespace: str = "") -> Declared:
    return Declared(kind=kind, namespace=namespace, name=name, depends_on=tuple(needs.split()))


def test_a_write_that_closes_a_cycle_is_told_which() -> None:
    cycle = closes_cycle([profile("a", "b"), profile("b", "c"), profile("c")], profile("c", "a"))
    assert cycle is not None
    assert spelled(cycle) == "a → b → c → a"


def test_a_profile_that_depends_on_itself_closes_a_cycle() -> None:
    assert closes_cycle([], profile("a", "a")) == ("a",)


def test_of_several_cycles_the_shortest_is_told() -> None:
    existing = [profile("a", "b"), profile("b", "z"), profile("c", "z"), profile("z")]
    assert closes_cycle(existing, profile("z", "a c")) == ("c", "z")


def test_a_name_that_is_not_there_closes_nothing() -> None:
    assert closes_cycle([profile("a", "b")], profile("c", "a b")) is None


def test_the_last_of_a_circle_to_be_created_closes_it() -> None:
    assert closes_cycle([profile("a", "b")], profile("b", "a")) == ("a", "b")


def test_a_profile_of_another_kind_or_namespace_with_that_name_closes_nothing() -> None:
    written = profile("a", "b", kind="Profile", namespace="team")
    assert closes_cycle([profile("b", "a"), profile("b", "a", kind="Profile", namespace="other")], written) is None
    assert closes_cycle([profile("b", "a", kind="Profile", namespace="team")], written) == ("a", "b")


def test_a_name_means_no_other_kind_in_the_same_namespace() -> None:
    written = profile("a", "b", kind="Work", namespace="team")
    assert closes_cycle([profile("b", "a", kind="Profile", namespace="team")], written) is None


def test_of_cycles_that_are_as_short_it_is_always_the_first_by_name() -> None:
    others = [f"p{number:02}" for number in range(30)]
    existing = [profile(name, "z") for name in others]
    assert closes_cycle(existing, profile("z", " ".join(reversed(others)))) == ("p00", "z")


def test_who_changes_something_else_about_a_profile_in_a_circle_is_not_refused() -> None:
    existing = [profile("a", "b c"), profile("b", "a"), profile("c", "a")]
    assert closes_cycle(existing, existing[0]) is None
    assert closes_cycle(existing, profile("a", "c")) is None


def test_who_adds_a_name_to_a_profile_in_a_circle_is_told_the_cycle_of_that_name() -> None:
    existing = [profile("a", "b c"), profile("b", "a"), profile("c", "a")]
    assert closes_cycle(existing, profile("c", "a b")) == ("a", "c", "b")
