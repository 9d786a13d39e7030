"""What TeardownPolicies say about a cluster: which of them select it, and how their words are merged (pure).

Policies are merged on two axes. What is deleted: only what every policy that mentions it wants deleted, so Leave wins.
What holds: whatever any policy enforces. A step with both is held, and nothing of it is deleted.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import OnDeadline, parse_duration
from unwind.api.fields import Unknown
from unwind.api.names import RESELECT_ANNOTATION
from unwind.api.policies import DrainPhase, OnDelete, SourceKind, Suspended, TeardownPolicy
from unwind.api.resources import BUILT_IN_GROUPS
from unwind.api.unwind import Effort, Gate, PolicyRef

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.policies import PolicyDrain, PolicySource

# How `selectors` writes them. To be changed with the encoding, or with the fields of selectors.
_FORM = "1:"


# Selection


class Selection(Enum):
    """Whether a policy selects a cluster."""

    NO = "no"
    MATCHES = "matches"
    STILL = "still"
    """Its selectors no longer match, but the manager recorded that they did. Only a user who may write the policy lets
    the cluster leave, with a change of its selectors or of the annotation unwind.dev/reselect."""


def matches(policy: TeardownPolicy, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
    """Whether the selectors of a policy match a cluster. An empty selector matches nothing."""
    spec = policy.spec
    # A cluster that may be selected is selected and held, never forgotten.
    return spec.cluster_selector.may_select(labels) and (
        spec.namespace_selector is None or spec.namespace_selector.may_select(namespace_labels)
    )


def is_current(policy: TeardownPolicy) -> bool:
    """Whether the recorded selection counts: it is of the selectors and of the annotation as they are.

    Other changes of a policy select nothing anew: users who may label a cluster need only wait for one. A record in
    another form counts: no cluster leaves because the manager was upgraded.
    """
    status = policy.status
    same = status.selectors == selectors(policy) or not status.selectors.startswith(_FORM)
    return same and status.reselect == reselect(policy)


def selectors(policy: TeardownPolicy) -> str:
    """The selectors of a policy for its status: the same text for the same selectors."""
    found = [policy.spec.cluster_selector, policy.spec.namespace_selector]
    return _FORM + hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()[:32]


def reselect(policy: TeardownPolicy) -> str:
    """The value of its annotation unwind.dev/reselect."""
    return policy.metadata.annotations.get(RESELECT_ANNOTATION, "")


def selection(
    policy: TeardownPolicy, uid: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
) -> Selection:
    """Whether a policy selects the cluster with this uid and these labels."""
    if matches(policy, labels, namespace_labels):
        return Selection.MATCHES
    recorded = is_current(policy) and any(cluster.uid == uid for cluster in policy.status.clusters)
    return Selection.STILL if recorded else Selection.NO


# Unknown words


def unknown_words(policy: TeardownPolicy) -> list[str]:
    """Each value of a policy that this version does not know. They hold the clusters that it selects."""
    spec = policy.spec
    selectors = {
        "clusterSelector": spec.cluster_selector,
        "namespaceSelector": spec.namespace_selector,
        "drain.exclude": spec.drain.exclude if spec.drain else None,
    }
    found = [
        f"{name}: {requirement.fault}"
        for name, selector in selectors.items()
        for requirement in (selector.match_expressions if selector else ())
        if requirement.fault
    ]
    for source in spec.sources:
        if isinstance(kind := SourceKind.read(source.kind), Unknown):
            found.append(f"kind of a source: {kind}")
        if isinstance(effort := Effort.read(source.effort), Unknown):
            found.append(f"effort of source {source.kind}: {effort}")
        if source.kind == SourceKind.HELM and source.selector is None:
            found.append(f"source {SourceKind.HELM.value} has no selector; add one")
        if source.kind == SourceKind.WORK and effort in (Effort.TRY, Effort.LEAVE):
            found.append(
                f"source {SourceKind.WORK.value} has the effort {source.effort}, but only Enforce is possible; write"
                " Enforce"
            )
        if isinstance(suspended := Suspended.read(source.suspended), Unknown):
            found.append(f"suspended of source {source.kind}: {suspended}")
        elif suspended is Suspended.REMOVE and source.kind != SourceKind.FLUX:
            found.append(f"source {source.kind} has suspended: {suspended}, which is only possible for Flux; remove it")
    found += _unknown_in_drain(spec.drain) if spec.drain else []
    if isinstance(gate := Gate.read(spec.gate), Unknown):
        found.append(f"gate: {gate}")
    if spec.admission and isinstance(on_delete := OnDelete.read(spec.admission.on_delete), Unknown):
        found.append(f"admission.onDelete: {on_delete}")
    if spec.deadline and isinstance(deadline := parse_duration(spec.deadline), Unknown):
        found.append(f"deadline: {deadline}")
    if isinstance(on_deadline := OnDeadline.read(spec.on_deadline), Unknown):
        found.append(f"onDeadline: {on_deadline}")
    return found


def _unknown_in_drain(drain: PolicyDrain) -> list[str]:
    found = [
        f"effort of drain {name}: {effort}"
        for name, text in drain.efforts
        if isinstance(effort := Effort.read(text), Unknown)
    ]
    for resource in drain.resources:
        if isinstance(phase := DrainPhase.read(resource.phase), Unknown):
            found.append(f"phase of drain {resource.name}: {phase}")
        if resource.group in BUILT_IN_GROUPS or not resource.kind:
            found.append(f"drain {resource.name}: built-in kinds cannot be drained; remove it from resources")
    for name, text in (("", drain.settle), *((f" {resource.name}", resource.settle) for resource in drain.resources)):
        if text and isinstance(settle := parse_duration(text), Unknown):
            found.append(f"settle of drain{name}: {settle}")
    return found


def enforces(policy: TeardownPolicy) -> bool:
    """Whether a policy holds the clusters that it selects. An unknown effort does."""
    sources = [source.effort for source in policy.spec.sources]
    return any(_holds(effort) for effort in sources) or enforces_drain(policy)


def enforces_drain(policy: TeardownPolicy) -> bool:
    """Whether a policy enforces anything in its section `drain`."""
    return policy.spec.drain is not None and any(_holds(effort) for _, effort in policy.spec.drain.efforts)


def _holds(effort: str) -> bool:
    return Effort.read(effort) not in (Effort.TRY, Effort.LEAVE)


def enforced_sources(policy: TeardownPolicy) -> frozenset[SourceKind]:
    """The deployers whose steps a policy enforces."""
    return frozenset(
        kind
        for source in policy.spec.sources
        if isinstance(kind := SourceKind.read(source.kind), SourceKind) and _holds(source.effort)
    )


def recorded(policy: TeardownPolicy) -> PolicyRef:
    """The policy as a Teardown records it."""
    meta = policy.metadata
    return PolicyRef(name=meta.name, uid=meta.uid, generation=meta.generation, enforces=enforces(policy))


# Steps


class StepDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What all policies of a cluster say about one handle."""

    enforced_by: tuple[str, ...] = ()
    """Names of policies, in alphabetical order."""
    tried_by: tuple[str, ...] = ()
    left_by: tuple[str, ...] = ()
    suspended_held_by: tuple[str, ...] = ()
    """The policies that mention it and do not say `suspended: Remove`, in alphabetical order."""
    own: Effort | None = None
    """The effort that the object itself asks for, as one voice among the others; None if it has no such setting."""
    own_from: str = ""
    """The setting that it is from."""

    @property
    def effort(self) -> Effort:
        """The effort of the step. Whether it may be deleted is another question: see `conflict`."""
        if self.enforced_by or self.own is Effort.ENFORCE:
            return Effort.ENFORCE
        return Effort.TRY if self.deletes else Effort.LEAVE

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that the effort is from; none if it is only from the object itself."""
        return {Effort.ENFORCE: self.enforced_by, Effort.LEAVE: self.left_by, Effort.TRY: self.tried_by}[self.effort]

    @property
    def deletes(self) -> bool:
        """Whether the handle may be deleted: every policy that mentions it wants that."""
        return not self.left_by and self.own is not Effort.LEAVE

    @property
    def removes_suspended(self) -> bool:
        """Whether Unwind itself removes what the deployer would leave: every policy that mentions it wants that."""
        return self.deletes and not self.suspended_held_by

    @property
    def conflict(self) -> str:
        """Why the step waits, if one policy enforces it and another one leaves it; empty otherwise."""
        if self.effort is not Effort.ENFORCE or self.deletes:
            return ""
        enforced, left = self._said(self.enforced_by, Effort.ENFORCE), self._said(self.left_by, Effort.LEAVE)
        return (
            f"enforced by {enforced}, but left in place by {left}: nothing of it is deleted, and the cluster waits;"
            " change"
            " one of them"
        )

    def _said(self, policies: tuple[str, ...], effort: Effort) -> str:
        own = [self.own_from] if self.own is effort else []
        return " and ".join([*([f"TeardownPolicy {_names(policies)}"] if policies else []), *own])


def decide(
    policies: Sequence[TeardownPolicy],
    source: SourceKind,
    handle: ObjectRef,
    *,
    home: str,
    on_member: bool,
    exactly: bool = False,
) -> StepDecision | None:
    """What the policies of a cluster say about a handle; None if none of them makes it a step.

    `home`: the namespace of the Cluster. `on_member`: the handle is on the member, and not on the management cluster.
    `exactly`: it is a step only of policies that name it and its namespace, both without wildcards.
    """
    by: dict[Effort, set[str]] = {effort: set() for effort in Effort}
    held_by: set[str] = set()
    for policy in policies:
        for item in policy.spec.sources:
            if item.kind != source or not _selects(item, handle):
                continue
            if item.suspended != Suspended.REMOVE:
                held_by.add(policy.metadata.name)
            # An unknown effort holds: see `unknown_words`.
            effort = word if isinstance(word := Effort.read(item.effort), Effort) else Effort.ENFORCE
            # A handle in another namespace becomes a step only if the policy names that namespace: otherwise the users
            # of any namespace could hold a cluster. Leave neither deletes nor holds anything.
            counts = on_member or handle.namespace in (home, *item.namespaces)
            if effort is Effort.LEAVE or (counts and (not exactly or _names_exactly(item, handle))):
                by[effort].add(policy.metadata.name)
    counted = on_member or handle.namespace in namespaces(policies, source, home=home)
    if not counted or not any(by.values()) or (exactly and not (by[Effort.ENFORCE] or by[Effort.TRY])):
        return None
    return StepDecision(
        enforced_by=tuple(sorted(by[Effort.ENFORCE])),
        tried_by=tuple(sorted(by[Effort.TRY])),
        left_by=tuple(sorted(by[Effort.LEAVE])),
        suspended_held_by=tuple(sorted(held_by)),
    )


def namespaces(policies: Iterable[TeardownPolicy], source: SourceKind, *, home: str) -> frozenset[str]:
    """The namespaces of the management cluster whose handles of a deployer can be steps."""
    named = {
        name for policy in policies for item in policy.spec.sources if item.kind == source for name in item.namespaces
    }
    return frozenset({home, *named})


def _selects(source: PolicySource, handle: ObjectRef) -> bool:
    if source.selector is None:
        return source.kind != SourceKind.HELM
    return _among(handle.namespace, source.selector.namespaces) and _among(handle.name, source.selector.names)


def names_exactly(policies: Iterable[TeardownPolicy], source: SourceKind, handle: ObjectRef) -> bool:
    """Whether a policy names a handle and its namespace, both without wildcards."""
    return any(
        item.kind == source and _selects(item, handle) and _names_exactly(item, handle)
        for policy in policies
        for item in policy.spec.sources
    )


def _names_exactly(source: PolicySource, handle: ObjectRef) -> bool:
    # A name alone is not enough: users of any namespace can store a release with that name in theirs.
    chosen = source.selector
    return chosen is not None and handle.name in chosen.names and handle.namespace in chosen.namespaces


def _among(name: str, patterns: Collection[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _names(policies: Iterable[str]) -> str:
    return ", ".join(policies)
