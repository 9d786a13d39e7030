"""How shards are spread over replicas."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from unwind.kube.shards import SHARDS, spread, spread_in_turn

_NAMES = st.sets(st.sampled_from("abcdefgh"), min_size=1)


@given(replicas=_NAMES, held=st.dictionaries(st.integers(0, SHARDS - 1), st.sampled_from("abcdefghxyz")))
def test_every_shard_has_a_live_replica_and_each_replica_as_many(replicas: set[str], held: dict[int, str]) -> None:
    found = spread(replicas, shards=SHARDS, held=held)
    counts = Counter(found.values())
    assert found.keys() == set(range(SHARDS))
    assert counts.keys() == replicas
    assert max(counts.values()) - min(counts.values()) <= 1
    assert spread(replicas, shards=SHARDS, held=found) == found, "nothing moves without a reason"


@given(replicas=_NAMES, other=st.sampled_from("abcdefgh"))
def test_a_replica_that_joins_or_leaves_moves_its_own_shards_only(replicas: set[str], other: str) -> None:
    few, many = replicas - {other} or {"x"}, replicas | {other}
    without = spread(few, shards=SHARDS, held={})
    joined = spread(many, shards=SHARDS, held=without)
    assert all(joined[shard] in (without[shard], other) for shard in range(SHARDS))
    left = spread(few, shards=SHARDS, held=joined)
    assert all(left[shard] == joined[shard] for shard in range(SHARDS) if joined[shard] != other)


@given(replicas=_NAMES, held=st.dictionaries(st.integers(0, SHARDS - 1), st.sampled_from("abcdefghxyz")))
def test_where_a_free_shard_goes_does_not_depend_on_whether_others_move(
    replicas: set[str], held: dict[int, str]
) -> None:
    kept = spread(replicas, shards=SHARDS, held=held, even=False)
    assert kept.keys() == set(range(SHARDS))
    assert all(kept[shard] == holder for shard, holder in held.items() if holder in replicas), "nothing held moves"
    free = {shard for shard in range(SHARDS) if held.get(shard, "") not in replicas}
    even = spread(replicas, shards=SHARDS, held=held | {shard: kept[shard] for shard in free})
    taken = {shard: kept[shard] for shard in free if even[shard] == kept[shard]}
    assert taken.items() <= spread(replicas, shards=SHARDS, held=held).items()


def test_in_a_rolling_update_each_shard_moves_once() -> None:
    held, moves = spread({"a", "b"}, shards=SHARDS, held={}), Counter[int]()
    for replicas in ("abc", "abcd", "bcd", "cd"):
        before, held = held, spread(replicas, shards=SHARDS, held=held, even=False)
        moves.update(shard for shard in held if held[shard] != before[shard])
    assert moves == Counter(range(SHARDS))
    assert Counter(held.values()) == {"c": SHARDS // 2, "d": SHARDS // 2}


def test_a_replica_that_gives_shards_away_keeps_the_first_ones() -> None:
    found = spread({"a", "b"}, shards=4, held=dict.fromkeys(range(4), "b"))
    assert found == {0: "b", 1: "b", 2: "a", 3: "a"}, "the leader stays the leader"


def test_without_replicas_no_shard_has_one() -> None:
    assert spread((), shards=2, held={0: "a"}) == spread_in_turn((), shards=2) == {}
