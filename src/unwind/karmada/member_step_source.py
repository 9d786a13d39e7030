"""Members as a step source: a Cluster that is also a member waits until the member's Works are removed.

Nothing is deleted here. The Works go when they are deleted, or when the member is unjoined.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.karmada import CLUSTERS, WORKS, Cluster, RemoveStrategy, Work
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import Reason
from unwind.api.policies import SourceKind
from unwind.api.unwind import Blocker, Effort
from unwind.deleters.chain_attempt import Failed
from unwind.deleters.deletion import retry_until_done
from unwind.deleters.outcomes import Again, Pace, Severity
from unwind.karmada.cluster_pairs import pairs_of, read_pairs
from unwind.karmada.remove_strategy import unknown_strategy
from unwind.kube.decoding import Key
from unwind.kube.installed_kinds import list_if_installed
from unwind.kube.workqueue import JITTER
from unwind.planning.waves import Draft
from unwind.teardown.drafts import lost
from unwind.teardown.step_removers import UnmarkedRemover
from unwind.teardown.step_sources import FollowedSource, OwnSetting, SourceStep, SourceSteps, StepTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.unwind import Step
    from unwind.deleters.chain_attempt import Waiting
    from unwind.inventory.inventories import Inventories
    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import StepContext, StepProgress, StepRemoval
    from unwind.teardown.step_sources import ClusterVoices, StepPolicies

# Seconds after which the Works are read again without an event.
_LOOK_AGAIN = 30.0


async def paired_members(client: Client, uid: str) -> list[Cluster]:
    """The members that are the Cluster with this uid, read from the API server."""
    found = await list_if_installed(client, CLUSTERS)
    # A Karmada Cluster that cannot be decoded blocks only the Cluster that it is paired with.
    paired = [
        item for item in found if any(pair.uid == uid for pair in read_pairs(item["metadata"].get("annotations") or {}))
    ]
    return msgspec.convert(paired, list[Cluster])


async def remaining_works(client: Client, inventories: Inventories, member: Cluster) -> list[ObjectRef]:
    """The Works that must be removed from a member and are not yet, read from the API server."""
    works: list[Work] = []
    if not (await client.sighting(CLUSTERS, member.metadata.name, uid=member.metadata.uid)).absent:
        # Works of a member that is gone do nothing any more.
        works = msgspec.convert(await client.list(WORKS, namespace=member.execution_namespace), list[Work])
    preserved = {work.metadata.uid for work in works if work.spec.preserve_resources_on_deletion}
    there = [ref_of(WORKS, work.metadata) for work in works if work.metadata.uid not in preserved]
    known = {work.metadata.uid for work in works}
    gone = [item for item in lost(known, await inventories.on(member.metadata.uid)) if item.effort != Effort.LEAVE]
    return [*there, *(item.owner for item in gone)]


def step_name(member: Cluster) -> str:
    """The name of the step of a member."""
    return f"Member/{member.metadata.name}"


def step_of(member: Cluster, works: Sequence[ObjectRef], voices: ClusterVoices | None = None) -> SourceSteps:
    """The step of a member for the teardown of its Cluster; none if its Works stay (pure). `voices`: what policies say
    besides its removeStrategy."""
    said = unknown_strategy(member, f"member {member.metadata.name}", "nothing is removed from this cluster")
    draft = Draft(
        name=step_name(member),
        object=ref_of(CLUSTERS, member.metadata),
        kind="Member",
        declared=member.metadata.name,
        effort=Effort.LEAVE if member.removal is RemoveStrategy.NEEDLESS else Effort.ENFORCE,
        objects=len(works),
    )
    step = SourceStep(draft=draft)
    if voices:
        step = voices.merged(SourceKind.WORK, _named(member), step, own_from=_own_from(member.metadata.name))
    return SourceSteps() if step.draft.effort is Effort.LEAVE else SourceSteps(steps=(step,), said=said)


def _named(member: Cluster) -> ObjectRef:
    return ObjectRef(kind="Member", name=member.metadata.name)


def _own_from(member: str) -> str:
    return f"removeStrategy of member {member}"


class MemberSteps(FollowedSource):
    """The steps of Clusters that are also members: one for each member with removeStrategy Required."""

    def __init__(
        self,
        client: Client,
        caches: KarmadaCaches,
        inventories: Inventories,
        *,
        policies: StepPolicies | None = None,
    ) -> None:
        """`policies`: TeardownPolicies, whose voices count besides the removeStrategy of members."""
        self.remover = _UnjoinRemover(self)
        self._client = client
        self._caches = caches
        self._inventories = inventories
        self._policies = policies
        self._targets: set[Key] = set()
        """The clusters whose steps were asked for their terms."""
        self._waiting: set[asyncio.Event] = set()
        caches.works.subscribe(lambda _: self._wake())
        caches.clusters.subscribe(lambda _: self._wake())

    def owns(self, owner: ObjectRef) -> bool:
        return (owner.group, owner.kind) == (CLUSTERS.group, CLUSTERS.kind)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        if gone:
            return SourceSteps()
        members = await paired_members(self._client, target.ref.uid)
        voices = await self._policies.of(target) if self._policies and members else None
        found = [
            step_of(member, await remaining_works(self._client, self._inventories, member), voices)
            for member in members
        ]
        return SourceSteps(
            steps=tuple(step for part in found for step in part.steps),
            said=tuple(said for part in found for said in part.said),
        )

    def follow(self, changed: Callable[[Key], None]) -> None:
        def tell(change: Change[Cluster]) -> None:
            for pair in pairs_of(change.new) if change.new else ():
                changed(Key(pair.namespace, pair.name))

        self._caches.clusters.subscribe(tell)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        member = self._caches.clusters.cache.get(Key("", step.object.name))
        if self._policies is None or not step.effort_from or member is None:
            return StepTerms()
        self._targets.add(Key(target.ref.namespace, target.ref.name))
        own = Effort.LEAVE if member.removal is RemoveStrategy.NEEDLESS else Effort.ENFORCE
        setting = OwnSetting(named=_named(member), effort=own, origin=_own_from(step.object.name))
        return StepTerms(paused=self._policies.conflict(step, SourceKind.WORK, target, setting))

    def follow_terms(self, changed: Callable[[Key], None]) -> None:
        def tell() -> None:
            for key in self._targets:
                changed(key)

        if self._policies:
            self._policies.follow(tell)
            self._caches.clusters.subscribe(lambda _: tell())

    async def left(self, member: ObjectRef) -> list[ObjectRef]:
        """The Works of a member that remain."""
        cluster = Cluster(metadata=msgspec.structs.replace(Cluster().metadata, name=member.name, uid=member.uid))
        return await remaining_works(self._client, self._inventories, cluster)

    def next_change(self) -> asyncio.Event:
        """An event that is set when a Work or a member changes."""
        event = asyncio.Event()
        self._waiting.add(event)
        return event

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()
        self._waiting.clear()


class _UnjoinRemover(UnmarkedRemover):
    """Waits for the removal of a member's Works."""

    def __init__(self, source: MemberSteps) -> None:
        self._source = source

    def begin(self, context: StepContext) -> StepRemoval:
        return _Unjoin(self._source, context)


