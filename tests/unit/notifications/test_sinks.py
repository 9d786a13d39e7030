"""The sinks of several policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.policies import NotificationEvent, TeardownPolicy
from unwind.api.unwind import Teardown
from unwind.notifications import sinks

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
URL = "https://hooks.example.com/unwind"


def notification(
    url: str = URL, *, key: str = "key", on: tuple[str, ...] = ("Complete",), **more: Any
) -> dict[str, Any]:
    return {"url": url, "signingKey": {"secretName": "hook", "key": key}, "events": list(on), **more}


def policy(
    name: str, *notifications: dict[str, Any], generation: int = 0, seen: tuple[Any, ...] = ()
) -> TeardownPolicy:
    body = {
        "metadata": {"name": name, "uid": name, "creationTimestamp": (NOW - timedelta(days=1)).isoformat()},
        "spec": {"notifications": list(notifications)},
        "status": {"observedGeneration": generation, "sinks": list(seen)},
    }
    found = msgspec.convert(body, TeardownPolicy)
    if seen:
        return found
    status = msgspec.structs.replace(found.status, sinks=sinks.recorded(found, now=NOW))
    return msgspec.structs.replace(found, status=status)


def test_the_sinks_of_all_policies_are_united() -> None:
    found = sinks.united(
        [
            policy(
                "b",
                notification(on=("Held", "Complete"), heldLongerThan="5m"),
                notification("https://other.example.com"),
            ),
            policy("a", notification(on=("Held",), heldLongerThan="1h")),
            policy("c", notification(key="other")),
        ]
    )
    assert len(found) == 3
    one = found[sinks.sink_id(policy("x", notification()).spec.notifications[0])]
    assert one.events == {NotificationEvent.HELD, NotificationEvent.COMPLETE}
    assert (one.held, one.policies) == (timedelta(minutes=5), ("a", "b"))


def test_the_time_of_a_policy_that_is_not_told_of_holds_does_not_count() -> None:
    [one] = sinks.united(
        [policy("a", notification(heldLongerThan="1s")), policy("b", notification(on=("Held",)))]
    ).values()
    assert one.held == timedelta(minutes=15)


def test_a_sink_is_used_when_the_manager_has_recorded_it() -> None:
    first = policy("a", notification())
    [recorded] = first.status.sinks
    assert (recorded.since, recorded.host) == (NOW - timedelta(days=1), "hooks.example.com")
    both = msgspec.structs.replace(
        first, spec=policy("a", notification(), notification("https://new.example.com")).spec
    )
    old, new = sinks.united([both]).values()
    assert (old.since, new.since) == (NOW - timedelta(days=1), None)
    seen = msgspec.structs.replace(both, status=msgspec.structs.replace(both.status, observed_generation=1))
    later = sinks.recorded(seen, now=NOW)
    assert [item.since for item in later] == [NOW - timedelta(days=1), NOW - sinks.GRACE]


def test_unknown_words_of_a_later_version_are_skipped() -> None:
    [one] = sinks.united([policy("a", notification(on=("Complete", "Eclipse"), heldLongerThan="soon"))]).values()
    assert one.events == {NotificationEvent.COMPLETE}
    assert one.held == timedelta(minutes=15)


def test_a_teardown_has_a_limited_number_of_sinks() -> None:
    many = [policy(f"p{n}", *(notification(f"https://h{n}-{i}.example.com") for i in range(8))) for n in range(20)]
    assert len(sinks.united(many)) == sinks.MOST


def test_only_records_of_deleted_clusters_count() -> None:
    def teardown(cause: str = "ClusterDeleted", **labels: str) -> Teardown:
        return msgspec.convert({"metadata": {"labels": labels}, "spec": {"cause": cause}}, Teardown)

    assert sinks.concerns(teardown())
    # A user writes the spec of a request, also the policies in it.
    assert not sinks.concerns(teardown("Requested"))
    assert not sinks.concerns(teardown(**{SET_ASIDE_LABEL: "true"}))
