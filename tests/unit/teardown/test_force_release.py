"""When the time of a teardown is over, what that means, and who let it go."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.capi import CLUSTERS
from unwind.api.meta import Condition, ObjectRef
from unwind.api.names import FORCE_RELEASE_ANNOTATION as SAID
from unwind.api.names import FORCE_RELEASE_BY_ANNOTATION as BY
from unwind.api.sveltos import ClusterType
from unwind.api.unwind import Teardown, TeardownSpec, TeardownStatus
from unwind.members.targets import AddonTarget
from unwind.teardown.force_release import LetGo, expired, forced, overdue, remaining_seconds, user_patch

if TYPE_CHECKING:
    from unwind.kube.client import Client

BEGAN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SPEC = TeardownSpec(requested_at=BEGAN, deadline="30m", on_deadline="Release")


@pytest.mark.parametrize(("minutes", "left"), [(0, 1800.0), (29, 60.0), (30, 0.0), (31, 0.0)])
def test_a_deadline_counts_from_the_deletion(minutes: int, left: float) -> None:
    now = BEGAN + dt.timedelta(minutes=minutes)
    assert remaining_seconds(Teardown(spec=SPEC), now=now) == left
    assert overdue(Teardown(spec=SPEC), now=now) is (left == 0)


def paused(status: str, minutes: int) -> Teardown:
    """A Teardown whose Cluster was paused or unpaused so many minutes after its deletion."""
    at = BEGAN + dt.timedelta(minutes=minutes)
    condition = Condition(type="Paused", status=status, reason="Paused", last_transition_time=at)
    return Teardown(spec=SPEC, status=TeardownStatus(conditions=(condition,)))


def test_a_deadline_does_not_run_while_the_cluster_is_paused_and_starts_again_after_it() -> None:
    now = BEGAN + dt.timedelta(days=3)
    assert remaining_seconds(paused("True", 1), now=now) == 1800.0
    assert remaining_seconds(paused("False", 60), now=BEGAN + dt.timedelta(minutes=80)) == 600.0
    assert overdue(paused("False", 60), now=BEGAN + dt.timedelta(minutes=90))


@pytest.mark.parametrize(
    "spec",
    [
        TeardownSpec(requested_at=BEGAN),
        TeardownSpec(requested_at=BEGAN, deadline="soon"),
        TeardownSpec(deadline="30m"),
    ],
    ids=["no deadline", "no span of time", "no deletion"],
)
def test_what_has_no_deadline_has_all_the_time_there_is(spec: TeardownSpec) -> None:
    assert remaining_seconds(Teardown(spec=spec), now=BEGAN + dt.timedelta(days=400)) is None
    assert not overdue(Teardown(spec=spec), now=BEGAN + dt.timedelta(days=400))


@pytest.mark.parametrize("word", ["Hold", "release", ""])
def test_nothing_but_the_very_word_releases(word: str) -> None:
    assert expired(TeardownSpec(requested_at=BEGAN, deadline="30m", on_deadline=word)) is None
    assert expired(SPEC) == ("Deadline", "deadline of 30m exceeded", "unwind.dev/on-deadline: Release")


POINTER = "/metadata/annotations/unwind.dev~1force-release-by"
ADD = [{"op": "add", "path": POINTER, "value": "alice"}]
REMOVE = [{"op": "remove", "path": POINTER}]


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {SAID: "now"}, ADD),
        ({}, {SAID: ""}, ADD),
        ({}, {SAID: "now", BY: "bob"}, ADD),
        ({SAID: "now", BY: "bob"}, {SAID: "really", BY: "bob"}, ADD),
        ({SAID: "now", BY: "bob"}, {SAID: "now", BY: "carol"}, [ADD[0] | {"value": "bob"}]),
        ({SAID: "now", BY: "bob"}, {SAID: "now"}, [ADD[0] | {"value": "bob"}]),
        ({SAID: "now"}, {SAID: "now", BY: "carol"}, REMOVE),
        ({}, {BY: "carol"}, REMOVE),
        ({SAID: "now", BY: "bob"}, {BY: "bob"}, REMOVE),
        ({SAID: "now", BY: "bob"}, {}, []),
        ({SAID: "now", BY: "bob"}, {SAID: "now", BY: "bob"}, []),
        ({}, {SAID: "now", BY: "alice"}, []),
    ],
)
def test_only_who_says_it_is_named(old: dict[str, str], new: dict[str, str], patch: list[dict[str, Any]]) -> None:
    assert user_patch(old, new, by="alice") == patch


NOT_SEEN = "unknown, see the audit log (field manager kubectl-edit)"


class Clusters:
    """A server that has one cluster, with these annotations."""

    def __init__(self, **annotations: str) -> None:
        self.annotations = {f"unwind.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}

    async def get(self, *_: object, **__: object) -> dict[str, Any]:
        fields: dict[str, Any] = {"f:metadata": {"f:annotations": {"f:unwind.dev/force-release": {}}}}
        written = [{"manager": "kubectl-edit", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}]
        return {"metadata": {"uid": "u-1", "annotations": self.annotations, "managedFields": written}}


async def let_go(clusters: Clusters) -> LetGo | None:
    ref = ObjectRef(kind="Cluster", namespace="default", name="c", uid="u-1")
    target = AddonTarget(type=ClusterType.CAPI, ref=ref, secret="", annotations={"unwind.dev/force-release": "seen"})
    return await forced(cast("Client", clusters), CLUSTERS, target)


async def test_who_was_noted_let_it_go_and_otherwise_it_is_not_known() -> None:
    assert await let_go(Clusters(force_release="now", force_release_by="alice")) == ("Forced", "now", "alice")
    assert await let_go(Clusters(force_release="")) == ("Forced", "no reason given", NOT_SEEN)
    assert await let_go(Clusters(force_release_by="alice")) is None, "it was taken back meanwhile"
