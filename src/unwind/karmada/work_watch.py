"""Watches the objects of Works on members, to detect drift. `work_drift` decides what a change means.

One metadata-only watch per kind and member, selected by our labels. The watches of a removal have no selectors, because
a selected watch also sends DELETED when a label is removed (docs/architecture.md, Verified absence). Here that is
wanted: removing our label is drift, and absence is never concluded from these watches. So a member with a hundred
thousand Pods costs no more than the ten that are ours.

Cost: about 50 KB per kind and member, about 1 KB per object, and a check of an object (three or four requests to the
member, without writes if nothing differs) whenever anything of it changes. That includes its status, which the Work
reports anyway.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.names import KARMADA_MANAGED_LABEL, OWNER_LABEL
from unwind.deploy.placements import inventory_key
from unwind.errors import UnwindError
from unwind.karmada.work_drift import Noticed
from unwind.kube import decoding
from unwind.kube.errors import ApiError
from unwind.kube.informers import Informer
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.decoding import Key, Metadata
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget

log = logs.get(__name__)

SELECTED = f"{OWNER_LABEL},{KARMADA_MANAGED_LABEL}=true"
"""Selects everything that Works created."""
_RETRY = Backoff(first=0.5, limit=60.0)
_SHUT = 401


class WorkObjectWatches:
    """The watches on all members with objects of Works."""

    def __init__(
        self,
        fleet: Members,
        tasks: asyncio.TaskGroup,
        *,
        noticed: Callable[[str, str, Noticed], None],
        listed: Callable[[Collection[str], Resource, frozenset[str]], None],
        clock: Clock,
    ) -> None:
        """`noticed`: called with the uid of a Work, the key of an object, and the event. `listed`: called with the uids
        of Works, a resource, and the keys of all its objects."""
        self._fleet = fleet
        self._tasks = tasks
        self._noticed = noticed
        self._listed = listed
        self._clock = clock
        self._members: dict[str, _Followed] = {}

    def follow(self, work: str, target: ClusterTarget, system_uid: str, resources: Collection[Resource]) -> None:
        """Watch the objects of a Work, by uid, of exactly these resources."""
        it = self._members.get(target.ref.uid)
        if it is None or not it.same_way(target, system_uid):
            owners: dict[Resource, set[str]] = {}
            if it:  # its connection changed
                it.end()
                owners = it.owners
            it = self._members[target.ref.uid] = _Followed(
                self._fleet, target, system_uid, owners, noticed=self._noticed, listed=self._listed, clock=self._clock
            )
            it.task = self._tasks.create_task(it.run())
        it.want(work, resources)

    def leave(self, work: str) -> None:
        """Stop watching for a Work."""
        for uid, it in list(self._members.items()):
            if it.leave(work):
                it.end()
                del self._members[uid]


class _Followed:
    """The watches of one member, as long as a Work has objects on it."""

    def __init__(
        self,
        fleet: Members,
        target: ClusterTarget,
        system_uid: str,
        owners: dict[Resource, set[str]],
        *,
        noticed: Callable[[str, str, Noticed], None],
        listed: Callable[[Collection[str], Resource, frozenset[str]], None],
        clock: Clock,
    ) -> None:
        self.target = target
        self.system_uid = system_uid
        self.owners = owners
        """The uids of the Works with objects of each resource."""
        self.task: asyncio.Task[None] | None = None
        self._fleet = fleet
        self._noticed = noticed
        self._told_list = listed
        self._clock = clock
        self._changed = asyncio.Event()
        self._shut = False
        self._chance = JITTER

    def same_way(self, target: ClusterTarget, system_uid: str) -> bool:
        """Whether connection and identity are unchanged; labels or annotations may differ."""
        ours, other = self.target, target
        same = (ours.home, ours.secret, ours.endpoint) == (other.home, other.secret, other.endpoint)
        return same and self.system_uid == system_uid

    def want(self, work: str, resources: Collection[Resource]) -> None:
        for resource, works in list(self.owners.items()):
            if resource not in resources:
                self._drop(resource, works, work)
        for resource in resources:
            if resource not in self.owners:
                self._changed.set()
            self.owners.setdefault(resource, set()).add(work)

    def leave(self, work: str) -> bool:
        """Remove a Work; whether nothing is left to watch."""
        for resource, works in list(self.owners.items()):
            self._drop(resource, works, work)
        return not self.owners

    def _drop(self, resource: Resource, works: set[str], work: str) -> None:
        works.discard(work)
        if not works:
            del self.owners[resource]
            self._changed.set()

    def end(self) -> None:
        if self.task:
            self.task.cancel()

    async def run(self) -> None:
        """Watch until cancelled; errors are retried."""
        failures = 0
        while True:
            try:
                async with self._fleet.member(self.target, system_uid=self.system_uid) as member:
                    failures = 0
                    await self._follow(member)
            except UnwindError as error:
                failures += 1
                log.warning("drift watch failed, will retry", cluster=str(self.target), why=str(error))
            await self._clock.sleep(_RETRY.after(max(failures, 1), self._chance))

    async def _follow(self, member: Member) -> None:
        """Return when it denies access: its Secret may have changed."""
        self._shut = False
        watches: dict[Resource, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not self._shut:
                self._changed.clear()
                for resource in [watch for watch in watches if watch not in self.owners]:
                    watches.pop(resource).cancel()
                for resource in [owner for owner in self.owners if owner not in watches]:
                    watches[resource] = group.create_task(self._informer(member, resource).run())
                await self._changed.wait()
            for task in watches.values():
                task.cancel()

    def _informer(self, member: Member, resource: Resource) -> Informer[Metadata]:
        informer: Informer[Metadata] = Informer(
            member.client,
            decoding.metadata(resource),
            labels=SELECTED,
            clock=self._clock,
            troubled=self._troubled,
            confirm=member.watches.confirmation,
            listed=lambda: self._listed(resource, informer),
        )
        informer.subscribe(lambda change: self._tell(resource, change))
        return informer

    def _tell(self, resource: Resource, change: Change[Metadata]) -> None:
        key = _key(resource, change.key)
        old, new = change.old, change.new
        if new:
            self._noticed(_owner(new), key, Noticed(new.uid, new.resource_version))
        if old and (new is None or _owner(new) != _owner(old)):
            self._noticed(_owner(old), key, Noticed(old.uid, None))

    def _listed(self, resource: Resource, informer: Informer[Metadata]) -> None:
        # Deletions while no watch ran show only as absence from the list.
        there = frozenset(_key(resource, key) for key in informer.cache.keys())  # noqa: SIM118 - a cache is no dict
        self._told_list(frozenset(self.owners.get(resource, ())), resource, there)

    def _troubled(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.code == _SHUT:
            self._shut = True
            self._changed.set()


def _owner(it: Metadata) -> str:
    return (it.labels or {}).get(OWNER_LABEL, "")


def _key(resource: Resource, key: Key) -> str:
    return inventory_key(resource.group, resource.kind, key.namespace, key.name)
