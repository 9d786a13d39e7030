"""How a member serves the objects of an inventory now: whatever it did when they were written down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS, SERVICES, STATEFUL_SETS
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again
from unwind.inventory.inventories import Item
from unwind.kube import fencing
from unwind.kube.errors import NotFoundError
from unwind.removal import volume_claims
from unwind.removal.order import BUILT_IN, Facts, served_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry, Inventory
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Object
    from unwind.kube.discovery import ServedKind
    from unwind.members.member import Member
    from unwind.removal.releases import Releases
    from unwind.removal.volume_claims import Volume


class Served:
    """What a member serves, by kind: among ten thousand objects nobody goes through a list for each."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kinds: Sequence[ServedKind] = ()
        """As the member's discovery has them: shared by all removals, which have few kinds each."""
        self._versions: dict[tuple[str, str], dict[str, Resource]] = {}
        """Of the kinds that were asked for."""
        self._gone: set[tuple[str, str]] = set()
        self._asking = asyncio.Lock()

    async def resource(self, item: Item, *, anew: bool = False) -> Resource | None:
        """The resource in the version that is recorded, or in the one that is served instead; None if its CRD is gone,
        and with it all that there was of it. `anew`: there is reason to doubt what was known before."""
        it = item.entry.object
        kind = (it.group, it.kind)
        if not anew and (found := self._find(kind, it.version)):
            return found
        async with self._asking:  # many may want to know the same: one asks
            # What was recorded before the kind went cannot have come back with it.
            if kind in self._gone:
                return None
            for again in (True,) if anew else (False, True):
                self._take(await self._member.discovery.kinds(anew=again))
                if found := self._find(kind, it.version):
                    return found
            if await self._is_gone(item.resource):
                self._gone.add(kind)
                return None
        # What there is of it is not known, and so it is not gone.
        return item.resource

    def _find(self, kind: tuple[str, str], version: str) -> Resource | None:
        if kind not in self._versions:
            found = self._versions[kind] = {}
            for item in self._kinds:  # in the server's order of preference
                it = item.resource
                if (it.group, it.kind) == kind:
                    found.setdefault(it.version, it)
        versions = self._versions[kind]
        return (versions.get(version) or next(iter(versions.values()))) if versions else None

    def _take(self, kinds: Sequence[ServedKind]) -> None:
        self._kinds = kinds
        self._versions = {}

    async def _is_gone(self, recorded: Resource) -> bool:
        """Whether a kind that is not served does not exist any more, and is not merely out of sight for now."""
        if recorded.group in BUILT_IN:
            return False  # the API server's own: where it is switched off, its objects are still in the storage
        client = self._member.client
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{recorded.plural}.{recorded.group}")
        except NotFoundError:
            pass
        else:
            return False
        # Another server may have it, and be away.
        services = [service["spec"] for service in await client.list(API_SERVICES)]
        if any(spec.get("group") == recorded.group and spec.get("service") for spec in services):
            return False
        await self._member.verify()  # an absence counts only from the cluster that it is told of
        return True


# What there is to do for a step, found out before anything goes, and written down where only the member knew it.

_AT_ONCE = 16


