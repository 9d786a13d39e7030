"""Reads from a member what the removal of a step needs: served versions, intended objects, claims, volumes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import API_SERVICES, BUILT_IN_GROUPS, CUSTOM_RESOURCE_DEFINITIONS, SERVICES, STATEFUL_SETS
from unwind.api.unwind import ENTRIES_IN_A_CHUNK, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again
from unwind.inventory.inventories import Item
from unwind.kube import fencing
from unwind.kube.errors import NotFoundError
from unwind.removal import volume_claims
from unwind.removal.object_order import Facts, served_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry, Inventory
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Object
    from unwind.kube.discovery import ServedKind
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import Releases
    from unwind.removal.volume_claims import Volume


class Served:
    """The served resources of a member, indexed by kind: a step may have ten thousand objects."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kinds: Sequence[ServedKind] = ()
        """From the member's discovery, shared by all removals."""
        self._versions: dict[tuple[str, str], dict[str, Resource]] = {}
        """By kind, only for kinds that were looked up."""
        self._gone: set[tuple[str, str]] = set()
        self._asking = asyncio.Lock()

    async def resource(self, item: Item, *, anew: bool = False) -> Resource | None:
        """The resource in the recorded version, or in a version that is served instead; None if its CRD is gone, and
        with it all custom resources. `anew`: do not use cached discovery."""
        ref = item.entry.object
        kind = (ref.group, ref.kind)
        if not anew and (found := self._find(kind, ref.version)):
            return found
        async with self._asking:  # one request for many concurrent callers
            # Objects that were recorded before the CRD was deleted do not exist in a new CRD of the same kind.
            if kind in self._gone:
                return None
            for again in (True,) if anew else (False, True):
                self._take(await self._member.discovery.kinds(anew=again))
                if found := self._find(kind, ref.version):
                    return found
            if await self._is_gone(item.resource):
                self._gone.add(kind)
                return None
        # Whether its objects exist is unknown, so they do not count as gone.
        return item.resource

    def _find(self, kind: tuple[str, str], version: str) -> Resource | None:
        if kind not in self._versions:
            found = self._versions[kind] = {}
            for item in self._kinds:  # in the server's order of preference
                resource = item.resource
                if (resource.group, resource.kind) == kind:
                    found.setdefault(resource.version, resource)
        versions = self._versions[kind]
        return (versions.get(version) or next(iter(versions.values()))) if versions else None

    def _take(self, kinds: Sequence[ServedKind]) -> None:
        self._kinds = kinds
        self._versions = {}

    async def _is_gone(self, recorded: Resource) -> bool:
        """Whether a kind that is not served no longer exists, and is not just unavailable."""
        if recorded.group in BUILT_IN_GROUPS:
            return False  # built-in: if it is disabled, its objects are still in etcd
        client = self._member.client
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{recorded.plural}.{recorded.group}")
        except NotFoundError:
            pass
        else:
            return False
        # An aggregated API server may serve it and be unavailable.
        services = [service["spec"] for service in await client.list(API_SERVICES)]
        if any(spec.get("group") == recorded.group and spec.get("service") for spec in services):
            return False
        await self._member.verify()  # absence counts only if this is the recorded cluster
        return True


# The survey of a step before the first deletion. What only the member knows is written into the inventory.

_AT_ONCE = 16


class StepSurvey:
    """Reads a member for one step. It can be repeated: earlier results are in the inventory."""

    def __init__(
        self,
        member: Member,
        inventories: Inventories,
        chunks: dict[str, Inventory],
        served: Served,
        releases: Releases | None = None,
    ) -> None:
        """`chunks`: by name; new Inventories are added to it."""
        self._member = member
        self._inventories = inventories
        self._chunks = chunks
        self._served = served
        self._releases = releases
        self._entries = {name: len(chunk.spec.entries) for name, chunk in chunks.items()}
        self._known = {entry.object.uid for chunk in chunks.values() for entry in chunk.spec.entries.values()}
        self._policy = VolumePolicy.RETAIN
        self._sets: dict[str, tuple[Item, Object]] = {}
        """The StatefulSets that were found, by uid."""

    async def confirm(self, intended: Sequence[Item]) -> list[Item]:
        """Of the objects whose creation was interrupted, those that exist with our owner label. All others were never
        created, or are foreign.

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
        # Before they are deleted: nothing is deleted whose uid is not in the inventory.
        await self._write(ours, lambda it: {"state": it.state, "object": {"uid": it.object.uid}})
        if len(ours) < len(intended) and (seconds := fencing.unsettled()):
            raise Again(
                "waiting until the replica of the manager that worked on this before can create no more objects",
                after=seconds,
            )
        return ours

    async def claims(self, todo: Sequence[Item], policy: VolumePolicy) -> list[Item]:
        """The claims of StatefulSets that are not in the inventory yet, written into it before the StatefulSets are
        deleted. Those that stay are `kept`."""
        self._policy = policy
        sets = [item for item in todo if _is(item, STATEFUL_SETS) and item.entry.object.uid not in self._sets]
        for item in sets:
            if found := await self._find(item):
                self._sets[item.entry.object.uid] = (item, found)
        return await self.more_claims()

    async def more_claims(self) -> list[Item]:
        """New claims of the StatefulSets that were found: they may be scaled up until they are deleted."""
        made: list[Entry] = []
        for item, found in self._sets.values():
            made += await volume_claims.of_set(self._member, found, order=item.entry.order, policy=self._policy)
        unknown = [entry for entry in made if entry.object.uid not in self._known]
        new = [Item(await self._room(), f"pvc-{item.object.uid}", item) for item in unknown]
        await self._write(new, msgspec.to_builtins)
        self._known |= {item.object.uid for item in unknown}
        return new

    async def volumes(self, todo: Sequence[Item]) -> dict[str, Volume]:
        """The volumes that are deleted with these claims, by the claim's uid. They are stored in the entries, because
        they are unknown once a claim is gone."""
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
        """What the order depends on. `everything`: all objects of the step, including removed ones."""
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
        """Whether the object exists with the labels of the release in its entry."""
        resource = await self._served.resource(item)
        found = await self._find(item, resource) if resource else None
        return bool(found and self._releases and self._releases.marked(item.entry, found))

    async def _marked(self, item: Item) -> str | None:
        """The uid of the intended object of an entry, if it exists and is ours."""
        resource = await self._served.resource(item)
        if resource is None:
            return None
        ref = item.entry.object
        try:
            found = await self._member.client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            await self._member.verify()  # absence counts only if this is the recorded cluster
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
        """The name of an Inventory with room for another entry."""
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
        """Write a change into each of these entries, with one write per Inventory."""
        chunks: dict[str, dict[str, dict[str, Any]]] = {}
        for item in todo:
            chunks.setdefault(item.chunk, {})[item.key] = change(item.entry)
        for name, entries in chunks.items():
            await self._inventories.write(self._chunks[name], entries)


def _is(item: Item, resource: Resource) -> bool:
    return (item.entry.object.group, item.entry.object.kind) == (resource.group, resource.kind)
