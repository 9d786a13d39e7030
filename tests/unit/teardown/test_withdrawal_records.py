"""Records of withdrawals: written only for removals that need attention, and ended with them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
from prometheus_client import CollectorRegistry

from tests.owners import Owner
from tests.unit.teardown.archived_teardowns import CLUSTER, OWNER
from tests.unit.teardown.record_controllers import idle, running_on
from unwind.addons.caches import AddonCaches
from unwind.api.meta import ObjectMeta, ObjectRef, find, manifest
from unwind.api.names import (
    DEADLINE_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    OWNER_LABEL,
    UNKNOWN_USER,
    ConditionType,
    Reason,
)
from unwind.api.resources import SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import (
    INVENTORIES,
    TEARDOWNS,
    Blocker,
    Cause,
    Effort,
    Entry,
    EntryState,
    Inventory,
    InventorySpec,
    LedgerNote,
    MemberRef,
    Phase,
    StepState,
    Teardown,
)
from unwind.deleters.chain_attempt import Waiting
from unwind.inventory.inventories import Inventories
from unwind.kube.controller import ControllerDeps
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.teardown.force_release import LetGo
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal_progress import RecordedRemoval
from unwind.teardown.withdrawal_records import RECORD_AFTER, WithdrawalRecords
from unwind.testing.clock import START, StillClock
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.teardown.status import KnownBlockers
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_runner import StepRunner

HELD = ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name="held", uid="m-1")
STEP = "ClusterProfile/web"
KEEP = timedelta(days=7)


class OwnerOfProd(Owner):
    """Is asked for the shard of the cluster."""

    def owns(self, key: str) -> bool:
        assert key == "fleet/prod"
        return super().owns(key)


class Removing:
    """The runner of a step whose progress a test sets."""

    def __init__(self, reason: str = "") -> None:
        """`reason`: why it waits for an object, if it does."""
        self.state, self.total, self.removed, self.left, self.unsealed = StepState.REMOVING, 3, 1, 0, False
        self.waits = {HELD: Waiting("it waits", code=reason)} if reason else {}

    async def blockers(self, known: object, before: object, now: object) -> KnownBlockers:
        actor = "the user who protected it"
        return {
            (STEP, ref, what.told): Blocker(object=ref, step=STEP, reason=what.code, message=what.told, actor=actor)
            for ref, what in self.waits.items()
        }


class Scene:
    """The records of one manager, and an API that has what a test puts there."""

    def __init__(self) -> None:
        self.objects = Objects(resources=(SECRETS, TEARDOWNS, INVENTORIES, CLUSTER_SUMMARIES))
        client = self.objects.client
        self.clock = StillClock()
        self.caches = AddonCaches(client, clock=self.clock)
        self.keys = RecordKeys(client, namespace="home")
        self.woken = 0
        self.inventories = Inventories(client, namespace="home")
        deps = cast("RemovalDeps", SimpleNamespace(inventories=self.inventories, clock=self.clock, archive=None))
        self.records = WithdrawalRecords(
            ControllerDeps(
                client=client,
                owner=OwnerOfProd(),
                metrics=Metrics(CollectorRegistry()),
                recorder=Recorder(client, instance="test"),
                clock=self.clock,
            ),
            self.caches,
            deps,
            keys=self.keys,
            keep=KEEP,
        )

    def removal(
        self, annotations: dict[str, str] | None = None, *, effort: Effort = Effort.ENFORCE, ago: float = 0.0
    ) -> RecordedRemoval:
        return RecordedRemoval(
            owner=OWNER,
            annotations=annotations or {},
            deleted_at=self.clock.now() - timedelta(seconds=ago),
            member=CLUSTER,
            step=STEP,
            effort=effort,
            wake=self._wake,
        )

    def _wake(self) -> None:
        self.woken += 1

    def follow(self, it: RecordedRemoval, *removals: Removing) -> None:
        self.records.follow(it, lambda: cast("tuple[StepRunner, ...]", removals))

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settled()

    async def settled(self) -> None:
        """Return when the queue is idle."""
        await idle(self.records._queue)

    async def found(self) -> list[Teardown]:
        return msgspec.convert(await self.objects.client.list(TEARDOWNS), list[Teardown])

    async def record(self) -> Teardown:
        [found] = await self.found()
        return found

    def summary(self, **annotations: str) -> None:
        meta = {"name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "annotations": annotations}
        body: dict[str, Any] = {
            "apiVersion": CLUSTER_SUMMARIES.api_version,
            "kind": CLUSTER_SUMMARIES.kind,
            "metadata": meta | {"finalizers": ["unwind.dev/summary"]},
        }
        self.objects.put(body)

    def inventory(self, number: int = 0, *, noted: bool = True, state: EntryState = EntryState.CONFIRMED) -> None:
        note = LedgerNote(reason="Forced", by="ann", at=START) if noted else None
        entry = Entry(object=HELD, resource="configmaps", state=state.value, ledger=note)
        spec = InventorySpec(
            owner=OWNER, member=MemberRef(object=CLUSTER, system_uid="k-1"), chunk=number, entries={"held": entry}
        )
        meta = ObjectMeta(name=f"{OWNER.uid}-{number}", namespace="home", labels={OWNER_LABEL: OWNER.uid})
        self.objects.put(manifest(INVENTORIES, Inventory(metadata=meta, spec=spec)))

    async def inventory_names(self) -> list[str]:
        return [item.metadata.name for item in await self.inventories.of(OWNER.uid)]


@asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    it = Scene()
    async with running_on(it.caches, it.keys, it.records):
        yield it


async def test_a_removal_that_ends_within_five_seconds_writes_nothing() -> None:
    async with running() as it:
        it.follow(it.removal(), Removing())
        await it.pass_time(RECORD_AFTER - 0.1)
        await it.records.end(it.removal(), total=3, removed=3, left=0)
        await it.pass_time(60)
        assert await it.found() == []


async def test_a_removal_that_takes_five_seconds_has_a_record_with_its_progress_and_end() -> None:
    async with running() as it:
        removing = Removing()
        it.follow(it.removal(), removing)
        await it.pass_time(RECORD_AFTER)
        record = await it.record()
        assert (record.metadata.name, record.spec.cause, record.spec.member) == ("s-1", Cause.WITHDRAWN, CLUSTER)
        assert record.spec.title == f"{STEP} on Cluster fleet/prod"
        assert it.keys.genuine(record)
        assert (record.phase, record.status.removed, record.status.wave) == (Phase.REMOVING, "1/3", "1/1")
        removing.removed = 2
        await it.pass_time(1)
        await it.pass_time(1)
        assert (await it.record()).status.removed == "2/3"
        await it.records.end(it.removal(), total=3, removed=3, left=0)
        record = await it.record()
        assert (record.phase, record.status.removed, record.status.left) == (Phase.COMPLETE, "3/3", 0)
        assert [(item.name, item.state) for item in record.status.steps] == [(STEP, "Removed")]


async def test_a_blocker_is_recorded_after_a_second_with_who_must_act() -> None:
    async with running() as it:
        it.follow(it.removal(), Removing("Protected"))
        await it.pass_time(0.5)
        assert await it.found() == []
        await it.pass_time(0.5)
        record = await it.record()
        [blocker] = record.status.blockers
        assert (blocker.object, blocker.reason, blocker.actor) == (HELD, "Protected", "the user who protected it")
        assert record.phase is Phase.HELD


async def test_a_wait_for_dependents_is_a_blocker_but_is_not_recorded_at_once() -> None:
    async with running() as it:
        other = msgspec.structs.replace(OWNER, name="top", uid="s-2")
        waits = Blocker(object=other, reason=Reason.WAITING, message="waiting for top", actor="unwind")
        it.records.hold(it.removal(), waits)
        await it.pass_time(2)
        assert await it.found() == []
        await it.pass_time(3)
        record = await it.record()
        [blocker] = record.status.blockers
        assert (blocker.object.name, blocker.message, blocker.actor) == ("top", "waiting for top", "unwind")
        it.follow(it.removal(), Removing())
        await it.pass_time(1)
        assert (await it.record()).phase is Phase.REMOVING


async def test_a_failed_attempt_stays_in_the_record_until_the_next_one_removes_objects() -> None:
    async with running() as it:
        it.records.hold(it.removal(), Blocker(object=OWNER, reason=Reason.UNREACHABLE, message="no answer"))
        await it.pass_time(1)
        assert [item.reason for item in (await it.record()).status.blockers] == ["Unreachable"]
        since = (await it.record()).status.blockers[0].since
        it.follow(it.removal())
        await it.pass_time(30)
        assert [(item.reason, item.since) for item in (await it.record()).status.blockers] == [("Unreachable", since)]
        it.follow(it.removal(), Removing())
        await it.pass_time(1)
        assert (await it.record()).phase is Phase.REMOVING


async def test_a_removal_that_began_before_the_manager_is_recorded_at_once() -> None:
    async with running() as it:
        it.follow(it.removal(ago=2), Removing())
        await it.settled()
        assert (await it.record()).phase is Phase.REMOVING
    async with running() as it:
        await it.records.end(it.removal(ago=2), total=1, removed=1, left=0)
        assert (await it.record()).phase is Phase.COMPLETE, "also if it ends before the record was written"


async def test_objects_that_are_left_are_recorded() -> None:
    async with running() as it:
        await it.records.end(it.removal(effort=Effort.LEAVE), total=2, removed=0, left=2)
        record = await it.record()
        assert (record.phase, record.status.left) == (Phase.COMPLETE, 2)
        assert [item.state for item in record.status.steps] == ["Left"]


async def test_a_paused_cluster_is_the_blocker_and_no_deadline_passes() -> None:
    async with running() as it:
        deadline = {DEADLINE_ANNOTATION: "10s", ON_DEADLINE_ANNOTATION: "Release"}
        it.records.hold(it.removal(deadline), paused=True)
        await it.pass_time(60)
        record = await it.record()
        assert [item.object for item in record.status.blockers] == [CLUSTER]
        assert find(record.status.conditions, ConditionType.PAUSED)
        assert it.woken == 0
        assert await it.records.let_go(it.removal(deadline), paused=True) is None


async def test_a_removal_with_a_deadline_is_recorded_at_once_and_released_when_it_has_passed() -> None:
    async with running() as it:
        mine = it.removal({DEADLINE_ANNOTATION: "10s", ON_DEADLINE_ANNOTATION: "Release"})
        it.follow(mine, Removing())
        await it.settled()
        assert (await it.record()).spec.deadline == "10s"
        assert await it.records.let_go(mine, paused=False) is None
        for _ in range(11):
            await it.pass_time(1)
        assert it.woken
        let_go = await it.records.let_go(mine, paused=False)
        assert let_go
        assert (let_go.reason, let_go.message) == (Reason.DEADLINE, "deadline of 10s exceeded")


async def test_a_removal_that_is_held_at_its_deadline_says_so_and_goes_on() -> None:
    async with running() as it:
        mine = it.removal({DEADLINE_ANNOTATION: "10s"})
        it.follow(mine, Removing())
        for _ in range(12):
            await it.pass_time(1)
        record = await it.record()
        assert find(record.status.conditions, ConditionType.DEADLINE_EXCEEDED)
        assert it.woken == 0
        assert await it.records.let_go(mine, paused=False) is None


async def test_a_force_release_counts_only_if_a_fresh_read_shows_it_and_no_user_can_name_another() -> None:
    async with running() as it:
        said = {FORCE_RELEASE_ANNOTATION: "broken", FORCE_RELEASE_BY_ANNOTATION: "somebody else"}
        it.summary()
        assert await it.records.let_go(it.removal(said), paused=False) is None, "the cache is older"
    async with running() as it:
        it.summary(**said)
        let_go = await it.records.let_go(it.removal(said), paused=False)
        assert let_go
        assert (let_go.reason, let_go.message) == (Reason.FORCED, "broken")
        assert let_go.by.startswith(UNKNOWN_USER), "no webhook has verified who set the annotation"


async def test_a_released_removal_is_recorded_with_who_released_it() -> None:
    async with running() as it:
        await it.records.end(
            it.removal(), total=3, removed=1, left=2, let_go=LetGo(Reason.FORCED.value, "broken", "ann")
        )
        record = await it.record()
        assert (record.phase, record.status.left) == (Phase.RELEASED, 2)
        assert record.status.release
        assert (record.status.release.by, record.status.release.message) == ("ann", "broken")
        assert [item.state for item in record.status.steps] == ["GivenUp"]


async def test_the_record_of_an_owner_that_is_gone_ends_by_what_its_inventories_say() -> None:
    for noted, phase in ((True, Phase.COMPLETE), (False, Phase.TARGET_GONE)):
        async with running() as it:
            it.inventory(noted=noted)
            it.summary()
            it.follow(it.removal(ago=2), Removing())
            await it.settled()
            it.records.drop(OWNER.uid)
            await it.settled()
            assert (await it.record()).phase is Phase.REMOVING, "its owner is there"
            it.objects.remove(CLUSTER_SUMMARIES, OWNER.name, namespace=OWNER.namespace)
            await it.pass_time(30)
            assert (await it.record()).phase is phase
            assert await it.inventory_names() == ["s-1-0"]


async def test_a_record_is_deleted_with_its_ledger_but_never_with_objects_that_nobody_accounts_for() -> None:
    async with running() as it:
        it.inventory(0)
        it.inventory(1, noted=False)
        await it.records.end(it.removal(), total=2, removed=0, left=2)
        await it.settled()
        await it.pass_time(KEEP.total_seconds() - 1)
        assert len(await it.found()) == 1
        await it.pass_time(1)
        assert await it.found() == []
        assert await it.inventory_names() == ["s-1-1"]


async def test_a_planted_record_is_set_aside_and_the_removal_has_another_name() -> None:
    async with running() as it:
        planted = {
            "apiVersion": TEARDOWNS.api_version,
            "kind": TEARDOWNS.kind,
            "metadata": {"name": OWNER.uid},
            "spec": {"title": "x", "target": msgspec.to_builtins(OWNER), "cause": "Withdrawn"},
            "status": {"phase": "Complete"},
        }
        it.objects.put(planted)
        it.follow(it.removal(ago=2), Removing())
        await it.settled()
        [mine] = [item for item in await it.found() if it.keys.genuine(item)]
        assert mine.metadata.name == list(it.keys.names(OWNER.uid))[1]
        assert mine.phase is Phase.REMOVING


async def test_a_prune_is_named_by_the_generation_and_continues_a_record_that_has_not_ended() -> None:
    async with running() as it:
        it.summary()
        first = msgspec.structs.replace(it.removal(), deleted_at=None, generation=3)
        it.follow(first, Removing("Protected"))
        await it.pass_time(1)
        assert ((await it.record()).metadata.name, (await it.record()).spec.cause) == ("s-1-3", Cause.PRUNED)
        it.records.drop(OWNER.uid, Cause.PRUNED)
        second = msgspec.structs.replace(first, generation=4)
        it.follow(second, Removing("Protected"))
        await it.pass_time(1)
        assert (await it.record()).phase is Phase.HELD
        await it.records.settle(second)
        assert ((await it.record()).metadata.name, (await it.record()).phase) == ("s-1-3", Phase.COMPLETE)
        it.follow(second, Removing("Protected"))
        await it.pass_time(1)
        assert sorted(item.metadata.name for item in await it.found()) == ["s-1-3", "s-1-4"]


async def test_a_small_prune_writes_nothing_and_the_record_of_a_prune_takes_no_inventory_along() -> None:
    async with running() as it:
        mine = msgspec.structs.replace(it.removal(), deleted_at=None, generation=3)
        it.inventory()
        it.follow(mine, Removing())
        await it.pass_time(1)
        await it.records.settle(mine)
        await it.pass_time(10)
        assert await it.found() == []
        it.follow(mine, Removing())
        await it.pass_time(RECORD_AFTER)
        await it.records.settle(mine)
        await it.settled()
        await it.pass_time(KEEP.total_seconds() + 1)
        assert await it.found() == []
        assert await it.inventory_names() == ["s-1-0"], "its owner still has it"


class Volume:
    """An archive that has no documents until a test says so."""

    def __init__(self) -> None:
        self.works = False

    def holds(self, teardown: Teardown) -> bool:
        del teardown
        return self.works


async def test_a_record_that_is_not_archived_is_kept_and_the_next_prune_does_not_wait_for_it() -> None:
    async with running() as it:
        volume = it.records._archive = Volume()
        mine = msgspec.structs.replace(it.removal(), deleted_at=None, generation=3)
        it.follow(mine, Removing("Protected"))
        await it.pass_time(1)
        await it.records.settle(mine)
        await it.settled()
        [first] = await it.found()
        # Another one of the same generation would need its name.
        it.follow(mine, Removing("Protected"))
        await it.pass_time(1)
        await it.records.settle(mine)
        assert [item.metadata.uid for item in await it.found()] == [first.metadata.uid]
        await it.pass_time(KEEP.total_seconds() + 1)
        assert [item.metadata.uid for item in await it.found()] == [first.metadata.uid]
        volume.works = True
        await it.pass_time(60)
        assert await it.found() == []
