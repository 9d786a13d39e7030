"""The controller of TeardownPolicies: records which clusters each one selects, and reports what it finds for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.fields import Unknown
from unwind.api.names import Reason
from unwind.api.policies import TEARDOWN_POLICIES, PolicyGate, TeardownPolicy
from unwind.api.unwind import Effort, Gate
from unwind.companions import gate_choice, policy_merge, policy_status
from unwind.companions.companion import step_name
from unwind.companions.policy_merge import Selection
from unwind.companions.policy_reader import labels_of
from unwind.companions.policy_status import SelectedCluster
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import IN_TIME
from unwind.members import targets
from unwind.notifications import delivery_schedule
from unwind.teardown.deletion_gate import NOT_INSTALLED, GateFault

if TYPE_CHECKING:
    from unwind.api.capi import Cluster
    from unwind.api.unwind import Teardown
    from unwind.companions.gate_choice import EffectiveGate
    from unwind.companions.handle_caches import PolicyDeps
    from unwind.companions.policy_merge import StepDecision
    from unwind.companions.policy_reader import PolicyCaches
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.members.targets import AddonTarget
    from unwind.teardown.deletion_gate import GateStatus, MachineGates

log = logs.get(__name__)

# Seconds after a conflict with another write.
_SOON = 0.5


class PolicyController(Controller[str]):
    """Writes the status of each policy."""

    name = "policies"
    _caches: PolicyCaches

    def __init__(
        self, shared: ControllerDeps, deps: PolicyDeps, gate: GateStatus, *, machines: MachineGates | None = None
    ) -> None:
        """`machines`: the Machines of Clusters; None if the feature `gates` is not installed."""
        super().__init__(shared, deps.policy_caches)
        self._handles = deps.handles
        self._clusters = deps.clusters
        self._policies = deps.policies
        self._gate = gate
        self._machines = machines
        if machines:
            machines.subscribe(self._machines_changed)
        # A change of one policy may end a conflict of another one.
        deps.policy_caches.policies.subscribe(self._policy_changed)
        deps.policy_caches.namespaces.subscribe(self._namespace_changed)
        deps.clusters.subscribe(self._enqueue_all)
        deps.clusters.clusters.subscribe(self._cluster_changed)
        deps.handles.subscribe(self._enqueue_all)
        deps.handles.follow(lambda _: self._enqueue_all())
        gate.subscribe(self._enqueue_all)
        deps.clusters.teardowns.subscribe(self._teardown_changed)

    def _policy_changed(self, change: Change[TeardownPolicy]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or old.spec != new.spec:
            self._enqueue_all()
        else:
            self._queue.add(change.key.name)

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        old, new = change.old, change.new
        if (old and delivery_schedule.notified(old)) == (new and delivery_schedule.notified(new)):
            return
        for ref in new.spec.policies if new else old.spec.policies if old else ():
            # Later: one sink that fails concerns many Teardowns.
            self._queue.add_after(ref.name, IN_TIME)

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        # When the caches are filled, everything is queued anyway.
        if self._caches.settled and labels_of(change.old) != labels_of(change.new):
            self._enqueue_all()

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or _relevant(old) != _relevant(new):
            self._enqueue_all()

    def _machines_changed(self) -> None:
        # Later: a rollout changes many Machines, and each status names all clusters of a policy.
        for key in list(self._caches.policies.cache.keys()):
            self._queue.add_after(key.name, IN_TIME)

    def _enqueue_all(self) -> None:
        for key in list(self._caches.policies.cache.keys()):
            self._queue.add(key.name)

    def _describe(self, key: str) -> dict[str, str]:
        return {"policy": key}

    async def _reconcile(self, name: str) -> float | None:
        # A cluster that is missing from a partial list would leave.
        known = self._caches.settled and self._clusters.clusters.synced
        policy = self._caches.policies.cache.get(Key("", name)) if known else None
        if policy is None or not self._owner.owns(name):
            return None
        selected = [
            found for cluster in self._clusters.clusters.all() if (found := self._selected(policy, cluster)) is not None
        ]
        failing = delivery_schedule.failing(policy, self._clusters.teardowns.cache)
        wanted = policy_status.status(policy, selected, failing=failing, now=self._clock.now())
        if wanted == policy.status:
            return None
        meta = policy.metadata
        body = {
            "apiVersion": TEARDOWN_POLICIES.api_version,
            "kind": TEARDOWN_POLICIES.kind,
            # With the resourceVersion: the status records which clusters were selected, so a write that is based on an
            # older one would let clusters leave.
            "metadata": {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": msgspec.to_builtins(wanted),
        }
        try:
            written = await self._client.apply(TEARDOWN_POLICIES, body, subresource="status")
        except NotFoundError:
            return None  # deleted
        except ConflictError:
            return _SOON
        self._caches.policies.take(msgspec.convert(written, TeardownPolicy))
        log.info("policy evaluated", policy=name, clusters=wanted.selected, steps=wanted.steps)
        return None

    def _selected(self, policy: TeardownPolicy, cluster: Cluster) -> SelectedCluster | None:
        target = targets.of_capi(cluster)
        namespace_labels = self._caches.labels_of(target.ref.namespace)
        selection = policy_merge.selection(policy, target.ref.uid, target.labels, namespace_labels)
        if selection is Selection.NO:
            return None
        all_ = self._policies.known(target).policies
        found = gate_choice.effective_gate(all_ or (policy,), has_class=target.has_class)
        gate, fault = self._gate_of(policy, target, found)
        why = found.why
        if found.kind is Gate.MACHINES and gate is PolicyGate.ARMED and self._machines:
            why = f"{self._machines.shape(target.ref.namespace, target.ref.name)}; {why}"
        return SelectedCluster(
            ref=target.ref,
            selection=selection,
            gate=gate,
            kind=Gate.NONE if isinstance(found.kind, Unknown) else found.kind,
            why=why,
            conflict=found.conflict,
            fault=fault,
            decisions=self._decisions(policy, target),
            unplaced=self._unplaced(policy, target),
            not_steps=self._not_steps(policy, target),
        )

    def _gate_of(
        self, policy: TeardownPolicy, target: AddonTarget, chosen: EffectiveGate
    ) -> tuple[PolicyGate, GateFault | None]:
        fault: GateFault | None = None
        if chosen.kind is Gate.MACHINES:
            fault = self._machines_fault(target)
        elif chosen.kind is Gate.ADMISSION:
            fault = None if self._machines else NOT_INSTALLED
        elif not policy_merge.enforces(policy):
            return PolicyGate.NOT_NEEDED, None
        elif not target.has_class:
            return (PolicyGate.NOT_AVAILABLE if chosen.asked else PolicyGate.NOT_CHOSEN), None
        elif self._gate.known:
            fault = self._gate.why_not(target.ref.namespace)
        return (PolicyGate.NOT_ARMED, fault) if fault else (PolicyGate.ARMED, None)

    def _machines_fault(self, target: AddonTarget) -> GateFault | None:
        if target.terminating:
            return None  # its Teardown reports it
        if self._machines is None:
            return NOT_INSTALLED
        if not self._machines.known:
            return GateFault(
                Reason.MACHINES_NOT_ARMED, "the manager has not read the Machines yet; if this lasts, see its log"
            )
        return self._machines.shape(target.ref.namespace, target.ref.name).fault

    def _decisions(self, policy: TeardownPolicy, target: AddonTarget) -> dict[str, StepDecision]:
        """What all policies of a cluster say about each handle that this policy makes a step."""
        key, all_ = Key(target.ref.namespace, target.ref.name), self._policies.known(target)
        alone = msgspec.structs.replace(all_, policies=(policy,))
        found: dict[str, StepDecision] = {}
        for handle in self._handles.of(key):
            if alone.about(handle.ref, handle.kind.source, on_member=False):
                decision = all_.about(handle.ref, handle.kind.source, on_member=False)
                if decision:
                    found[step_name(handle.ref)] = decision
        return found

    def _unplaced(self, policy: TeardownPolicy, target: AddonTarget) -> tuple[str, ...]:
        """The handles that this policy would make steps if it were known which cluster they deploy on."""
        alone = msgspec.structs.replace(self._policies.known(target), policies=(policy,))
        namespaces = {(source, name) for source in alone.sources for name in alone.namespaces(source)}
        return tuple(
            step_name(handle.ref)
            for source, name in namespaces
            for handle in self._handles.with_config_map(name)
            if handle.kind.source is source
            and (decision := alone.about(handle.ref, source, on_member=False))
            and decision.effort is not Effort.LEAVE
        )

    def _not_steps(self, policy: TeardownPolicy, target: AddonTarget) -> tuple[str, ...]:
        """The handles of the policy's sources for a cluster in namespaces that no policy names."""
        all_, kinds = self._policies.known(target), {source.kind for source in policy.spec.sources}
        return tuple(
            step_name(handle.ref)
            for handle in self._handles.of(Key(target.ref.namespace, target.ref.name))
            if handle.kind.source in kinds and handle.ref.namespace not in all_.namespaces(handle.kind.source)
        )


def _relevant(cluster: Cluster) -> object:
    meta = cluster.metadata
    return meta.uid, meta.labels, bool(cluster.class_name)
