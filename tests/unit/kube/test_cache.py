"""A cache reports each change once, and its indexes always equal a scan."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from unwind.kube.cache import Cache, Change
from unwind.kube.decoding import Key, Stamp


class Thing(NamedTuple):
    name: str
    uid: str
    version: str
    tags: frozenset[str] = frozenset()


def stamp(thing: Thing) -> Stamp:
    return Stamp(Key("ns", thing.name), thing.uid, thing.version)


def cache() -> Cache[Thing]:
    return Cache(stamp, indexes={"tag": lambda thing: thing.tags})


def test_the_same_state_again_is_no_change() -> None:
    it = cache()
    thing = Thing("a", "1", "10")
    assert it.put(thing) == [Change(Key("ns", "a"), None, thing)]
    assert it.put(thing) == []


def test_an_object_made_again_under_the_same_name_is_two_changes() -> None:
    it = cache()
    old, new = Thing("a", "1", "10"), Thing("a", "2", "20")
    it.put(old)
    assert it.put(new) == [Change(Key("ns", "a"), old, None), Change(Key("ns", "a"), None, new)]


def test_the_end_of_an_object_does_not_take_its_successor_along() -> None:
    it = cache()
    it.put(Thing("a", "2", "20"))
    assert it.drop(Key("ns", "a"), uid="1") == []
    assert len(it) == 1


def test_of_many_under_one_value_the_first_few_can_be_had() -> None:
    it = cache()
    things = [Thing(str(number), "1", "10", frozenset("x")) for number in range(5)]
    for thing in things:
        it.put(thing)
    assert it.by("tag", "x", limit=2) == things[:2]
    assert it.by("tag", "y", limit=2) == []


things = st.builds(
    Thing,
    st.sampled_from("abc"),
    st.sampled_from("12"),
    st.sampled_from(["10", "11", "12"]),
    st.frozensets(st.sampled_from("xyz")),
)


@given(st.lists(st.one_of(things, st.sampled_from("abc"))))
def test_indexes_are_what_a_scan_finds_and_changes_add_up_to_the_contents(steps: list[Thing | str]) -> None:
    it = cache()
    mirror: dict[Key, Thing] = {}
    for step in steps:
        changes = it.drop(Key("ns", step)) if isinstance(step, str) else it.put(step)
        for change in changes:
            assert mirror.get(change.key) == change.old
            if change.new is None:
                del mirror[change.key]
            else:
                mirror[change.key] = change.new
    assert {stamp(thing).key: thing for thing in it} == mirror
    for tag in "xyz":
        scanned = {thing for thing in it if tag in thing.tags}
        assert set(it.by("tag", tag)) == scanned
        assert it.count("tag", tag) == len(scanned)
