"""Requested drains: `unwind delete cluster/NAME --drain-only`, on a Cluster that stays.

The requester may delete the Cluster, and then its drain would delete the same objects. The manager causes no more than
that: only what TeardownPolicies drain, each object by its uid. The steps of a request have Inventories of their own: a
deletion of the Cluster plans and runs its own drain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.features import Feature
from unwind.api.names import (
    DELETE_PROTECTION_LABEL,
    DRAIN_RESOURCE,
    MAX_OBJECTS_ANNOTATION,
    RESOURCE_ANNOTATION,
    VOLUMES_ANNOTATION,
    Reason,
)
from unwind.api.unwind import Effort
from unwind.companions.handle_requests import NotInstalled
from unwind.drain import objects, rules
from unwind.drain.remover import DrainRemover
from unwind.drain.step_source import drain_plan, drain_terms, recorded_by
from unwind.errors import UnwindError
from unwind.inventory.inventories import items
from unwind.inventory.writer import Records
from unwind.kube.errors import NotFoundError
from unwind.members import targets
from unwind.teardown import cancellation, request_refusals
from unwind.teardown.cancellation import ObjectState, Restored
from unwind.teardown.request_refusals import RefusedError
from unwind.teardown.request_step_source import RequestSource
from unwind.teardown.step_sources import SourceStep, SourceSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Cancellation, Entry, Inventory, Step, Teardown
    from unwind.companions.policy_reader import ClusterPolicies
    from unwind.drain.objects import DrainedObject
    from unwind.drain.rules import DrainDecision
    from unwind.drain.step_source import DrainStepPolicies, PlannedDrain
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import StepTerms


class DrainRequests:
    """Makes the step source of a requested drain."""

    def __init__(
        self, client: Client, deps: RemovalDeps, policies: DrainStepPolicies | None, clusters: Callable[[], Resource]
    ) -> None:
        """`policies`: without them, the feature is not installed. `clusters`: the served version of Clusters."""
        self._client = client
        self._deps = deps
        self._policies = policies
        self._clusters = clusters

    def __call__(self, teardown: Teardown) -> RequestSource | None:
        """The step source of a request; None if it requests no drain."""
        if not is_drain_request(teardown):
            return None
        if self._policies is None:
            return NotInstalled(Feature.DRAIN)
        return DrainRequest(self._client, self._deps, teardown, self._policies, self._clusters)


def is_drain_request(teardown: Teardown) -> bool:
    """Whether a request is for a drain (pure). The target stays, so it must be a Cluster and nothing else."""
    target = teardown.spec.target
    asked = teardown.metadata.annotations.get(RESOURCE_ANNOTATION) == DRAIN_RESOURCE
    return asked and (target.group, target.kind) == (CLUSTERS.group, CLUSTERS.kind)


class DrainRequest(RequestSource):
    """The steps of one requested drain."""

    rechecks = 30.0
    owners_by_uid = True

    def __init__(
        self,
        client: Client,
        deps: RemovalDeps,
        teardown: Teardown,
        policies: DrainStepPolicies,
        clusters: Callable[[], Resource],
    ) -> None:
        self._client = client
        self._deps = deps
        self._teardown = teardown
        self._policies = policies
        self._clusters = clusters
        self.remover = DrainRemover(policies, requested=True)

    def owns(self, owner: ObjectRef) -> bool:
        return owner == rules.requested_owner(self._teardown.metadata.uid, self._teardown.spec.target, owner.name)

    def is_own(self) -> bool:
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        return bool(steps) and all(self.owns(step.object) for step in steps)

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        return drain_terms(self._policies, step, target)

    async def target(self, teardown: Teardown) -> ClusterTarget | None:
        ref = teardown.spec.target
        try:
            found = await self._client.get(self._clusters(), ref.name, namespace=ref.namespace, type=Cluster)
        except NotFoundError:
            return None
        return targets.of_capi(found) if found.metadata.uid == ref.uid else None

    # The plan

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        """One step for each kind that is drained, after each object is recorded with its uid. Raises RefusedError."""
        del target, gone  # the Teardown names it
        cluster = await self._check_target()
        policies = await self._policies.of(cluster)
        decided = rules.decisions(policies.policies)
        _check_policies(cluster, policies, decided)
        inventories = self._deps.inventories
        async with self._deps.members.member(cluster) as member:
            found = {name: await objects.read(member, decision) for name, decision in decided.items()}
            there = await inventories.on(cluster.ref.uid)
            made = drain_plan(policies.policies, decided, found, there, cluster.ref, now=self._deps.clock.now())
            # What is left stays as it is, with its cluster: that is nothing for the ledger.
            planned = [step for step in made.steps if step.source.draft.effort is not Effort.LEAVE]
            going = [entry for step in planned for entry in step.entries.values() if not entry.kept]
            limit = self._teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION)
            if too_many := request_refusals.exceeds(limit, len(going)):
                raise RefusedError(Reason.TOO_MANY_OBJECTS, too_many)
            steps = tuple([await self._record(member, step) for step in planned])
        return SourceSteps(steps=steps, warnings=(*made.warnings, *deployed_warnings(decided, found, there)))

    async def _check_target(self) -> ClusterTarget:
        teardown, ref = self._teardown, self._teardown.spec.target
        if invalid := request_refusals.invalid_request(teardown):
            raise RefusedError(Reason.INVALID_TARGET, invalid)
        if VOLUMES_ANNOTATION in teardown.metadata.annotations:
            message = (
                f"annotation {VOLUMES_ANNOTATION} does not apply to a drain; set drain.volumes of the TeardownPolicy,"
                " and request it again without the annotation"
            )
            raise RefusedError(Reason.INVALID_TARGET, message)
        cluster = await self.target(teardown)
        if cluster is None:
            raise RefusedError(Reason.TARGET_GONE, f"{ref} is gone")
        if cluster.terminating:
            raise RefusedError(Reason.HELD, f"{ref} is being deleted, which drains it, too: no request is needed")
        if DELETE_PROTECTION_LABEL in cluster.labels:
            raise RefusedError(
                Reason.PROTECTED, f"{ref} is protected from deletion; remove the label {DELETE_PROTECTION_LABEL} first"
            )
        if cluster.paused:
            raise RefusedError(Reason.PAUSED, f"{ref} is paused; unpause it, and request it again")
        if not cluster.ready:
            raise RefusedError(
                Reason.INVALID_TARGET, f"the control plane of {ref} was never initialized, so there is nothing to drain"
            )
        return cluster

    async def _record(self, member: Member, step: PlannedDrain) -> SourceStep:
        """Write the Inventory of a step. It must name every object before the plan is written."""
        draft, teardown = step.source.draft, self._teardown
        owner = rules.requested_owner(teardown.metadata.uid, teardown.spec.target, draft.object.name)
        records = Records(self._deps.inventories, owner, member, effort=draft.effort)
        await records.load(exactly=True)
        wanted: Mapping[str, Entry] = step.entries
        # An earlier attempt may have been interrupted here, and objects may have changed since.
        await records.change({key: None for key in records.entries if key not in wanted})
        await records.put(wanted)
        return SourceStep(draft=msgspec.structs.replace(draft, object=owner))

    # The end

    async def owners(self) -> Collection[str]:
        return {chunk.spec.owner.uid for chunk in await self._chunks()}

    async def _chunks(self) -> list[Inventory]:
        found = await self._deps.inventories.of_requests_on(self._teardown.spec.target.uid)
        return [chunk for chunk in found if self.owns(chunk.spec.owner)]

    async def cancel(self, now: datetime) -> Cancellation:
        chunks = await self._chunks() if self._teardown.spec.plan else []
        target = await self.target(self._teardown)
        try:
            if target is None:
                raise UnwindError(f"{self._teardown.spec.target} is gone")
            async with self._deps.members.member(target) as member:
                return await cancellation.cancel(member, target.ref, chunks, now=now)
        except UnwindError:
            # Nothing has to be restored there, so that the cluster need not answer.
            unknown = [(item, ObjectState.UNKNOWN) for item in items(chunks)]
            return cancellation.cancellation_result(unknown, Restored(), now=now)


def deployed_warnings(
    decided: Mapping[str, DrainDecision], found: Mapping[str, Sequence[DrainedObject]], there: Iterable[Inventory]
) -> list[str]:
    """A warning for each object that stays because a step of the cluster's own teardown deployed it (pure)."""
    deployed = recorded_by(chunk for chunk in there if not rules.is_drain(chunk.spec.owner))
    return [
        f"{item.ref} stays: {deployed[item.ref.uid][0]} deployed it, and would deploy it again"
        for name, decision in decided.items()
        for item in found[name]
        if decision.drains and item.ref.uid in deployed
    ]


def _check_policies(cluster: ClusterTarget, policies: ClusterPolicies, decided: Mapping[str, DrainDecision]) -> None:
    """Raise RefusedError unless policies drain something, and agree about it (pure)."""
    if policies.said:
        raise RefusedError(Reason.UNKNOWN_VALUE, "; ".join(notice.message for notice in policies.said))
    if conflicts := [decision.said.conflict for decision in decided.values() if decision.said.conflict]:
        raise RefusedError(Reason.POLICY_CONFLICT, "; ".join(conflicts))
    if not any(decision.drains for decision in decided.values()):
        raise RefusedError(
            Reason.INVALID_TARGET,
            f"no TeardownPolicy drains anything from {cluster.ref}; add the section drain to one that selects it",
        )
