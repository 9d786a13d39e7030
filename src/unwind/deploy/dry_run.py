"""Dry run of a deployment (syncMode DryRun): reports what would be done, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.concurrency import gather_limited
from unwind.deploy import apply, owner_marks, preflight
from unwind.deploy.owner_marks import Claim
from unwind.deploy.prune import dropped
from unwind.deploy.reports import DeploymentReport, ObjectOutcome, ObjectResult
from unwind.inventory.writer import Records
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Entry
    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.owner_marks import DeploymentOwner, LiveMarks
    from unwind.deploy.placements import PlacedObject
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member

_AT_ONCE = 64


async def rehearse(
    member: Member,
    inventories: Inventories,
    owner: DeploymentOwner,
    sources: Iterable[ManifestSource],
    *,
    within: str = "",
) -> DeploymentReport:
    """What `deploy` and `prune` would do. Uses server-side dry runs, so that denials by admission are reported, too."""
    records = Records(inventories, owner.object, member)
    await records.load()
    entries = records.entries
    wanted = await preflight.wanted_objects(member, list(sources), entries, home=inventories.namespace, within=within)
    results: dict[str, ObjectResult] = {}

    async def one(placed: PlacedObject) -> None:
        outcome, message = await _would(member, placed, owner, entries.get(placed.key), wanted.objects)
        results[placed.key] = ObjectResult(
            object=placed.ref, outcome=outcome, source=str(placed.source), message=message
        )

    await gather_limited((one(placed) for placed in wanted.objects.values()), limit=_AT_ONCE)
    gone = dropped(entries, frozenset(wanted.objects)) if wanted.whole else {}
    removed = [ObjectResult(object=it.object, outcome=ObjectOutcome.REMOVED, source=it.source) for it in gone.values()]
    return DeploymentReport(
        results=(*(results[key] for key in wanted.objects), *wanted.failed, *removed),
        faults=wanted.faults,
        wanted=frozenset(wanted.objects),
        whole=wanted.whole,
        dry_run=True,
    )


async def _would(
    member: Member, placed: PlacedObject, owner: DeploymentOwner, entry: Entry | None, others: dict[str, PlacedObject]
) -> tuple[ObjectOutcome, str]:
    ref = placed.ref
    try:
        live = await member.client.get(placed.resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return await _created(member, placed, owner, others)
    except ApiError as error:
        if error.code == 404:
            # Its CRD would be created by the same deployment: a dry run is not possible yet.
            return ObjectOutcome.CREATED, "not checked: its kind is not served yet"
        return ObjectOutcome.FAILED, apply.error_text(placed, error)
    it = owner_marks.seen(live["metadata"])
    if it.terminating:
        return ObjectOutcome.FAILED, "an object of this name is being deleted; deploy it when that is gone"
    ours = entry is not None and entry.object.uid == it.uid
    match owner_marks.claim(it, owner):
        case Claim.TAKEN:
            way_out = "remove it from one of them, or use a lower tier here"
            return ObjectOutcome.CONFLICT, f"managed by {it.profile} (tier {it.tier}); {way_out}"
        case Claim.WON:
            message = f"would be taken over from {it.profile}"
        case Claim.FOREIGN if not ours and not owner.adopt:
            return ObjectOutcome.CONFLICT, apply.FOREIGN
        case Claim.FOREIGN if not ours:
            message = "would be adopted"
        case _:
            message = ""
    return await _updated(member, placed, owner, it, message)


async def _created(
    member: Member, placed: PlacedObject, owner: DeploymentOwner, others: dict[str, PlacedObject]
) -> tuple[ObjectOutcome, str]:
    try:
        # An apply, because it supports dry run; there is no object that it could change.
        await member.client.apply(placed.resource, owner_marks.with_owner_marks(placed, owner), dry_run=True)
    except NotFoundError as error:
        if any(item.ref.kind == "Namespace" and item.ref.name == placed.ref.namespace for item in others.values()):
            return ObjectOutcome.CREATED, "not checked: its namespace does not exist yet"
        return ObjectOutcome.FAILED, apply.error_text(placed, error)
    except ApiError as error:
        return ObjectOutcome.FAILED, apply.error_text(placed, error)
    return ObjectOutcome.CREATED, ""


async def _updated(
    member: Member, placed: PlacedObject, owner: DeploymentOwner, it: LiveMarks, message: str
) -> tuple[ObjectOutcome, str]:
    body = owner_marks.with_owner_marks(placed, owner, adopted=it.adopted)
    if not message and owner_marks.hash_in(body) == it.hash:
        return ObjectOutcome.UNCHANGED, ""
    try:
        await member.client.apply(
            placed.resource, body | {"metadata": body["metadata"] | {"uid": it.uid}}, dry_run=True
        )
    except ApiError as error:
        return ObjectOutcome.FAILED, apply.error_text(placed, error)
    return ObjectOutcome.UPDATED, message
