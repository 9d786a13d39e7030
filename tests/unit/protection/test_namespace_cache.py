"""What is counted of a namespace is what a scan would count, and little is kept for it."""

from __future__ import annotations

import tracemalloc
import uuid
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.kube.decoding import Key
from unwind.protection.namespace_cache import ACTIVE_PODS, BOUND_CLAIMS, Counted, Tally

things = st.builds(
    Counted,
    st.sampled_from(["x", "y"]),
    st.sampled_from("abc"),
    st.just("u"),
    st.just("1"),
    st.booleans(),
)


@given(st.lists(st.one_of(things, st.tuples(st.sampled_from(["x", "y"]), st.sampled_from("abc")))))
def test_the_count_is_what_a_scan_finds(steps: list[Counted | tuple[str, str]]) -> None:
    tally, mirror = Tally(), dict[Key, bool]()
    for step in steps:
        if isinstance(step, Counted):
            tally.put(step)
            mirror[Key(step.namespace, step.name)] = step.counts
        else:
            tally.drop(Key(*step))
            mirror.pop(Key(*step), None)
    counted = [key for key, counts in mirror.items() if counts]
    there = Counter(key.namespace for key in counted)
    assert [tally.count(item) for item in ("x", "y", "z")] == [there["x"], there["y"], 0]
    assert set(tally.keys()) == set(counted)
    assert len(tally) == len(counted)


@pytest.mark.parametrize(
    ("phase", "going", "counts"),
    [("Bound", False, True), ("Bound", True, False), ("Pending", False, False), ("Lost", False, False)],
)
def test_a_claim_counts_while_it_is_bound_and_stays(phase: str, going: bool, counts: bool) -> None:
    meta = {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "1"}
    if going:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body = msgspec.Raw(msgspec.json.encode({"metadata": meta, "status": {"phase": phase}}))
    assert BOUND_CLAIMS.decode(body) == Counted("n", "c", "u", "1", counts)
    assert ACTIVE_PODS.decode(body) == Counted("n", "c", "u", "1", not going)


def test_little_is_kept_of_a_pod_also_when_it_changes() -> None:
    number = 20_000
    names = [f"web-6f9d8c7b5d-{item:05}" for item in range(number)]

    def told(version: int) -> None:
        for name in names:
            meta = {"name": name, "namespace": "n", "uid": str(uuid.uuid4()), "resourceVersion": str(version)}
            tally.put(ACTIVE_PODS.decode(msgspec.Raw(msgspec.json.encode({"metadata": meta}))))

    tally = Tally()
    tracemalloc.start()
    try:
        told(1)
        told(2)
        assert tracemalloc.get_traced_memory()[0] / number < 250
    finally:
        tracemalloc.stop()
    assert tally.count("n") == number
