"""The metrics of Teardowns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from unwind.addons.caches import AddonCaches
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import SET_ASIDE_LABEL, Reason
from unwind.api.unwind import TEARDOWNS, Blocker, Cause, Phase, Teardown, TeardownSpec, TeardownStatus
from unwind.kube.cache import Change
from unwind.kube.decoding import Key
from unwind.teardown.teardown_metrics import HELD_SHOWN, TeardownMetrics, longest_held
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


class Clock(StillClock):
    def now(self) -> datetime:
        return NOW


class Scene:
    """Metrics of Teardowns in a cache, of which this replica owns those that `owned` names by uid."""

    def __init__(self, *teardowns: Teardown, owned: tuple[str, ...] = ()) -> None:
        self.informer = AddonCaches(Objects(resources=(TEARDOWNS,)).client).teardowns
        self.registry = CollectorRegistry()
        self.metrics = TeardownMetrics(self.informer, self.registry, owns=owned.__contains__, clock=Clock())
        for item in teardowns:
            self.informer.cache.put(item)

    def lines(self, metric: str) -> list[str]:
        lines = generate_latest(self.registry).decode().splitlines()
        return sorted(line for line in lines if line.startswith(metric) and "_created" not in line)


def teardown(name: str, cause: str, phase: str = "", *blockers: Blocker, **labels: str) -> Teardown:
    return Teardown(
        metadata=ObjectMeta(name=name, uid=name, labels=labels),
        spec=TeardownSpec(cause=cause, title=f"Cluster shops/{name}", requested_at=NOW - timedelta(seconds=20)),
        status=TeardownStatus(phase=phase, blockers=blockers),
    )


def blocker(reason: str, minutes: int, actor: str = "the controller of example.dev") -> Blocker:
    ref = ObjectRef(kind="Database", namespace="shop", name="orders")
    return Blocker(object=ref, reason=reason, actor=actor, since=NOW - timedelta(minutes=minutes))


def test_teardowns_are_counted_by_cause_and_phase_and_unknown_values_share_a_label() -> None:
    scene = Scene(
        teardown("a", Cause.WITHDRAWN, Phase.HELD),
        teardown("b", Cause.WITHDRAWN, Phase.HELD),
        teardown("c", Cause.PRUNED),
        teardown("d", "Newer", "Other"),
        teardown("e", Cause.WITHDRAWN, Phase.HELD, **{SET_ASIDE_LABEL: "true"}),
    )
    assert scene.lines("unwind_teardowns{") == [
        'unwind_teardowns{cause="Pruned",phase="Pending"} 1.0',
        'unwind_teardowns{cause="Withdrawn",phase="Held"} 2.0',
        'unwind_teardowns{cause="other",phase="other"} 1.0',
    ]


def test_a_held_teardown_is_shown_with_its_first_blocker_and_who_must_act_since_the_oldest_one() -> None:
    scene = Scene(
        teardown("a", Cause.CLUSTER_DELETED, Phase.HELD, blocker("Finalizers", 5), blocker("Unreachable", 30)),
        teardown("b", Cause.CLUSTER_DELETED, Phase.REMOVING, blocker("Finalizers", 50)),
    )
    [line] = scene.lines("unwind_teardown_held_seconds")
    assert line == (
        'unwind_teardown_held_seconds{actor="the controller of example.dev",blocker="Database shop/orders",'
        'cause="ClusterDeleted",reason="Finalizers",target="Cluster shops/a",teardown="a"} 1800.0'
    )


def test_only_the_teardowns_that_have_been_held_longest_have_series_of_their_own() -> None:
    held = [teardown(str(n), Cause.REQUESTED, Phase.HELD, blocker("Finalizers", n)) for n in range(HELD_SHOWN * 2)]
    assert {item.metadata.name for _, item in longest_held(held)} == {str(n) for n in range(HELD_SHOWN, HELD_SHOWN * 2)}


def test_teardowns_in_progress_are_counted_once_for_each_reason_and_reasons_of_plugins_share_a_label() -> None:
    scene = Scene(
        teardown("a", Cause.REQUESTED, Phase.HELD, blocker(Reason.UNREACHABLE, 1), blocker(Reason.UNREACHABLE, 1)),
        teardown("b", Cause.REQUESTED, Phase.REMOVING, blocker("WaitingForBackup", 1)),
        teardown("c", Cause.REQUESTED, Phase.COMPLETE, blocker(Reason.UNREACHABLE, 1)),
    )
    assert scene.lines("unwind_teardown_blockers") == [
        'unwind_teardown_blockers{reason="Unreachable"} 1.0',
        'unwind_teardown_blockers{reason="other"} 1.0',
    ]


def test_progress_is_counted_by_the_replica_that_owns_the_teardown() -> None:
    scene = Scene(owned=("mine",))
    for name in ("mine", "theirs"):
        old = teardown(name, Cause.REQUESTED, Phase.REMOVING)
        half = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, removed="40/120"))
        status = msgspec.structs.replace(half.status, removed="120/120", phase=Phase.COMPLETE, finished_at=NOW, left=2)
        done = msgspec.structs.replace(half, status=status)
        scene.informer.cache.put(done)
        for before, after in ((None, old), (old, half), (half, done), (done, done), (done, None)):
            scene.metrics._on_change(Change(Key("", name), before, after))
    assert scene.lines("unwind_objects_removed_total") == ['unwind_objects_removed_total{cause="Requested"} 120.0']
    seconds = scene.lines("unwind_teardown_duration_seconds_sum") + scene.lines(
        "unwind_teardown_duration_seconds_count"
    )
    assert seconds == [
        'unwind_teardown_duration_seconds_sum{cause="Requested",phase="Complete"} 20.0',
        'unwind_teardown_duration_seconds_count{cause="Requested",phase="Complete"} 1.0',
    ]
    assert scene.lines("unwind_ledger_entries") == ['unwind_ledger_entries{cause="Requested"} 4.0']
