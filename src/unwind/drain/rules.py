"""What TeardownPolicies drain, and in which order (pure)."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import parse_duration
from unwind.api.meta import ObjectRef
from unwind.api.names import REQUESTED_DRAIN
from unwind.api.policies import DrainPhase
from unwind.api.resources import GATEWAYS, INGRESSES, PERSISTENT_VOLUME_CLAIMS, SERVICES
from unwind.api.unwind import GROUP, Effort
from unwind.companions.policy_merge import StepDecision

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.policies import DrainedResource, PolicyDrain, TeardownPolicy

KIND = "Drain"
LOAD_BALANCERS = "loadBalancers"
VOLUMES = "volumes"
_UIDS = uuid.UUID("0b9d3c2e-2f4b-5d0c-8a43-6a9d1c7e5b21")
_PHASES = (DrainPhase.LOAD_BALANCERS, DrainPhase.VOLUMES, DrainPhase.NODES)


class KindName(msgspec.Struct, frozen=True):
    """A kind, in any version."""

    group: str
    kind: str


_KINDS = {
    LOAD_BALANCERS: tuple(KindName(kind.group, kind.kind) for kind in (SERVICES, INGRESSES, GATEWAYS)),
    VOLUMES: (KindName("", PERSISTENT_VOLUME_CLAIMS.kind),),
}


class DrainDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What all policies of a cluster say about one step of its drain."""

    name: str
    """loadBalancers, volumes or KIND.GROUP."""
    kinds: tuple[KindName, ...]
    phase: DrainPhase
    said: StepDecision
    settle: timedelta = timedelta()
    """How long controllers get to finish, if nothing shows that they have. The longest of all policies."""

    @property
    def effort(self) -> Effort:
        """The effort of the step. What no policy mentions is left."""
        mentioned = self.said.enforced_by or self.said.tried_by or self.said.left_by
        return self.said.effort if mentioned else Effort.LEAVE

    @property
    def drains(self) -> bool:
        return self.effort is not Effort.LEAVE

    @property
    def effort_from(self) -> str:
        return ", ".join(f"TeardownPolicy/{name}" for name in self.said.policies)


def decisions(policies: Sequence[TeardownPolicy]) -> dict[str, DrainDecision]:
    """What policies say about a drain, by the name of its steps. Empty if none of them has a section `drain`."""
    drains = {policy.metadata.name: policy.spec.drain for policy in policies if policy.spec.drain}
    if not drains:
        return {}
    resources = {resource.name: resource for drain in drains.values() for resource in drain.resources}
    found = [
        DrainDecision(
            name=name,
            kinds=_KINDS[name],
            phase=DrainPhase.LOAD_BALANCERS if name == LOAD_BALANCERS else DrainPhase.VOLUMES,
            said=_merged(name, drains),
            settle=_longest(drain.settle for drain in drains.values()) if name == LOAD_BALANCERS else timedelta(),
        )
        for name in (LOAD_BALANCERS, VOLUMES)
    ]
    found += [
        DrainDecision(
            name=name,
            kinds=(KindName(resource.group, resource.kind),),
            phase=_latest(other for drain in drains.values() for other in drain.resources if other.name == name),
            said=_merged(name, drains),
            settle=_longest(
                other.settle for drain in drains.values() for other in drain.resources if other.name == name
            ),
        )
        for name, resource in sorted(resources.items())
    ]
    return {decision.name: decision for decision in found}


def nothing_decided() -> tuple[DrainDecision, ...]:
    """Load balancers and volumes of a cluster that no policy drains."""
    return tuple(
        DrainDecision(name=name, kinds=kinds, phase=DrainPhase.LOAD_BALANCERS, said=StepDecision())
        for name, kinds in _KINDS.items()
    )


