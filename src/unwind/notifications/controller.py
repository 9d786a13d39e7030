"""The controller of notifications: sends each one that is due, and records it on its Teardown.

It never delays a teardown: it has a queue of its own, with workers for each sink, and reads Teardowns from the cache.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from prometheus_client import Counter

from unwind import logs
from unwind.api.names import NOTIFICATION_KEY_LABEL, EventReason
from unwind.api.policies import TEARDOWN_POLICIES, TeardownPolicy
from unwind.api.resources import SECRETS
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.errors import UnwindError
from unwind.kube.controller import Caches, Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.updates import revise
from unwind.notifications import delivery_schedule, sinks
from unwind.notifications.cloud_event import CONTENT_TYPE, cloud_event
from unwind.notifications.signature import parse_key, signed_headers
from unwind.notifications.sink_request import DeliveryError, FailureReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from prometheus_client import CollectorRegistry

    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.informers import Informer
    from unwind.notifications.delivery_schedule import Notice
    from unwind.notifications.sink_request import Delivery
    from unwind.notifications.sinks import Sink
    from unwind.teardown.records import TeardownCaches
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

# Requests to one sink at a time.
_PER_SINK = 4
# Seconds that may pass between the record of an attempt and the request. After that, the next attempt may be close.
_LATE = 5.0


class NotificationKey(NamedTuple):
    """A Teardown and one of its sinks."""

    sink: str
    teardown: str


class CachedPolicies(Caches, Protocol):
    """The cache of TeardownPolicies."""

    policies: Informer[TeardownPolicy]


class NotificationCaches:
    """What the controller follows: Teardowns, and TeardownPolicies."""

    def __init__(self, teardowns: TeardownCaches, policies: CachedPolicies) -> None:
        self.teardowns = teardowns.teardowns
        self.policies = policies.policies
        self._caches: tuple[Caches, ...] = (teardowns, policies)

    @property
    def ready(self) -> bool:
        """Whether both are synced, or cannot be."""
        return all(caches.ready for caches in self._caches)

    @property
    def settled(self) -> bool:
        """Whether both are synced."""
        return self.teardowns.synced and self.policies.synced

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Call `listed` when a cache has been synced."""
        for caches in self._caches:
            caches.subscribe(listed)


