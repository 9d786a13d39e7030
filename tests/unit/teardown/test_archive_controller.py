"""The controller of the archive: what is written when, and what is not deleted before that."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.owners import Owner
from tests.unit.teardown.archived_teardowns import block, inventory, teardown, with_timeline
from tests.unit.teardown.record_controllers import idle, running_on
from unwind.addons.caches import AddonCaches
from unwind.api.meta import manifest
from unwind.api.names import SET_ASIDE_LABEL, EventReason
from unwind.api.resources import SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Cause, Phase, Teardown
from unwind.inventory.inventories import Inventories
from unwind.kube.cache import Change
from unwind.kube.controller import ControllerDeps
from unwind.kube.decoding import Key
from unwind.kube.metrics import Metrics
from unwind.teardown.archive_controller import ASK_AGAIN, ArchiveController, may_forget
from unwind.teardown.archive_directory import ArchiveDirectory, SkippedFile
from unwind.teardown.records import left_of
from unwind.teardown.signatures import RecordKeys
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.teardown.archive_documents import ArchivedTeardown


class Events:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.notes: list[str] = []

    def report(self, regarding: object, reason: str, note: str, **_: object) -> None:
        del regarding
        self.reasons.append(reason)
        self.notes.append(note)


class Scene:
    """The archive of one manager, and an API that has what a test puts there."""

    def __init__(self, path: Path, before: Scene | None = None) -> None:
        """`before`: the manager that was killed."""
        kinds = (SECRETS, TEARDOWNS, INVENTORIES, CLUSTER_SUMMARIES)
        self.objects: Objects = before.objects if before else Objects(resources=kinds)
        client = self.objects.client
        self.clock = StillClock()
        self.clock.advance(70)
        self.version = 7
        self.caches = AddonCaches(client, clock=self.clock)
        self.keys = RecordKeys(client, namespace="home")
        self.shards, self.events, self.registry = Owner(), Events(), CollectorRegistry()
        self.directory = ArchiveDirectory(path)
        self.archive = ArchiveController(
            ControllerDeps(
                client=client,
                owner=self.shards,
                metrics=Metrics(CollectorRegistry()),
                recorder=cast("Any", self.events),
                clock=self.clock,
            ),
            self.directory,
            self.caches,
            Inventories(client, namespace="home"),
            keys=self.keys,
            registry=self.registry,
        )

    def see(self, one: Teardown) -> Teardown:
        """As if the informer had the Teardown, signed."""
        signed = self.keys.signed(one)
        self.version += 1
        meta = msgspec.structs.replace(signed.metadata, resource_version=str(self.version))
        signed = msgspec.structs.replace(signed, metadata=meta)
        self.caches.teardowns.take(signed)
        return signed

    async def settled(self) -> None:
        """Return when the queue is idle. Files are written in a thread, so this takes real time."""
        await idle(self.archive._queue, every=0.001)

    def documents(self) -> list[ArchivedTeardown]:
        return [item for item in self.directory.documents() if not isinstance(item, SkippedFile)]

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


@asynccontextmanager
async def running(path: Path, before: Scene | None = None) -> AsyncIterator[Scene]:
    it = Scene(path, before)
    async with running_on(it.caches, it.keys, it.archive):
        yield it


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.finished])
async def test_every_end_is_written_once_with_its_ledger(tmp_path: Path, phase: Phase) -> None:
    async with running(tmp_path) as it:
        it.objects.put(manifest(INVENTORIES, inventory()))
        ended = it.see(teardown(phase=phase))
        await it.settled()
        [document] = it.documents()
        assert document.teardown.status == ended.status
        assert [line.object.name for line in document.ledger] == ["data"]
        assert it.archive.holds(ended)
        assert it.metric("unwind_archived_teardowns_total") == 1
        assert it.metric("unwind_archive_pending_teardowns") == 0
        it.see(teardown(phase=phase))
        await it.settled()
        assert it.metric("unwind_archived_teardowns_total") == 1


async def test_a_teardown_that_runs_or_that_the_manager_ignores_is_not_written(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        it.see(teardown(phase=Phase.HELD))
        aside = teardown(uid="t-2", name="other")
        meta = msgspec.structs.replace(aside.metadata, name="c-2", labels={SET_ASIDE_LABEL: "true"})
        it.see(msgspec.structs.replace(aside, metadata=meta))
        other = RecordKeys(it.objects.client, namespace="elsewhere")
        await other.load()
        meta = msgspec.structs.replace(teardown(uid="t-3").metadata, name="c-3")
        it.caches.teardowns.take(other.signed(msgspec.structs.replace(teardown(), metadata=meta)))
        await it.settled()
        assert it.documents() == []
        assert it.metric("unwind_archive_pending_teardowns") == 0


async def test_the_ledger_of_another_is_not_read_for_a_plan_that_the_manager_did_not_write(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        it.objects.put(manifest(INVENTORIES, inventory()))
        meta = msgspec.structs.replace(teardown().metadata, resource_version="9")
        it.caches.teardowns.take(msgspec.structs.replace(teardown(), metadata=meta))
        await it.settled()
        [document] = it.documents()
        assert document.ledger == ()


async def test_what_ended_while_no_manager_ran_is_written_by_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as first:
        first.shards.lose_all(told=False)  # killed before it wrote anything
        ended = first.see(teardown())
        await first.settled()
        assert first.documents() == []
    async with running(tmp_path, first) as next_one:
        next_one.caches.teardowns.take(ended)
        await next_one.settled()
        assert len(next_one.documents()) == 1


async def test_a_full_disk_is_reported_retried_and_keeps_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(tmp_path) as it:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            ended = it.see(teardown())
            await it.settled()
            assert it.documents() == []
            assert it.events.reasons == [EventReason.NOT_ARCHIVED]
            assert "No space left on device" in it.events.notes[0]
            assert it.metric("unwind_archive_failures_total") == 1
            assert it.metric("unwind_archive_pending_teardowns") == 1
            now = it.clock.now() + timedelta(days=8)
            for _ in range(20):
                # Those who want to delete it ask again and again: that does not shorten the back-off.
                assert left_of(ended, keep=timedelta(days=7), now=now, archive=it.archive) == ASK_AGAIN
            await it.settled()
            assert it.metric("unwind_archive_failures_total") == 1
            it.clock.advance(1)
            await it.settled()
            assert it.metric("unwind_archive_failures_total") == 2
        it.clock.advance(600)
        await it.settled()
        assert len(it.documents()) == 1
        assert left_of(ended, keep=timedelta(days=7), now=now, archive=it.archive) == 0
        assert it.metric("unwind_archive_pending_teardowns") == 0


async def test_without_an_archive_nothing_is_kept_longer() -> None:
    assert may_forget(None, teardown())


async def test_a_replica_finds_what_another_one_wrote(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        it.shards.lose_all(told=False)
        ended = it.see(teardown())
        await it.settled()
        assert not it.archive.holds(ended)
        await it.settled()
        assert not it.archive.holds(ended)
        async with running(tmp_path, it) as other:
            other.caches.teardowns.take(ended)
            await other.settled()
        assert not it.archive.holds(ended)  # not known yet
        await it.settled()
        assert it.archive.holds(ended)
        assert it.metric("unwind_archived_teardowns_total") == 0


async def test_a_replica_that_takes_over_writes_what_is_missing(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        it.shards.lose_all(told=False)
        it.see(teardown())
        await it.settled()
        it.shards.gain_all()
        await it.settled()
        assert len(it.documents()) == 1


async def test_a_record_that_a_user_deletes_at_once_is_written_from_what_was_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        ended = it.see(teardown())
        it.archive._teardown_changed(_deleted(ended))
        await it.settled()
        assert len(it.documents()) == 1


async def test_the_end_of_a_cluster_is_written_when_its_status_has_settled(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        now = it.clock.now()
        one = teardown()
        one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, finished_at=now))
        it.see(one)
        await it.settled()
        assert it.documents() == []
        it.clock.advance(3.1)
        await it.settled()
        assert len(it.documents()) == 1


async def test_a_cancelled_deletion_is_written_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        one = teardown(cause=Cause.REQUESTED, phase=Phase.CANCELLED)
        one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, finished_at=it.clock.now()))
        it.see(one)
        await it.settled()
        assert len(it.documents()) == 1


async def test_entries_that_a_timeline_drops_outlive_the_process(tmp_path: Path) -> None:
    async with running(tmp_path) as first:
        first.see(with_timeline(teardown(phase=Phase.HELD), block("a", 1, 20), block("b", 2, 30)))
        first.see(with_timeline(teardown(phase=Phase.HELD), block("b", 2, 30), omitted=1))
        await first.settled()
        assert [entry.object.name for entry in first.directory.kept_entries("t-1") if entry.object] == ["a"]
    async with running(tmp_path, first) as next_one:
        next_one.see(with_timeline(teardown(), block("b", 2, 30), omitted=1))
        await next_one.settled()
        [document] = next_one.documents()
        assert [entry.object.name for entry in document.timeline if entry.object] == ["a", "b"]
        assert document.timeline_omitted == 0
        assert next_one.directory.kept_entries("t-1") == []


def _deleted(one: Teardown) -> Change[Teardown]:
    return Change(key=Key("", one.metadata.name), old=one, new=None)
