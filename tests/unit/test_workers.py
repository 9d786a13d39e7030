"""The number of test workers follows from what the machine has."""

from __future__ import annotations

import pytest

from tests.workers import workers, workers_here

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "inotify_instances", "number"),
    [
        (2, 24 * GIB, 512, 4),
        (2, 24 * GIB, 128, 2),
        (2, 24 * GIB, 150, 3),
        (2, 10 * GIB, 512, 3),
        (1, 24 * GIB, 512, 2),
        (2, 1 * GIB, 512, 1),
        (2, 24 * GIB, 0, 1),
    ],
    ids=["cores", "inotify instances", "more of them", "memory", "one core", "little memory", "no inotify instance"],
)
def test_the_scarcest_resource_limits_the_workers(cores: int, memory: int, inotify_instances: int, number: int) -> None:
    assert workers(cores=cores, memory=memory, inotify_instances=inotify_instances) == number


def test_there_is_at_least_one_worker_here() -> None:
    assert workers_here() >= 1
