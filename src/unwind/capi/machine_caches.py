"""Informers of the Machines and MachinePools of Clusters: metadata only, in the served version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.capi import MACHINE_POOLS, MACHINE_POOLS_V1BETA1, MACHINES, MACHINES_V1BETA1
from unwind.api.names import CLUSTER_NAME_LABEL, MACHINE_GATE_ANNOTATION
from unwind.clock import SYSTEM
from unwind.concurrency import run_all
from unwind.kube import decoding
from unwind.kube.decoding import Key, Metadata
from unwind.kube.served_versions import ServedInformer
from unwind.teardown.deletion_gate import MachineShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.informers import InformerFactory


def cluster_of(obj: Metadata) -> Key | None:
    """The Cluster of a Machine or MachinePool; None without its label, by which Cluster API finds it."""
    name = (obj.labels or {}).get(CLUSTER_NAME_LABEL)
    return Key(obj.namespace, name) if name else None


def is_armed(machine: Metadata) -> bool:
    """Whether a Machine has our annotation."""
    return MACHINE_GATE_ANNOTATION in (machine.annotations or {})


def shape_of(machines: Iterable[Metadata], pools: int) -> MachineShape:
    """The shape of a Cluster with these Machines (pure)."""
    # A Machine that is being deleted counts only while it holds: what was let go of is as good as gone.
    counted = [machine for machine in machines if machine.deletion_timestamp is None or is_armed(machine)]
    return MachineShape(machines=len(counted), armed=sum(map(is_armed, counted)), pools=pools)


class MachineCaches:
    """The Machines and MachinePools of all Clusters. Either kind may not be served."""

    name = "machines' caches"

    def __init__(self, client: Client, *, informers: InformerFactory, clock: Clock = SYSTEM) -> None:
        self._told: list[Callable[[], None]] = []
        self._followers: list[Callable[[Key], None]] = []
        self._machines, self._pools = (
            _ServedKind(
                client,
                known,
                decoding.metadata,
                informers=informers,
                clock=clock,
                changed=self._changed,
                listed=self._listed,
                indexes={"cluster": lambda obj: filter(None, (cluster_of(obj),))},
            )
            for known in ((MACHINES, MACHINES_V1BETA1), (MACHINE_POOLS, MACHINE_POOLS_V1BETA1))
        )

    @property
    def known(self) -> bool:
        """Whether both kinds are listed, or known not to be served."""
        return self._machines.known and self._pools.known

    @property
    def ready(self) -> bool:
        """Whether both kinds are listed, or cannot be: that must not keep the manager from serving hooks."""
        return self._machines.ready and self._pools.ready

    @property
    def resource(self) -> Resource:
        """The served version of Machines."""
        return self._machines.resource or MACHINES

    def of(self, cluster: Key) -> list[Metadata]:
        """The Machines of a Cluster."""
        return self._machines.of(cluster)

    def shape(self, namespace: str, name: str) -> MachineShape:
        """The shape of a Cluster."""
        cluster = Key(namespace, name)
        return shape_of(self.of(cluster), len(self._pools.of(cluster)))

    def armed(self) -> set[Key]:
        """The Clusters whose Machines have our annotation."""
        return {cluster for machine in self._machines.all() if is_armed(machine) and (cluster := cluster_of(machine))}

    def follow(self, changed: Callable[[Key], None]) -> None:
        """Call `changed` with the Cluster of each Machine or MachinePool that comes, goes, or changes its hold."""
        self._followers.append(changed)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the shape of a Cluster may have changed, and when everything is listed."""
        self._told.append(changed)

    async def run(self) -> None:
        """Watch until cancelled."""
        await run_all(self._machines, self._pools)

    def _changed(self, change: Change[Metadata]) -> None:
        old, new = change.old, change.new
        if old and new and _relevant(old) == _relevant(new):
            return  # Cluster API writes the status of Machines all the time
        for cluster in {cluster_of(obj) for obj in (old, new) if obj}:
            if cluster:
                for changed in self._followers:
                    changed(cluster)
        if self.known:
            self._listed()

    def _listed(self) -> None:
        for told in self._told:
            told()


def _relevant(obj: Metadata) -> object:
    return obj.uid, cluster_of(obj), is_armed(obj), obj.deletion_timestamp is not None, obj.owner_references


class _ServedKind(ServedInformer[Metadata]):
    """The objects of one kind, watched in the served version."""

    @property
    def ready(self) -> bool:
        return self.known or bool(self.trouble)

    def of(self, cluster: Key) -> list[Metadata]:
        return list(self.informer.cache.by("cluster", cluster)) if self.informer else []

    def all(self) -> Iterable[Metadata]:
        return self.informer.cache if self.informer else ()
