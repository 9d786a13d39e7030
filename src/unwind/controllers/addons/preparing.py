"""What is to be deployed, read while what it needs is still under way: when its turn comes, all is ready."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from unwind.api.sveltos import ClusterSummary
    from unwind.controllers.addons.caches import SeenProfile
    from unwind.controllers.addons.deploying import Deploying, Work
    from unwind.fleet.targets import Target


class _Ready(NamedTuple):
    matters: object
    profile: SeenProfile | None
    work: Work


class Preparations:
    """What was read before its turn came, for which state of things. Should that change, there is an event: then it is
    read again, or deployed once more."""

    def __init__(self) -> None:
        self._ready: dict[str, _Ready] = {}

    async def make(
        self, deploying: Deploying, summary: ClusterSummary, profile: SeenProfile | None, target: Target
    ) -> None:
        """Read what there is to do for a summary."""
        self.forget(summary)
        with suppress(UnwindError):  # it is told when its turn has come
            work = await deploying.prepare(summary, profile, target)
            if work:
                self._ready[summary.metadata.uid] = _Ready(matters(summary), profile, work)

    async def take(
        self, deploying: Deploying, summary: ClusterSummary, profile: SeenProfile | None, target: Target
    ) -> Work | None:
        """What there is to do for a summary whose turn has come; None if it is there already."""
        ready = self._ready.pop(summary.metadata.uid, None)
        if ready and ready.matters == matters(summary) and ready.profile == profile:
            return ready.work
        return await deploying.prepare(summary, profile, target)

    def forget(self, summary: ClusterSummary) -> None:
        self._ready.pop(summary.metadata.uid, None)


def matters(summary: ClusterSummary) -> object:
    """What of a summary decides what is done for it; its status does not."""
    meta = summary.metadata
    return meta.uid, summary.spec, meta.deletion_timestamp, meta.finalizers, meta.annotations
