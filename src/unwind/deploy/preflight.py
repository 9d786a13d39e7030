"""Reads the wanted and the existing objects of a deployment before anything is written."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import OWNER_LABEL
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import EntryState
from unwind.concurrency import gather_limited
from unwind.deploy import owner_marks, placements
from unwind.deploy.placements import PlacedObject, inventory_key
from unwind.deploy.reports import ObjectOutcome, ObjectResult
from unwind.kube import decoding
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry
    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.owner_marks import LiveMarks
    from unwind.deploy.placements import Placement
    from unwind.members.member import Member

_AT_ONCE = 32
# From this number on, one list of all our objects is cheaper than a get for each.
_MANY = 4
_LASTING = {"create", "get", "delete"}


class Wanted(msgspec.Struct, frozen=True):
    """The wanted objects of a deployment."""

    objects: dict[str, PlacedObject]
    failed: list[ObjectResult]
    """Objects that cannot be deployed."""
    faults: tuple[str, ...]
    whole: bool


async def wanted_objects(
    member: Member, sources: list[ManifestSource], entries: Mapping[str, Entry], *, home: str, within: str = ""
) -> Wanted:
    """The objects of the sources on this member, with the namespaces that they need.

    `home`: Unwind's own namespace. On the management cluster, profiles may not deploy into it.
    """
    reserved = home if member.ref.kind == NAMESPACES.kind else ""
    placement = await _placement(member, sources, within, reserved)
    needed = {item.ref.namespace for item in placement.objects.values()} - {""}
    foreign: set[str] = set()

    async def look(name: str) -> None:
        # Namespaces in the inventory are ours: if they were not wanted, they would be pruned.
        if inventory_key("", NAMESPACES.kind, "", name) in entries:
            return
        # Absence must be read from the API server, because the namespace is created then.
        if await member.resolver.namespace(name) is None and not await _exists(member, name):
            return
        foreign.add(name)

    await gather_limited((look(name) for name in sorted(needed)), limit=_AT_ONCE)
    implied = {} if within else placements.implied(placement, foreign)
    failed = [
        ObjectResult(object=item.ref, outcome=ObjectOutcome.FAILED, source=str(item.source), message=item.why)
        for item in placement.misplaced
    ]
    faults = tuple(fault for source in sources for fault in source.faults)
    return Wanted(placement.objects | implied, failed, faults, whole=not faults and not failed)


async def _exists(member: Member, namespace: str) -> bool:
    try:
        await member.client.get(NAMESPACES, namespace)
    except NotFoundError:
        return False
    return True


async def there(
    member: Member, objects: Iterable[PlacedObject], entries: Mapping[str, Entry], owner: str
) -> dict[str, LiveMarks]:
    """The existing objects of earlier deployments, by key. An object that is missing here may exist nevertheless."""
    confirmed = [obj for obj in objects if (it := entries.get(obj.key)) and it.state == EntryState.CONFIRMED]
    by_resource: dict[Resource, list[PlacedObject]] = {}
    for placed in confirmed:
        by_resource.setdefault(placed.resource, []).append(placed)
    found: dict[str, LiveMarks] = {}

    async def look(placed: PlacedObject) -> None:
        try:
            live = await member.client.get(placed.resource, placed.ref.name, namespace=placed.ref.namespace or None)
        except NotFoundError:
            return
        found[placed.key] = owner_marks.seen(live["metadata"])

    many = [resource for resource, some in by_resource.items() if len(some) >= _MANY]
    await gather_limited((_listed(member, resource, owner, found) for resource in many), limit=_AT_ONCE)
    # The label may have been removed from objects that are not in the list.
    left = [item for item in confirmed if item.key not in found]
    await gather_limited((look(item) for item in left), limit=_AT_ONCE)
    return found


async def _listed(member: Member, resource: Resource, owner: str, found: dict[str, LiveMarks]) -> None:
    view = decoding.metadata(resource)
    pages = member.client.pages(resource, labels=f"{OWNER_LABEL}={owner}", accept=view.accept_list)
    async with aclosing(pages):
        async for page in pages:
            for item in page.items or ():
                metadata = msgspec.json.decode(item, type=_Partial).metadata
                key = inventory_key(resource.group, resource.kind, metadata.get("namespace") or "", metadata["name"])
                found[key] = owner_marks.seen(metadata)


class _Partial(msgspec.Struct):
    metadata: dict[str, Any]


async def _placement(member: Member, sources: list[ManifestSource], within: str, reserved: str) -> Placement:
    placement = await _placed(member, sources, within, reserved, anew=False)
    if any(item.unserved for item in placement.misplaced):
        # Discovery may be stale.
        placement = await _placed(member, sources, within, reserved, anew=True)
    return placement


async def _placed(
    member: Member, sources: list[ManifestSource], within: str, reserved: str, *, anew: bool
) -> Placement:
    # Kinds that are not stored, such as SubjectAccessReview, cannot be deployed.
    served = [kind.resource for kind in await member.discovery.kinds(anew=anew) if kind.verbs >= _LASTING]
    return placements.place(sources, served, within=within, reserved=reserved)
