"""The controller of clusters that are being deleted: each gets a Teardown, which is carried out to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind import logs
from unwind.api.meta import manifest
from unwind.api.names import CLUSTER_UID_ANNOTATION, FORCE_RELEASE_ANNOTATION, TAKE_ALONG_ANNOTATION, Reason
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, ClusterType
from unwind.api.unwind import TEARDOWNS, StepState, Teardown
from unwind.clock import SYSTEM
from unwind.controllers.addons.matching import ClusterKey
from unwind.controllers.teardowns import drafting, projecting
from unwind.controllers.teardowns.executing import Execution
from unwind.controllers.teardowns.managers import who_set
from unwind.controllers.teardowns.steps import BEST_EFFORT, Means
from unwind.fleet import credentials, targets
from unwind.fleet.fleet import Fleet
from unwind.kube import views
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.informers import Informer
from unwind.kube.queue import Queue
from unwind.kube.views import Key
from unwind.removing.inventories import Inventories, items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.unwind import Inventory, Step
    from unwind.clock import Clock
    from unwind.controllers.addons.caches import Caches
    from unwind.controllers.teardowns.drafting import Said
    from unwind.deleting.registering import External, Registration
    from unwind.deleting.registry import Plugin
    from unwind.fleet.targets import Target
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.metrics import Metrics
    from unwind.removing.releases import Releases

log = logs.get(__name__)

KEEP = timedelta(days=7)
"""How long the record of a teardown stays."""


_BREATHE = 5.0


class Owner(Protocol):
    """Who says which clusters this process may act for."""

    def owns(self, key: str) -> bool:
        """Whether it may, now."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it told when that changes."""


