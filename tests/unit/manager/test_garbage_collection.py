"""Garbage is collected between bursts of work."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from unwind.manager import garbage_collection
from unwind.manager.garbage_collection import GarbageCollection

if TYPE_CHECKING:
    from collections.abc import Iterator


class Time:
    """A clock that a collection moves forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.took = 0.5
        self.collections = 0
        monkeypatch.setattr(gc, "collect", self._collect)

    def _collect(self) -> None:
        self.collections += 1
        self.now += self.took


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


@pytest.fixture
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_all_generations_are_collected_once_when_a_burst_is_over(time: Time) -> None:
    collection = GarbageCollection(now=lambda: time.now, new_objects=lambda: 0)
    for share in (0.05, 0.9, 1.0, 0.4):
        collection.look(share)
    before = time.collections
    collection.look(0.1)
    collection.look(0.1)
    assert (before, time.collections) == (0, 1), "neither at rest, nor in the burst, nor while it ends"


def test_bursts_in_a_row_are_collected_together_if_a_collection_takes_long(time: Time) -> None:
    collection = GarbageCollection(now=lambda: time.now, new_objects=lambda: 0)
    for _ in range(40):
        collection.look(1.0)
        collection.look(0.0)
        time.now += 1.0
    before = time.collections
    time.now += 60 * time.took
    collection.look(0.0)
    assert (before, time.collections) == (1, 2), "the garbage of the last burst is not kept"


def test_garbage_of_little_work_is_collected_when_there_is_much_of_it(time: Time) -> None:
    count = 49_999
    collection = GarbageCollection(now=lambda: time.now, new_objects=lambda: count)
    collection.look(0.0)
    before, count = time.collections, 50_000
    collection.look(0.3)
    collection.look(0.0)
    assert (before, time.collections) == (0, 1)


def test_the_memory_is_bounded_without_a_pause_in_the_work(restored: None) -> None:
    garbage_collection.tune()
    young, middle, old = gc.get_threshold()
    assert young * middle * old <= 2_000_000
    assert gc.isenabled()
