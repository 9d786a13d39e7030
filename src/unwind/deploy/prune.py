"""Prunes objects that are no longer in a profile, with the same engine that removes all of them in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.annotation_values import retained
from unwind.api.names import Reason
from unwind.api.resources import STATEFUL_SETS
from unwind.api.unwind import EntryState
from unwind.clock import SYSTEM
from unwind.deploy.reports import ObjectOutcome, ObjectResult
from unwind.inventory.writer import MANIFEST_SOURCES, Change, Records
from unwind.removal import volume_claims
from unwind.removal.removal import Removal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.fields import Unknown
    from unwind.api.unwind import Entry
    from unwind.clock import Clock
    from unwind.deleters.external import ExternalEnds
    from unwind.deleters.registration import External, Registration
    from unwind.deleters.registry import Plugin
    from unwind.deploy.owner_marks import DeploymentOwner
    from unwind.deploy.reports import DeploymentReport
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member


def dropped(entries: Mapping[str, Entry], wanted: Collection[str]) -> dict[str, Entry]:
    """The entries of manifests that are no longer wanted (pure)."""
    sets = {
        entry.object.name for key, entry in entries.items() if key in wanted and entry.object.kind == STATEFUL_SETS.kind
    }

    def concerns(key: str, entry: Entry) -> bool:
        if entry.source.startswith(volume_claims.SOURCE):
            # Claims of a removed StatefulSet, if the removal was interrupted. Kept claims stay in the ledger.
            return not entry.kept and entry.source.removeprefix(volume_claims.SOURCE) not in sets
        return entry.source.startswith(MANIFEST_SOURCES) and key not in wanted

    return {key: entry for key, entry in entries.items() if concerns(key, entry)}


async def prune(
    member: Member,
    inventories: Inventories,
    owner: DeploymentOwner,
    report: DeploymentReport,
    *,
    deleters: Iterable[Registration | External],
    plugins: Iterable[Plugin] = (),
    external_ends: ExternalEnds | None = None,
    take_along: bool = False,
    volumes: Callable[[], VolumePolicy | Unknown] = retained,
    going: Callable[[], Collection[str]] = frozenset,
    started: Callable[[Removal], None] = lambda _: None,
    changed: Callable[[], None] = lambda: None,
    troubled: Callable[[Exception], None] = lambda _: None,
    clock: Clock = SYSTEM,
) -> list[ObjectResult]:
    """Remove the objects that the deployment of `report` no longer wants; return when they are verified absent or left.

    Nothing is removed while the wanted objects are not fully known, because a source is missing or invalid. `started`:
    called with the removal, whose progress tells what it waits for. Raises SealedError if the owner is being removed,
    TransientError if `volumes` is unknown.
    """
    if not report.whole or report.dry_run:
        return []
    records = Records(inventories, owner.object, member)
    await records.load()
    doomed = dropped(records.entries, report.wanted)
    if not doomed:
        return []
    policy = volume_claims.known(
        volumes()
    )  # raised here, and not waited for: the caller reads it again when it retries
    removal = Removal(
        member,
        inventories,
        records.chunks,
        deleters=deleters,
        plugins=plugins,
        external_ends=external_ends,
        only=frozenset(doomed),
        take_along=take_along,
        volumes=lambda: policy,
        going=going,
        changed=changed,
        troubled=troubled,
        clock=clock,
    )
    started(removal)
    await removal.run()
    await records.load()
    results = [_result(entry) for key, entry in records.entries.items() if key in doomed]
    changes: dict[str, Change | None] = {key: None for key, entry in records.entries.items() if _ended(entry)}
    for key in doomed:
        # Kept objects are still ours and are retried: foreign content of a namespace may disappear. The final removal
        # from the cluster writes the ledger.
        changes.setdefault(key, {"ledger": None, "kept": None})
    await records.change(changes)
    return results


def _ended(entry: Entry) -> bool:
    """Whether the object is not ours any more: it is gone, was released, or was taken over by another profile."""
    released = entry.ledger is not None and entry.ledger.reason == Reason.NOT_OURS
    return entry.state == EntryState.REMOVED or released


def _result(entry: Entry) -> ObjectResult:
    left = entry.ledger is not None
    return ObjectResult(
        object=entry.object,
        outcome=ObjectOutcome.LEFT if left else ObjectOutcome.REMOVED,
        source=entry.source,
        message=entry.ledger.message if entry.ledger else "",
    )
