"""Reads the TeardownPolicies of a cluster, and what they say about each handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.capi import Cluster
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import ConditionType, Reason
from unwind.api.policies import TEARDOWN_POLICIES, SourceKind, TeardownPolicy
from unwind.api.resources import NAMESPACES
from unwind.clock import SYSTEM
from unwind.companions import gate_choice, policy_deadline, policy_merge
from unwind.companions.policy_merge import Selection
from unwind.companions.step_source import HandleDecision
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.informers import Informer, InformerFactory, InformerSet
from unwind.kube.installed_kinds import list_if_installed
from unwind.teardown.drafts import PolicyTerms, TeardownNotice
from unwind.teardown.status import WRITES_POLICIES
from unwind.teardown.step_sources import OwnSetting, StepPause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.resources import Resource
    from unwind.api.unwind import Effort, Step
    from unwind.clock import Clock
    from unwind.companions.companion import Handle
    from unwind.companions.gate_choice import EffectiveGate
    from unwind.companions.policy_merge import StepDecision
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_sources import SourceStep


class PolicyCaches(InformerSet):
    """The informers of TeardownPolicies, and of the namespaces that they select by label."""

    name = "policies' caches"

    def __init__(self, client: Client, *, informers: InformerFactory | None = None, clock: Clock = SYSTEM) -> None:
        """`informers`: those that the process shares."""
        super().__init__()
        self.policies = self._informer(client, decoding.typed(TEARDOWN_POLICIES, TeardownPolicy), clock)
        self.namespaces = (informers or InformerFactory(client, clock=clock)).metadata(
            NAMESPACES, troubled=self._troubled(NAMESPACES), listed=self._listed
        )

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace."""
        return labels_of(self.namespaces.cache.get(Key("", namespace)))

    def selecting(self, target: ClusterTarget) -> list[TeardownPolicy]:
        """The policies that select a cluster, by the caches."""
        return _selecting(self.policies.cache, target.ref, target.labels, self.labels_of(target.ref.namespace))

    def _informers(self) -> list[Informer[Any]]:
        return [self.policies, self.namespaces]


def labels_of(found: Metadata | None) -> Mapping[str, str]:
    """The labels in metadata, which may be missing."""
    return (found.labels if found else None) or {}


class ClusterPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What all policies that select a cluster say (pure)."""

    target: ObjectRef
    annotations: Mapping[str, str] = {}
    policies: tuple[TeardownPolicy, ...] = ()
    running: frozenset[SourceKind] = frozenset(SourceKind)
    """The deployers whose features are installed."""
    drains: bool = True
    """Whether the feature `drain` is installed."""
    has_class: bool = False
    """Whether Cluster API calls the hook for the cluster."""

    @property
    def gate(self) -> EffectiveGate | None:
        """The gate that they choose together; None if no policy selects the cluster."""
        return gate_choice.effective_gate(self.policies, has_class=self.has_class) if self.policies else None

    @property
    def sources(self) -> frozenset[SourceKind]:
        """The deployers that a policy mentions."""
        found = (SourceKind.read(source.kind) for policy in self.policies for source in policy.spec.sources)
        return frozenset(kind for kind in found if isinstance(kind, SourceKind))

    @property
    def enforced(self) -> bool:
        """Whether a policy enforces anything."""
        return any(map(policy_merge.enforces, self.policies))

    @property
    def said(self) -> tuple[TeardownNotice, ...]:
        """Conditions of the Teardown. UnknownValue means that there is no plan."""
        notices = [
            _unknown(policy, "; ".join(words))
            for policy in self.policies
            if (words := policy_merge.unknown_words(policy))
        ]
        for policy in self.policies:
            missing = policy_merge.enforced_sources(policy) - self.running
            if missing:
                names = ", ".join(sorted(kind.value for kind in missing))
                notices.append(
                    _unknown(
                        policy,
                        f"the feature for source {names} is not installed, add it to `unwind install --features`",
                    )
                )
            if policy_merge.enforces_drain(policy) and not self.drains:
                notices.append(
                    _unknown(policy, "the feature drain is not installed, add it to `unwind install --features`")
                )
        return tuple(notices)

    @property
    def terms(self) -> PolicyTerms | None:
        """The deadline and the order that they set; None if no policy selects the cluster."""
        if not self.policies:
            return None
        found = policy_deadline.effective_deadline(self.policies, self.annotations)
        gate = gate_choice.effective_gate(self.policies, has_class=self.has_class)
        ordering = [policy for policy in self.policies if policy.spec.order]
        return PolicyTerms(
            policies=tuple(map(policy_merge.recorded, self.policies)),
            deadline=found.deadline,
            deadline_from=found.deadline_from,
            on_deadline=found.on_deadline,
            on_deadline_from=found.on_deadline_from,
            order=tuple(policy.spec.order for policy in ordering),
            order_from=", ".join(sorted(f"TeardownPolicy {policy.metadata.name}" for policy in ordering)),
            gate="" if isinstance(gate.kind, Unknown) else gate.kind.value,
            gate_from=gate.why,
        )

    def namespaces(self, source: SourceKind) -> frozenset[str]:
        """The namespaces of the management cluster whose handles of a deployer count."""
        return policy_merge.namespaces(self.policies, source, home=self.target.namespace)

    def about(
        self, handle: ObjectRef, source: SourceKind, *, on_member: bool, exactly: bool = False
    ) -> StepDecision | None:
        """What each policy says about a handle."""
        home = self.target.namespace
        # Releases of plain Helm have no object on the management cluster.
        on_member = on_member or source is SourceKind.HELM
        return policy_merge.decide(self.policies, source, handle, home=home, on_member=on_member, exactly=exactly)

    def merged(self, source: SourceKind, named: ObjectRef, step: SourceStep, *, own_from: str) -> SourceStep:
        """A step that has an effort of its own, from the setting `own_from`, with what the policies say about it.
        `named`: the object by which policies name it."""
        draft = step.draft
        if not (decision := self.with_own(source, named, draft.effort, own_from)):
            return step
        by = ", ".join(f"TeardownPolicy/{name}" for name in decision.policies)
        changed = msgspec.structs.replace(draft, effort=decision.effort, effort_from=by)
        return msgspec.structs.replace(step, draft=changed)

    def with_own(self, source: SourceKind, named: ObjectRef, own: Effort | None, own_from: str) -> StepDecision | None:
        """What the policies and the object itself say; None if no policy mentions it."""
        decision = self.about(named, source, on_member=True)
        return decision and msgspec.structs.replace(decision, own=own, own_from=own_from)

    def decide(self, handle: Handle) -> HandleDecision | None:
        """What the policies say about a handle; None if none of them mentions it."""
        decision = self.about(handle.ref, handle.source, on_member=handle.on_member, exactly=bool(handle.exactly))
        if decision is None:
            return None
        return HandleDecision(
            effort=decision.effort,
            policies=decision.policies,
            removes_suspended=decision.removes_suspended,
            suspended_held_by=decision.suspended_held_by,
        )


def _unknown(policy: TeardownPolicy, what: str) -> TeardownNotice:
    message = (
        f"TeardownPolicy {policy.metadata.name}: {what}; nothing is removed from this cluster until this is corrected"
    )
    return TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message)


class Policies:
    """Reads the policies of clusters."""

    def __init__(
        self,
        client: Client,
        caches: PolicyCaches,
        *,
        clusters: Callable[[], Resource],
        running: Iterable[SourceKind] = tuple(SourceKind),
        drains: bool = True,
    ) -> None:
        """`clusters`: the served version of Clusters. `running`: the deployers whose features are installed. `drains`:
        whether the feature `drain` is."""
        self._client = client
        self._caches = caches
        self._clusters = clusters
        self._running = frozenset(running)
        self._drains = drains

    async def of(self, target: ClusterTarget) -> ClusterPolicies:
        """What the policies of a cluster say, read from the API server."""
        found = await read_policies(self._client)
        if not found:
            return ClusterPolicies(target=target.ref, has_class=target.has_class)
        # The labels of a cached Cluster may be older than its deletion.
        labels, annotations = await self._read_cluster(target)
        selectors = any(policy.spec.namespace_selector is not None for policy in found)
        namespace_labels = await self._read_namespace(target.ref.namespace) if selectors else {}
        return ClusterPolicies(
            target=target.ref,
            annotations=annotations,
            policies=tuple(_selecting(found, target.ref, labels, namespace_labels)),
            running=self._running,
            drains=self._drains,
            has_class=target.has_class,
        )

    async def is_deleted(self, target: ClusterTarget) -> bool:
        """Whether a Cluster is being deleted or gone, read from the API server."""
        ref = target.ref
        try:
            found = await self._client.get(self._clusters(), ref.name, namespace=ref.namespace, type=Cluster)
        except NotFoundError:
            return True
        return found.metadata.uid != ref.uid or found.metadata.terminating

    async def names_exactly(self, target: ClusterTarget, release: ObjectRef) -> bool:
        """Whether a policy of a cluster names a Helm release and its namespace without wildcards, read from the API
        server."""
        return policy_merge.names_exactly((await self.of(target)).policies, SourceKind.HELM, release)

    async def removes_suspended(self, target: ClusterTarget, handle: ObjectRef, *, on_member: bool) -> bool:
        """Whether the policies of a cluster let Unwind remove what Flux would leave of a handle, read from the API
        server. `on_member`: the handle is on the member."""
        found = await self.of(target)
        decision = found.about(handle, SourceKind.FLUX, on_member=on_member)
        return decision is not None and decision.removes_suspended and not found.said

    async def _read_cluster(self, target: ClusterTarget) -> tuple[Mapping[str, str], Mapping[str, str]]:
        ref = target.ref
        try:
            found = await self._client.get(self._clusters(), ref.name, namespace=ref.namespace, type=Cluster)
        except NotFoundError:
            return target.labels, target.annotations
        if found.metadata.uid != ref.uid:
            return target.labels, target.annotations
        return found.metadata.labels, found.metadata.annotations

    async def _read_namespace(self, name: str) -> Mapping[str, str]:
        found = await self._client.get(NAMESPACES, name)
        return found["metadata"].get("labels") or {}

    def known(self, target: ClusterTarget) -> ClusterPolicies:
        """What the policies of a cluster say, by the caches."""
        return ClusterPolicies(
            target=target.ref,
            annotations=target.annotations,
            policies=tuple(self._caches.selecting(target)),
            running=self._running,
            drains=self._drains,
            has_class=target.has_class,
        )

    def conflict(
        self, step: Step, source: SourceKind, target: ClusterTarget, own: OwnSetting | None = None
    ) -> StepPause | None:
        """Why policies do not allow to remove a step now: a policy or its own setting leaves it. From the cache."""
        # A handle whose namespace no policy names any more is left, too, if a policy leaves handles like it.
        own = own or OwnSetting(named=step.object, effort=None, origin="")
        return self.pause(step, self.known(target).with_own(source, own.named, own.effort, own.origin))

    def pause(self, step: Step, decision: StepDecision | None) -> StepPause | None:
        """Why a step may not be removed now: its policies are not read yet, or this decision of theirs leaves it."""
        if not self._caches.settled:
            why = "the TeardownPolicies are not read yet: nothing of it is removed until they are"
            return StepPause(
                step.object, "unwind", why=why, reason=Reason.HELD, actor="the Unwind manager", passing=True
            )
        if decision is None or decision.deletes:
            return None
        left = f"TeardownPolicy {', '.join(decision.left_by)}" if decision.left_by else decision.own_from
        return StepPause(
            ref_of(TEARDOWN_POLICIES, self._meta((decision.left_by or decision.enforced_by or decision.tried_by)[0])),
            left,
            why=decision.conflict
            or f"left in place by {left}: nothing of it is deleted until that changes to Try or Enforce",
            reason=Reason.POLICY_CONFLICT,
            actor=WRITES_POLICIES,
        )

    def _meta(self, name: str) -> Any:
        found = self._caches.policies.cache.get(Key("", name))
        return found.metadata if found else TeardownPolicy().metadata

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a policy changed."""

        def tell(change: Change[TeardownPolicy]) -> None:
            old, new = change.old, change.new
            if old is None or new is None or _selecting_now(old) != _selecting_now(new):
                changed()

        self._caches.policies.subscribe(tell)
        self._caches.subscribe(changed)


