"""The objects that Works put on members, followed there: whoever changes or deletes one is noticed at once.

A watch for each kind that Works have put on a member, of metadata only, and of nothing but what carries our marks. A
removal's watches are without selectors, because a selected one also sends DELETED when a label is removed
(docs/architecture.md, Verified absence). Here that is wanted: removing our mark is a change, and absence is never
concluded from these watches.
So a member with a hundred thousand Pods costs no more than the ten that are ours.

What it costs: some 50 KB for each kind on each member, about 1 KB for each object, and a look at an object (three or
four requests to the member, none of which writes where nothing differs) whenever anything of it changes, its status
included, which the Work has to tell anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from unwind import logs
from unwind.api.names import KARMADA_MANAGED_LABEL, OWNER_LABEL
from unwind.deploy.placements import key_of
from unwind.errors import UnwindError
from unwind.jitter import JITTER
from unwind.kube import decoding
from unwind.kube.absence import is_newer, may_be_newer
from unwind.kube.errors import ApiError
from unwind.kube.informers import Informer
from unwind.kube.workqueue import Backoff

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


# How the objects of one Work were last left on its member, and which of them somebody has touched since (pure).

# Two who want different things of the same object would change it for ever, as fast as they can. Of one Work no more is
# put right in a minute than this; nobody who changes something by hand gets that far.
MOST_CORRECTIONS = 20
_MINUTE = 60.0
_REAPPLY = Backoff()


class AppliedObject(NamedTuple):
    """An object as we left it."""

    resource: Resource
    uid: str
    version: str


class Noticed(NamedTuple):
    """What a watch said of an object. No version: it is gone, or does not say any more that it is ours."""

    uid: str
    version: str | None


class WorkState:
    """What is known of one Work's objects, by their keys in the inventory.

    It is the memory of this process and no more: whoever begins anew knows nothing, and applies everything once.
    """

    def __init__(self) -> None:
        self.looked = False
        """Whether all of it was applied once since this process looks after it."""
        self.done: object = None
        """For which state of the Work all of it was gone through, and that was told."""
        self.pruned: object = None
        """For which state of the Work nothing else is."""
        self.wanted: frozenset[str] | None = None
        """The keys of all that shall be there; None if that is not known, because a part of it cannot be read."""
        self.trouble = ""
        """What of it is not there, for people."""
        self._failures = 0
        self._again = 0.0
        self.statuses: dict[str, ManifestStatus] = {}
        self._left: dict[str, AppliedObject] = {}
        self._doubts: dict[str, Noticed] = {}
        self._corrected: deque[float] = deque(maxlen=MOST_CORRECTIONS)

    @property
    def doubts(self) -> frozenset[str]:
        """What may not be as it was left."""
        return frozenset(self._doubts)

    @property
    def sure(self) -> frozenset[str]:
        """What is as it was left, as far as anybody has told."""
        return frozenset(self._left.keys() - self._doubts.keys())

    @property
    def resources(self) -> frozenset[Resource]:
        """What it has objects of."""
        return frozenset(item.resource for item in self._left.values())

    def notice(self, key: str, noticed: Noticed) -> bool:
        """Take in what a watch says; whether somebody has to look."""
        if self.wanted is not None and key not in self.wanted:
            return False  # it has dropped out, and goes
        left = self._left.get(key)
        if left and not _newer(noticed, left, may_be_newer):
            return False
        self._doubts[key] = noticed
        if noticed.version is None:
            self.statuses.pop(key, None)
        return True

    def missing(self, resource: Resource, there: Collection[str]) -> bool:
        """Take in a whole list of what there is of a resource; whether something is missing from it."""
        gone = [key for key, left in self._left.items() if left.resource == resource and key not in there]
        for key in gone:
            self.notice(key, Noticed(self._left[key].uid, None))
        return bool(gone)

    def leave(self, key: str, resource: Resource, obj: Object) -> None:
        """An object was written, and is like this now."""
        metadata = obj["metadata"]
        left = self._left[key] = AppliedObject(resource, metadata["uid"], metadata["resourceVersion"])
        doubt = self._doubts.get(key)
        # It may have been deleted, or changed once more, before the answer to our write was here.
        if doubt and not _newer(doubt, left, is_newer):
            del self._doubts[key]

    def settle(self, wanted: frozenset[str] | None, trouble: str, *, now: float, chance: random.Random) -> None:
        """All of it was gone through. `wanted`: only these shall be there; None if that is not known. `trouble`: what
        of it is not there, which is tried again after a while."""
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
        """Seconds until what is not there is tried again."""
        return max(0.0, self._again - now) if self.trouble else 0.0

    def hurry(self) -> None:
        """What was in the way may be gone: try again when there is time."""
        self._again = 0.0

    def corrected(self, now: float) -> None:
        """Something was put right that somebody had changed."""
        self._corrected.append(now)

    def pause(self, now: float) -> float:
        """Seconds to wait before something is put right once more."""
        if len(self._corrected) < MOST_CORRECTIONS:
            return 0.0
        return max(0.0, self._corrected[0] + _MINUTE - now)


def _newer(noticed: Noticed, left: AppliedObject, later: Callable[[str, str], bool]) -> bool:
    """Whether it tells of something that happened after an object was left like this. `later`: whether one version is
    later than another; an aggregated API server may have versions that cannot be compared."""
    if noticed.version is None:
        return noticed.uid == left.uid
    # Another object of the same name came after ours, or ours after it: its version says which.
    return later(noticed.version, left.version)


log = logs.get(__name__)

SELECTED = f"{OWNER_LABEL},{KARMADA_MANAGED_LABEL}=true"
"""What is looked at: everything that a Work has made."""
_RETRY = Backoff(first=0.5, limit=60.0)
_SHUT = 401


class WorkObjectWatches:
    """All members that Works have objects on."""

    def __init__(
        self,
        fleet: Members,
        tasks: asyncio.TaskGroup,
        *,
        noticed: Callable[[str, str, Noticed], None],
        listed: Callable[[Collection[str], Resource, frozenset[str]], None],
        clock: Clock,
    ) -> None:
        """`noticed` is told the uid of a Work, the key of one of its objects, and what was seen of that; `listed` the
        uids of Works, a resource, and the keys of all objects of it that there are."""
        self._fleet = fleet
        self._tasks = tasks
        self._noticed = noticed
        self._listed = listed
        self._clock = clock
        self._members: dict[str, _Followed] = {}

    def follow(self, work: str, target: ClusterTarget, system_uid: str, resources: Collection[Resource]) -> None:
        """Follow what a Work, by its uid, has of these resources on a member; of no others any more."""
        it = self._members.get(target.ref.uid)
        if it is None or not it.same_way(target, system_uid):
            owners: dict[Resource, set[str]] = {}
            if it:  # it is reached by another way now
                it.end()
                owners = it.owners
            it = self._members[target.ref.uid] = _Followed(
                self._fleet, target, system_uid, owners, noticed=self._noticed, listed=self._listed, clock=self._clock
            )
            it.task = self._tasks.create_task(it.run())
        it.want(work, resources)

    def leave(self, work: str) -> None:
        """Follow nothing of a Work any more."""
        for uid, it in list(self._members.items()):
            if it.leave(work):
                it.end()
                del self._members[uid]


class _Followed:
    """One member, as long as a Work has objects on it."""

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
        """For each resource the Works that have objects of it, by uid."""
        self.task: asyncio.Task[None] | None = None
        self._fleet = fleet
        self._noticed = noticed
        self._told_list = listed
        self._clock = clock
        self._changed = asyncio.Event()
        self._shut = False
        self._chance = JITTER

    def same_way(self, target: ClusterTarget, system_uid: str) -> bool:
        """Whether it is still reached as it was, and known by the same; its labels or annotations may be others."""
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
        """Whether nothing is left to follow."""
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
        """Follow it until cancelled, however often it has to be begun again."""
        failures = 0
        while True:
            try:
                async with self._fleet.member(self.target, system_uid=self.system_uid) as member:
                    failures = 0
                    await self._follow(member)
            except UnwindError as error:
                failures += 1
                log.warning("what Works put on a member is not followed", cluster=str(self.target), why=str(error))
            await self._clock.sleep(_RETRY.after(max(failures, 1), self._chance))

    async def _follow(self, member: Member) -> None:
        """Return when it lets us in no longer: its Secret may tell another way by now."""
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
        # What went while nobody watched is told by nothing but its absence from the list.
        there = frozenset(_key(resource, key) for key in informer.cache.keys())  # noqa: SIM118 - a cache is no dict
        self._told_list(frozenset(self.owners.get(resource, ())), resource, there)

    def _troubled(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.code == _SHUT:
            self._shut = True
            self._changed.set()


def _owner(it: Metadata) -> str:
    return (it.labels or {}).get(OWNER_LABEL, "")


def _key(resource: Resource, key: Key) -> str:
    return key_of(resource.group, resource.kind, key.namespace, key.name)