def _merged(name: str, drains: Mapping[str, PolicyDrain]) -> StepDecision:
    by: dict[Effort, set[str]] = {effort: set() for effort in Effort}
    for policy, drain in drains.items():
        for mentioned, text in drain.efforts:
            if mentioned == name:
                # An unknown effort holds: see `companions.policy_merge.unknown_words`.
                effort = word if isinstance(word := Effort.read(text), Effort) else Effort.ENFORCE
                by[effort].add(policy)
    return StepDecision(
        enforced_by=tuple(sorted(by[Effort.ENFORCE])),
        tried_by=tuple(sorted(by[Effort.TRY])),
        left_by=tuple(sorted(by[Effort.LEAVE])),
    )


def _latest(found: Iterable[DrainedResource]) -> DrainPhase:
    return max(
        (word for item in found if isinstance(word := DrainPhase.read(item.phase), DrainPhase)), key=_PHASES.index
    )


def _longest(found: Iterable[str]) -> timedelta:
    spans = [span for text in found if isinstance(span := parse_duration(text), timedelta)]
    return max(spans, default=timedelta())


# Steps


def owner_of(cluster: ObjectRef, name: str) -> ObjectRef:
    """The object that a step of a drain is recorded by. It exists only in Inventories and Teardowns."""
    uid = str(uuid.uuid5(_UIDS, f"{cluster.uid}/{name}"))
    return ObjectRef(group=GROUP, version="v1alpha1", kind=KIND, namespace=cluster.namespace, name=name, uid=uid)


def requested_owner(teardown: str, cluster: ObjectRef, name: str) -> ObjectRef:
    """The object that a step of a requested drain is recorded by. `teardown`: the uid of the request."""
    uid = str(uuid.uuid5(_UIDS, f"{teardown}/{name}"))
    namespace = cluster.namespace
    return ObjectRef(group=GROUP, version="v1alpha1", kind=REQUESTED_DRAIN, namespace=namespace, name=name, uid=uid)


def is_drain(ref: ObjectRef) -> bool:
    """Whether a step is part of a drain."""
    return (ref.group, ref.kind) == (GROUP, KIND)


def step_name(name: str) -> str:
    return f"{KIND}/{name}"


def needs_of(decision: DrainDecision, others: Iterable[DrainDecision]) -> tuple[str, ...]:
    """The steps of later phases: they start when this one is done."""
    place = _PHASES.index(decision.phase)
    return tuple(step_name(other.name) for other in others if other.drains and _PHASES.index(other.phase) > place)


# Objects


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """Policies whose `exclude` selects an object."""

    by: tuple[str, ...]
    enforced_by: tuple[str, ...] = ()
    """Other policies, which enforce the deletion of the same object."""

    @property
    def message(self) -> str:
        return f"excluded by TeardownPolicy {', '.join(self.by)}"

    @property
    def conflict(self) -> str:
        """Why the object holds the drain; empty if it is left."""
        if not self.enforced_by:
            return ""
        return (
            f"enforced by TeardownPolicy {', '.join(self.enforced_by)}, but excluded by TeardownPolicy"
            f" {', '.join(self.by)}: it is not deleted, and the cluster waits; change one of them"
        )


def excluded(
    policies: Sequence[TeardownPolicy], decision: DrainDecision, labels: Mapping[str, str]
) -> Exclusion | None:
    """Whether policies exclude an object with these labels from a step of their drain."""
    said = decision.said
    matching = {
        policy.metadata.name
        for policy in policies
        if policy.spec.drain and policy.spec.drain.exclude and policy.spec.drain.exclude.may_select(labels)
    }
    by = tuple(sorted(matching.intersection((*said.enforced_by, *said.tried_by))))
    if not by:
        return None
    return Exclusion(by=by, enforced_by=tuple(name for name in said.enforced_by if name not in matching))


# Kubernetes' own finalizers say nothing about what is outside the cluster.
_GENERAL = frozenset(
    ["foregroundDeletion", "orphan", "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection", "unwind.dev/"]
)


def cleanup_finalizer(finalizers: Iterable[str] | None) -> str:
    """The finalizer of the controller that cleans up outside the cluster; empty if there is none."""
    return next((name for name in finalizers or () if name not in _GENERAL and not name.startswith("unwind.dev/")), "")
