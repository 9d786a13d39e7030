"""How the objects of one Work were last left on its member, and which of them somebody has touched since (pure)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from unwind.kube.queue import Backoff
from unwind.kube.revisions import is_newer, may_be_newer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    from unwind.api.karmada import ManifestStatus
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

# Two who want different things of the same object would change it for ever, as fast as they can. Of one Work no more is
# put right in a minute than this; nobody who changes something by hand gets that far.
MOST_CORRECTIONS = 20
_MINUTE = 60.0
_RETRY = Backoff()


class Left(NamedTuple):
    """An object as we left it."""

    resource: Resource
    uid: str
    version: str


class Noticed(NamedTuple):
    """What a watch said of an object. No version: it is gone, or does not say any more that it is ours."""

    uid: str
    version: str | None


class Standing:
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
        self._left: dict[str, Left] = {}
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
        return frozenset(one.resource for one in self._left.values())

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
        left = self._left[key] = Left(resource, metadata["uid"], metadata["resourceVersion"])
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
        self._again = now + _RETRY.after(self._failures, chance) if trouble else 0.0
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


def _newer(noticed: Noticed, left: Left, later: Callable[[str, str], bool]) -> bool:
    """Whether it tells of something that happened after an object was left like this. `later`: whether one version is
    later than another; an aggregated API server may have versions that cannot be compared."""
    if noticed.version is None:
        return noticed.uid == left.uid
    # Another object of the same name came after ours, or ours after it: its version says which.
    return later(noticed.version, left.version)
