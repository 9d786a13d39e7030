"""Watches the objects of Works on members, to detect drift.

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
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from unwind import logs
from unwind.api.names import KARMADA_MANAGED_LABEL, OWNER_LABEL
from unwind.deploy.placements import inventory_key
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.absence import is_newer, may_be_newer
from unwind.kube.errors import ApiError
from unwind.kube.informers import Informer
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    from unwind.api.karmada import ManifestStatus
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.decoding import Key, Metadata
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget


# The last applied state of a Work's objects, and which of them changed since (pure).

# Two controllers that disagree about an object would change it in an endless loop. This is the limit of corrections per
# Work and minute; changes by hand stay below it.
MOST_CORRECTIONS = 20
_MINUTE = 60.0
_REAPPLY = Backoff()


class AppliedObject(NamedTuple):
    """An object as we applied it."""

    resource: Resource
    uid: str
    version: str


class Noticed(NamedTuple):
    """What a watch reported of an object. Without a version: it is gone, or lost our label."""

    uid: str
    version: str | None


class WorkState:
    """What is known of one Work's objects, by their keys in the Inventory.

    In memory only: after a restart nothing is known, and everything is applied once.
    """

    def __init__(self) -> None:
        self.looked = False
        """Whether everything was applied once since this process started."""
        self.done: object = None
        """The state of the Work that was fully processed and reported."""
        self.pruned: object = None
        """The state of the Work that was fully pruned."""
        self.wanted: frozenset[str] | None = None
        """The keys of all desired objects; None if a part of the manifests cannot be decoded."""
        self.trouble = ""
        """What failed, for people."""
        self._failures = 0
        self._again = 0.0
        self.statuses: dict[str, ManifestStatus] = {}
        self._left: dict[str, AppliedObject] = {}
        self._doubts: dict[str, Noticed] = {}
        self._corrected: deque[float] = deque(maxlen=MOST_CORRECTIONS)

    @property
    def doubts(self) -> frozenset[str]:
        """The objects that may have drifted."""
        return frozenset(self._doubts)

    @property
    def sure(self) -> frozenset[str]:
        """The objects without known drift."""
        return frozenset(self._left.keys() - self._doubts.keys())

    @property
    def resources(self) -> frozenset[Resource]:
        """The resources of its objects."""
        return frozenset(item.resource for item in self._left.values())

    def notice(self, key: str, noticed: Noticed) -> bool:
        """Record a watch event; whether the object must be checked."""
        if self.wanted is not None and key not in self.wanted:
            return False  # it is being pruned
        left = self._left.get(key)
        if left and not _newer(noticed, left, may_be_newer):
            return False
        self._doubts[key] = noticed
        if noticed.version is None:
            self.statuses.pop(key, None)
        return True

    def missing(self, resource: Resource, there: Collection[str]) -> bool:
        """Record a complete list of a resource; whether an object is missing."""
        gone = [key for key, left in self._left.items() if left.resource == resource and key not in there]
        for key in gone:
            self.notice(key, Noticed(self._left[key].uid, None))
        return bool(gone)

    def leave(self, key: str, resource: Resource, obj: Object) -> None:
        """Record the state of an object after our write."""
        metadata = obj["metadata"]
        left = self._left[key] = AppliedObject(resource, metadata["uid"], metadata["resourceVersion"])
        doubt = self._doubts.get(key)
        # It may have been deleted or changed again before the response to our write arrived.
        if doubt and not _newer(doubt, left, is_newer):
            del self._doubts[key]

    def settle(self, wanted: frozenset[str] | None, trouble: str, *, now: float, chance: random.Random) -> None:
        """Record that the Work was fully processed. `wanted`: the desired keys; None if unknown. `trouble`: what
        failed, which is retried after a backoff."""
        self.looked = True
        self.wanted = wanted
        self.trouble = trouble
        self._failures = self._failures + 1 if trouble else 0
        self._again = now + _REAPPLY.after(self._failures, chance) if trouble else 0.0
        if wanted is not None:
            for key in (self._left.keys() | self._doubts.keys() | self.statuses.keys()) - wanted:
                self._left.pop(key, None)
                self._doubts.pop(key, None)
                self.statuses.pop(key, None)

    def rest(self, now: float) -> float:
        """Seconds until a failed object is retried."""
        return max(0.0, self._again - now) if self.trouble else 0.0

    def hurry(self) -> None:
        """Retry soon: the cause of a failure may be gone."""
        self._again = 0.0

    def corrected(self, now: float) -> None:
        """Record a corrected drift."""
        self._corrected.append(now)

    def pause(self, now: float) -> float:
        """Seconds to wait before the next correction."""
        if len(self._corrected) < MOST_CORRECTIONS:
            return 0.0
        return max(0.0, self._corrected[0] + _MINUTE - now)


def _newer(noticed: Noticed, left: AppliedObject, later: Callable[[str, str], bool]) -> bool:
    """Whether the event is newer than our write. `later`: compares two resourceVersions; those of an aggregated API
    server may not be comparable."""
    if noticed.version is None:
        return noticed.uid == left.uid
    # Either object of the same name may be the newer one: the resourceVersion decides.
    return later(noticed.version, left.version)


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
