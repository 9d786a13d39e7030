"""Snapshots: what a handle deployed, with the uids that its objects have on the member, recorded as an Inventory.

A deployer records names. A name can belong to another object by the time it is deleted, so a snapshot is taken before
anything is deleted, and only objects with the deployer's mark count as deployed by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import API_SERVICES, BUILT_IN_GROUPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, STATEFUL_SETS
from unwind.api.unwind import Entry, EntryState
from unwind.concurrency import SingleFlight, gather_limited
from unwind.deploy.placements import inventory_key
from unwind.errors import UnwindError
from unwind.inventory.writer import Records
from unwind.kube import decoding
from unwind.kube.decoding import Metadata
from unwind.kube.errors import NotFoundError
from unwind.members import contents
from unwind.removal import volume_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unwind.api.resources import Resource
    from unwind.api.unwind import Effort
    from unwind.companions.companion import Companion, Handle, HandleEntry
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client
    from unwind.members.member import Member

_AT_ONCE = 16
_Kind = tuple[str, str, str]
"""Group, kind and version."""
_CONFIRMED, _INTENDED = EntryState.CONFIRMED.value, EntryState.INTENDED.value
# Up to this number of objects of a kind are read one by one; for more, all objects of the kind are listed.
_FEW = 8


class Snapshot(msgspec.Struct, frozen=True):
    """What a handle deployed."""

    entries: dict[str, Entry]
    """By key. An entry without a uid has no object on the member yet."""
    foreign: tuple[ObjectRef, ...] = ()
    """Objects that the deployer lists and that do not carry its mark: they are not touched, and not waited for."""
    found: dict[str, Metadata] = {}
    """The metadata of the entries with an object, by key."""


class FoundObject(NamedTuple):
    """What is known about an object on a member."""

    resource: Resource | None
    """None: its CRD is gone, and with it the object."""
    metadata: Metadata | None = None
    """None: it does not exist."""


class MemberObjects:
    """The metadata of objects on a member, read once for all handles of a cluster."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._resources: dict[_Kind, Resource | None] = {}
        self._listed: dict[Resource, dict[tuple[str, str], Metadata]] = {}
        """By namespace and name."""
        self._tables: dict[_Kind, tuple[Resource | None, dict[tuple[str, str], Metadata]]] = {}
        """The same for each kind that was asked for, which may be in several versions."""
        self._listing: SingleFlight[None] = SingleFlight()

    async def resource(self, ref: ObjectRef) -> Resource | None:
        """The resource of an object, in its own version or another one; None if its CRD is gone, and so the object."""
        kind = (ref.group, ref.kind, ref.version)
        if kind not in self._resources:
            self._resources[kind] = await served_resource(self._member, ref)
        return self._resources[kind]

    async def expect(self, refs: Iterable[ObjectRef]) -> None:
        """List the kinds of which many objects are needed."""
        wanted: dict[_Kind, list[ObjectRef]] = {}
        for ref in refs:
            wanted.setdefault((ref.group, ref.kind, ref.version), []).append(ref)

        async def read(kind: _Kind, ref: ObjectRef) -> None:
            resource = await self.resource(ref)
            if resource:
                await self._listing.ask(resource, lambda: self._list(resource))
            self._tables[kind] = resource, self._listed[resource] if resource else {}

        await gather_limited(
            (read(kind, those[0]) for kind, those in wanted.items() if len(those) > _FEW), limit=_AT_ONCE
        )

    def table(self, kind: _Kind) -> tuple[Resource | None, dict[tuple[str, str], Metadata]] | None:
        """The resource of a kind, and all objects of it by namespace and name, if it was listed; otherwise None."""
        return self._tables.get(kind)

    async def find(self, ref: ObjectRef) -> FoundObject:
        """An object by its name."""
        resource = await self.resource(ref)
        if resource is None:
            return FoundObject(None)
        listed = self._listed.get(resource)
        if listed is not None:
            return FoundObject(resource, listed.get((ref.namespace, ref.name)))
        return FoundObject(resource, await read_metadata(self._member.client, resource, ref))

    async def _list(self, resource: Resource) -> None:
        if resource not in self._listed:
            found = await contents.of_kind(self._member.client, resource, ahead=True)
            self._listed[resource] = {(item.metadata.namespace, item.metadata.name): item.metadata for item in found}


async def read_metadata(client: Client, resource: Resource, ref: ObjectRef) -> Metadata | None:
    """The metadata of the object of this name; None if there is none."""
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return None
    return decoding.metadata(resource).decode(msgspec.Raw(msgspec.json.encode(found)))


async def served_resource(member: Member, ref: ObjectRef, *, anew: bool = False) -> Resource | None:
    """The resource of an object, in its own version or another one that is served; None if its CRD is gone, and with it
    all objects of the kind. Raises if that is unknown. `anew`: do not use cached discovery."""
    for again in (True,) if anew else (False, True):
        kinds = [item.resource for item in await member.discovery.kinds(anew=again)]
        versions = [kind for kind in kinds if (kind.group, kind.kind) == (ref.group, ref.kind)]
        if versions:
            return next((kind for kind in versions if kind.version == ref.version), versions[0])
    client = member.client
    definitions = [item["spec"] for item in await client.list(CUSTOM_RESOURCE_DEFINITIONS)]
    services = [item["spec"] for item in await client.list(API_SERVICES)]
    if (
        ref.group in BUILT_IN_GROUPS
        or any((spec["group"], spec["names"]["kind"]) == (ref.group, ref.kind) for spec in definitions)
        or any(spec.get("group") == ref.group and spec.get("service") for spec in services)
    ):
        raise UnwindError(
            f"cannot determine whether {ref} exists: its API is not served by the cluster",
            remedy=f"check `kubectl get apiservices` and the CRD of {ref.kind}",
        )
    await member.verify()  # absence counts only if this is the recorded cluster
    return None


