"""What a profile says of clusters that must wait for it, and that Cluster API would take apart without asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.conditions import find
from unwind.api.fields import Unknown
from unwind.api.names import ConditionType
from unwind.api.sveltos import ClusterDeletionBehavior, ClusterType
from unwind.gating.arming import Fault
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.meta import Condition
    from unwind.api.resources import Resource
    from unwind.controllers.addons.caches import SeenProfile
    from unwind.fleet.targets import Target
    from unwind.gating.arming import Gate
    from unwind.kube.events import Recorder


class Gated:
    """Knows it of every profile; without a gate there is nothing to know."""

    def __init__(self, gate: Gate | None, recorder: Recorder | None, changed: Callable[[], None]) -> None:
        """`changed` is told when it may be something else."""
        self._gate = gate
        self._recorder = recorder
        if gate:
            gate.subscribe(changed)

    def why_not(self, profile: SeenProfile, clusters: Iterable[Target]) -> Fault | Unknown | None:
        """Why some of the clusters that a profile matches are not held; Unknown if that is not known yet."""
        if self._gate is None or not holds(profile):
            return None
        return unarmed(clusters, self._gate.why_not) if self._gate.known else Unknown("whether Cluster API asks")

    def report(self, resource: Resource, profile: SeenProfile, now: tuple[Condition, ...]) -> None:
        """Tell in an Event that it has begun, where it has."""
        found = find(now, ConditionType.GATE_NOT_ARMED)
        if self._recorder and found and find(profile.status.conditions, ConditionType.GATE_NOT_ARMED) is None:
            meta = profile.metadata
            it = Regarding(resource.api_version, resource.kind, meta.name, meta.uid, meta.namespace)
            self._recorder.report(it, found.type, found.message, action="Hold", type="Warning")


def holds(profile: SeenProfile) -> bool:
    """Whether clusters wait for it when they are deleted."""
    return profile.spec.deletion is ClusterDeletionBehavior.ENFORCE


def unarmed(clusters: Iterable[Target], why_not: Callable[[str], Fault | None]) -> Fault | None:
    """Why Cluster API would take some of these clusters apart without asking; None if it would none (pure)."""
    faults: dict[Fault, list[str]] = {}
    for cluster in clusters:
        # About others nobody is ever asked, and no gate makes them wait.
        if cluster.type is ClusterType.CAPI and cluster.has_class and (fault := why_not(cluster.ref.namespace)):
            faults.setdefault(fault, []).append(f"{cluster.ref.namespace}/{cluster.ref.name}")
    if not faults:
        return None
    # In an order that does not change by itself: what is said is written only where it is something else.
    told = sorted(faults.items(), key=lambda item: min(item[1]))
    message = "; ".join(f"Cluster API does not wait for the removal from {_some(names)}: {why}" for why, names in told)
    return Fault(told[0][0].reason, message)


def _some(names: list[str]) -> str:
    return f"{min(names)} and {len(names) - 1} more" if len(names) > 1 else names[0]