class Teardowns:
    """Takes clusters apart when they are deleted."""

    name = "teardowns"

    def __init__(
        self,
        client: Client,
        caches: Caches,
        *,
        namespace: str,
        owner: Owner,
        metrics: Metrics,
        deleters: Iterable[Registration | External],
        plugins: Iterable[Plugin] = (),
        releases: Releases | None = None,
        best_effort: float = BEST_EFFORT,
        keep: timedelta = KEEP,
        clock: Clock = SYSTEM,
    ) -> None:
        """`namespace`: Unwind's own, where the inventories are. `best_effort`: how many seconds a removal may take that
        the cluster does not wait for. `keep`: how long the record stays."""
        self._client = client
        self._fleet = Fleet(client, clock=clock, troubled=_tell_troubled)
        self._means = Means(
            fleet=self._fleet,
            inventories=Inventories(client, namespace=namespace),
            deleters=tuple(deleters),
            plugins=tuple(plugins),
            releases=releases,
            best_effort=best_effort,
            clock=clock,
        )
        self._caches = caches
        self._owner = owner
        self._keep = keep
        self._clock = clock
        self._teardowns = Informer(
            client,
            views.typed(TEARDOWNS, Teardown),
            indexes={"target": lambda it: [Key(it.spec.target.namespace, it.spec.target.name)]},
            clock=clock,
            troubled=self._unfollowed,
        )
        self._trouble = ""
        self._executions: dict[Key, Execution] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._queue: Queue[Key] = Queue(
            metrics.timed(self.name, self._reconcile), group=lambda key: key, clock=clock, failed=_tell_failed
        )
        self._projections = projecting.Projections(client, clock=clock)
        metrics.queue(self.name, self._queue)
        metrics.informer(self._teardowns)
        caches.clusters.subscribe(lambda change: self._queue.add(change.key))
        caches.summaries.subscribe(self._summary_changed)
        caches.subscribe(self._look_at_all)
        self._teardowns.subscribe(self._teardown_changed)
        owner.subscribe(self._look_at_all)

    @property
    def ready(self) -> bool:
        # Where there is no such kind there is nothing to do, which holds nobody up.
        return self._caches.ready and (self._teardowns.synced or bool(self._trouble))

    async def run(self) -> None:
        """Look after all clusters, until cancelled."""
        async with self._fleet, asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._teardowns.run())
            group.create_task(self._projections.run())
            await self._teardowns.until_synced()
            await self._queue.run()

    # What happens

    def _unfollowed(self, error: Exception) -> None:
        if self._trouble != str(error):
            log.warning("teardowns cannot be followed", why=str(error))
        self._trouble = str(error)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        it = change.new or change.old
        if it:
            self._queue.add(Key(it.spec.target.namespace, it.spec.target.name))

    def _summary_changed(self, change: Change[ClusterSummary]) -> None:
        it = change.new or change.old
        for key in _clusters_of(it) if it else ():
            # Only a teardown that waits for its plan cares.
            if key not in self._executions:
                self._queue.add(key)

    def _look_at_all(self) -> None:
        clusters = {Key(one.metadata.namespace, one.metadata.name) for one in self._caches.clusters.all()}
        targets = {Key(one.spec.target.namespace, one.spec.target.name) for one in self._teardowns.cache}
        for key in {*clusters, *targets, *self._executions}:
            self._queue.add(key)

    # What is done

    async def _reconcile(self, key: Key) -> float | None:
        if not self._owner.owns(str(key)):
            if task := self._tasks.get(key):
                task.cancel()
            return None
        # A plan that is made while half of the summaries are known would leave the other half behind.
        if not self._caches.settled or not self._caches.clusters.synced:
            return None  # it is told when they are
        cluster = self._caches.clusters.get(key)
        for teardown in self._teardowns.cache.by("target", key):
            if cluster is None or teardown.spec.target.uid != cluster.metadata.uid:
                await self._bereaved(key, teardown)
        execution = self._executions.get(key)
        if cluster is None or not cluster.metadata.terminating:
            return await self._retain(key)
        target = targets.of_capi(cluster)
        if execution and execution.target.ref.uid == target.ref.uid:
            await self._released(target, execution)
            return None
        if execution:
            return None  # of another cluster that had this name; its end is on the way, and adds this key again
        teardown = await self._teardown(target)
        if teardown.finished:
            await self._clean(teardown, target)
            return await self._retain(key)
        if teardown.spec.plan is None:
            return None  # a value in it is not known; whoever puts it right changes a summary
        await self._begin(key, teardown, target)
        return None

    async def _teardown(self, target: Target) -> Teardown:
        """The target's Teardown; written with its plan before anything is deleted."""
        found = self._teardowns.cache.get(Key("", target.ref.uid))
        if found and found.spec.plan:
            return found
        drafted = await self._drafted(target)
        wanted = drafting.teardown(target, drafted.plan)
        if found is None:
            try:
                made = await self._client.create(TEARDOWNS, manifest(TEARDOWNS, wanted))
            except AlreadyExistsError:
                made = await self._client.get(TEARDOWNS, target.ref.uid)
        elif drafted.plan:
            read = await self._client.get(TEARDOWNS, target.ref.uid)
            made = await self._client.revise(TEARDOWNS, read, {"spec": {"plan": msgspec.to_builtins(drafted.plan)}})
        else:
            return found
        teardown = msgspec.convert(made, Teardown)
        self._teardowns.take(teardown)
        if teardown.spec.plan is None:
            await projecting.hold(self._client, teardown, drafted.said, now=self._clock.now())
        return teardown

    async def _drafted(self, target: Target) -> drafting.Drafted:
        """The plan, from what the server says now and not from a cache: it is made once."""
        found = await self._client.list(CLUSTER_SUMMARIES, namespace=target.ref.namespace)
        here = [one for one in msgspec.convert(found, list[ClusterSummary]) if _is_of(one, target)]
        objects = {one.metadata.uid: len(items(await self._means.inventories.of(one.metadata.uid))) for one in here}
        return drafting.drafted(here, objects)

    async def _begin(self, key: Key, teardown: Teardown, target: Target) -> None:
        assert self._group  # noqa: S101 - we run
        along = await self._taking_along(teardown)
        execution = Execution(
            teardown,
            target,
            self._means,
            self._client,
            said=self._said(target),
            take_along=lambda step: step.name in along,
            stepped=self._stepped,
        )
        self._executions[key] = execution
        self._tasks[key] = self._group.create_task(self._execute(key, execution))
        await self._released(target, execution)

    async def _execute(self, key: Key, execution: Execution) -> None:
        log.info("teardown begins", cluster=str(execution.target.ref), teardown=execution.teardown.metadata.name)
        again = 0.0
        try:
            await execution.run()
        except Exception:
            # A mistake of ours in one teardown must not end the others; what it did is seen again.
            log.exception("a teardown broke off", cluster=str(key))
            again = _BREATHE
        finally:
            self._executions.pop(key, None)
            self._tasks.pop(key, None)
        self._queue.add_after(key, again)

    async def _bereaved(self, key: Key, teardown: Teardown) -> None:
        """The target of a teardown is gone: it ends, if it has not."""
        ref = teardown.spec.target
        sighting = await self._client.sighting(
            self._caches.clusters.resource, ref.name, uid=ref.uid, namespace=ref.namespace
        )
        if not sighting.absent:
            return
        execution = self._executions.get(key)
        if execution and execution.target.ref.uid == ref.uid:
            execution.target_gone()
            return
        target = targets.of_gone(ref)
        if not teardown.finished and teardown.spec.plan:
            ending = Execution(teardown, target, self._means, self._client, stepped=self._stepped)
            ending.target_gone()
            await ending.run()
            teardown = ending.teardown
        await self._clean(teardown, target)

    async def _released(self, target: Target, execution: Execution) -> None:
        """Let the target go if a person says so."""
        reason = target.annotations.get(FORCE_RELEASE_ANNOTATION)
        if reason is None:
            return
        # Who said it stands only in what the server keeps of every field; and a yes is never taken from a cache.
        obj = await self._client.get(self._caches.clusters.resource, target.ref.name, namespace=target.ref.namespace)
        if obj["metadata"]["uid"] != target.ref.uid:
            return
        said = (obj["metadata"].get("annotations") or {}).get(FORCE_RELEASE_ANNOTATION)
        if said is not None:
            execution.release(Reason.FORCED, said or "no reason was given", who_set(obj, FORCE_RELEASE_ANNOTATION))

    async def _clean(self, teardown: Teardown, target: Target) -> None:
        """Take away what is needed no more. Done again after a crash, it finds nothing to do."""
        for step in teardown.spec.plan.steps if teardown.spec.plan else ():
            for chunk in await self._means.inventories.of(step.object.uid):
                if not _ledgered(chunk):
                    await self._means.inventories.discard(chunk)
        await credentials.let_go(self._client, target)

    async def _retain(self, key: Key) -> float | None:
        """See to it that finished records go when their time is over."""
        due: list[float] = []
        for teardown in self._teardowns.cache.by("target", key):
            ended = teardown.status.finished_at
            if teardown.finished and ended:
                left = (ended + self._keep - self._clock.now()).total_seconds()
                if left > 0:
                    due.append(left)
                else:
                    await self._forget(teardown)
        return min(due, default=None)

    async def _forget(self, teardown: Teardown) -> None:
        for step in teardown.spec.plan.steps if teardown.spec.plan else ():
            for chunk in await self._means.inventories.of(step.object.uid):
                await self._means.inventories.discard(chunk)
        with suppress(NotFoundError):  # somebody was faster
            await self._client.delete(TEARDOWNS, teardown.metadata.name, uid=teardown.metadata.uid)

    # What it knows

    def _said(self, target: Target) -> tuple[Said, ...]:
        cluster = ClusterKey(ClusterType.CAPI.value, target.ref.namespace, target.ref.name)
        here = self._caches.summaries.cache.by("cluster", cluster)
        return (*drafting.drafted(here, {}).said, *drafting.misunderstood(target))

    async def _taking_along(self, teardown: Teardown) -> set[str]:
        """The steps whose profiles say that foreign things go along."""
        along = set()
        for step in teardown.spec.plan.steps if teardown.spec.plan else ():
            summary = self._caches.summaries.cache.get(Key(step.object.namespace, step.object.name))
            if summary and summary.metadata.annotations.get(TAKE_ALONG_ANNOTATION) == "true":
                along.add(step.name)
        return along

    def _stepped(self, step: Step, state: StepState) -> None:
        self._projections.tell(step.object, state)


def _clusters_of(summary: ClusterSummary) -> list[Key]:
    spec = summary.spec
    return [Key(spec.cluster_namespace, spec.cluster_name)] if spec.cluster_type == ClusterType.CAPI else []


def _is_of(summary: ClusterSummary, target: Target) -> bool:
    # Another cluster that had the name has summaries of its own.
    made_for = summary.metadata.annotations.get(CLUSTER_UID_ANNOTATION, target.ref.uid)
    return Key(target.ref.namespace, target.ref.name) in _clusters_of(summary) and made_for == target.ref.uid


def _ledgered(chunk: Inventory) -> bool:
    return any(entry.ledger is not None for entry in chunk.spec.entries.values())


def _tell_troubled(error: Exception) -> None:
    log.warning("a member cannot be followed", why=str(error))


def _tell_failed(key: Key, error: Exception) -> None:
    log.warning("a cluster's teardown could not be looked after", cluster=str(key), why=str(error))
