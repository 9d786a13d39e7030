"""Prunes objects that are no longer in a profile or a Work: one step, run as in the removal of all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Reason
from unwind.api.resources import STATEFUL_SETS
from unwind.api.unwind import Effort, EntryState, Step
from unwind.concurrency import unless
from unwind.deploy.helm_install import chart_of
from unwind.deploy.reports import ObjectOutcome, ObjectResult
from unwind.inventory.writer import MANIFEST_SOURCES, Change, Records
from unwind.removal import volume_claims
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_runner import StepRunner
from unwind.teardown.step_sources import StepTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.fields import Unknown
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry, Inventory
    from unwind.deleters.chain_attempt import Failed, Waiting
    from unwind.deploy.reports import DeploymentReport
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.removal.helm_release_removal import Releases
    from unwind.teardown.force_release import LetGo
    from unwind.teardown.step_removers import RemovalDeps


def dropped(entries: Mapping[str, Entry], wanted: Collection[str]) -> dict[str, Entry]:
    """The entries of manifests that are no longer wanted (pure). `wanted`: keys of entries."""
    return _with_claims(
        entries,
        {
            key: entry
            for key, entry in entries.items()
            if entry.source.startswith(MANIFEST_SOURCES) and key not in wanted and not _released(entry)
        },
    )


def dropped_charts(entries: Mapping[str, Entry], wanted: Collection[str]) -> dict[str, Entry]:
    """The entries of charts that are no longer wanted (pure). `wanted`: the sources of charts."""

    def concerns(entry: Entry) -> bool:
        chart, note = chart_of(entry), entry.ledger
        if not chart or chart in wanted or _released(entry):
            return False
        # What the chart itself has Helm keep stays.
        return not (note and (entry.kept or note.reason == Reason.NOT_OURS))

    return _with_claims(entries, {key: entry for key, entry in entries.items() if concerns(entry)})


def _with_claims(entries: Mapping[str, Entry], doomed: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add the claims of StatefulSets that go now, or went in an earlier prune that was interrupted. Kept claims stay in
    the ledger."""
    staying = {
        (entry.object.namespace, f"{volume_claims.SOURCE}{entry.object.name}")
        for key, entry in entries.items()
        if entry.object.kind == STATEFUL_SETS.kind and key not in doomed and entry.state != EntryState.REMOVED
    }
    claims = {
        key: entry
        for key, entry in entries.items()
        if entry.source.startswith(volume_claims.SOURCE)
        and not entry.kept
        and not _released(entry)
        and (entry.object.namespace, entry.source) not in staying
    }
    return {**doomed, **claims}


