"""When a sink is notified of which event: once for each event, at most one attempt in a minute, with back-off (pure).

An attempt is recorded on the Teardown before it is sent, and its success afterwards. A manager that is killed between
the two sends it again, with the same id: each notification arrives at least once. The record is written with the
resourceVersion of the Teardown, so that of two replicas only one sends.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import NOTIFIED_ANNOTATION
from unwind.api.policies import NotificationEvent
from unwind.api.unwind import Phase
from unwind.notifications.sinks import concerns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.policies import TeardownPolicy
    from unwind.api.unwind import Teardown
    from unwind.notifications.sinks import Sink

SENDING = 10.0
"""Seconds that an attempt may take, from its record to the answer."""
AGAIN = timedelta(seconds=60 + SENDING + 5)
"""The time between two attempts at the same thing: a minute between the moments at which they may arrive, and what two
estimates of the API server's time may differ by."""
LONGEST = timedelta(minutes=15)
"""The longest time between two attempts."""
_DOUBLINGS = 10
_ERROR = 300


class Attempted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a Teardown records about one event and one sink."""

    of: datetime
    """When the event happened. A later one is another notification."""
    at: datetime
    """When the last attempt began."""
    attempts: int = 1
    sent: bool = False
    """Whether the sink accepted it."""
    error: str = ""
    """Why the last attempt failed. Never what the sink answered."""


class Notice(msgspec.Struct, frozen=True):
    """A notification that is to be sent."""

    event: NotificationEvent
    of: datetime

    def id(self, teardown: Teardown) -> str:
        """The same for every attempt, sink and replica. Without dots, which separate what is signed."""
        return f"{teardown.metadata.uid}-{self.event.lower()}-{self.of.astimezone(UTC):%Y%m%dT%H%M%SZ}"


Record = dict[str, Attempted]
"""By event."""


def annotation(sink: str) -> str:
    """The annotation of a Teardown with the record of a sink."""
    return f"{NOTIFIED_ANNOTATION}{sink}"


def read_record(annotations: Mapping[str, str], sink: str) -> Record:
    """What was sent to a sink. Raises msgspec.DecodeError: only the manager may write it, so it is not guessed at."""
    text = annotations.get(annotation(sink))
    return msgspec.json.decode(text, type=Record) if text else {}


def written(record: Record) -> str:
    """The value of the annotation."""
    return msgspec.json.encode(record, order="sorted").decode()


def begun(record: Record, notice: Notice, *, now: datetime) -> Record:
    """The record with an attempt that begins now."""
    before = record.get(notice.event)
    attempts = before.attempts + 1 if before and before.of == notice.of else 1
    error = before.error if before and before.of == notice.of else ""
    return record | {notice.event.value: Attempted(of=notice.of, at=now, attempts=attempts, error=error)}


def ended(record: Record, notice: Notice, began: datetime, error: str) -> Record | None:
    """The record after the attempt that began at this time; None if there is nothing to write."""
    entry = record.get(notice.event)
    if entry is None or (entry.of, entry.at) != (notice.of, began):
        return None
    after = msgspec.structs.replace(entry, sent=not error, error=error[:_ERROR])
    return None if after == entry else record | {notice.event.value: after}


def due(teardown: Teardown, sink: Sink, record: Record, *, now: datetime) -> tuple[Notice | None, float | None]:
    """The next notification, if it is to be sent now; otherwise the seconds until one may be, or None."""
    if sink.since is None:
        return None, None
    found = [
        (when, notice)
        for event in NotificationEvent
        if event in sink.events
        for when, notice in _next(event, teardown, sink, record)
    ]
    if not found:
        return None, None
    when, notice = min(found, key=lambda item: item[0])
    return (notice, None) if when <= now else (None, (when - now).total_seconds())


def _next(event: NotificationEvent, teardown: Teardown, sink: Sink, record: Record) -> list[tuple[datetime, Notice]]:
    """The notification of an event that is not delivered yet, and when it may be sent; at most one."""
    entry = record.get(event)
    if entry and not entry.sent:
        # Also if it is over by now: the sink may have been told, and may not.
        return [(entry.at + _wait(entry.attempts), Notice(event, entry.of))]
    happened = occurred(event, teardown)
    if happened is None:
        return []
    held = event is NotificationEvent.HELD
    when = happened + sink.held if held else happened
    if entry:
        # Held again, by something that did not hold it when the sink was told.
        again = held and happened > entry.at
        return [(max(when, entry.at + AGAIN), Notice(event, happened))] if again else []
    # A sink is not told what was over before it was named. What is held now is not over.
    if not held and sink.since and happened < sink.since:
        return []
    return [(when, Notice(event, happened))]


def _wait(attempts: int) -> timedelta:
    return max(AGAIN, min(LONGEST, AGAIN * (1 << min(attempts - 1, _DOUBLINGS))))


def occurred(event: NotificationEvent, teardown: Teardown) -> datetime | None:
    """When an event happened to a Teardown; None if it did not. For Held: since when."""
    status = teardown.status
    ended_at = status.finished_at if teardown.finished else None
    if event is NotificationEvent.HELD:
        since = [blocker.since for blocker in status.blockers if blocker.since]
        return min(since, default=status.started_at) if teardown.phase is Phase.HELD else None
    if event is NotificationEvent.FORCE_RELEASED:
        return (status.release.at or ended_at) if status.release else None
    if event is NotificationEvent.COMPLETE:
        return ended_at if teardown.phase is Phase.COMPLETE else None
    if teardown.phase is Phase.MOVED:
        return None  # the Cluster and its objects are in use, managed by another management cluster
    unverified = teardown.phase is Phase.TARGET_GONE
    return ended_at if status.left or unverified else None


def failing(policy: TeardownPolicy, teardowns: Iterable[Teardown]) -> str:
    """What a policy should say about its sinks that do not accept notifications; empty if there are none."""
    meta = policy.metadata
    sinks = [sink.id for sink in policy.status.sinks]
    failed = [
        entry
        for teardown in (teardowns if sinks else ())
        if concerns(teardown) and any((ref.name, ref.uid) == (meta.name, meta.uid) for ref in teardown.spec.policies)
        for sink in sinks
        for entry in _undelivered(teardown, sink)
    ]
    if not failed:
        return ""
    last = max(failed, key=lambda entry: entry.at)
    return f"{len(failed)} notifications are not delivered, and are retried. The last error: {last.error}"


def notified(teardown: Teardown) -> dict[str, str]:
    """The annotations with what was sent."""
    return {name: text for name, text in teardown.metadata.annotations.items() if name.startswith(NOTIFIED_ANNOTATION)}


def _undelivered(teardown: Teardown, sink: str) -> list[Attempted]:
    """The notifications whose last attempt failed."""
    try:
        record = read_record(teardown.metadata.annotations, sink)
    except msgspec.MsgspecError:
        return []  # the controller of notifications reports it
    return [entry for entry in record.values() if entry.error and not entry.sent]