class NotificationMetrics:
    """How many notifications were sent, and how many attempts failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Counter(
            "unwind_notifications_sent", "Notifications that a sink accepted.", ["event"], registry=registry
        )
        self._failed = Counter(
            "unwind_notifications_failed",
            "Attempts to send a notification that failed. They are retried.",
            ["event", "reason"],
            registry=registry,
        )

    def sent(self, event: str) -> None:
        self._sent.labels(event).inc()

    def failed(self, event: str, reason: str) -> None:
        self._failed.labels(event, reason).inc()


class NotificationController(Controller[NotificationKey]):
    """Sends notifications about the Teardowns whose shard this replica owns."""

    name = "notifications"
    _caches: NotificationCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: NotificationCaches,
        delivery: Delivery,
        *,
        keys: RecordKeys,
        namespace: str,
        counted: NotificationMetrics,
    ) -> None:
        """`keys`: verify which Teardowns the manager wrote, and so which policies selected their targets. `namespace`:
        the manager's own, with the signing keys."""
        super().__init__(shared, caches, per_group=_PER_SINK)
        self._delivery = delivery
        self._keys = keys
        self._namespace = namespace
        self._counted = counted
        caches.teardowns.subscribe(self._teardown_changed)
        caches.policies.subscribe(self._policy_changed)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        old, new = change.old, change.new
        if new is not None and new.spec.policies and (old is None or _told(old) != _told(new)):
            self._enqueue(new)

    def _policy_changed(self, change: Change[TeardownPolicy]) -> None:
        old, new = change.old, change.new
        before, after = (item and (item.spec.notifications, item.status.sinks) for item in (old, new))
        if new is not None and before != after:
            for teardown in self._caches.teardowns.cache:
                if any(ref.name == new.metadata.name for ref in teardown.spec.policies):
                    self._enqueue(teardown)

    def _enqueue_all(self) -> None:
        for teardown in self._caches.teardowns.cache:
            self._enqueue(teardown)

    def _enqueue(self, teardown: Teardown) -> None:
        for sink in self._sinks(teardown):
            self._queue.add(NotificationKey(sink, teardown.metadata.name))

    def _shard(self, key: NotificationKey) -> str:
        return key.teardown

    def _group(self, key: NotificationKey) -> str:
        return key.sink

    def _describe(self, key: NotificationKey) -> dict[str, str]:
        return {"teardown": key.teardown, "sink": key.sink}

    def _sinks(self, teardown: Teardown) -> dict[str, Sink]:
        """The sinks of the policies that selected the target when the teardown started, as they are now."""
        found = []
        for ref in teardown.spec.policies if sinks.concerns(teardown) else ():
            policy = self._caches.policies.cache.get(Key("", ref.name))
            if policy and policy.spec.notifications and policy.metadata.uid == ref.uid:
                found.append(policy)
        return sinks.united(found) if found else {}

    async def _reconcile(self, key: NotificationKey) -> float | None:
        while True:
            teardown = self._caches.teardowns.cache.get(Key("", key.teardown)) if self._caches.settled else None
            if teardown is None or not self._owner.owns(key.teardown):
                return None
            sink = self._sinks(teardown).get(key.sink)
            if sink is None or not await self._keys.verified(teardown):
                return None
            record = delivery_schedule.read_record(teardown.metadata.annotations, sink.id)
            notice, after = delivery_schedule.due(teardown, sink, record, now=self._clock.now())
            if notice is None:
                return after
            if not await self._attempt(teardown, sink, notice):
                # Another replica, or an earlier task, was faster. The watch reports what it wrote.
                return delivery_schedule.AGAIN.total_seconds()

    async def _attempt(self, teardown: Teardown, sink: Sink, notice: Notice) -> bool:
        """Record an attempt, make it, and record its result. False if the attempt is not ours to make."""
        began = self._clock.now()

        def begin(now: Object) -> Object | None:
            record = delivery_schedule.read_record(now["metadata"].get("annotations") or {}, sink.id)
            chosen, _ = delivery_schedule.due(teardown, sink, record, now=began)
            return _patch(sink, delivery_schedule.begun(record, notice, now=began)) if chosen == notice else None

        recorded = await revise(self._client, TEARDOWNS, _read(teardown), begin)
        if recorded is None:
            return False
        at = self._clock.monotonic()
        teardown = msgspec.convert(recorded, Teardown)
        self._caches.teardowns.take(teardown)
        error = ""
        try:
            await self._send(teardown, sink, notice, since=at)
        except DeliveryError as failure:
            error = f"sink {sink.host}: {failure}"
            self._report(teardown, sink, notice, failure, error)
        else:
            self._counted.sent(notice.event.value)
            log.info("notification sent", teardown=teardown.metadata.name, kind=notice.event.value, sink=sink.host)

        def end(now: Object) -> Object | None:
            record = delivery_schedule.read_record(now["metadata"].get("annotations") or {}, sink.id)
            after = delivery_schedule.ended(record, notice, began, error)
            return None if after is None else _patch(sink, after)

        written = await revise(self._client, TEARDOWNS, recorded, end)
        if written is not None:
            self._caches.teardowns.take(msgspec.convert(written, Teardown))
        return True

    async def _send(self, teardown: Teardown, sink: Sink, notice: Notice, *, since: float) -> None:
        key = await self._signing_key(sink)
        body = cloud_event(teardown, sink, notice)
        now: datetime = self._clock.now()
        headers = {
            "Content-Type": CONTENT_TYPE,
            **signed_headers(key, id=notice.id(teardown), now=now, body=body),
        }
        late = self._clock.monotonic() - since
        if late > _LATE:
            raise DeliveryError(
                FailureReason.TIMED_OUT,
                f"not sent: the manager was too busy for {late:.0f}s",
                remedy="check the CPU of the manager and the load of the API server",
            )
        await self._delivery.send(sink.url, body, headers, within=delivery_schedule.SENDING - late)

    async def _signing_key(self, sink: Sink) -> bytes:
        """The key from a Secret in the manager's own namespace, if its owner allows that use by the label. Otherwise a
        policy could make the manager sign with any of its own keys."""
        name, key = sink.signing_key.secret_name, sink.signing_key.key
        called = f"Secret {self._namespace}/{name}"
        try:
            secret = await self._client.get(SECRETS, name, namespace=self._namespace)
        except NotFoundError:
            raise _no_key(f"{called} does not exist", remedy="create it") from None
        if (secret["metadata"].get("labels") or {}).get(NOTIFICATION_KEY_LABEL) != "true":
            raise _no_key(
                f"{called} is not a signing key", remedy=f'give it the label {NOTIFICATION_KEY_LABEL}: "true"'
            )
        value = (secret.get("data") or {}).get(key)
        if value is None:
            raise _no_key(f"{called} has no key {key}", remedy="correct signingKey.key in the policy")
        try:
            return parse_key(base64.b64decode(value, validate=True))
        except binascii.Error:
            raise _no_key(f"{called}, key {key} cannot be read", remedy="create it again") from None
        except UnwindError as error:
            raise _no_key(f"{called}, key {key}: {error.what}", remedy=error.remedy) from None

    def _report(self, teardown: Teardown, sink: Sink, notice: Notice, failure: DeliveryError, error: str) -> None:
        event = notice.event.value
        self._counted.failed(event, failure.reason.value)
        log.warning(
            "notification failed, will retry",
            teardown=teardown.metadata.name,
            kind=event,
            sink=sink.host,
            reason=failure.reason.value,
            why=str(failure),
        )
        for name in sink.policies:
            policy = self._caches.policies.cache.get(Key("", name))
            if policy:
                regarding = Regarding(TEARDOWN_POLICIES.api_version, TEARDOWN_POLICIES.kind, name, policy.metadata.uid)
                note = f"cannot send {event} of {teardown.spec.title}: {error}"
                self._recorder.report(regarding, EventReason.NOTIFICATION_FAILED, note, action="Notify", type="Warning")


def _told(teardown: Teardown) -> object:
    """What notifications depend on."""
    status = teardown.status
    since = tuple(blocker.since for blocker in status.blockers)
    return teardown.metadata.uid, teardown.spec.policies, status.phase, status.release, status.left, since


def _read(teardown: Teardown) -> Object:
    meta = teardown.metadata
    return {
        "metadata": {
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": meta.annotations,
        }
    }


def _patch(sink: Sink, record: delivery_schedule.Record) -> Object:
    return {"metadata": {"annotations": {delivery_schedule.annotation(sink.id): delivery_schedule.written(record)}}}


def _no_key(what: str, *, remedy: str) -> DeliveryError:
    return DeliveryError(FailureReason.KEY, what, remedy=remedy)
