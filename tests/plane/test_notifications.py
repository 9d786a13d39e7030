"""Notifications on a real API server, to a real HTTPS server: at least once, and never twice in a minute."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import uuid
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from tests.eventually import eventually
from tests.https_sinks import NEVER, HttpsSink, https_sink
from tests.owners import Owner
from tests.plane.support.cluster_teardowns import ensure_installed, scene
from tests.plane.support.controllers import controller_deps, running_components
from tests.plane.support.example_deployer import deployed, running_deployer
from tests.plane.support.manager_process import running
from tests.plane.support.objects import teardown_policy
from tests.plane.support.policies import PolicyScene, install_handles
from unwind.api.meta import ObjectMeta, ObjectRef, find, is_true, manifest
from unwind.api.names import NOTIFICATION_KEY_LABEL, RECORD_KEY_SECRET, ConditionType
from unwind.api.policies import TEARDOWN_POLICIES, TeardownPolicy
from unwind.api.resources import SECRETS
from unwind.api.rights import HOME
from unwind.api.unwind import TEARDOWNS, Cause, Phase, PolicyRef, Teardown, TeardownSpec
from unwind.companions.policy_reader import PolicyCaches
from unwind.kube.errors import ApiError
from unwind.kube.events import EVENTS, Recorder
from unwind.members.cluster_caches import ClusterCaches
from unwind.notifications import delivery_schedule, sinks
from unwind.notifications.addresses import AddressRules
from unwind.notifications.controller import NotificationCaches, NotificationController, NotificationMetrics
from unwind.notifications.sink_request import Delivery, trust
from unwind.teardown.signatures import RecordKeys
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.kube.fencing import ShardOwner
    from unwind.local.plane import Plane

SIGNING_KEY = b"a signing key of 32 bytes, or so"
AGAIN = delivery_schedule.AGAIN.total_seconds()


class Clock(StillClock):
    """Stands still an hour from now, so that all that has happened is over."""

    def __init__(self) -> None:
        super().__init__()
        self._start = datetime.now(UTC) + timedelta(hours=1)

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())


class NotificationScene:
    """A policy with sinks, and Teardowns of clusters that it selected, as a manager wrote them."""

    def __init__(self, admin: Client, own: Client, *, home: str = HOME) -> None:
        """`home`: the namespace of the manager."""
        self.client = admin
        self.own = own
        self.home = home
        self.name = f"notify-{uuid.uuid4().hex[:8]}"
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.keys = RecordKeys(own, namespace=home)
        self.counted = NotificationMetrics(self.registry)
        self.recorder = Recorder(own, instance="test")
        self._uid = ""

    async def begin(self) -> None:
        await self.keys.load()
        await self.secret(self.name, {"key": SIGNING_KEY})

    async def end(self) -> None:
        for teardown in await self.client.list(TEARDOWNS):
            if any(ref["name"] == self.name for ref in teardown["spec"].get("policies") or ()):
                await self.own.delete(TEARDOWNS, teardown["metadata"]["name"], uid=teardown["metadata"]["uid"])
        if self._uid:
            await self.client.delete(TEARDOWN_POLICIES, self.name, uid=self._uid)

    async def secret(self, name: str, data: dict[str, bytes], *, label: bool = True) -> None:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self.home,
                "labels": {NOTIFICATION_KEY_LABEL: "true"} if label else {},
            },
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        await self.client.create(SECRETS, body)

    def sink(self, to: HttpsSink | str, *on: str, secret: str = "", key: str = "key", **more: Any) -> Object:
        url = to if isinstance(to, str) else to.url
        named = {"secretName": secret or self.name, "key": key}
        return {"url": url, "signingKey": named, "events": list(on or ("Complete",)), **more}

    async def policy(self, *notifications: Object, told: bool = True) -> None:
        """The policy; `told`: with the status that the controller of policies gives it."""
        flux = {"kind": "Flux", "effort": "Try"}
        body = teardown_policy(self.name, {"never": "there"}, flux, notifications=list(notifications))
        made = msgspec.convert(await self.client.create(TEARDOWN_POLICIES, body), TeardownPolicy)
        self._uid = made.metadata.uid
        if not told:
            return
        found = sinks.recorded(made, now=datetime.now(UTC))
        await self.client.patch(
            TEARDOWN_POLICIES, self.name, {"status": {"sinks": msgspec.to_builtins(found)}}, subresource="status"
        )

    async def teardown(self, status: Object, *, cause: Cause = Cause.CLUSTER_DELETED, signed: bool = True) -> Teardown:
        uid = str(uuid.uuid4())
        ref = ObjectRef(
            group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="shops", name="prod-7", uid=uid
        )
        found = Teardown(
            metadata=ObjectMeta(name=uid),
            spec=TeardownSpec(
                title="Cluster shops/prod-7",
                target=ref,
                cause=cause.value,
                policies=(PolicyRef(name=self.name, uid=self._uid),),
            ),
        )
        wanted = self.keys.signed(found) if signed else found
        await self.own.create(TEARDOWNS, manifest(TEARDOWNS, wanted))
        return await self.report(uid, status)

    async def report(self, name: str, status: Object) -> Teardown:
        made = await self.own.patch(TEARDOWNS, name, {"status": status}, subresource="status")
        return msgspec.convert(made, Teardown)

    async def complete(self) -> Teardown:
        return await self.teardown({"phase": "Complete", "finishedAt": _now()})

    async def record(self, teardown: Teardown) -> dict[str, delivery_schedule.Attempted]:
        """What the Teardown records, of all sinks together."""
        found = await self.client.get(TEARDOWNS, teardown.metadata.name, type=Teardown)
        return {
            event: entry
            for text in delivery_schedule.notified(found).values()
            for event, entry in msgspec.json.decode(text, type=delivery_schedule.Record).items()
        }

    async def until_recorded(self, teardown: Teardown, event: str, **wanted: object) -> delivery_schedule.Attempted:
        async def there() -> delivery_schedule.Attempted | None:
            entry = (await self.record(teardown)).get(event)
            return entry if entry and all(getattr(entry, name) == value for name, value in wanted.items()) else None

        found = await eventually(there, f"{event} recorded with {wanted}")
        assert found
        return found

    @asynccontextmanager
    async def manager(
        self,
        *found: HttpsSink,
        delivery: type[Delivery] = Delivery,
        owner: ShardOwner | None = None,
        allow: bool = True,
    ) -> AsyncIterator[NotificationController]:
        """The controller as a process would run it; at the end, it is gone as if it had been killed."""
        caches, policies = ClusterCaches(self.own, sveltos_clusters=False), PolicyCaches(self.own)
        hosts = frozenset(sink.host for sink in found) if allow else frozenset()
        authorities = b"".join(sink.authority.certificate for sink in found)
        controller = NotificationController(
            controller_deps(self.own, owner=owner, recorder=self.recorder, clock=self.clock),
            NotificationCaches(caches, policies),
            delivery(AddressRules(allowed=hosts), trust(authorities), user_agent="unwind-manager"),
            keys=self.keys,
            namespace=self.home,
            counted=self.counted,
        )
        async with running_components((caches, policies, controller, self.recorder)):
            yield controller


def _now() -> str:
    return datetime.now(UTC).replace(microsecond=0).isoformat()


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane) -> AsyncIterator[NotificationScene]:
    admin = plane.management.client
    await ensure_installed(admin)
    async with manager_client(admin, HOME) as own:
        made = NotificationScene(admin, own)
        await made.begin()
        yield made
        await made.end()


def verified(key: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """As a receiver does it."""
    said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.digest(key, said, hashlib.sha256)).decode()
    return headers["webhook-signature"] == f"v1,{mac}"


async def test_a_complete_teardown_is_told_once_signed_and_counted(it: NotificationScene) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink, "Complete", "LeftBehind"))
        teardown = await it.complete()
        async with it.manager(sink):
            await it.until_recorded(teardown, "Complete", sent=True)
        [got] = sink.received
        assert verified(SIGNING_KEY, got.headers, got.body)
        assert got.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
        assert got.event["type"] == "dev.unwind.teardown.complete"
        assert got.event["id"] == got.headers["webhook-id"]
        assert got.event["data"]["teardown"]["uid"] == teardown.metadata.uid
        # Another manager, a day later, says nothing more.
        it.clock.advance(86_400)
        async with it.manager(sink):
            second = await it.complete()
            await it.until_recorded(second, "Complete", sent=True)
        assert len(sink.received) == 2
    assert it.registry.get_sample_value("unwind_notifications_sent_total", {"event": "Complete"}) == 2


async def test_a_held_teardown_is_told_after_its_time_and_a_release_and_what_is_left_at_its_end(
    it: NotificationScene,
) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink, "Held", "ForceReleased", "LeftBehind", "Complete", heldLongerThan="2h"))
        blocker = {
            "object": {"kind": "Pod", "name": "a"},
            "reason": "Finalizer",
            "actor": "cert-manager",
            "since": _now(),
        }
        teardown = await it.teardown({"phase": "Held", "blockers": [blocker]})
        async with it.manager(sink):
            await eventually(lambda: it.clock.waiting, "a timer")
            assert sink.received == []
            # The clock was set before the blocker was written, on a busy machine by some seconds.
            it.clock.advance(3600 + 600)
            await it.until_recorded(teardown, "Held", sent=True)
            release = {"reason": "Forced", "by": "jane", "message": "too slow", "at": _now()}
            ended = {"phase": "Released", "finishedAt": _now(), "left": 3, "release": release, "blockers": []}
            await it.report(teardown.metadata.name, ended)
            await it.until_recorded(teardown, "ForceReleased", sent=True)
            await it.until_recorded(teardown, "LeftBehind", sent=True)
        assert [one.event["data"]["event"] for one in sink.received] == ["Held", "ForceReleased", "LeftBehind"]
        held, released, left = (one.event["data"] for one in sink.received)
        assert held["blockers"][0]["actor"] == "cert-manager"
        assert released["release"]["by"] == "jane"
        assert left["left"] == 3


class Killed(Delivery):
    """The process ends right after the sink has accepted a notification."""

    async def send(self, url: str, body: bytes, headers: Mapping[str, str], *, within: float) -> None:
        await super().send(url, body, headers, within=within)
        await asyncio.Event().wait()


class KilledBefore(Delivery):
    """The process ends right before the sink is called."""

    async def send(self, url: str, body: bytes, headers: Mapping[str, str], *, within: float) -> None:
        await asyncio.Event().wait()


async def test_a_kill_between_send_and_record_repeats_it_with_the_same_id_and_not_within_a_minute(
    it: NotificationScene,
) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink))
        teardown = await it.complete()
        async with it.manager(sink, delivery=KilledBefore):
            await it.until_recorded(teardown, "Complete", sent=False, attempts=1)
        async with it.manager(sink, delivery=Killed):
            # Its only timer stands at the time at which the next attempt may be made, and no earlier.
            await eventually(lambda: it.clock.waiting, "a timer")
            assert it.clock.waiting == [pytest.approx(AGAIN, abs=0.01)]
            assert sink.received == []
            it.clock.advance(AGAIN)
            await sink.arrived.wait()
        assert len(sink.received) == 1
        async with it.manager(sink):
            await eventually(lambda: it.clock.waiting, "a timer")
            assert it.clock.waiting == [pytest.approx(2 * AGAIN, abs=0.01)]
            assert len(sink.received) == 1
            it.clock.advance(2 * AGAIN)
            await it.until_recorded(teardown, "Complete", sent=True, attempts=3)
    assert len(sink.received) == 2
    assert len(set(sink.ids)) == 1


async def test_of_two_replicas_that_both_think_it_is_theirs_one_sends(it: NotificationScene) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink))
        async with it.manager(sink), it.manager(sink), it.manager(sink):
            found = [await it.complete() for _ in range(10)]
            for teardown in found:
                entry = await it.until_recorded(teardown, "Complete", sent=True)
                assert entry.attempts == 1
    assert len(sink.received) == len(set(sink.ids)) == 10


async def test_a_replica_sends_only_what_is_in_its_shards(it: NotificationScene) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink))
        theirs, mine = await it.complete(), await it.complete()
        owner = Owner(theirs.metadata.name)
        async with it.manager(sink, owner=owner):
            await it.until_recorded(mine, "Complete", sent=True)
            assert await it.record(theirs) == {}
            owner.gain(theirs.metadata.name)
            await it.until_recorded(theirs, "Complete", sent=True)


@pytest.mark.parametrize(("answer", "told"), [(500, "HTTP 500"), (302, "redirects are not followed")])
async def test_an_error_is_retried_and_recorded_until_it_is_accepted(
    it: NotificationScene, answer: int, told: str
) -> None:
    async with https_sink() as sink:
        sink.answer = answer
        await it.policy(it.sink(sink))
        teardown = await it.complete()
        async with it.manager(sink):
            entry = await it.until_recorded(
                teardown,
                "Complete",
                error=f"sink {sink.host}:{sink.port}: answered with"
                f" HTTP {answer}"
                + (
                    ", and redirects are not followed; write the address that it redirects to into the policy"
                    if answer == 302
                    else "; see the logs of the sink"
                ),
            )
            assert told in entry.error
            # The API server serves Events about objects without a namespace in `default`.
            [event] = await eventually(lambda: _events(it), "an Event")
            assert (event["type"], event["regarding"]["kind"]) == ("Warning", "TeardownPolicy")
            assert told in event["note"]
            assert "/hooks/unwind" not in event["note"]
            sink.answer = 204
            await eventually(lambda: it.clock.waiting, "a timer")
            it.clock.advance(AGAIN)
            await it.until_recorded(teardown, "Complete", sent=True, error="", attempts=2)
    assert len(sink.received) == 2
    assert len(set(sink.ids)) == 1


async def test_a_sink_that_never_answers_delays_no_other(it: NotificationScene) -> None:
    async with https_sink() as silent, https_sink() as sink:
        silent.answer = NEVER
        await it.policy(it.sink(silent), it.sink(sink))
        found = [await it.complete() for _ in range(8)]
        async with it.manager(silent, sink):
            await eventually(lambda: len(sink.received) == 8 and len(silent.received) == 4, "all that can be sent")
            for teardown in found:
                assert "Complete" in await it.record(teardown)
    # More than its workers were never under way to the one that hangs.
    assert len(silent.received) == 4


async def test_loopback_and_keys_that_are_not_for_it_are_refused_and_named(it: NotificationScene) -> None:
    async with https_sink() as sink:
        await it.secret(f"{it.name}-bare", {"key": SIGNING_KEY}, label=False)
        await it.policy(
            it.sink(sink, "Complete", secret=RECORD_KEY_SECRET, key="key-1"),
            it.sink(sink, "Complete", secret=f"{it.name}-bare"),
            it.sink(sink, "Complete", key="missing"),
            it.sink(sink, "Complete", secret="no-such-secret"),  # noqa: S106 - a name
        )
        teardown = await it.complete()
        async with it.manager(sink):

            async def all_failed() -> list[str] | None:
                read = await it.client.get(TEARDOWNS, teardown.metadata.name, type=Teardown)
                texts = delivery_schedule.notified(read).values()
                found = [
                    entry
                    for text in texts
                    for entry in msgspec.json.decode(text, type=delivery_schedule.Record).values()
                ]
                errors = [entry.error for entry in found if entry.error]
                return errors if len(errors) == 4 else None

            errors = await eventually(all_failed, "four failures")
            assert errors
            for part in (
                f"{RECORD_KEY_SECRET} is not a signing key",
                "has no key missing",
                "no-such-secret does not exist",
            ):
                assert any(part in error for error in errors), (part, errors)
            assert sum(NOTIFICATION_KEY_LABEL in error for error in errors) == 2
    async with https_sink() as sink:
        other = NotificationScene(it.client, it.own)
        await other.begin()
        await other.policy(other.sink(sink))
        teardown = await other.complete()
        async with other.manager(sink, allow=False):
            entry = await eventually(lambda: _failed(other, teardown), "a refusal")
            assert entry
            assert "--notification-hosts" in entry.error
        assert sink.received == []
        await other.end()


async def _events(it: NotificationScene) -> list[Object]:
    found = await it.client.list(EVENTS, namespace="default")
    return [
        event for event in found if event["regarding"]["name"] == it.name and event["reason"] == "NotificationFailed"
    ]


async def _failed(it: NotificationScene, teardown: Teardown) -> delivery_schedule.Attempted | None:
    entry = (await it.record(teardown)).get("Complete")
    return entry if entry and entry.error else None


async def test_records_that_the_manager_did_not_write_are_not_told_of(it: NotificationScene) -> None:
    async with https_sink() as sink:
        await it.policy(it.sink(sink))
        forged = await it.teardown({"phase": "Complete", "finishedAt": _now()}, signed=False)
        moved = await it.complete()
        async with it.manager(sink):
            await it.until_recorded(moved, "Complete", sent=True)
        assert await it.record(forged) == {}
    assert len(sink.received) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://hooks.example.com/"},
        {"url": "https://user@hooks.example.com/"},
        {"url": "https://hooks.example.com/#part"},
        {"url": "https://hooks.example.com/a b"},
        {"events": ["Eclipse"]},
        {"events": []},
        {"events": ["Held", "Held"]},
        {"signingKey": {"secretName": "../x", "key": "key"}},
        {"signingKey": None},
        {"heldLongerThan": "soon"},
    ],
    ids=str,
)
async def test_the_api_server_refuses_what_is_not_known(it: NotificationScene, wrong: Object) -> None:
    body = {**it.sink("https://hooks.example.com/unwind"), **wrong}
    with pytest.raises(ApiError, match="notifications"):
        await it.policy({key: value for key, value in body.items() if value is not None})


async def test_a_cluster_that_is_deleted_is_told_of_by_the_policy_that_selected_it(
    plane: Plane, namespace: str, it: NotificationScene
) -> None:
    cluster = PolicyScene(await scene(plane, namespace))
    await install_handles(cluster.cluster)
    await cluster.label(cluster.cluster.name)
    await deployed(cluster.cluster, "apps", objects=["apps-0"])
    async with https_sink() as sink, cluster.manager():
        await cluster.policy("prod", notifications=[it.sink(sink, "Held", "Complete", heldLongerThan="0s")])
        selecting = await cluster.until_policy("prod", lambda one: one.status.selected == 1, "selecting")
        [recorded] = selecting.status.sinks
        assert recorded.host == f"{sink.host}:{sink.port}"
        sink.answer = 500
        async with it.manager(sink):
            await cluster.cluster.delete()
            # The deployer does not run.
            held = await cluster.cluster.teardown(lambda one: one.phase is Phase.HELD, "held")
            await it.until_recorded(held, "Held", sent=False)
            failing = await cluster.until_policy(
                "prod", lambda one: is_true(one.status.conditions, ConditionType.NOTIFICATIONS_FAILING), "failing"
            )
            said = find(failing.status.conditions, ConditionType.NOTIFICATIONS_FAILING)
            assert said
            assert "answered with HTTP 500" in said.message
            sink.answer = 204
            # Relabelling does not change who is told: the manager recorded the policies when the teardown began.
            await cluster.label("other")
            async with running_deployer(cluster.cluster):
                assert (await cluster.cluster.ended()).phase is Phase.COMPLETE
            await it.until_recorded(held, "Complete", sent=True)
            await eventually(lambda: it.clock.waiting, "a timer")
            it.clock.advance(AGAIN)
            await it.until_recorded(held, "Held", sent=True)
            await cluster.until_policy(
                "prod", lambda one: not find(one.status.conditions, ConditionType.NOTIFICATIONS_FAILING), "not failing"
            )
    await cluster.cluster.let_go()
    with suppress(ApiError):
        await cluster.delete_policy("prod")


@asynccontextmanager
async def of_a_process(
    plane: Plane, namespace: str, tmp_path: Path, sink: HttpsSink
) -> AsyncIterator[tuple[NotificationScene, tuple[str, ...]]]:
    """A policy and Teardowns for `unwind run` in its own namespace, and the options of that."""
    admin = plane.management.client
    await ensure_installed(admin)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(sink.authority.certificate)
    options = ("--features", "capi,flux", "--notification-hosts", sink.host, "--notification-ca", str(ca))
    async with manager_client(admin, namespace) as own:
        made = NotificationScene(admin, own, home=namespace)
        await made.begin()
        await made.policy(made.sink(sink), told=False)
        yield made, options
        await made.end()


async def test_unwind_run_sends_what_its_policies_name(plane: Plane, namespace: str, tmp_path: Path) -> None:
    async with https_sink() as sink, of_a_process(plane, namespace, tmp_path, sink) as (it, options):
        async with running(plane.management, namespace, *options) as manager:
            await manager.until_ready()
            teardown = await it.complete()
            await it.until_recorded(teardown, "Complete", sent=True)
            await manager.until_metric('unwind_notifications_sent_total{event="Complete"} 1.0')
            assert "notification sent" in {entry["event"] for entry in manager.logged}
            assert not any("/hooks/unwind" in str(entry) for entry in manager.logged)
        [got] = sink.received
        assert verified(SIGNING_KEY, got.headers, got.body)


@pytest.mark.soak
async def test_a_killed_process_and_its_successor_send_at_least_once_and_once_a_minute(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    async with https_sink() as sink, of_a_process(plane, namespace, tmp_path, sink) as (it, options):
        sink.answer = NEVER
        async with running(plane.management, namespace, *options) as first:
            await first.until_ready()
            teardown = await it.complete()
            await sink.arrived.wait()
            async with running(plane.management, namespace, *options) as second:
                await second.until_ready()
                # The sink has it, and the first process cannot record that any more.
                first.process.kill()
                await first.process.wait()
                sink.answer = 204
                entry = await eventually(lambda: _delivered(it, teardown), "delivered", within=180)
                assert entry
                assert entry.attempts == 2
        before, after = sink.received
        assert after.at - before.at > 60
        assert len(set(sink.ids)) == 1


async def _delivered(it: NotificationScene, teardown: Teardown) -> delivery_schedule.Attempted | None:
    entry = (await it.record(teardown)).get("Complete")
    return entry if entry and entry.sent else None