def _selecting_now(policy: TeardownPolicy) -> object:
    """What decides which clusters a policy selects. The rest of its status does not matter."""
    return policy.spec, policy_merge.is_current(policy), [cluster.uid for cluster in policy.status.clusters]


async def read_policies(client: Client) -> list[TeardownPolicy]:
    """All policies, read from the API server. Raises if they cannot be read, or one cannot be decoded."""
    return msgspec.convert(await list_if_installed(client, TEARDOWN_POLICIES), list[TeardownPolicy])


async def read_cluster_policies(
    client: Client, target: ClusterTarget, *, proposed: Iterable[TeardownPolicy] = ()
) -> ClusterPolicies:
    """What the policies of a cluster say, for a preview: by the labels of the target. Raises if they cannot be read.

    `proposed`: policies that count instead of those with the same name.
    """
    named = {policy.metadata.name: policy for policy in (*await read_policies(client), *proposed)}
    if not named:
        return ClusterPolicies(target=target.ref)
    namespace = await client.get(NAMESPACES, target.ref.namespace)
    found = _selecting(named.values(), target.ref, target.labels, namespace["metadata"].get("labels") or {})
    return ClusterPolicies(
        target=target.ref, annotations=target.annotations, policies=tuple(found), has_class=target.has_class
    )


def _selecting(
    found: Iterable[TeardownPolicy], ref: ObjectRef, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
) -> list[TeardownPolicy]:
    """The policies that select a cluster, by name."""
    chosen = [
        policy
        for policy in found
        if policy_merge.selection(policy, ref.uid, labels, namespace_labels) is not Selection.NO
    ]
    return sorted(chosen, key=lambda policy: policy.metadata.name)