class Prunes:
    """The prunes of one deployment: on its member, on the management cluster, and of its charts."""

    def __init__(
        self,
        owner: ObjectRef,
        step: str,
        target: ClusterTarget,
        deps: RemovalDeps,
        *,
        take_along: bool = False,
        volumes: Callable[[], VolumePolicy | Unknown],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`step`: the name of its step. `changed`: called when its progress changes."""
        self.runners: list[StepRunner] = []
        self.let_go: LetGo | None = None
        """Why it was released before everything was removed."""
        self.changed = changed
        self._owner = owner
        self._step = step
        self._target = target
        self._deps = deps
        self._take_along = take_along
        self._volumes = volumes
        self._released = asyncio.Event()

    @property
    def waits(self) -> list[Waiting | Failed]:
        return [what for runner in self.runners for what in runner.waits.values()]

    @property
    def inventories(self) -> Inventories:
        return self._deps.inventories

    def records(self, member: Member) -> Records:
        """The entries of the owner on this cluster."""
        return Records(self._deps.inventories, self._owner, member)

    def release(self, let_go: LetGo) -> None:
        """Stop: what is not removed yet stays, and the ledger names it."""
        self.let_go = self.let_go or let_go
        self._released.set()

    async def remove(
        self, chunks: Sequence[Inventory], doomed: Collection[str], *, releases: Releases | None = None
    ) -> None:
        """Return when these entries are verified absent, or left. Raises TransientError if the volume policy is
        unknown."""
        policy = volume_claims.known(self._volumes())  # not waited for: the caller reads it again when it retries
        runner = StepRunner(
            Step(name=self._step, object=self._owner, effort=Effort.ENFORCE.value, wave=1, objects=len(doomed)),
            self._target,
            self._deps,
            teardown=self._owner.uid,
            remover=InventoryRemover(releases),
            terms=lambda: StepTerms(take_along=self._take_along, volumes=policy),
            changed=self.changed,
            known=lambda: chunks,
            only=frozenset(doomed),
        )
        self.runners.append(runner)
        if not await unless(self._released, runner.run()):
            assert self.let_go  # noqa: S101 - released
            await runner.abandon(*self.let_go)


async def prune(prunes: Prunes, member: Member, report: DeploymentReport) -> list[ObjectResult]:
    """Remove the objects that the deployment of `report` no longer wants; return when they are verified absent or left.

    Nothing is removed while the wanted objects are not fully known, because a source is missing or invalid. Raises
    SealedError if the owner is being removed, TransientError if the volume policy is unknown.
    """
    if not report.whole or report.dry_run:
        return []
    records = prunes.records(member)
    await records.load()
    doomed = dropped(records.entries, report.wanted)
    if not doomed:
        return []
    await prunes.remove(records.chunks, doomed.keys())
    after = await _settle(records, doomed)
    return [_result(entry) for key, entry in after.items() if key in doomed]


async def prune_charts(prunes: Prunes, member: Member, releases: Releases, wanted: Collection[str]) -> None:
    """Uninstall the releases that are no longer wanted; return when their objects are verified absent or left.
    `wanted`: the sources of charts."""
    records = prunes.records(member)
    await records.load()
    doomed = dropped_charts(records.entries, wanted)
    if not doomed:
        return
    await prunes.remove([_only(chunk, doomed) for chunk in records.chunks], doomed.keys(), releases=releases)
    await _settle(records, doomed)


def _only(chunk: Inventory, keys: Collection[str]) -> Inventory:
    entries = {key: entry for key, entry in chunk.spec.entries.items() if key in keys}
    return msgspec.structs.replace(chunk, spec=msgspec.structs.replace(chunk.spec, entries=entries))


async def _settle(records: Records, doomed: Mapping[str, Entry]) -> dict[str, Entry]:
    """Delete the entries of objects that a prune removed, and have those that it left decided again by the next
    removal. `doomed`: the entries before. Returns all entries after the prune."""
    await records.load()
    after = records.entries
    # Also of claims that were found during the removal.
    changes: dict[str, Change | None] = {key: None for key, entry in after.items() if _ended(entry)}
    for key, before in doomed.items():
        entry = after.get(key)
        if entry and entry.ledger and not _released(entry):
            # Kept objects are still ours and are retried: foreign content of a namespace may disappear.
            change: Change = {"ledger": {"provisional": True}}
            if not (before.kept and chart_of(before)):  # what a chart has Helm keep stays kept
                change["kept"] = None
            changes.setdefault(key, change)
    await records.change(changes)
    return after


def _released(entry: Entry) -> bool:
    """Whether a user or a deadline released the object from an earlier prune: it stays (pure)."""
    return entry.left and entry.ledger is not None and entry.ledger.reason in (Reason.FORCED, Reason.DEADLINE)


def _ended(entry: Entry) -> bool:
    """Whether the object is not ours any more: it is gone, was released, or was taken over by another profile."""
    released = entry.ledger is not None and entry.ledger.reason == Reason.NOT_OURS
    return entry.state == EntryState.REMOVED or released


def _result(entry: Entry) -> ObjectResult:
    left = entry.ledger is not None and entry.state != EntryState.REMOVED
    return ObjectResult(
        object=entry.object,
        outcome=ObjectOutcome.LEFT if left else ObjectOutcome.REMOVED,
        source=entry.source,
        message=entry.ledger.message if entry.ledger else "",
    )
