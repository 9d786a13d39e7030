"""What a Cluster says of its member."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from unwind.api.karmada import Cluster, ClusterSpec
from unwind.api.names import KARMADA_NOT_READY_TAINT, Finalizer, Reason
from unwind.karmada import member_health
from unwind.karmada.caches import executes_for
from unwind.karmada.member_health import MemberHealth

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WELL = MemberHealth(ready=True, reason=Reason.CLUSTER_READY, message="it answers", version="v1.36.3", identity="u-1")
ILL = MemberHealth(ready=False, reason=Reason.CLUSTER_NOT_REACHABLE, message="it does not answer")
ALONE = MemberHealth(ready=None, reason=Reason.PULL_MODE, message="left alone")
TAINT = {"key": KARMADA_NOT_READY_TAINT, "effect": "NoSchedule"}
# With a field that we know nothing of.
THEIRS = {"key": "example.dev/a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("taints", "found", "after"),
    [
        ([], WELL, None),
        ([], ILL, [TAINT]),
        ([THEIRS], ILL, [THEIRS, TAINT]),
        ([THEIRS, TAINT], ILL, None),
        ([TAINT, THEIRS], WELL, [THEIRS]),
        ([TAINT], WELL, []),
        ([TAINT], ALONE, None),
        ([], ALONE, None),
        # Somebody else's, with another effect.
        ([{**TAINT, "effect": "NoExecute"}], WELL, None),
    ],
)
def test_the_taint_follows_the_member_and_those_of_others_stay(
    taints: list[Any], found: MemberHealth, after: list[Any] | None
) -> None:
    patch = member_health.taint_patch({"spec": {"id": "u-1", "taints": taints}}, found)
    assert patch == (None if after is None else {"spec": {"taints": after}})


def test_who_a_member_is_is_written_once() -> None:
    assert member_health.taint_patch({"spec": {}}, WELL) == {"spec": {"id": "u-1"}}
    assert member_health.taint_patch({"spec": {"id": "u-0"}}, WELL) is None


def test_conditions_of_others_stay_and_nothing_is_written_twice() -> None:
    other = {
        "type": "Unjoining",
        "status": "True",
        "reason": "UnjoinCluster",
        "message": "",
        "lastTransitionTime": "2026-05-01T11:00:00Z",
    }
    patch = member_health.health_patch({"status": {"conditions": [other]}}, WELL, NOON)
    assert patch
    assert patch["status"]["kubernetesVersion"] == "v1.36.3"
    assert [item["type"] for item in patch["status"]["conditions"]] == ["Unjoining", "Ready"]
    assert member_health.health_patch({"status": patch["status"]}, WELL, NOON.replace(hour=13)) is None


def test_the_last_known_version_stays_while_nobody_answers() -> None:
    patch = member_health.health_patch({"status": {"kubernetesVersion": "v1.36.3"}}, ILL, NOON)
    assert patch
    assert list(patch["status"]) == ["conditions"]


@pytest.mark.parametrize(
    ("metadata", "after"),
    [
        ({}, [Finalizer.MEMBER]),
        ({"finalizers": ["example.dev/a"]}, ["example.dev/a", Finalizer.MEMBER]),
        ({"finalizers": [Finalizer.MEMBER]}, None),
        # The API server takes no new one on what goes.
        ({"deletionTimestamp": "2026-05-01T11:00:00Z"}, None),
    ],
)
def test_a_cluster_is_held_once_unless_it_goes(metadata: dict[str, Any], after: list[str] | None) -> None:
    assert member_health.finalizer_patch({"metadata": metadata}) == (
        None if after is None else {"metadata": {"finalizers": after}}
    )


@pytest.mark.parametrize(
    ("mode", "reason"), [("Push", None), ("Pull", Reason.PULL_MODE), ("push", Reason.UNKNOWN_VALUE), ("", "any")]
)
def test_only_members_that_are_pushed_to_are_looked_at(mode: str, reason: str | None) -> None:
    found = member_health.unlooked(Cluster(spec=ClusterSpec(sync_mode=mode)))
    assert (found is None) is (reason is None)
    if found:
        assert found.ready is None
        assert reason in ("any", found.reason)


def test_a_member_is_whoever_it_was_when_it_was_joined() -> None:
    it = Cluster(spec=ClusterSpec(id="u-1", api_endpoint="https://edge"))
    assert member_health.stranger(it, "u-1") is None
    found = member_health.stranger(it, "u-2")
    assert found
    assert (found.ready, found.reason) == (False, Reason.ANOTHER_CLUSTER)
    assert member_health.stranger(Cluster(), "u-2") is None


@pytest.mark.parametrize(
    ("namespace", "name"), [("karmada-es-edge", "edge"), ("karmada-es-", ""), ("x-karmada-es-edge", ""), ("edge", "")]
)
def test_a_namespace_says_whose_works_are_in_it(namespace: str, name: str) -> None:
    assert executes_for(namespace) == name
