"""Applies a Work to its member, and prunes objects that are no longer in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import names
from unwind.api.annotation_values import volume_policy
from unwind.api.karmada import WORKS
from unwind.api.meta import ref_of
from unwind.concurrency import SingleFlight
from unwind.deploy import deployment, manifest_sources, prune
from unwind.deploy.manifest_sources import ManifestSource
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.deploy.reports import DeploymentReport, ObjectOutcome, first
from unwind.errors import UnwindError
from unwind.karmada import work_status
from unwind.karmada.remove_strategy import recorded_effort, step_name
from unwind.kube import fencing
from unwind.kube.decoding import Key
from unwind.kube.fencing import FencedError
from unwind.kube.workqueue import JITTER
from unwind.members import credentials
from unwind.members.targets import of_karmada

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from unwind.api.karmada import Cluster, Work
    from unwind.deleters.chain_attempt import Failed, Waiting
    from unwind.deploy.placements import PlacedObject
    from unwind.karmada.work_drift import WorkState
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.force_release import LetGo
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_runner import StepRunner


class Pruning:
    """The pruning of one Work."""

    def __init__(self) -> None:
        self.prunes: prune.Prunes | None = None
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def waits(self) -> list[Waiting | Failed]:
        return self.prunes.waits if self.prunes else []

    @property
    def runners(self) -> list[StepRunner]:
        return self.prunes.runners if self.prunes else []

    def release(self, let_go: LetGo) -> None:
        """Stop: what is not removed yet stays."""
        if self.prunes:
            self.prunes.release(let_go)


class WorkPruner:
    """All prunings of this process, by the uid of the Work. Each is a task of its own, because it may wait for long."""

    def __init__(self, putting: WorkApplier, tasks: asyncio.TaskGroup, *, changed: Callable[[str], None]) -> None:
        """`changed`: called with the uid of a Work whose pruning has news."""
        self._putting = putting
        self._tasks = tasks
        self._changed = changed
        self._under_way: dict[str, Pruning] = {}

    def get(self, uid: str) -> Pruning | None:
        return self._under_way.get(uid)

    def begin(self, work: Work, cluster: Cluster, wanted: frozenset[str], *, done: Callable[[], None]) -> None:
        """Prune what a Work no longer contains; `done`: called when it is verified absent. `wanted`: the keys of its
        objects."""
        uid = work.metadata.uid
        self.give_up(uid)
        it = self._under_way[uid] = Pruning()
        it.task = self._tasks.create_task(self._run(it, work, cluster, wanted, done))

    def give_up(self, uid: str) -> None:
        """Stop the pruning of a Work; a later one starts again."""
        if (it := self._under_way.pop(uid, None)) and it.task:
            it.task.cancel()

    async def _run(
        self, it: Pruning, work: Work, cluster: Cluster, wanted: frozenset[str], done: Callable[[], None]
    ) -> None:
        uid = work.metadata.uid
        try:
            async with fencing.scope():
                it.prunes = self._putting.prunes(work, cluster, changed=lambda: self._changed(uid))
                await self._putting.prune(it.prunes, cluster, wanted)
            done()
            self._under_way.pop(uid, None)
        except FencedError as error:
            it.error = UnwindError(str(error))  # it starts again if this replica gets the shard back
        except Exception as error:  # noqa: BLE001 - it is told on the Work, and tried again
            it.error = error
        self._changed(uid)


# Apply

# The number of failures in the message.
_SHOWN = 20


def matters(work: Work, cluster: Cluster) -> object:
    """The fields that decide what has to be on the member; neither status does."""
    meta = work.metadata
    said = tuple(
        meta.annotations.get(item)
        for item in (names.ADOPT_ANNOTATION, names.TAKE_ALONG_ANNOTATION, names.VOLUMES_ANNOTATION)
    )
    return meta.uid, meta.generation, said, cluster.metadata.uid, cluster.spec.id, recorded_effort(cluster, work)


def source_of(work: Work) -> ManifestSource:
    """The manifests of a Work, as a source."""
    meta = work.metadata
    source = ManifestSource(kind=WORKS.kind, namespace=meta.namespace, name=meta.name)
    read = manifest_sources.collect_manifests(work.spec.workload.manifests)
    return ManifestSource(
        kind=source.kind,
        namespace=source.namespace,
        name=source.name,
        manifests=tuple(read.manifests),
        faults=tuple(f"{source}, {fault}" for fault in read.faults),
    )


def owner_of(work: Work, cluster: Cluster) -> DeploymentOwner:
    """The owner of its objects."""
    adopt = work.metadata.annotations.get(names.ADOPT_ANNOTATION) == "true"
    return DeploymentOwner(object=ref_of(WORKS, work.metadata), adopt=adopt, effort=recorded_effort(cluster, work))


def takes_along(work: Work) -> bool:
    """Whether its namespaces and CRDs are removed even with foreign content."""
    return work.metadata.annotations.get(names.TAKE_ALONG_ANNOTATION) == "true"


class WorkApplier:
    """Applies Works to members."""

    def __init__(self, client: Client, secrets: Informer[Metadata], deps: RemovalDeps) -> None:
        self._client = client
        self._secrets = secrets
        self._deps = deps
        self._holding: SingleFlight[None] = SingleFlight()
        self._chance = JITTER

    async def put(self, work: Work, cluster: Cluster, standing: WorkState) -> None:
        """Apply the Work to the member and record the result in `standing`. Raises if the member cannot be reached, or
        the Work is being removed."""
        target, source = of_karmada(cluster), source_of(work)
        ordinals = {manifest_sources.numbered(number): number for number in range(len(work.spec.workload.manifests))}
        doubts = standing.doubts

        def told(placed: PlacedObject, obj: Object) -> None:
            standing.leave(placed.key, placed.resource, obj)
            if not placed.implied:
                standing.statuses[placed.key] = work_status.manifest_status(placed, ordinals[placed.place], obj)

        if not standing.looked:
            # Before the first object is created: without the finalizer the objects could be orphaned. It goes with the
            # Cluster.
            await self._hold(target)
        async with self._deps.members.member(target, system_uid=cluster.spec.id) as member:
            report = await deployment.deploy(
                member,
                self._deps.inventories,
                owner_of(work, cluster),
                [source],
                # Applied once after a start, whatever happened meanwhile: an apply without changes writes nothing.
                sure=standing.sure,
                first=not standing.looked and not work.status.conditions,
                told=told,
            )
        if standing.looked and doubts and report.of(ObjectOutcome.CREATED, ObjectOutcome.UPDATED):
            standing.corrected(self._deps.clock.monotonic())
        wanted, trouble = report.wanted if report.whole else None, first(report.troubles, shown=_SHOWN)
        standing.settle(wanted, trouble, now=self._deps.clock.monotonic(), chance=self._chance)

    def prunes(self, work: Work, cluster: Cluster, *, changed: Callable[[], None]) -> prune.Prunes:
        """The prune of a Work."""
        return prune.Prunes(
            ref_of(WORKS, work.metadata),
            step_name(work),
            of_karmada(cluster),
            self._deps,
            take_along=takes_along(work),
            volumes=lambda: volume_policy(work.metadata.annotations),
            changed=changed,
        )

    async def prune(self, prunes: prune.Prunes, cluster: Cluster, wanted: frozenset[str]) -> None:
        """Return when nothing is on the member any more that is not in the Work."""
        async with self._deps.members.member(of_karmada(cluster), system_uid=cluster.spec.id) as member:
            await prune.prune(prunes, member, DeploymentReport(wanted=wanted))

    async def _hold(self, target: ClusterTarget) -> None:
        if credentials.is_held(self._secrets.cache.get(Key(target.home, target.secret))):
            return
        await self._holding.ask((target.home, target.secret), lambda: credentials.hold_secret(self._client, target))