class _Unjoin:
    """The wait for one member."""

    removed: frozenset[str] = frozenset()
    progress: StepProgress | None = None

    def __init__(self, source: MemberSteps, context: StepContext) -> None:
        self._source = source
        self._context = context
        self._again: asyncio.Event | None = None
        self._waits: dict[ObjectRef, Waiting | Failed] = {}

    @property
    def waits(self) -> Mapping[ObjectRef, Waiting | Failed]:
        return self._waits

    async def run(self) -> None:
        await retry_until_done(self._done, clock=self._context.means.clock, chance=JITTER, say=self._say)
        self._waits = {}
        self._context.changed()

    async def _done(self) -> None:
        member = self._context.step.object
        self._again = self._source.next_change()  # before the read, so that no change is missed
        works = await self._source.left(member)
        if works:
            self._waits = {
                work: Failed(
                    f"{work} must be removed first: removeStrategy of member {member.name} is Required;"
                    f" unjoin the member: unwind unjoin {member.name}",
                    Reason.HELD,
                    Severity.WARNING,
                    Pace.SLOW,
                )
                for work in works
            }
            raise Again(
                f"waiting for {len(works)} Works on member {member.name}",
                until=self._again,
                after=_LOOK_AGAIN,
                code=Reason.HELD,
            )

    def _say(self, what: Waiting | Failed) -> None:
        if isinstance(what, Failed):
            self._waits = {self._context.step.object: what}
        self._context.changed()

    def look_again(self) -> None:
        if self._again:
            self._again.set()

    def go_another_way(self, target: ClusterTarget) -> None:
        del target  # the cluster is not read

    async def blockers(self, before: Iterable[Blocker], now: datetime) -> tuple[Blocker, ...]:
        step, since = self._context.step, {blocker.object: blocker.since for blocker in before}
        return tuple(
            Blocker(
                object=ref,
                step=step.name,
                reason=str(what.reason),
                message=what.told,
                actor=f"the user who manages member {step.object.name}",
                since=since.get(ref, now.replace(microsecond=0)),
            )
            for ref, what in self._waits.items()
        )
