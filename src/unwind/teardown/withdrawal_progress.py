"""A withdrawal or a prune in progress, as its record shows it: progress, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION, Reason
from unwind.api.unwind import Blocker, Cause, Effort, StepState
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.kube.errors import UnreachableError
from unwind.members.targets import ClusterTarget
from unwind.teardown.force_release import LetGo
from unwind.teardown.status import StepView
from unwind.why.blocker_causes import actor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.teardown.status import KnownBlockers
    from unwind.teardown.step_runner import StepRunner

_FAILURES = (Reason.FAILED, Reason.UNREACHABLE)


class RecordedRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A withdrawal or a prune: its owner, and where its objects are."""

    owner: ObjectRef
    """The ClusterSummary or Work."""
    annotations: dict[str, str] = {}
    """Of the owner."""
    deleted_at: datetime | None = None
    generation: int = 0
    """Of the owner, for a prune. 0 for a withdrawal."""
    member: ObjectRef
    """The object that represents the cluster that the objects are on."""
    step: str
    """The name of its step."""
    effort: Effort = Effort.ENFORCE
    wake: Callable[[], None] = lambda: None
    """Reconciles the owner of a withdrawal: it has to be released."""
    release: Callable[[LetGo], None] = lambda _: None
    """Releases a prune: what is not removed yet stays."""

    @property
    def cause(self) -> Cause:
        return Cause.PRUNED if self.generation else Cause.WITHDRAWN

    @property
    def key(self) -> str:
        """An owner has at most one withdrawal and one prune at a time."""
        return f"{self.cause}/{self.owner.uid}"

    @property
    def name(self) -> str:
        """The name of its Teardown, unless that is taken."""
        return f"{self.owner.uid}-{self.generation}" if self.generation else self.owner.uid

    @property
    def target(self) -> ClusterTarget:
        """The owner as the target of a Teardown. Only annotations that users of the owner may set count: no webhook
        verifies who set the others."""
        known = (DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION)
        annotations = {name: self.annotations[name] for name in known if name in self.annotations}
        return ClusterTarget(ref=self.owner, secret="", annotations=annotations, deleted_at=self.deleted_at)

    @property
    def shard(self) -> str:
        return member_shard(self.member)


def member_shard(member: ObjectRef) -> str:
    """The shard of a member: everything for one cluster is done by the same replica (pure)."""
    return f"{member.namespace}/{member.name}" if member.namespace else member.name


def failure(about: ObjectRef, error: Exception) -> Blocker:
    """The blocker of a removal whose last attempt failed (pure)."""
    reason = Reason.UNREACHABLE if isinstance(error, UnreachableError) else Reason.FAILED
    return Blocker(object=about, reason=reason, message=str(error), actor=actor_of(reason))


class LiveRemoval:
    """A withdrawal or a prune in progress in this process."""

    def __init__(self, subject: RecordedRemoval, *, began: datetime, since: float, resumed: bool) -> None:
        """`began`, `since`: now, by the clock of the API server and by the monotonic one. `resumed`: whether it began
        before this process did."""
        self.subject = subject
        self.began = subject.deleted_at or began
        self.since = since
        self.resumed = resumed
        self._runners: Callable[[], Sequence[StepRunner]] = tuple
        self._held: tuple[Blocker, ...] = ()
        """What it waits for outside the removal."""
        self.paused = False
        self.state = StepState.WAITING
        self.let_go: LetGo | None = None
        """Why it was released, for a prune."""
        self.known: KnownBlockers = {}
        self.written_at = 0.0
        self.writing = asyncio.Lock()

    def follow(self, runners: Callable[[], Sequence[StepRunner]]) -> None:
        """It runs. `runners`: its parts; their progress is read when it is needed."""
        # A failed attempt is reported until the next one has begun to remove objects.
        self._held = tuple(blocker for blocker in self._held if blocker.reason in _FAILURES)
        self._runners, self.paused, self.state = runners, False, StepState.REMOVING

    def hold(self, blockers: tuple[Blocker, ...], *, paused: bool) -> None:
        """It waits. `paused`: because its cluster is paused."""
        self._runners, self._held, self.paused, self.state = tuple, blockers, paused, StepState.WAITING

    @property
    def runners(self) -> list[StepRunner]:
        """Its parts that have begun."""
        return [runner for runner in self._runners() if runner.state is not StepState.WAITING or runner.waits]

    @property
    def waits(self) -> dict[ObjectRef, Waiting | Failed]:
        if runners := self.runners:
            return {ref: what for runner in runners for ref, what in runner.waits.items()}
        return {blocker.object: Waiting(blocker.message, code=blocker.reason) for blocker in self._held}

    @property
    def blocked(self) -> bool:
        """Whether it waits for more than the deletion of objects, and than its turn."""
        waits = self.waits.values()
        return any(isinstance(what, Failed) or what.code not in (Reason.DELETING, Reason.WAITING) for what in waits)

    @property
    def left(self) -> int:
        return sum(runner.left for runner in self.runners)

    def view(self, planned: int) -> StepView:
        """Its progress. `planned`: the number of objects in its plan."""
        runners = self.runners
        return StepView(
            name=self.subject.step,
            state=self.state,
            total=max(planned, sum(runner.total for runner in runners)),
            removed=sum(runner.removed for runner in runners),
            left=self.left,
            waits=self.waits,
            unsealed=bool(runners) and all(runner.unsealed for runner in runners),
        )

    async def look_at_blockers(self, before: Iterable[Blocker], now: datetime) -> None:
        """Find why each object that is waited for is still there, and who must act. `before`: the blockers in
        status."""
        step, since = self.subject.step, {(blocker.object, blocker.reason): blocker.since for blocker in before}
        known = {
            (step, item.object, item.message): msgspec.structs.replace(
                item, step=step, since=since.get((item.object, item.reason)) or now.replace(microsecond=0)
            )
            for item in self._held
        }
        for runner in self.runners:
            known.update(await runner.blockers(self.known, before, now))
        self.known = known
