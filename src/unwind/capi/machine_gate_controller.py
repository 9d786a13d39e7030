"""The gate Machines, and when the gate Admission opens: holds Clusters for which Cluster API calls no hook.

TeardownPolicies choose these gates. Machines: Cluster API's pre-terminate hook on each Machine.

Cluster API deletes the control plane of a Cluster after its last worker, and the infrastructure after that. So workers
that are not terminated keep the cluster alive. It skips the pre-drain hook as soon as the Cluster is being deleted, and
honours the pre-terminate hook always (core/reconcilers/machine/machine_controller.go, seen with v1.14).

A Machine that is deleted for another reason (remediation, rollout) is let go of as soon as that is seen. It drains
meanwhile, so this costs no time.

Admission: the API server refuses to delete the Cluster unless Cluster API is paused for it. `admission_policies` has
the refusal, `admission_gate_pause` the pause. Both gates open by the same answer, so the pause is ended from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from unwind import logs
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.fields import Unknown
from unwind.api.names import CLUSTER_NAME_LABEL, MACHINE_GATE_ANNOTATION, MACHINES_FIELD_MANAGER
from unwind.api.unwind import Gate
from unwind.capi import admission_gate_pause
from unwind.capi.failed_checks import FailedChecks
from unwind.capi.machine_caches import is_armed
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import annotate
from unwind.members import targets
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed
from unwind.teardown.records import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import OwnerReference
    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown
    from unwind.capi.gate_reader import GateReader
    from unwind.capi.machine_caches import MachineCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.teardown.deletion_gate import ChosenGates
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

VALUE = "unwind"
"""The value of the annotation: the owner of the hook."""
# Seconds until a cache has caught up with a fresh read.
_SOON = 0.5
# Seconds until the owner of a Machine is read again, if that failed.
_LOOK_AGAIN = 30.0
_AT_ONCE = 16


class HookSettings(Protocol):
    """The settings that rules of hooks get."""

    @property
    def settings(self) -> dict[str, str]: ...


class MachineGateController(Controller[Key]):
    """Arms and disarms the Machines of each Cluster, and unpauses Clusters with the gate Admission."""

    name = "machine gates"
    name_in_metrics = "machine-gates"
    _caches: ClusterCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: ClusterCaches,
        machines: MachineCaches,
        gates: ChosenGates,
        reader: GateReader,
        *,
        keys: RecordKeys,
        hooks: HookSettings,
    ) -> None:
        super().__init__(shared, caches)
        self._machines = machines
        self._gates = gates
        self._reader = reader
        self._keys = keys
        self._hooks = hooks
        self._failed_checks = FailedChecks(shared.client, caches.teardowns, keys, shared.recorder)
        self._discovery = Discovery(shared.client)
        caches.clusters.subscribe(self._cluster_changed)
        caches.teardowns.subscribe(self._teardown_changed)
        machines.follow(self._queue.add)
        gates.follow(self._enqueue_all)

    @property
    def ready(self) -> bool:
        return self._caches.ready and self._machines.ready

    # Events

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or _relevant(old) != _relevant(new):
            self._queue.add(change.key)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        teardown = change.new or change.old
        if not teardown or teardown.spec.target.group != CLUSTERS.group:
            return
        # Its status changes all the time; what matters is that it no longer closes the gate.
        if (
            change.old
            and change.new
            and isinstance(deletion_gate.of_teardown(teardown.spec.target.uid, teardown), GateClosed)
        ):
            return
        self._queue.add(target_of(teardown))

    def _enqueue_all(self) -> None:
        clusters = {Key(it.metadata.namespace, it.metadata.name) for it in self._caches.clusters.all()}
        for key in clusters | self._machines.armed():
            self._queue.add(key)

    def _describe(self, key: Key) -> dict[str, str]:
        return {"cluster": str(key)}

    # Reconcile

    async def _reconcile(self, key: Key) -> float | None:
        known = self._caches.clusters.settled and self._machines.known and self._gates.settled
        if not known or not self._owner.owns(str(key)):
            return None
        machines = self._machines.of(key)
        cluster = self._caches.clusters.get(key)
        if cluster is None:
            return await self._release_orphans(key, machines)
        if cluster.metadata.terminating:
            return await self._hold(key, cluster, machines)
        again = None
        if cluster.held:
            resource, now = self._caches.clusters.resource, self._clock.now()
            again = await admission_gate_pause.end_pause(self._client, resource, cluster.metadata, now=now)
        chosen = self._gates.of(targets.of_capi(cluster))
        if isinstance(chosen, Unknown):
            return again  # neither armed nor disarmed
        armed = [machine for machine in machines if is_armed(machine)]
        if chosen is Gate.MACHINES:
            await self._arm(key, machines)
            armed = [machine for machine in armed if machine.deletion_timestamp]
        if not armed:
            return again
        # Fresh, because with the deletion of the Cluster these Machines hold it.
        if await self._read(key, uid=cluster.metadata.uid) != "alive":
            return _SOON
        why = "the Cluster is not being deleted" if chosen is Gate.MACHINES else "no policy chooses this gate"
        await self._disarm(key, armed, why)
        return again

    async def _release_orphans(self, key: Key, machines: Iterable[Metadata]) -> float | None:
        armed = [machine for machine in machines if is_armed(machine)]
        if not armed:
            return None
        if await self._read(key) != "gone":
            return _SOON
        await self._disarm(key, armed, "the Cluster is gone")
        return None

    async def _hold(self, key: Key, cluster: Cluster, machines: list[Metadata]) -> float | None:
        """Hold the Machines of a Cluster that is being deleted, until its gate opens."""
        armed = [machine for machine in machines if is_armed(machine)]
        wanted = armed or self._gates.of(targets.of_capi(cluster)) is Gate.MACHINES
        if not cluster.held and not (wanted and (armed or _unarmed(machines))):
            return None
        if cluster.paused:
            return None  # Cluster API does nothing to it either
        uid = cluster.metadata.uid
        cached = self._closed_by_cache(uid)
        verdict, faults = (None, []) if cached else await self._reader.decide(cluster, self._hooks.settings)
        if verdict is None or isinstance(verdict, GateClosed):
            if wanted:
                await self._arm(key, machines)
            again = await self._let_go(key, armed)
            return again or (verdict.seconds if verdict else None)  # the rules of a hook send no events
        # A new Cluster of this name may have Machines of its own.
        if await self._read(key, uid=uid) not in ("terminating", "gone"):
            return _SOON
        if faults:
            await self._failed_checks.report(targets.of_capi(cluster), faults)
        await self._disarm(key, armed, "the gate is open")
        if cluster.held:
            await admission_gate_pause.unpause(self._client, self._caches.clusters.resource, cluster.metadata)
        log.info("cluster deletion allowed", cluster=str(key), uid=uid)
        return None

    def _closed_by_cache(self, uid: str) -> bool:
        """Whether the record in the cache closes the gate. A no may come from a cache."""
        if not self._keys.known:
            return False
        found = self._keys.chosen(self._caches.teardowns.cache.by("uid", uid), uid)
        return found is not None and isinstance(deletion_gate.of_teardown(uid, found), GateClosed)

    async def _let_go(self, key: Key, armed: list[Metadata]) -> float | None:
        """Let go of Machines that are deleted for another reason than their Cluster: a control plane that loses a
        Machine meanwhile must be able to replace it."""
        going = [machine for machine in armed if machine.deletion_timestamp and _controller_of(machine)]
        if not going:
            return None
        owners = {owner.uid: owner for machine in going if (owner := _controller_of(machine))}
        states = {uid: await self._is_terminating(owner, key.namespace) for uid, owner in owners.items()}
        again = _LOOK_AGAIN if None in states.values() else None
        others = [machine for machine in going if states[_owner_uid(machine)] is False]
        if not others:
            return again
        # Fresh: the last one that holds must stay.
        holding = await self._holding(key)
        freed = [machine for machine in others if machine.uid in holding]
        if len(freed) >= len(holding):
            freed = freed[: len(holding) - 1]
        await self._disarm(key, freed, "its owner is not being deleted (remediation or rollout)")
        return again

    async def _holding(self, key: Key) -> set[str]:
        found = await self._client.list(
            self._machines.resource, namespace=key.namespace, labels=f"{CLUSTER_NAME_LABEL}={key.name}"
        )
        return {
            item["metadata"]["uid"]
            for item in found
            if MACHINE_GATE_ANNOTATION in (item["metadata"].get("annotations") or {})
        }

    async def _is_terminating(self, owner: OwnerReference, namespace: str) -> bool | None:
        """Whether the owner of a Machine is being deleted; None if that cannot be known, which holds the Machine."""
        group, _, _ = owner.api_version.partition("/")
        try:
            resource = await self._discovery.resource(owner.kind, group=group)
            found = await self._client.get(resource, owner.name, namespace=namespace)
        except UnwindError as error:
            about = f"{owner.kind} {owner.name}"
            log.warning("owner of a Machine not read, it is held, will retry", object=about, why=str(error))
            return None
        meta = found["metadata"]
        return meta["uid"] != owner.uid or bool(meta.get("deletionTimestamp"))

    async def _read(self, key: Key, *, uid: str = "") -> str:
        """Whether the Cluster is alive, terminating or gone; another one if it has another uid."""
        resource = self._caches.clusters.resource
        try:
            found = await self._client.get(resource, key.name, namespace=key.namespace, type=Cluster)
        except NotFoundError:
            return "gone"
        if uid and found.metadata.uid != uid:
            return "another"
        return "terminating" if found.metadata.terminating else "alive"

    # Writes

    async def _arm(self, key: Key, machines: Iterable[Metadata]) -> None:
        if missing := _unarmed(machines):
            await self._write(missing, VALUE)
            log.info("machines armed", cluster=str(key), machines=len(missing))

    async def _disarm(self, key: Key, machines: Iterable[Metadata], why: str) -> None:
        found = list(machines)
        if found:
            await self._write(found, None)
            log.info("machines disarmed", cluster=str(key), machines=len(found), why=why)

    async def _write(self, machines: Iterable[Metadata], value: str | None) -> None:
        resource = self._machines.resource
        await gather_limited((set_annotation(self._client, resource, it, value) for it in machines), limit=_AT_ONCE)


async def set_annotation(
    client: Client,
    resource: Resource,
    machine: Metadata,
    value: str | None,
    *,
    field_manager: str = MACHINES_FIELD_MANAGER,
) -> None:
    """Add or remove our annotation on a Machine."""
    await annotate(client, resource, machine, {MACHINE_GATE_ANNOTATION: value}, field_manager=field_manager)


def _unarmed(machines: Iterable[Metadata]) -> list[Metadata]:
    """The Machines that can be armed: not one that is being deleted, which may have been let go of."""
    return [machine for machine in machines if not is_armed(machine) and machine.deletion_timestamp is None]


def _controller_of(machine: Metadata) -> OwnerReference | None:
    """The MachineSet or control plane that manages a Machine."""
    return next((owner for owner in machine.owner_references if owner.controller), None)


def _owner_uid(machine: Metadata) -> str:
    owner = _controller_of(machine)
    return owner.uid if owner else ""


def _relevant(cluster: Cluster) -> object:
    meta = cluster.metadata
    return meta.uid, meta.labels, meta.terminating, cluster.paused, cluster.held
