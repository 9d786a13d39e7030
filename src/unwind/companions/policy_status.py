"""The status of a TeardownPolicy (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef, with_condition, without_condition
from unwind.api.names import NO_CLUSTER_CLASS, RESELECT_ANNOTATION, ConditionType, Reason
from unwind.api.policies import (
    CONFLICTS_SHOWN,
    NOT_STEPS_SHOWN,
    PolicyCluster,
    PolicyConflict,
    PolicyGate,
    TeardownPolicyStatus,
)
from unwind.api.unwind import Gate
from unwind.companions import policy_merge
from unwind.companions.policy_merge import Selection, StepDecision
from unwind.notifications import sinks
from unwind.teardown.deletion_gate import GateFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from unwind.api.policies import TeardownPolicy

_SHOWN = 5
_TYPES = (
    ConditionType.ACCEPTED,
    ConditionType.CONFLICT,
    ConditionType.STILL_SELECTED,
    ConditionType.CLUSTER_UNKNOWN,
    ConditionType.GATE_NOT_AVAILABLE,
    ConditionType.GATE_NOT_ARMED,
    ConditionType.NOTIFICATIONS_FAILING,
)


class SelectedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that a policy selects, and what is known about it."""

    ref: ObjectRef
    selection: Selection
    gate: PolicyGate
    kind: Gate = Gate.HOOK
    """The gate that its policies choose together."""
    why: str = ""
    """Why it has this gate."""
    conflict: str = ""
    """Which policies choose different gates."""
    fault: GateFault | None = None
    """Why its deletion is not held now."""
    decisions: dict[str, StepDecision] = {}
    """What all policies of the cluster say about the handles of this policy, by step."""
    unplaced: tuple[str, ...] = ()
    """Handles of this policy of which it is not known whether they deploy on the cluster."""
    not_steps: tuple[str, ...] = ()
    """The handles of its sources in namespaces that no policy names."""

    def __str__(self) -> str:
        return f"{self.ref.namespace}/{self.ref.name}"


def status(
    policy: TeardownPolicy, selected: Sequence[SelectedCluster], *, failing: str = "", now: datetime
) -> TeardownPolicyStatus:
    """The status of a policy that selects these clusters. `failing`: which of its notifications are not delivered."""
    clusters = sorted(selected, key=str)
    conflicts = [
        PolicyConflict(cluster=str(cluster), step=step, enforced_by=decision.enforced_by, left_by=decision.left_by)
        for cluster in clusters
        for step, decision in sorted(cluster.decisions.items())
        if decision.conflict
    ]
    found = TeardownPolicyStatus(
        observed_generation=policy.metadata.generation,
        selectors=policy_merge.selectors(policy),
        reselect=policy_merge.reselect(policy),
        selected=len(clusters),
        steps=sum(len(cluster.decisions) for cluster in clusters),
        clusters=tuple(map(_shown, clusters)),
        conflicts=tuple(conflicts[:CONFLICTS_SHOWN]),
        sinks=sinks.recorded(policy, now=now),
        conditions=policy.status.conditions,
    )
    generation = policy.metadata.generation
    told_of = _conditions(policy, clusters, conflicts)
    if failing:
        told_of[ConditionType.NOTIFICATIONS_FAILING] = (True, Reason.NOT_DELIVERED, failing)
    for type_, told in told_of.items():
        if told is None:
            conditions = without_condition(found.conditions, type_)
        else:
            truth, reason, message = told
            conditions = with_condition(
                found.conditions,
                type=type_,
                status=truth,
                reason=reason,
                message=message,
                generation=generation,
                now=now,
            )
        found = msgspec.structs.replace(found, conditions=conditions)
    return found


def _shown(cluster: SelectedCluster) -> PolicyCluster:
    return PolicyCluster(
        namespace=cluster.ref.namespace,
        name=cluster.ref.name,
        uid=cluster.ref.uid,
        gate=cluster.gate.value,
        gate_kind=cluster.kind.value,
        gate_message=f"{cluster.fault}; {cluster.why}" if cluster.fault else cluster.why,
        steps=len(cluster.decisions),
        not_steps=tuple(sorted(cluster.not_steps)[:NOT_STEPS_SHOWN]),
        no_longer_matches=cluster.selection is Selection.STILL,
    )


def _conditions(
    policy: TeardownPolicy, clusters: Sequence[SelectedCluster], conflicts: Sequence[PolicyConflict]
) -> dict[ConditionType, tuple[bool, Reason, str] | None]:
    """Each condition: status, reason and message; None if it does not apply."""
    words = policy_merge.unknown_words(policy)
    chosen = (Reason.SELECTED, f"selects {len(clusters)} clusters") if clusters else (Reason.NOTHING_SELECTED, "")
    accepted = (
        (False, Reason.UNKNOWN_VALUE, f"{'; '.join(words)}: the clusters that it selects are not deleted")
        if words
        else (True, chosen[0], chosen[1] or "no cluster matches the selectors")
    )
    still = [str(cluster) for cluster in clusters if cluster.selection is Selection.STILL]
    found: dict[ConditionType, tuple[bool, Reason, str] | None] = dict.fromkeys(_TYPES)
    found[ConditionType.ACCEPTED] = accepted
    gates = [f"{cluster}: {cluster.conflict}" for cluster in clusters if cluster.conflict]
    if conflicts or gates:
        steps = _some(f"{item.step} on {item.cluster}" for item in conflicts)
        messages = (
            [f"TeardownPolicies both enforce and leave these steps: {steps}; change one of them"] if conflicts else []
        )
        messages += [f"TeardownPolicies choose different gates for {_some(gates)}; change one of them"] if gates else []
        found[ConditionType.CONFLICT] = (True, Reason.POLICY_CONFLICT, "; ".join(messages))
    if still:
        message = (
            f"{_some(still)} no longer match and stay selected; to select again, change the annotation"
            f" {RESELECT_ANNOTATION} of this policy"
        )
        found[ConditionType.STILL_SELECTED] = (True, Reason.NO_LONGER_MATCHES, message)
    if unplaced := sorted({step for cluster in clusters for step in cluster.unplaced}):
        message = (
            f"{_some(unplaced)} name their cluster by spec.kubeConfig.configMapRef, which Unwind does not read: they"
            " are no steps; an enforced one in the namespace of a Cluster holds its deletion; use secretRef, or exclude"
            " them with the selector of the source"
        )
        found[ConditionType.CLUSTER_UNKNOWN] = (True, Reason.CLUSTER_UNKNOWN, message)
    if unheld := [cluster for cluster in clusters if cluster.gate is PolicyGate.NOT_AVAILABLE]:
        message = f"the deletion of {_some(map(str, unheld))} cannot be held: {NO_CLUSTER_CLASS}; choose another gate"
        found[ConditionType.GATE_NOT_AVAILABLE] = (True, Reason.NO_CLUSTER_CLASS, message)
    if unheld := [cluster for cluster in clusters if cluster.gate is PolicyGate.NOT_ARMED]:
        fault = unheld[0].fault
        message = f"the deletion of {_some(map(str, unheld))} is not held: {fault}"
        found[ConditionType.GATE_NOT_ARMED] = (True, fault.reason if fault else Reason.NOT_REGISTERED, message)
    return found


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"
