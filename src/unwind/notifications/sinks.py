"""The sinks that the policies of a Teardown name, and how they are merged (pure)."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from unwind.api.annotation_values import parse_duration
from unwind.api.fields import Unknown
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.policies import (
    HELD_LONGER_THAN,
    NotificationEvent,
    PolicyNotification,
    PolicySink,
    SigningKey,
    TeardownPolicy,
)
from unwind.api.unwind import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Teardown

GRACE = timedelta(minutes=5)
"""The manager sees a new sink a moment after it was named. What happened this long before is still sent."""
MOST = 64
"""The sinks of one Teardown: each has an annotation on it, and all annotations together are limited."""


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """An address that is told about the Teardowns of its policies."""

    id: str
    url: str
    signing_key: SigningKey
    events: frozenset[NotificationEvent]
    held: timedelta
    """How long a Teardown must be held."""
    since: datetime | None
    """Since when a policy names it; None if the manager has not recorded it yet: nothing is sent until then."""
    policies: tuple[str, ...]
    """The names of the policies that name it."""

    @property
    def host(self) -> str:
        """For people: the path may hold a secret."""
        return host_of(self.url)


def concerns(teardown: Teardown) -> bool:
    """Whether a Teardown can have sinks. The spec of a request is its requester's, also where it names policies."""
    return (
        teardown.spec.cause in (Cause.CLUSTER_DELETED, Cause.MOVED) and SET_ASIDE_LABEL not in teardown.metadata.labels
    )


def sink_id(notification: PolicyNotification) -> str:
    """The same for the same address and the same key, whatever else a policy says."""
    key = notification.signing_key
    parts = "\n".join((notification.url, key.secret_name, key.key))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def host_of(url: str) -> str:
    """The host of an address, with the port if it names one."""
    return urlsplit(url).netloc.rpartition("@")[2]


def united(policies: Iterable[TeardownPolicy]) -> dict[str, Sink]:
    """The sinks of all policies of a Teardown by id. A sink that several policies name is told what any of them
    wants, after the shortest time of any of them."""
    found: dict[str, Sink] = {}
    for policy in sorted(policies, key=lambda item: item.metadata.name):
        recorded = {item.id: item.since for item in policy.status.sinks}
        for notification in policy.spec.notifications:
            one = _sink(policy.metadata.name, notification, recorded)
            other = found.get(one.id)
            if other is None and len(found) >= MOST:
                continue
            found[one.id] = _merged(other, one) if other else one
    return found


def _sink(policy: str, notification: PolicyNotification, recorded: dict[str, datetime | None]) -> Sink:
    words = (NotificationEvent.read(word) for word in notification.events)
    held = parse_duration(notification.held_longer_than)
    if isinstance(held, Unknown):
        held = parse_duration(HELD_LONGER_THAN)
    return Sink(
        id=sink_id(notification),
        url=notification.url,
        signing_key=notification.signing_key,
        events=frozenset(word for word in words if isinstance(word, NotificationEvent)),
        held=held if isinstance(held, timedelta) else timedelta(),
        since=recorded.get(sink_id(notification)),
        policies=(policy,),
    )


def _merged(one: Sink, other: Sink) -> Sink:
    known = [item.since for item in (one, other) if item.since]
    holds = [item.held for item in (one, other) if NotificationEvent.HELD in item.events]
    return msgspec.structs.replace(
        one,
        events=one.events | other.events,
        held=min(holds, default=one.held),
        since=min(known, default=None),
        policies=tuple(dict.fromkeys((*one.policies, *other.policies))),
    )


def recorded(policy: TeardownPolicy, *, now: datetime) -> tuple[PolicySink, ...]:
    """The sinks of a policy for its status, each with the time since when the policy names it."""
    before = {item.id: item for item in policy.status.sinks}
    # The sinks of a policy that the manager has never seen are as old as the policy.
    new = now - GRACE if policy.status.observed_generation else (policy.metadata.creation_timestamp or now)
    found: dict[str, PolicySink] = {}
    for notification in policy.spec.notifications:
        id_ = sink_id(notification)
        since = before[id_].since if id_ in before else None
        found[id_] = PolicySink(id=id_, host=host_of(notification.url), since=since or new.replace(microsecond=0))
    return tuple(found.values())
