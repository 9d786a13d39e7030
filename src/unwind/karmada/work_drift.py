"""The drift of a Work's objects: how they were last applied, which changed since, and when to correct that (pure).

What could not be applied is retried with back-off. How often drift is corrected is limited.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from unwind.kube.resource_versions import is_newer, may_be_newer
from unwind.kube.workqueue import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    from unwind.api.karmada import ManifestStatus
    from unwind.api.resources import Resource

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

    def leave(self, key: str, resource: Resource, obj: dict[str, Any]) -> None:
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
