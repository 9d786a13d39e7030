"""The conditions GateNotArmed and GateNotAvailable of profiles and ClusterSummaries.

They name clusters that must wait for removal, but that are deleted without calling Unwind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.meta import find, with_condition, without_condition
from unwind.api.names import NO_CLUSTER_CLASS, ConditionType, Reason
from unwind.api.sveltos import ClusterDeletionBehavior, ClusterType
from unwind.kube.events import Regarding
from unwind.teardown.deletion_gate import GateFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from unwind.addons.caches import SeenProfile
    from unwind.api.meta import Condition
    from unwind.api.resources import Resource
    from unwind.kube.events import Recorder
    from unwind.members.targets import AddonTarget
    from unwind.teardown.deletion_gate import ChosenGates, GateStatus

_GATE_CONDITIONS = (ConditionType.GATE_NOT_ARMED, ConditionType.GATE_NOT_AVAILABLE)


class Gated:
    """Computes the conditions GateNotArmed and GateNotAvailable of profiles and ClusterSummaries. Without a gate there
    is no GateNotArmed."""

    def __init__(self, recorder: Recorder, gate: GateStatus | None = None, chosen: ChosenGates | None = None) -> None:
        """`gate`: whether Cluster API calls Unwind before it deletes a Cluster. `chosen`: the gates that policies
        choose."""
        self._recorder = recorder
        self._gate = gate
        self._chosen = chosen

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the result may have changed."""
        if self._gate:
            self._gate.subscribe(changed)
        if self._chosen:
            self._chosen.follow(changed)

    def unavailable(self, clusters: Iterable[AddonTarget]) -> GateFault | None:
        """Why the deletion of some of these clusters can never wait for Unwind. Clusters with another gate can."""
        return unavailable(it for it in clusters if not (self._chosen and self._chosen.holds(it)))

    def why_not(self, profile: SeenProfile, clusters: Iterable[AddonTarget]) -> GateFault | Unknown | None:
        """Why deletions of some matching clusters are not blocked; Unknown until the gate status is known."""
        if self._gate is None or not holds(profile):
            return None
        return (
            unarmed(clusters, self._gate.why_not) if self._gate.known else Unknown("whether Cluster API calls the hook")
        )

    def on_summary(
        self, before: tuple[Condition, ...], profile: SeenProfile, target: AddonTarget, *, now: datetime
    ) -> tuple[Condition, ...]:
        """The conditions of a profile's ClusterSummary for this cluster; the same tuple if nothing changes."""
        held = [target] if holds(profile) else []
        faults = [(ConditionType.GATE_NOT_AVAILABLE, self.unavailable(held))]
        if not isinstance(fault := self.why_not(profile, held), Unknown):
            faults.append((ConditionType.GATE_NOT_ARMED, fault))
        after = before
        for type_, fault in faults:
            if fault is None:
                after = without_condition(after, type_)
            else:
                after = with_condition(
                    after, type=type_, status=True, reason=fault.reason, message=fault.message, now=now
                )
        return after

    def report(self, resource: Resource, profile: SeenProfile, now: tuple[Condition, ...]) -> None:
        """Emit an Event when one of the conditions becomes true."""
        for type_ in _GATE_CONDITIONS:
            found = find(now, type_)
            if found and find(profile.status.conditions, type_) is None:
                meta = profile.metadata
                it = Regarding(resource.api_version, resource.kind, meta.name, meta.uid, meta.namespace)
                self._recorder.report(it, found.type, found.message, action="Hold", type="Warning")


def holds(profile: SeenProfile) -> bool:
    """Whether the deletion of its clusters waits for it."""
    return profile.spec.deletion is ClusterDeletionBehavior.ENFORCE


def unarmed(clusters: Iterable[AddonTarget], why_not: Callable[[str], GateFault | None]) -> GateFault | None:
    """Why Cluster API would delete some of these clusters without waiting for Unwind; None if it waits for all
    (pure)."""
    faults: dict[GateFault, list[str]] = {}
    for cluster in clusters:
        # Cluster API calls the hook only for Clusters with a class.
        if cluster.type is ClusterType.CAPI and cluster.has_class and (fault := why_not(cluster.ref.namespace)):
            faults.setdefault(fault, []).append(f"{cluster.ref.namespace}/{cluster.ref.name}")
    if not faults:
        return None
    # A stable order: the message is written only when it changes.
    told = sorted(faults.items(), key=lambda item: min(item[1]))
    message = "; ".join(f"Cluster API does not wait for the removal from {_some(names)}: {why}" for why, names in told)
    return GateFault(told[0][0].reason, message)


_NO_CLASS = GateFault(Reason.NO_CLUSTER_CLASS, f"{NO_CLUSTER_CLASS}; choose a gate for it in a TeardownPolicy")
_NO_HOOK = GateFault(
    Reason.NO_DELETION_HOOK,
    "deleting a SveltosCluster only ends its management and removes nothing; to remove the add-ons, change its labels"
    " first, so that the profile no longer selects it",
)


def unavailable(clusters: Iterable[AddonTarget]) -> GateFault | None:
    """Why the deletion of some of these clusters can never wait for Unwind; None if it can for all (pure)."""
    faults: dict[GateFault, list[str]] = {}
    for cluster in clusters:
        if cluster.type is not ClusterType.CAPI or not cluster.has_class:
            fault = _NO_CLASS if cluster.type is ClusterType.CAPI else _NO_HOOK
            faults.setdefault(fault, []).append(f"{cluster.ref.namespace}/{cluster.ref.name}")
    if not faults:
        return None
    told = sorted(faults.items(), key=lambda item: item[0].reason)
    message = "; ".join(f"the deletion of {_some(names)} does not wait for the removal: {why}" for why, names in told)
    return GateFault(told[0][0].reason, message)


def _some(names: list[str]) -> str:
    return f"{min(names)} and {len(names) - 1} more" if len(names) > 1 else names[0]