async def take(objects: MemberObjects, companion: Companion, handle: Handle) -> Snapshot:
    """The snapshot of a handle, read from the member."""
    entries: dict[str, Entry] = {}
    there: dict[str, Metadata] = {}
    foreign: list[ObjectRef] = []
    own = source_of(handle.ref)

    def add(listed: HandleEntry, resource: Resource | None, metadata: Metadata | None) -> None:
        if resource is None:
            return  # the kind is gone
        if listed.kept and metadata is None:
            return  # there is nothing to keep
        # What a deployer keeps is not touched in any case, and need not carry its mark: CRDs of a chart do not.
        if metadata and not listed.kept and not companion.is_marked(handle.ref, metadata):
            foreign.append(listed.object)
            return
        kept = listed.kept or (companion.why_kept(handle.ref, resource.kind, metadata) if metadata else "")
        key = entry_key(listed.object)
        source = source_of(handle.ref, kept) if kept else own
        entries[key] = entry_of(listed.object, resource, metadata, source=source, kept=bool(kept))
        if metadata:
            there[key] = metadata

    async def look(listed: HandleEntry) -> None:
        add(listed, *await objects.find(listed.object))

    # Without a task for each of thousands of objects whose kinds are listed.
    unknown: list[HandleEntry] = []
    for listed in handle.entries:
        ref = listed.object
        if table := objects.table((ref.group, ref.kind, ref.version)):
            add(listed, table[0], table[1].get((ref.namespace, ref.name)))
        else:
            unknown.append(listed)
    if unknown:
        await objects.expect([entry.object for entry in unknown])
        await gather_limited((look(entry) for entry in unknown), limit=_AT_ONCE)
    return Snapshot(dict(sorted(entries.items())), tuple(sorted(foreign, key=str)), there)


def entry_key(ref: ObjectRef) -> str:
    """The key of an object in a snapshot (pure)."""
    return inventory_key(ref.group, ref.kind, ref.namespace, ref.name)


def entry_of(ref: ObjectRef, resource: Resource, found: Metadata | None, *, source: str, kept: bool) -> Entry:
    """The inventory entry of an object that a deployer lists (pure). `found`: the object on the member. `source`: see
    `source_of`."""
    return Entry(
        # Not `structs.replace`, which takes longer: there are thousands.
        object=ObjectRef(
            group=ref.group,
            version=resource.version,
            kind=ref.kind,
            namespace=ref.namespace,
            name=ref.name,
            uid=found.uid if found else "",
        ),
        resource=resource.plural,
        state=_CONFIRMED if found else _INTENDED,
        source=source,
        kept=kept,
    )


def source_of(handle: ObjectRef, kept: str = "") -> str:
    """The `source` of an entry (pure): the handle, and why its deployer keeps the object."""
    name = f"{handle.kind} {handle.namespace}/{handle.name}"
    return f"{name}: {kept}" if kept else name


def why_kept(entry: Entry) -> str:
    """Why a deployer does not delete an object, from its entry (pure)."""
    if volume_claims.is_retained(entry):
        return volume_claims.why_not_deployed(entry)
    return entry.source.partition(": ")[2] or "its deployer keeps it"


async def staying_claims(member: Member, entries: Iterable[Entry]) -> dict[str, Entry]:
    """The claims of StatefulSets among these entries that stay when a deployer deletes them, by entry key.

    They are recorded right before that, and are no part of a snapshot: until then, they belong to no step, so that a
    drain can delete them. Not those in a Namespace that the deployer deletes with everything in it.
    """
    going = [entry for entry in entries if entry.object.uid and not entry.kept]
    emptied = {it.object.name for it in going if (it.object.group, it.object.kind) == ("", NAMESPACES.kind)}
    deployed = {entry.object.uid for entry in going}
    found: dict[str, Entry] = {}

    async def look(ref: ObjectRef) -> None:
        try:
            there = await member.client.get(STATEFUL_SETS, ref.name, namespace=ref.namespace)
        except NotFoundError:
            return
        if there["metadata"]["uid"] == ref.uid:
            for claim in await volume_claims.of_set(member, there, order=0):
                if claim.kept and claim.object.uid not in deployed:
                    found[f"pvc-{claim.object.uid}"] = claim

    sets = [it.object for it in going if (it.object.group, it.object.kind) == (STATEFUL_SETS.group, STATEFUL_SETS.kind)]
    await gather_limited((look(ref) for ref in sets if ref.namespace not in emptied), limit=_AT_ONCE)
    return found


async def record(
    inventories: Inventories, member: Member, handle: Handle, snapshot: Snapshot, *, effort: Effort
) -> None:
    """Write a snapshot as the Inventory of the handle. A removal that has started keeps the snapshot it has."""
    await Records(inventories, handle.ref, member, effort=effort).put_unless_sealed(snapshot.entries)


async def record_all(
    inventories: Inventories,
    member: Member,
    handles: Sequence[Handle],
    companion_of: Callable[[Handle], Companion],
    effort_of: Callable[[Handle], Effort],
) -> dict[str, Snapshot]:
    """The snapshots of all handles of a cluster, by the uid of the handle, each recorded as an Inventory."""
    objects, found = MemberObjects(member), dict[str, Snapshot]()
    # All at once, so that a kind is listed once and not read object by object for each handle.
    await objects.expect([entry.object for handle in handles for entry in handle.entries])

    async def one(handle: Handle) -> None:
        snapshot = found[handle.ref.uid] = await take(objects, companion_of(handle), handle)
        await record(inventories, member, handle, snapshot, effort=effort_of(handle))

    await gather_limited((one(handle) for handle in handles), limit=_AT_ONCE)
    return found
