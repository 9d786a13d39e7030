"""Works as a step source: each Work of a member is one step of its unjoin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.annotation_values import volume_policy
from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.meta import ObjectMeta
from unwind.api.names import Finalizer
from unwind.api.unwind import Effort, StepState
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.karmada.caches import executes_for
from unwind.karmada.remove_strategy import decided_by, steps_of
from unwind.karmada.work_apply import takes_along
from unwind.kube.decoding import Key
from unwind.kube.updates import discard
from unwind.kube.workqueue import Queue
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_sources import StepSource, StepTerms

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Step
    from unwind.clock import Clock
    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.client import Client
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import Lost
    from unwind.teardown.step_sources import SourceSteps

_LINGER = 30.0
_OVER = (StepState.REMOVED, StepState.LEFT, StepState.GIVEN_UP)


class WorkSteps(StepSource):
    """The steps of members that are being unjoined."""

    def __init__(self, client: Client, members: KarmadaCaches, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._members = members
        self.remover = InventoryRemover()
        self._work_deletions: Queue[tuple[ObjectRef, str]] = Queue(self._delete_work, clock=clock)

    def owns(self, owner: ObjectRef) -> bool:
        return (owner.group, owner.kind) == (WORKS.group, WORKS.kind)

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        ref = target.ref
        if gone:
            # A new Cluster of the same name may have Works here: only those with an Inventory belong to this one.
            cluster = Cluster(metadata=ObjectMeta(name=ref.name, uid=ref.uid))
        else:
            cluster = await self._client.get(CLUSTERS, ref.name, type=Cluster)
            if cluster.metadata.uid != ref.uid:
                raise UnwindError(
                    f"cannot plan the unjoin of Cluster {ref.name}: it was replaced by another Cluster with this name",
                    remedy="the other one is not touched; see `unwind ledger` for what the first one left behind",
                )
        found = await self._client.list_of(WORKS, Work, namespace=cluster.execution_namespace)
        return steps_of(cluster, found, required=not gone)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        work = self._members.works.cache.get(Key(step.object.namespace, step.object.name))
        ours = work if work and work.metadata.uid == step.object.uid else None
        return StepTerms(
            take_along=ours is not None and takes_along(ours),
            volumes=volume_policy(ours.metadata.annotations if ours else None),
            decided_by=decided_by(ours, target),
        )

    def preserves(self, late: Lost) -> bool:
        """Whether objects stay that a Work created after the plan was made: the Work says so, or, if it is gone, its
        Inventory does."""
        work = self._members.works.cache.get(Key(late.owner.namespace, late.owner.name))
        if work and work.metadata.uid == late.owner.uid:
            return bool(work.spec.preserve_resources_on_deletion)
        return late.effort == Effort.LEAVE

    def step_changed(self, step: Step, state: StepState, target: ClusterTarget) -> None:
        if state in _OVER and step.object.kind == WORKS.kind:
            # Normally all Works are deleted together at the end; if something is blocked, finished ones need not wait
            # for it.
            self._work_deletions.add_after((step.object, target.ref.uid), _LINGER)

    async def run(self) -> None:
        await self._work_deletions.run()

    async def _delete_work(self, over: tuple[ObjectRef, str]) -> float | None:
        work, uid = over
        if Key(work.namespace, work.name) not in self._members.works.cache:
            return None  # deleted with all the others
        cluster = self._members.clusters.cache.get(Key("", executes_for(work.namespace)))
        if cluster is None or cluster.metadata.uid != uid:
            return None  # the Cluster is gone: a new one of its name may need the Work
        async with self._client.aside:
            await delete_work(self._client, work)
        return None


async def delete_work(client: Client, work: ObjectRef) -> None:
    """Delete a Work whose objects are accounted for, and remove our finalizer."""
    await discard(client, WORKS, work.name, uid=work.uid, namespace=work.namespace, finalizer=Finalizer.WORK.value)
