"""What is known of a Work's objects, and when somebody has to look."""

from __future__ import annotations

import random
from typing import Any

from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.karmada.work_drift import MOST_CORRECTIONS, Noticed, WorkState


def obj(version: int, uid: str = "u-1") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def left(version: int = 5, *keys: str) -> WorkState:
    """One whose objects were left at this version."""
    standing = WorkState()
    for key in keys or ("a",):
        standing.leave(key, CONFIG_MAPS, obj(version))
    return standing


def settle(standing: WorkState, *wanted: str, trouble: str = "", now: float = 0.0) -> None:
    standing.settle(frozenset(wanted), trouble, now=now, chance=random.Random(1))


def test_what_we_wrote_ourselves_is_nothing_new() -> None:
    standing = left(5)
    assert not standing.notice("a", Noticed("u-1", "5"))
    assert not standing.notice("a", Noticed("u-1", "4"))
    assert standing.sure == {"a"}


def test_what_somebody_changed_afterwards_is_in_doubt_until_it_is_written_again() -> None:
    standing = left(5)
    assert standing.notice("a", Noticed("u-1", "6"))
    assert standing.doubts == {"a"}
    assert standing.sure == frozenset()
    standing.leave("a", CONFIG_MAPS, obj(7))
    assert standing.doubts == frozenset()
    assert standing.sure == {"a"}


def test_a_change_that_comes_while_it_is_written_stays_in_doubt() -> None:
    standing = left(5)
    standing.notice("a", Noticed("u-1", "9"))
    standing.leave("a", CONFIG_MAPS, obj(8))
    assert standing.doubts == {"a"}


def test_our_own_write_that_the_watch_tells_before_its_answer_is_here_is_no_doubt_afterwards() -> None:
    standing = WorkState()
    standing.notice("a", Noticed("u-1", "5"))
    standing.leave("a", CONFIG_MAPS, obj(5))
    assert standing.doubts == frozenset()


def test_versions_that_cannot_be_compared_are_looked_at_once() -> None:
    standing = WorkState()
    made = {"metadata": {"uid": "u-1", "resourceVersion": "x-2"}}
    standing.leave("a", CONFIG_MAPS, made)
    assert not standing.notice("a", Noticed("u-1", "x-2"))
    assert standing.notice("a", Noticed("u-1", "x-1"))
    standing.leave("a", CONFIG_MAPS, made)
    assert standing.doubts == frozenset()


def test_what_is_gone_is_in_doubt_unless_it_was_another_of_that_name() -> None:
    standing = left(5)
    assert not standing.notice("a", Noticed("u-0", None))
    assert standing.notice("a", Noticed("u-1", None))
    standing.leave("a", CONFIG_MAPS, obj(7, uid="u-2"))
    assert standing.doubts == frozenset(), "it was made anew"


def test_what_is_missing_from_a_list_is_in_doubt_but_only_of_its_own_kind() -> None:
    standing = left(5, "a", "b")
    assert not standing.missing(SECRETS, ())
    assert standing.missing(CONFIG_MAPS, {"b"})
    assert standing.doubts == {"a"}
    assert not standing.missing(CONFIG_MAPS, {"a", "b"})


def test_what_has_dropped_out_concerns_nobody() -> None:
    standing = left(5, "a", "b")
    settle(standing, "a")
    assert not standing.notice("b", Noticed("u-1", "9"))
    assert standing.doubts == frozenset()
    assert standing.sure == {"a"}


def test_while_it_is_not_known_what_is_wanted_nothing_is_forgotten() -> None:
    standing = left(5, "a", "b")
    standing.settle(None, "it is not YAML", now=0.0, chance=random.Random(1))
    assert standing.wanted is None
    assert standing.notice("b", Noticed("u-1", "9"))


def test_what_is_not_there_is_tried_again_later_and_later_unless_what_was_in_the_way_is_gone() -> None:
    standing = WorkState()
    settle(standing, "a", trouble="refused")
    first = standing.rest(0.0)
    settle(standing, "a", trouble="refused")
    assert 0 < first < standing.rest(0.0)
    standing.hurry()
    assert standing.rest(0.0) == 0
    settle(standing, "a", trouble="refused")
    settle(standing, "a")
    assert standing.rest(0.0) == 0, "all is there"


def test_two_who_do_not_agree_do_not_change_an_object_as_fast_as_they_can() -> None:
    standing = WorkState()
    for second in range(MOST_CORRECTIONS - 1):
        standing.corrected(float(second))
    assert standing.pause(20.0) == 0
    standing.corrected(20.0)
    assert standing.pause(20.0) == 40.0
    assert standing.pause(61.0) == 0
