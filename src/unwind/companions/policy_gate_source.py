"""What TeardownPolicies say about the gate of a Cluster: whether they close it before its Teardown exists, and which
gate they choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Gate
from unwind.companions import gate_choice, policy_merge
from unwind.companions.policy_reader import labels_of
from unwind.teardown.deletion_gate import GateHolder, UncachedGateSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.policies import TeardownPolicy
    from unwind.companions.policy_reader import Policies, PolicyCaches
    from unwind.kube.cache import Change
    from unwind.kube.decoding import Metadata
    from unwind.members.targets import AddonTarget


class PolicyGateSource(UncachedGateSource):
    """The policies that block the deletion of a Cluster: each one that enforces anything."""

    def __init__(self, reader: Policies) -> None:
        self._policies = reader

    def known(self, target: AddonTarget) -> list[GateHolder]:
        return _holders(self._policies.known(target).policies)

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        reading("the TeardownPolicies")
        return _holders((await self._policies.of(target)).policies), []


class PolicyGates:
    """Which gates the policies of Clusters choose."""

    def __init__(self, reader: Policies, caches: PolicyCaches) -> None:
        self._policies = reader
        self._caches = caches

    @property
    def settled(self) -> bool:
        return self._caches.settled

    def of(self, target: AddonTarget) -> Gate | Unknown | None:
        chosen = self._policies.known(target).gate
        return chosen.kind if chosen else None

    def holds(self, target: AddonTarget) -> bool:
        return self.settled and self.of(target) in (Gate.MACHINES, Gate.ADMISSION)

    async def requested_by(self, target: AddonTarget) -> tuple[str, ...]:
        """The policies by which a DELETE of a Cluster starts its teardown, read from the API server."""
        return gate_choice.requesting((await self._policies.of(target)).policies)

    def follow(self, changed: Callable[[], None]) -> None:
        def namespace_changed(change: Change[Metadata]) -> None:
            if self._caches.settled and labels_of(change.old) != labels_of(change.new):
                changed()

        self._policies.follow(changed)
        self._caches.namespaces.subscribe(namespace_changed)


def _holders(found: Iterable[TeardownPolicy]) -> list[GateHolder]:
    """The gate holders of policies (pure). Which steps they have is known when the plan is made."""
    holders: list[GateHolder] = []
    for policy in found:
        name = f"TeardownPolicy/{policy.metadata.name}"
        if words := policy_merge.unknown_words(policy):
            holders.append(GateHolder(name, Unknown("; ".join(words))))
        elif policy_merge.enforces(policy):
            holders.append(GateHolder(name, ClusterDeletionBehavior.ENFORCE))
    return holders