class StepSurvey:
    """Looks at a member for one step. All of it may be done again: what was written down before is found there."""

    def __init__(
        self,
        member: Member,
        inventories: Inventories,
        chunks: dict[str, Inventory],
        served: Served,
        releases: Releases | None = None,
    ) -> None:
        """`chunks`: by name; those that have to be added are put in."""
        self._member = member
        self._inventories = inventories
        self._chunks = chunks
        self._served = served
        self._releases = releases
        self._entries = {name: len(chunk.spec.entries) for name, chunk in chunks.items()}
        self._known = {entry.object.uid for chunk in chunks.values() for entry in chunk.spec.entries.values()}
        self._policy = VolumePolicy.RETAIN
        self._sets: dict[str, tuple[Item, Object]] = {}
        """The StatefulSets that were seen, by uid."""

    async def confirm(self, intended: Sequence[Item]) -> list[Item]:
        """Of the objects that we died over while they were created, those that are there: ours if they carry our mark
        with their owner's uid. All others were never created, or are somebody else's.

        Raises Again while a process that owned this shard before may still create one of them.
        """
        ours: list[Item] = []

        async def look(item: Item) -> None:
            uid = await self._marked(item)
            if uid:
                ref = msgspec.structs.replace(item.entry.object, uid=uid)
                entry = msgspec.structs.replace(item.entry, state=EntryState.CONFIRMED.value, object=ref)
                ours.append(Item(item.chunk, item.key, entry))

        await gather_limited((look(item) for item in intended), limit=_AT_ONCE)
        # Before they are deleted: nothing goes whose uid is not in the inventory.
        await self._write(ours, lambda it: {"state": it.state, "object": {"uid": it.object.uid}})
        if len(ours) < len(intended) and (seconds := fencing.unsettled()):
            raise Again("the replica that owned this shard before may still create objects", after=seconds)
        return ours

    async def claims(self, todo: Sequence[Item], policy: VolumePolicy) -> list[Item]:
        """The claims of StatefulSets that are not in the inventory yet, written into it before the sets go. Those that
        stay are in it, too, as `kept`."""
        self._policy = policy
        sets = [item for item in todo if _is(item, STATEFUL_SETS) and item.entry.object.uid not in self._sets]
        for item in sets:
            if found := await self._find(item):
                self._sets[item.entry.object.uid] = (item, found)
        return await self.more_claims()

    async def more_claims(self) -> list[Item]:
        """The claims of the StatefulSets that were seen and that nobody knew of: one may be scaled up until it goes."""
        made: list[Entry] = []
        for item, found in self._sets.values():
            made += await volume_claims.of_set(self._member, found, order=item.entry.order, policy=self._policy)
        unknown = [entry for entry in made if entry.object.uid not in self._known]
        new = [Item(await self._room(), f"pvc-{item.object.uid}", item) for item in unknown]
        await self._write(new, msgspec.to_builtins)
        self._known |= {item.object.uid for item in unknown}
        return new

    async def volumes(self, todo: Sequence[Item]) -> dict[str, Volume]:
        """The volumes that go with these claims, by the claim's uid. The entries remember them: when a claim is gone,
        nobody knows."""
        found = {
            item.entry.object.uid: volume_claims.Volume.parse(item.entry.memo[volume_claims.REMEMBERED])
            for item in todo
            if volume_claims.REMEMBERED in item.entry.memo
        }
        new: dict[str, Volume] = {}

        async def look(item: Item) -> None:
            if volume := await volume_claims.volume_of(self._member, item.entry.object):
                new[item.entry.object.uid] = volume

        await gather_limited((look(item) for item in todo if item.entry.object.uid not in found), limit=_AT_ONCE)
        having = [item for item in todo if item.entry.object.uid in new]
        await self._write(having, lambda it: {"memo": {volume_claims.REMEMBERED: str(new[it.object.uid])}})
        return found | new

    async def facts(self, todo: Sequence[Item], everything: Iterable[Item]) -> Facts:
        """What the order depends on; `everything`, because what is gone already is of this step, too."""
        refs = [item.entry.object for item in everything]
        services = {(ref.namespace, ref.name) for ref in refs if (ref.group, ref.kind) == ("", SERVICES.kind)}
        balancers: set[str] = set()
        converted: set[str] = set()

        async def look(item: Item) -> None:
            found = await self._find(item)
            if found is None:
                return
            if item.entry.object.kind == SERVICES.kind:
                if found["spec"].get("type") == "LoadBalancer":
                    balancers.add(item.entry.object.uid)
            elif served_by(found, services):
                converted.add(item.entry.object.uid)

        asked = [item for item in todo if _is(item, SERVICES) or _is(item, CUSTOM_RESOURCE_DEFINITIONS)]
        await gather_limited((look(item) for item in asked), limit=_AT_ONCE)
        return Facts(balancers=frozenset(balancers), converted=frozenset(converted))

    async def marked(self, item: Item) -> bool:
        """Whether an object is there that carries the mark of the release its entry is of."""
        resource = await self._served.resource(item)
        found = await self._find(item, resource) if resource else None
        return bool(found and self._releases and self._releases.marked(item.entry, found))

    async def _marked(self, item: Item) -> str | None:
        """The uid of the object that an entry intends, if it is there and ours."""
        resource = await self._served.resource(item)
        if resource is None:
            return None
        ref = item.entry.object
        try:
            found = await self._member.client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            await self._member.verify()  # an absence counts only from the cluster that it was meant for
            return None
        owner = self._chunks[item.chunk].spec.owner.uid
        uid: str = found["metadata"]["uid"]
        marked = (found["metadata"].get("labels") or {}).get(OWNER_LABEL) == owner
        return uid if marked or (self._releases and self._releases.marked(item.entry, found)) else None

    async def _find(self, item: Item, resource: Resource | None = None) -> Object | None:
        it = item.entry.object
        try:
            found = await self._member.client.get(resource or item.resource, it.name, namespace=it.namespace or None)
        except NotFoundError:
            return None
        return found if found["metadata"]["uid"] == it.uid else None

    async def _room(self) -> str:
        """A chunk that an entry can be added to."""
        name = next((name for name, entries in self._entries.items() if entries < ENTRIES_IN_A_CHUNK), None)
        if name is None:
            chunks = sorted(self._chunks.values(), key=lambda chunk: chunk.spec.chunk)
            made = await self._inventories.extend(chunks[0], chunks[-1].spec.chunk + 1)
            name = made.metadata.name
            self._chunks[name] = made
            self._entries[name] = len(made.spec.entries)
        self._entries[name] += 1
        return name

    async def _write(self, todo: Iterable[Item], change: Callable[[Entry], dict[str, Any]]) -> None:
        """Write something into each of these entries, all of a chunk at once."""
        chunks: dict[str, dict[str, dict[str, Any]]] = {}
        for item in todo:
            chunks.setdefault(item.chunk, {})[item.key] = change(item.entry)
        for name, entries in chunks.items():
            await self._inventories.write(self._chunks[name], entries)


def _is(item: Item, resource: Resource) -> bool:
    return (item.entry.object.group, item.entry.object.kind) == (resource.group, resource.kind)
