"""Which notification a sink gets now, and when the next one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from unwind.api.policies import NotificationEvent, SigningKey, TeardownPolicy
from unwind.api.unwind import Teardown
from unwind.notifications import delivery_schedule
from unwind.notifications.cloud_event import cloud_event
from unwind.notifications.delivery_schedule import AGAIN, LONGEST, Attempted, Notice
from unwind.notifications.sinks import Sink

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HELD, RELEASED = NotificationEvent.HELD, NotificationEvent.FORCE_RELEASED
COMPLETE, LEFT = NotificationEvent.COMPLETE, NotificationEvent.LEFT_BEHIND


def sink(
    *on: NotificationEvent, held: timedelta = 15 * MINUTE, since: datetime | None = NOW - timedelta(days=1)
) -> Sink:
    return Sink(
        id="a1",
        url="https://hooks.example.com/secret-path",
        signing_key=SigningKey(secret_name="hook", key="key"),  # noqa: S106 - a name
        events=frozenset(on or NotificationEvent),
        held=held,
        since=since,
        policies=("production",),
    )


def teardown(phase: str = "Removing", **status: Any) -> Teardown:
    ref = {"group": "cluster.x-k8s.io", "kind": "Cluster", "namespace": "shops", "name": "prod-7", "uid": "c1"}
    body = {
        "metadata": {"name": "c1", "uid": "t1"},
        "spec": {
            "title": "Cluster shops/prod-7",
            "target": ref,
            "cause": "ClusterDeleted",
            "policies": [{"name": "production", "uid": "p1"}],
        },
        "status": {"phase": phase, **status},
    }
    return msgspec.convert(body, Teardown)


def blocked(*since: datetime) -> list[dict[str, Any]]:
    ref = {"kind": "Secret", "namespace": "a", "name": "b"}
    return [{"object": ref, "reason": "Finalizer", "message": "hunter2", "since": one.isoformat()} for one in since]


def due(
    found: Teardown, *record: tuple[NotificationEvent, Attempted], to: Sink | None = None, now: datetime = NOW
) -> Any:
    return delivery_schedule.due(found, to or sink(), {event.value: entry for event, entry in record}, now=now)


def ended(phase: str = "Complete", **status: Any) -> Teardown:
    return teardown(phase, finishedAt=NOW.isoformat(), **status)


def test_a_teardown_is_notified_of_when_it_was_held_long_enough() -> None:
    since = NOW - 10 * MINUTE
    held = teardown("Held", blockers=blocked(NOW, since))
    assert due(held) == (None, 300.0)
    assert due(held, now=since + 15 * MINUTE) == (Notice(HELD, since), None)
    assert due(held, to=sink(COMPLETE), now=NOW + timedelta(days=1)) == (None, None)
    assert due(teardown("Removing", blockers=blocked(since)), now=NOW + timedelta(days=1)) == (None, None)


def test_a_teardown_that_is_held_without_a_blocker_counts_from_its_start() -> None:
    assert due(teardown("Held", startedAt=(NOW - 20 * MINUTE).isoformat()))[0] == Notice(HELD, NOW - 20 * MINUTE)


@pytest.mark.parametrize(
    ("found", "events"),
    [
        (ended(), {COMPLETE}),
        (ended(left=2), {COMPLETE, LEFT}),
        (ended("TargetGone"), {LEFT}),
        (ended("Moved"), set()),
        (ended("Moved", left=3), set()),
        (
            ended("Released", left=1, release={"reason": "Forced", "by": "jane", "at": NOW.isoformat()}),
            {RELEASED, LEFT},
        ),
        (teardown("Removing", left=3), set()),
        (teardown("Complete2", finishedAt=NOW.isoformat()), set()),
    ],
)
def test_what_happened_is_known_from_the_status(found: Teardown, events: set[NotificationEvent]) -> None:
    assert {event for event in NotificationEvent if delivery_schedule.occurred(event, found)} == events


def test_a_notification_is_not_repeated_once_it_was_accepted() -> None:
    entry = Attempted(of=NOW, at=NOW, sent=True)
    assert due(ended(), (COMPLETE, entry), now=NOW + timedelta(days=5)) == (None, None)


def test_one_that_was_not_accepted_is_repeated_with_back_off_and_never_within_a_minute() -> None:
    waits = []
    for attempts in range(1, 40):
        entry = Attempted(of=NOW, at=NOW, attempts=attempts, error="HTTP 500")
        notice, seconds = due(ended(), (COMPLETE, entry))
        assert notice is None
        waits.append(timedelta(seconds=seconds))
        assert due(ended(), (COMPLETE, entry), now=NOW + waits[-1]) == (Notice(COMPLETE, NOW), None)
    assert waits[0] == AGAIN > MINUTE + timedelta(seconds=delivery_schedule.SENDING)
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST


def test_an_attempt_without_a_result_is_repeated_a_kill_between_record_and_result() -> None:
    record = delivery_schedule.begun({}, Notice(COMPLETE, NOW), now=NOW)
    assert delivery_schedule.due(ended(), sink(), record, now=NOW + MINUTE) == (None, (AGAIN - MINUTE).total_seconds())
    notice, _ = delivery_schedule.due(ended(), sink(), record, now=NOW + AGAIN)
    assert notice
    assert notice.id(ended()) == Notice(COMPLETE, NOW).id(ended()) == "t1-complete-20261118T120000Z"


def test_what_is_held_again_by_something_else_is_another_notification_but_not_within_a_minute() -> None:
    sent = (HELD, Attempted(of=NOW - MINUTE, at=NOW, sent=True))
    to = sink(HELD, held=timedelta())
    # The same hold, or one that began before the sink was told.
    assert due(teardown("Held", blockers=blocked(NOW - MINUTE)), sent, to=to, now=NOW + timedelta(days=1)) == (
        None,
        None,
    )
    assert due(teardown("Held", blockers=blocked(NOW)), sent, to=to, now=NOW + timedelta(days=1)) == (None, None)
    later = NOW + timedelta(seconds=10)
    again = teardown("Held", blockers=blocked(later))
    assert due(again, sent, to=to, now=later) == (None, (AGAIN - timedelta(seconds=10)).total_seconds())
    assert due(again, sent, to=to, now=NOW + AGAIN) == (Notice(HELD, later), None)


def test_a_hold_that_ended_before_it_was_accepted_is_still_told() -> None:
    entry = Attempted(of=NOW - MINUTE, at=NOW, error="HTTP 500")
    assert due(teardown("Removing"), (HELD, entry), now=NOW + AGAIN) == (Notice(HELD, NOW - MINUTE), None)


def test_a_new_sink_is_not_told_what_was_over_before_it() -> None:
    assert due(ended(), to=sink(since=NOW + MINUTE), now=NOW + timedelta(hours=1)) == (None, None)
    assert due(ended(), to=sink(since=None), now=NOW + timedelta(hours=1)) == (None, None)
    # What is held now is not over.
    held = teardown("Held", blockers=blocked(NOW - timedelta(hours=1)))
    assert due(held, to=sink(since=NOW + MINUTE), now=NOW + 2 * MINUTE)[0] == Notice(HELD, NOW - timedelta(hours=1))


def test_the_record_keeps_attempts_and_the_result_of_the_last_one() -> None:
    notice = Notice(COMPLETE, NOW)
    first = delivery_schedule.begun({}, notice, now=NOW)
    failed = delivery_schedule.ended(first, notice, NOW, "HTTP 500")
    assert failed
    second = delivery_schedule.begun(failed, notice, now=NOW + AGAIN)
    assert (second["Complete"].attempts, second["Complete"].error) == (2, "HTTP 500")
    # The same error again needs no write.
    assert delivery_schedule.ended(second, notice, NOW + AGAIN, "HTTP 500") is None
    # The result of an earlier attempt is not that of this one.
    assert delivery_schedule.ended(second, notice, NOW, "") is None
    done = delivery_schedule.ended(second, notice, NOW + AGAIN, "")
    assert done
    assert (done["Complete"].sent, done["Complete"].error) == (True, "")
    text = delivery_schedule.written(done)
    assert delivery_schedule.read_record({"unwind.dev/notified.a1": text}, "a1") == done
    assert delivery_schedule.read_record({"unwind.dev/notified.a1": text}, "other") == {}


def test_a_policy_says_which_notifications_are_not_delivered() -> None:
    policy = msgspec.convert(
        {"metadata": {"name": "production", "uid": "p1"}, "status": {"sinks": [{"id": "a1"}]}}, TeardownPolicy
    )
    one = ended()
    record = {"Complete": Attempted(of=NOW, at=NOW, error="sink hooks.example.com: answered with HTTP 500")}
    meta = msgspec.structs.replace(
        one.metadata, annotations={"unwind.dev/notified.a1": delivery_schedule.written(record)}
    )
    failed = msgspec.structs.replace(one, metadata=meta)
    assert delivery_schedule.failing(policy, [one]) == ""
    assert "1 notifications are not delivered" in delivery_schedule.failing(policy, [one, failed])
    assert "answered with HTTP 500" in delivery_schedule.failing(policy, [failed])
    other = msgspec.structs.replace(policy, metadata=msgspec.structs.replace(policy.metadata, uid="p2"))
    assert delivery_schedule.failing(other, [failed]) == ""


def test_the_event_names_who_must_act_and_nothing_that_others_wrote() -> None:
    release = {"reason": "Forced", "by": "jane", "message": "too slow", "at": NOW.isoformat()}
    found = teardown("Held", blockers=blocked(NOW), release=release, left=1)
    body = cloud_event(found, sink(), Notice(HELD, NOW))
    event = msgspec.json.decode(body)
    assert {name: event[name] for name in ("specversion", "id", "source", "type", "subject", "time")} == {
        "specversion": "1.0",
        "id": "t1-held-20261118T120000Z",
        "source": "/apis/unwind.dev/v1alpha1/teardowns/c1",
        "type": "dev.unwind.teardown.held",
        "subject": "shops/prod-7",
        "time": "2026-11-18T12:00:00Z",
    }
    data = event["data"]
    assert data["blockers"][0]["object"] == {"kind": "Secret", "namespace": "a", "name": "b"}
    assert data["release"]["by"] == "jane"
    assert data["policies"] == ["production"]
    # The message of a blocker repeats what other controllers said, and the path of a sink may be its password.
    assert b"hunter2" not in body
    assert b"secret-path" not in body
