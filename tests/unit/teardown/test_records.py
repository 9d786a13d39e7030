"""Records of targets: the manager's own are used, and others are set aside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from unwind.addons.caches import AddonCaches
from unwind.api import capi
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.resources import SECRETS
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Cause, Plan, Teardown, TeardownSpec, TeardownStatus
from unwind.errors import UnwindError
from unwind.inventory.inventories import Inventories
from unwind.kube.controller import ControllerDeps
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.members.targets import ClusterTarget
from unwind.teardown.drafts import Drafted
from unwind.teardown.records import TeardownRecords, target_of
from unwind.teardown.signatures import RecordKeys
from unwind.testing.clock import START, StillClock
from unwind.testing.objects import Objects

REF = ObjectRef(group=capi.CLUSTERS.group, kind="Cluster", namespace="fleet", name="prod", uid="u-1")
TARGET = ClusterTarget(ref=REF, secret="", terminating=True, deleted_at=datetime(2026, 1, 1, tzinfo=UTC))
PLAN = Plan(waves=1, objects=7)


class RecordScene:
    """The records of Clusters, with an API that has what a test puts there."""

    def __init__(self) -> None:
        self.objects = Objects(resources=(SECRETS, TEARDOWNS, INVENTORIES))
        client = self.objects.client
        self.caches = AddonCaches(client)
        self.keys = RecordKeys(client, namespace="home")
        self.clock = StillClock()
        self.drafts = 0
        self.plan = PLAN
        self.unreadable = False
        self.records = TeardownRecords(
            ControllerDeps(
                client=client,
                owner=cast("Any", None),
                metrics=Metrics(CollectorRegistry()),
                recorder=Recorder(client, instance="test"),
                clock=self.clock,
            ),
            self.caches.teardowns,
            Inventories(client, namespace="home"),
            keys=self.keys,
            group=capi.CLUSTERS.group,
            cause=Cause.CLUSTER_DELETED,
            keep=timedelta(days=7),
        )

    def plant(self, name: str = "u-1", **spec: object) -> Teardown:
        made = TeardownSpec(title="x", target=REF, cause=Cause.CLUSTER_DELETED.value, **spec)  # type: ignore[arg-type]
        meta = ObjectMeta(name=name, uid=f"planted-{name}", creation_timestamp=START)
        planted = Teardown(metadata=meta, spec=made, status=TeardownStatus(phase="Complete", finished_at=START))
        self.objects.put(manifest(TEARDOWNS, planted))
        return planted

    async def seen(self) -> None:
        """Have the caches know what the API has."""
        for teardown in msgspec.convert(await self.objects.client.list(TEARDOWNS), list[Teardown]):
            self.caches.teardowns._tell(self.caches.teardowns.cache.put(teardown))

    async def written(self, *, moved: bool = False) -> Teardown:
        return await self.records.written(TARGET, self._draft, cause=Cause.MOVED if moved else None)

    async def _draft(self) -> Drafted:
        self.drafts += 1
        if self.unreadable:
            raise UnwindError("cannot read the steps")
        return Drafted(plan=self.plan)

    async def moved(self) -> Teardown:
        """The record of a move that was seen when the target was deleted."""
        self.plan = Plan(waves=1, objects=7, warnings=("made for the ledger",))
        made = await self.written(moved=True)
        await self.seen()
        self.plan = PLAN
        self.objects.requests.clear()
        return made

    def writes(self) -> list[str]:
        return [request for request in self.objects.requests if not request.startswith("GET")]


async def scene() -> RecordScene:
    made = RecordScene()
    await made.keys.load()
    return made


async def test_the_record_is_named_by_the_target_and_written_once() -> None:
    it = await scene()
    first = await it.written()
    assert (first.metadata.name, first.spec.plan) == ("u-1", PLAN)
    assert await it.written() == first
    # Another replica, whose cache does not know of it, takes it as it is.
    it.caches.teardowns.cache.drop(it.caches.teardowns.view.stamp(first).key)
    assert (await it.written()).metadata.uid == first.metadata.uid


async def test_a_planted_record_is_set_aside_and_the_plan_says_so() -> None:
    it = await scene()
    it.plant(plan=Plan())
    await it.seen()
    assert it.records.get("u-1") is None
    assert it.records.of(target_of(Teardown(spec=TeardownSpec(target=REF)))) == []
    own = await it.written()
    assert own.metadata.name == list(it.keys.names("u-1"))[1]
    assert own.spec.plan
    assert own.spec.plan.warnings[0].startswith("Teardown u-1 was not written by this manager")
    await it.seen()
    assert it.records.get("u-1") == own
    planted = await it.objects.client.get(TEARDOWNS, "u-1", type=Teardown)
    assert planted.metadata.labels == {SET_ASIDE_LABEL: "true"}
    assert planted.phase == "Complete", "what it says is left as evidence"


async def test_a_record_that_was_set_aside_goes_after_its_time_and_no_inventory_with_it() -> None:
    it = await scene()
    it.plant(plan=Plan())
    await it.seen()
    key = target_of(Teardown(spec=TeardownSpec(target=REF)))
    await it.records.retain(key)
    await it.seen()
    assert await it.records.retain(key) == timedelta(days=7).total_seconds()
    it.clock.advance(timedelta(days=8).total_seconds())
    it.objects.requests.clear()
    await it.records.retain(key)
    assert [request for request in it.objects.requests if request.startswith("DELETE")] == [
        "DELETE /apis/unwind.dev/v1alpha1/teardowns/u-1"
    ]


async def test_a_record_of_another_manager_is_left_alone() -> None:
    it = await scene()
    other = RecordKeys(it.objects.client, namespace="elsewhere")
    other._keys = {"key-1": b"x" * 32}
    planted = other.signed(it.plant(plan=Plan()))
    it.objects.put(manifest(TEARDOWNS, planted))
    await it.seen()
    own = await it.written()
    assert own.metadata.name != "u-1"
    found = await it.objects.client.get(TEARDOWNS, "u-1", type=Teardown)
    assert found.metadata.labels == {}


async def test_a_deletion_that_was_no_move_is_planned_by_one_write_and_its_deadline_begins_then() -> None:
    """A process that ends in between must not leave a Cluster without a record: the next one would count the deadline
    from the deletion."""
    it = await scene()
    before = await it.moved()
    it.clock.advance(timedelta(days=1).total_seconds())
    planned = await it.written()
    assert (planned.spec.cause, planned.spec.plan) == (Cause.CLUSTER_DELETED, PLAN)
    assert planned.spec.requested_at == it.clock.now().replace(microsecond=0)
    assert before.spec.requested_at == TARGET.deleted_at
    assert it.writes() == ["PATCH /apis/unwind.dev/v1alpha1/teardowns/u-1"]
    assert await it.keys.verified(planned)
    await it.seen()
    it.clock.advance(60)
    assert await it.written() == planned


async def test_the_record_of_a_move_stays_until_the_deletion_is_planned() -> None:
    it = await scene()
    before = await it.moved()
    it.unreadable = True
    it.clock.advance(timedelta(days=1).total_seconds())
    with pytest.raises(UnwindError, match="cannot read the steps"):
        await it.written()
    assert it.writes() == []
    assert it.records.get("u-1") == before
    it.unreadable = False
    it.clock.advance(60)
    planned = await it.written()
    assert planned.spec.requested_at == it.clock.now().replace(microsecond=0)


async def test_a_record_that_ended_as_moved_has_no_end_any_more_when_its_deletion_is_planned() -> None:
    """The cause alone keeps the gate closed: a finished record opens it."""
    it = await scene()
    await it.moved()
    status = {"phase": "Moved", "finishedAt": "2026-01-01T00:00:00Z", "left": 7}
    it.objects.change(TEARDOWNS, "u-1", {"status": status})
    await it.seen()
    planned = await it.written()
    assert planned.status == TeardownStatus()
    assert it.writes() == [
        "PATCH /apis/unwind.dev/v1alpha1/teardowns/u-1/status",
        "PATCH /apis/unwind.dev/v1alpha1/teardowns/u-1",
    ]
