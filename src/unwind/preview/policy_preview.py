"""What a TeardownPolicy would select, and what would be gated by it, before it is applied. Read-only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, Kustomization
from unwind.api.meta import ref_of
from unwind.api.policies import TeardownPolicy
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import Effort, Gate
from unwind.companions import flux_rules, policy_deadline, policy_merge
from unwind.companions.companion import Handle
from unwind.companions.handle_kinds import HANDLES, HandleKind, HandleObject
from unwind.companions.helm_release_drivers import without_driven
from unwind.companions.policy_merge import Selection
from unwind.companions.policy_reader import ClusterPolicies, read_policies
from unwind.companions.step_source import held_by, left_message, unplaced_warnings
from unwind.concurrency import gather_limited
from unwind.drain import rules
from unwind.errors import UnwindError
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError
from unwind.members import targets
from unwind.members.members import Members
from unwind.notifications import sinks
from unwind.preview.cluster_gates import list_clusters
from unwind.preview.companion_preview import not_a_step
from unwind.preview.handle_preview import FoundHandles, HubHandles, find_handles, read_hub
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unwind.api.policies import PolicyNotification
    from unwind.companions.policy_merge import StepDecision
    from unwind.kube.client import Client, Object
    from unwind.members.targets import AddonTarget, ClusterTarget

# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404
# Clusters that are read at the same time, and seconds for each.
_AT_ONCE = 8
_PATIENCE = 30.0


class PreviewedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A handle, or a part of a drain, that would be a step."""

    name: str
    effort: str
    effort_from: tuple[str, ...]
    """The policies that decided it, or why the handle stays whatever they say."""
    conflict: str = ""
    left: str = ""
    """What becomes of the objects that its deployer would leave, as the rest of a sentence; empty if it leaves none."""


class PreviewedCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster that the policy would select."""

    namespace: str
    name: str
    gate: str
    """What would hold its deletion: a sentence."""
    deadline: str
    on_deadline: str
    steps: tuple[PreviewedStep, ...] = ()
    elsewhere: tuple[Told, ...] = ()
    """The handles in namespaces that no policy names, and why they are no steps."""
    not_counted: tuple[str, ...] = ()
    """What could not be read, so that `steps` may lack something, and handles whose cluster is not known."""


class PreviewedSink(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A sink that would be told what happens to the clusters."""

    host: str
    """Without the path, which may hold a secret."""
    events: tuple[str, ...]
    held_longer_than: str
    signing_key: str
    """SECRET/KEY in the namespace of Unwind."""


