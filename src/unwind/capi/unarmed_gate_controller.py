"""The controller of gates that are not armed: a condition on Teardowns and a metric report Clusters that Cluster API
would delete without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client import Gauge

from unwind import logs
from unwind.api.capi import CLUSTERS
from unwind.api.fields import Unknown
from unwind.api.meta import find, with_condition
from unwind.api.names import GATE_FIELD_MANAGER, OK_TO_DELETE_ANNOTATION, SET_ASIDE_LABEL, ConditionType, Reason
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Gate, Teardown
from unwind.capi import extension_config_faults
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.events import Regarding
from unwind.members import targets
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateFault
from unwind.teardown.status import guarded

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.api.capi import Cluster
    from unwind.api.meta import Condition
    from unwind.capi.machine_caches import MachineCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.teardown.deletion_gate import ChosenGates, GateSource, GateStatus


log = logs.get(__name__)

_SOON = 0.5


class UnarmedClusterController(Controller[Key]):
    """Sets a condition on Teardowns of clusters that Cluster API deletes without waiting."""

    name = "unarmed"
    _caches: ClusterCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: ClusterCaches,
        armed: GateStatus,
        source: GateSource,
        *,
        registry: CollectorRegistry,
        machines: MachineCaches | None = None,
        gates: ChosenGates | None = None,
    ) -> None:
        """`machines`: the Machines of Clusters; None if the feature `gates` is not installed. `gates`: the gates that
        policies choose; None if no feature has policies."""
        super().__init__(shared, caches)
        self._machines = machines
        self._gates = gates
        if machines:
            machines.follow(self._machines_changed)
        self._gate = armed
        self._source = source
        Gauge(
            "unwind_gate_unarmed_clusters",
            "Clusters with add-ons that must be removed, but whose deletion Cluster API would not wait for.",
            registry=registry,
        ).set_function(self.count)
        caches.teardowns.subscribe(self._teardown_changed)
        caches.clusters.subscribe(self._cluster_changed)
        armed.subscribe(self._enqueue_all)

    def count(self) -> int:
        """The number of clusters that must be blocked but are not."""
        if not self._gate.known:
            return 0
        found = 0
        faults: dict[str, bool] = {}
        for cluster in self._caches.clusters.all():
            meta = cluster.metadata
            if meta.namespace not in faults:
                faults[meta.namespace] = self._gate.why_not(meta.namespace) is not None
            marked = OK_TO_DELETE_ANNOTATION in meta.annotations and not meta.terminating
            unheld = cluster.class_name and (marked or faults[meta.namespace])
            if unheld or (not meta.terminating and self._machines_fault(cluster)):
                found += any(enforcing(item.behaviour) for item in self._source.known(targets.of_capi(cluster)))
        return found

    def _machines_fault(self, cluster: Cluster) -> GateFault | None:
        """Why the Machines of a Cluster do not hold it, if a policy chooses that gate."""
        if self._gates is None or self._gates.of(targets.of_capi(cluster)) is not Gate.MACHINES:
            return None
        if self._machines is None:
            return deletion_gate.NOT_INSTALLED
        meta = cluster.metadata
        return self._machines.shape(meta.namespace, meta.name).fault if self._machines.known else None

    def _enqueue_all(self) -> None:
        for key in list(self._caches.teardowns.cache.keys()):
            self._queue.add(key)

    def _machines_changed(self, cluster: Key) -> None:
        for teardown in self._caches.teardowns.cache.by("target", cluster):
            if teardown.spec.gate == Gate.MACHINES and not teardown.finished:
                self._queue.add(Key("", teardown.metadata.name))

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        it = change.new
        if it and it.metadata.terminating and OK_TO_DELETE_ANNOTATION in it.metadata.annotations:
            for teardown in self._caches.teardowns.cache.by("target", change.key):
                self._queue.add(Key("", teardown.metadata.name))

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        if change.new and not change.new.finished:
            self._queue.add(change.key)

    def _shard(self, key: Key) -> str | None:
        teardown = self._caches.teardowns.cache.get(key)
        return str(Key(teardown.spec.target.namespace, teardown.spec.target.name)) if teardown else None

    def _failed(self, key: Key, error: Exception) -> None:
        log.warning("condition GateNotArmed not written, will retry", teardown=str(key), why=str(error))

    async def _reconcile(self, key: Key) -> float | None:
        teardown = self._caches.teardowns.cache.get(key)
        # A finished record stays as it is: it documents how the cluster was deleted.
        if teardown is None or SET_ASIDE_LABEL in teardown.metadata.labels:
            return None
        if teardown.finished or not self._gate.known or not self._caches.clusters.settled:
            return None
        target = teardown.spec.target
        if not self._owner.owns(str(Key(target.namespace, target.name))):
            return None
        cluster = self._caches.clusters.get(Key(target.namespace, target.name))
        held = _held(teardown) and cluster is not None and _is_of(cluster, teardown)
        return await self._write_condition(teardown, self._why_not(teardown, cluster) if held and cluster else None)

    def _why_not(self, teardown: Teardown, cluster: Cluster) -> GateFault | None:
        if teardown.spec.gate in _WITHOUT_HOOK:
            if isinstance(deletion_gate.of_teardown(cluster.metadata.uid, teardown), deletion_gate.GateOpen):
                return None  # it is let go of
            if teardown.spec.gate == Gate.ADMISSION:
                return None if cluster.held or cluster.class_name else _NOT_PAUSED
            if self._machines is None:
                return deletion_gate.NOT_INSTALLED
            meta = cluster.metadata
            return self._machines.shape(meta.namespace, meta.name).fault if self._machines.known else None
        marked = OK_TO_DELETE_ANNOTATION in cluster.metadata.annotations
        if marked and isinstance(deletion_gate.of_teardown(cluster.metadata.uid, teardown), deletion_gate.GateClosed):
            return extension_config_faults.MARKED
        return self._gate.why_not(teardown.spec.target.namespace)

    async def _write_condition(self, teardown: Teardown, fault: GateFault | None) -> float | None:
        """Write the condition; returns the seconds until a retry if the record has changed meanwhile."""
        before = find(teardown.status.conditions, ConditionType.GATE_NOT_ARMED)
        kept: tuple[Condition, ...] = (before,) if before else ()
        wanted: tuple[Condition, ...] = ()
        if fault:
            wanted = with_condition(
                kept,
                type=ConditionType.GATE_NOT_ARMED,
                status=True,
                reason=fault.reason,
                message=f"Cluster API does not wait for the removal: {fault}",
                generation=teardown.metadata.generation,
                now=self._clock.now(),
            )
        if wanted == kept:
            return None
        meta = teardown.metadata
        body: Object = {
            "apiVersion": TEARDOWNS.api_version,
            "kind": TEARDOWNS.kind,
            "metadata": guarded(teardown),
            # Applied with a field manager of its own: an empty list removes only its own condition.
            "status": {"conditions": msgspec.to_builtins(wanted)},
        }
        try:
            written = await self._client.apply(TEARDOWNS, body, subresource="status", field_manager=GATE_FIELD_MANAGER)
        except NotFoundError:
            return None  # deleted
        except ConflictError:
            # Replaced or changed meanwhile: the cache gets an event.
            return _SOON
        self._caches.teardowns.take(msgspec.convert(written, Teardown))
        if fault and before is None:
            it = Regarding(TEARDOWNS.api_version, TEARDOWNS.kind, meta.name, meta.uid)
            self._recorder.report(it, ConditionType.GATE_NOT_ARMED, wanted[0].message, action="Hold", type="Warning")
            log.warning(
                "gate is not armed, Cluster API does not wait for the removal", teardown=meta.name, why=str(fault)
            )
        return None


_WITHOUT_HOOK = (Gate.MACHINES, Gate.ADMISSION)
_NOT_PAUSED = GateFault(
    Reason.NOT_PAUSED,
    "the gate is Admission, and the Cluster was deleted without being paused for it; next time use `unwind delete`",
)


def enforcing(behaviour: ClusterDeletionBehavior | Unknown) -> bool:
    """Whether it blocks clusters. An unknown value blocks."""
    return isinstance(behaviour, Unknown) or behaviour is ClusterDeletionBehavior.ENFORCE


def _held(teardown: Teardown) -> bool:
    plan = teardown.spec.plan
    return plan is None or any(Effort.read(step.effort) not in (Effort.LEAVE, Effort.TRY) for step in plan.steps)


def _is_of(cluster: Cluster, teardown: Teardown) -> bool:
    target = teardown.spec.target
    # Cluster API calls no hook for a Cluster without ClusterClass; another condition reports that.
    gated = bool(cluster.class_name) or teardown.spec.gate in _WITHOUT_HOOK
    of_deletion = target.group == CLUSTERS.group and teardown.spec.cause != Cause.REQUESTED
    return of_deletion and cluster.metadata.uid == target.uid and gated