class PolicyPreview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a policy would do."""

    policy: str
    unknown: tuple[str, ...] = ()
    """Values that this version does not know. They would hold the clusters."""
    clusters: tuple[PreviewedCluster, ...] = ()
    others: int = 0
    """How many clusters it does not select."""
    sinks: tuple[PreviewedSink, ...] = ()


async def preview_policy(client: Client, policy: TeardownPolicy) -> PolicyPreview:
    """What a policy would select. It counts instead of an existing policy with its name."""
    found = {item.metadata.name: item for item in await read_policies(client)}
    proposed = _proposed(policy, found.get(policy.metadata.name, TeardownPolicy()))
    all_ = [*(item for name, item in found.items() if name != policy.metadata.name), proposed]
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in await client.list(NAMESPACES)}
    listed = await list_clusters(client)
    if listed is None:
        raise UnwindError("cannot list Clusters: Cluster API is not installed", remedy="use the management cluster")
    clusters = [targets.of_capi(cluster) for cluster in listed]
    selected = [it for it in clusters if _is_selected(proposed, it, labels.get(it.ref.namespace, {}))]
    named = await _handles(client) if selected else {}
    keys = [Key(it.ref.namespace, it.ref.name) for it in clusters]
    hub = await read_hub(client, keys) if selected else HubHandles()
    shown: list[PreviewedCluster] = []

    async def look(members: Members, target: AddonTarget) -> None:
        merged = _merged(all_, target, labels.get(target.ref.namespace, {}))
        there = named.get(Key(target.ref.namespace, target.ref.name), [])
        found = await _found(client, hub, members, target, merged, there)
        shown.append(_cluster(proposed, merged, target, found))

    async with Members(client) as members:
        await gather_limited((look(members, target) for target in selected), limit=_AT_ONCE)
    return PolicyPreview(
        policy=policy.metadata.name,
        unknown=tuple(policy_merge.unknown_words(proposed)),
        clusters=tuple(sorted(shown, key=lambda it: (it.namespace, it.name))),
        others=len(clusters) - len(selected),
        sinks=tuple(map(_sink, proposed.spec.notifications)),
    )


def _proposed(policy: TeardownPolicy, now: TeardownPolicy) -> TeardownPolicy:
    """A policy as it would be in place of the existing one, which has recorded clusters that stay selected (pure)."""
    annotations = {**now.metadata.annotations, **policy.metadata.annotations}
    metadata = msgspec.structs.replace(policy.metadata, annotations=annotations)
    return TeardownPolicy(metadata=metadata, spec=policy.spec, status=now.status)


def _is_selected(policy: TeardownPolicy, target: ClusterTarget, namespace_labels: Mapping[str, str]) -> bool:
    return policy_merge.selection(policy, target.ref.uid, target.labels, namespace_labels) is not Selection.NO


def _sink(notification: PolicyNotification) -> PreviewedSink:
    key = notification.signing_key
    return PreviewedSink(
        host=sinks.host_of(notification.url),
        events=notification.events,
        held_longer_than=notification.held_longer_than,
        signing_key=f"{key.secret_name}/{key.key}",
    )


def _merged(all_: list[TeardownPolicy], target: AddonTarget, namespace_labels: Mapping[str, str]) -> ClusterPolicies:
    """What all policies of a cluster would say (pure)."""
    ref = target.ref
    chosen = [it for it in all_ if _is_selected(it, target, namespace_labels)]
    return ClusterPolicies(
        target=ref, annotations=target.annotations, policies=tuple(chosen), has_class=target.has_class
    )


async def _found(
    client: Client,
    hub: HubHandles,
    members: Members,
    target: AddonTarget,
    merged: ClusterPolicies,
    there: list[Handle],
) -> FoundHandles:
    """The handles for a cluster; of what cannot be read, those that the management cluster shows (`there`)."""
    if not target.ready:
        why = "its control plane is not initialized"
    else:
        try:
            async with asyncio.timeout(_PATIENCE), members.member(target) as member:
                found = await find_handles(client, hub, merged, target, member)
        except TimeoutError:
            why = f"no answer within {_PATIENCE:.0f}s"
        except UnwindError as error:
            why = str(error)
        else:
            missed = {source for source, _ in found.failed}
            known = (handle for handle in there if handle.source in missed)
            return msgspec.structs.replace(found, handles=(*found.handles, *known))
    return FoundHandles(handles=tuple(there), unread=why)


def _cluster(
    policy: TeardownPolicy, merged: ClusterPolicies, target: AddonTarget, found: FoundHandles
) -> PreviewedCluster:
    """What a policy would do for one cluster (pure). `merged`: with all other policies."""
    ref, chosen = target.ref, merged.policies
    alone = msgspec.structs.replace(merged, policies=(policy,))
    steps: list[PreviewedStep] = []
    unplaced: list[Handle] = []
    for handle in without_driven(found.handles, merged):
        decision = _about(merged, handle)
        if not (decision and _about(alone, handle)):
            continue
        if handle.unplaced:
            unplaced.append(handle)
        elif handle.stays:
            steps.append(PreviewedStep(name=handle.step, effort=Effort.LEAVE.value, effort_from=(handle.stays,)))
        else:
            steps.append(
                PreviewedStep(
                    name=handle.step,
                    effort=decision.effort.value,
                    effort_from=decision.policies,
                    conflict=decision.conflict,
                    left=left_message(handle, merged.decide(handle)) if handle.left else "",
                )
            )
    mentioned = {rules.step_name(name) for name, _ in (policy.spec.drain.efforts if policy.spec.drain else ())}
    for drained in rules.decisions(chosen).values():
        if (name := rules.step_name(drained.name)) in mentioned:
            said = drained.said
            steps.append(
                PreviewedStep(name=name, effort=said.effort.value, effort_from=said.policies, conflict=said.conflict)
            )
    deadline = policy_deadline.effective_deadline(chosen, target.annotations)
    return PreviewedCluster(
        namespace=ref.namespace,
        name=ref.name,
        gate=_gate(merged, target),
        deadline=deadline.deadline or "none",
        on_deadline=deadline.on_deadline,
        steps=tuple(sorted(steps, key=lambda step: step.name)),
        elsewhere=tuple(Told(handle, not_a_step(handle)) for handle in found.elsewhere),
        not_counted=(
            *_not_counted(found),
            *(notice.message for notice in held_by(unplaced, merged.decide)),
            *unplaced_warnings(unplaced, merged.decide),
        ),
    )


def _about(said: ClusterPolicies, handle: Handle) -> StepDecision | None:
    return said.about(handle.ref, handle.source, on_member=handle.on_member, exactly=bool(handle.exactly))


def _not_counted(found: FoundHandles) -> Iterator[str]:
    if found.unread:
        what = "handles on the cluster itself, Helm releases, and handles with a copy of the kubeconfig"
        yield f"not counted: {what}: {found.unread}"
    for source, why in found.failed:
        yield f"not counted: what the management cluster does not show of {source.value}: {why}"


def _gate(merged: ClusterPolicies, target: AddonTarget) -> str:
    gate = merged.gate
    if gate and gate.kind is Gate.MACHINES:
        return "held by its Machines"
    if gate and gate.kind is Gate.ADMISSION:
        return "held: the API server refuses to delete it, except by `unwind delete`"
    if not merged.enforced:
        return "not held: nothing is enforced"
    return "held" if target.has_class else "cannot be held: no ClusterClass"


async def _handles(client: Client) -> dict[Key, list[Handle]]:
    """The handles on the management cluster by Cluster. A deployer that is not installed has none."""
    found: dict[Key, list[Handle]] = {}
    for kind in HANDLES:
        try:
            objects = await client.list(kind.resource)
        except ApiError as error:
            if error.code != _NOT_SERVED:
                raise
            continue
        for obj in objects:
            read = msgspec.convert(obj, HandleObject)
            if cluster := kind.cluster_of(read):
                ref = ref_of(kind.resource, read.metadata)
                handle = Handle(ref=ref, source=kind.source, left=_why_left(kind, obj))
                found.setdefault(cluster, []).append(handle)
    return found


def _why_left(kind: HandleKind, obj: Object) -> str:
    """Why the deployer of a handle would leave what it deployed; empty if it would not."""
    model = {KUSTOMIZATIONS: Kustomization, HELM_RELEASES: HelmRelease}.get(kind.resource)
    return flux_rules.why_left(msgspec.convert(obj, model)) if model else ""
