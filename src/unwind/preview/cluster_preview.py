"""Previews the deletion of a cluster or a profile: its plan and its objects on members. Only reads."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from unwind.addons import cluster_summaries, stop_matching_behavior
from unwind.addons.matching import ProfileKey
from unwind.addons.step_source import left_while, merged, pause_of_profile, read_steps
from unwind.api import capi, karmada, sveltos
from unwind.api.annotation_values import VolumePolicy, volume_policy
from unwind.api.caaph import HELM_RELEASE_PROXIES, HelmReleaseProxy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import NO_CLUSTER_CLASS, TAKE_ALONG_ANNOTATION, VOLUMES_ANNOTATION, ConditionType
from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary, ClusterType
from unwind.api.unwind import Effort, Entry, Gate, Plan, Step
from unwind.companions import helm_release_proxy_rules, snapshots
from unwind.companions.handle_scopes import protected_by
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.helm_release_proxy_requests import refused_proxies
from unwind.companions.policy_reader import ClusterPolicies, read_cluster_policies
from unwind.drain import rules
from unwind.errors import UnwindError
from unwind.inventory.inventories import Inventories, items
from unwind.karmada.member_step_source import paired_members, remaining_works
from unwind.karmada.remove_strategy import steps_of
from unwind.kube.client import Client
from unwind.kube.decoding import Metadata
from unwind.kube.errors import NotFoundError
from unwind.members import contents, targets
from unwind.members.contents import Content
from unwind.members.member import Member
from unwind.members.members import Members
from unwind.planning.blast_radius import blast_radius
from unwind.planning.dependency_graph import dependencies
from unwind.planning.progress import critical_path
from unwind.planning.waves import Draft, plan
from unwind.preview import flux_preview, leaks, object_preview, removal_forecast
from unwind.preview.companion_preview import (
    NOTHING,
    CompanionPreview,
    HandleOutlook,
    preview_companions,
    preview_handle,
)
from unwind.preview.cost_preview import Cost, CostPreview, preview_costs
from unwind.preview.handle_preview import companions_of
from unwind.preview.member_preview import MemberPreview, preview_member
from unwind.preview.object_preview import Foreseen
from unwind.preview.removal_forecast import ForecastFate, ObjectForecast, PlannedStep, why_kept
from unwind.removal.deletion_scope import Told, ref_to
from unwind.teardown.drafts import Drafted
from unwind.teardown.plan import Gathered, combine, gather, with_what_goes_along
from unwind.teardown.step_sources import SourceSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.api.unwind import Inventory
    from unwind.companions.snapshots import Snapshot
    from unwind.kube.discovery import Named
    from unwind.members.targets import AddonTarget, ClusterTarget
    from unwind.teardown.step_sources import StepPause

# A profile may be on a thousand clusters: this many are read, of the others only the Inventories.
LOOKED_AT = 20
_UNMANAGED = "deleting a SveltosCluster only ends its management: nothing is removed from the cluster"
_NO_GATE = (
    f"{NO_CLUSTER_CLASS}, so it does not wait for the removal; to hold such Clusters, choose a gate in a TeardownPolicy"
)


_PROFILE_PAUSED = "it is paused: nothing of it is removed until it is unpaused"
_CLUSTER_PAUSED = "it is paused: nothing is removed from it until it is unpaused"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The clients that a preview reads from."""

    client: Client
    fleet: Members
    here: Member
    """The management cluster."""
    inventories: Inventories
    home: str
    """Unwind's own namespace."""


async def foresee(client: Client, named: Named, *, home: str, volumes: VolumePolicy = VolumePolicy.RETAIN) -> Foreseen:
    """The preview of the deletion of any object. `home`: Unwind's own namespace. `volumes`: the policy for claims of
    StatefulSets if no profile or Work sets it."""
    kind = (named.resource.group, named.resource.kind)
    inventories = Inventories(client, namespace=home)
    async with Members(client) as fleet, fleet.management() as here:
        places = Places(client=client, fleet=fleet, here=here, inventories=inventories, home=home)
        if kind == (capi.CLUSTERS.group, capi.CLUSTERS.kind):
            cluster = await client.get(named.resource, named.name, namespace=named.where, type=capi.Cluster)
            return await _of_capi(places, cluster)
        if kind == (HELM_RELEASE_PROXIES.group, HELM_RELEASE_PROXIES.kind):
            proxy = await client.get(named.resource, named.name, namespace=named.where, type=HelmReleaseProxy)
            return await _of_proxy(places, proxy)
        if kind == (sveltos.LIB_GROUP, sveltos.SVELTOS_CLUSTERS.kind):
            registered = await client.get(
                named.resource, named.name, namespace=named.where, type=sveltos.SveltosCluster
            )
            return await _of_sveltos(places, registered)
        if kind == (karmada.CLUSTERS.group, karmada.CLUSTERS.kind):
            member = await client.get(named.resource, named.name, type=karmada.Cluster)
            return await _of_karmada(places, member)
        if kind in ((profile.group, profile.kind) for profile in removal_forecast.PROFILES):
            profile = await client.get(named.resource, named.name, namespace=named.where, type=sveltos.ClusterProfile)
            return await _of_profile(places, named.resource, profile)
        if kind in flux_preview.KINDS:
            return await flux_preview.of_flux(client, fleet, here, named, home=home)
        return await object_preview.of_object(here, named, home=home, volumes=volumes)


async def _of_capi(places: Places, cluster: capi.Cluster) -> Foreseen:
    target = targets.of_capi(cluster)
    policies, others = await _policies(places, target)
    drain = await _costs(places, target, others)
    profiles = await read_steps(places.client, target)
    if policies:
        decided = tuple(merged(policies, step) for step in profiles.steps)
        profiles = msgspec.structs.replace(profiles, steps=decided)
    sources = [profiles, others.steps, drain.steps]
    found = await gather(places.inventories, target, sources)
    chunks = drain.with_chunks(others.with_chunks(found.chunks.values()))
    warnings: tuple[str, ...] = () if target.has_class or _held_without_hook(policies) else (_NO_GATE,)
    warnings += await _waits_for_members(places, target)
    around: list[Content] = []
    try:
        around = await contents.in_namespace(places.client, places.here.discovery, target.ref.namespace)
    except UnwindError as error:
        # Not every user may list all kinds, and the add-ons are more important.
        warnings += (f"cannot list the dependents of the Cluster: {error}",)
    profiles_read = await _profiles(places, found.drafts)
    paused = _paused(profiles_read)
    return await _of_cluster(
        places,
        target,
        cluster.metadata,
        found,
        chunks,
        along=contents.descendants(around, [target.ref.uid]),
        said={uid: metadata.annotations for uid, (_, metadata) in profiles_read.items()},
        paused=paused,
        blocked=_blocked_by_pause(target),
        warnings=warnings,
        others=others,
        costs=drain.costs([_as_it_ends(draft, others, paused) for draft in found.drafts], chunks),
        selected=bool(policies and policies.policies),
        unknown=(*others.unknown, *drain.unknown),
    )


def _as_it_ends(draft: Draft, others: CompanionPreview, paused: Collection[str]) -> Draft:
    """A step that is given up, or only tried and paused, leaves its objects (pure)."""
    leaves = draft.name in others.given_up or (draft.effort is Effort.TRY and draft.object.uid in paused)
    return msgspec.structs.replace(draft, effort=Effort.LEAVE) if leaves else draft


async def foresee_drain(client: Client, named: Named, *, home: str) -> Foreseen:
    """The preview of a requested drain of a Cluster that stays. `home`: Unwind's own namespace."""
    inventories = Inventories(client, namespace=home)
    async with Members(client) as fleet, fleet.management() as here:
        places = Places(client=client, fleet=fleet, here=here, inventories=inventories, home=home)
        cluster = await client.get(named.resource, named.name, namespace=named.where, type=capi.Cluster)
        target = targets.of_capi(cluster)
        policies = await read_cluster_policies(client, target)
        recorded = await inventories.on(target.ref.uid)
        drain = await preview_costs(fleet, target, policies, recorded)
        if drain.unknown:
            raise UnwindError("; ".join(drain.unknown))
        steps = tuple(step for step in drain.steps.steps if step.draft.effort is not Effort.LEAVE)
        if not steps:
            raise UnwindError(
                f"cannot drain {target.ref}: no TeardownPolicy drains anything from it",
                remedy="add the section drain to a TeardownPolicy that selects it",
            )
        owners = {step.draft.object.uid for step in steps}
        chunks = [chunk for chunk in drain.chunks if chunk.spec.owner.uid in owners]
        found = combine([SourceSteps(steps=steps, said=policies.said, warnings=drain.steps.warnings)], {}, ())
        seen = await _of_cluster(
            places,
            target,
            cluster.metadata,
            found,
            chunks,
            costs=drain.costs_of_drain(found.drafts, recorded),
        )
        return msgspec.structs.replace(seen, requested=True)


async def _costs(places: Places, target: ClusterTarget, others: CompanionPreview) -> CostPreview:
    """What costs money on a cluster, and the drain of its policies."""
    try:
        policies = await read_cluster_policies(places.client, target)
        recorded = await places.inventories.on(target.ref.uid)
    except UnwindError as error:
        # Not every user may list policies.
        return CostPreview(unknown=(f"cannot read what is drained: {error}",))
    return await preview_costs(places.fleet, target, policies, others.with_chunks(recorded))


def _held_without_hook(policies: ClusterPolicies | None) -> bool:
    gate = policies.gate if policies else None
    return gate is not None and gate.kind in (Gate.MACHINES, Gate.ADMISSION)


async def _policies(places: Places, target: ClusterTarget) -> tuple[ClusterPolicies | None, CompanionPreview]:
    """The policies of a cluster, and what other deployers have there."""
    client = places.client
    try:
        policies = await read_cluster_policies(client, target)
    except UnwindError as error:
        # Not every user may list policies.
        return None, CompanionPreview(unknown=(f"cannot read the TeardownPolicies of the cluster: {error}",))
    selected = bool(policies.policies)
    return policies, await preview_companions(companions_of(client), policies, places.fleet, target, selected=selected)


async def _of_proxy(places: Places, proxy: HelmReleaseProxy) -> Foreseen:
    """The preview of the deletion of a HelmReleaseProxy, whose cluster stays."""
    where = proxy.spec.cluster_ref
    cluster = await places.client.get(capi.CLUSTERS, where.name, namespace=where.namespace, type=capi.Cluster)
    companion = HelmReleaseProxies(places.client, None)
    ref, refusals = ref_of(HELM_RELEASE_PROXIES, proxy.metadata), partial(removal_forecast.refusals, home=places.home)

    async def protected(member: Member, snapshot: Snapshot) -> tuple[Told, ...]:
        return await protected_by(refusals, proxy.metadata, ref, snapshot, place=places.here, member=member)

    return await preview_handle(
        companion,
        places.fleet,
        targets.of_capi(cluster),
        ref,
        HandleOutlook(
            leaks=helm_release_proxy_rules.why_leaked(proxy),
            refused=partial(refused_proxies, proxy),
            recreated=helm_release_proxy_rules.recreated_by(proxy, deleting=cluster.metadata.terminating),
        ),
        protected=protected,
    )


async def _waits_for_members(places: Places, target: ClusterTarget) -> tuple[str, ...]:
    """A warning for each member whose Works the deletion of the Cluster waits for."""
    found: list[str] = []
    try:
        for member in await paired_members(places.client, target.ref.uid):
            works = await remaining_works(places.client, places.inventories, member)
            if works and member.removal is not karmada.RemoveStrategy.NEEDLESS:
                name = member.metadata.name
                found.append(
                    f"the Cluster is also member {name} with removeStrategy Required: its deletion waits for"
                    f" {len(works)} Works; unjoin the member: unwind unjoin {name}"
                )
    except UnwindError as error:
        # Not every user may list members, and the add-ons are more important.
        found.append(
            f"cannot list the Works that the Cluster waits for: {error}; the preview may miss such a wait: retry as"
            " a user who may list Karmada Clusters, Works and Inventories"
        )
    return tuple(found)


async def _of_sveltos(places: Places, cluster: sveltos.SveltosCluster) -> Foreseen:
    target = targets.of_sveltos(cluster)
    found = await gather(places.inventories, target, [await read_steps(places.client, target)])
    made = found.drafted(decided=True).plan or Plan()
    # Regardless of the profiles, whose deletion behavior is for clusters that are deleted.
    steps = tuple(msgspec.structs.replace(step, effort=Effort.LEAVE.value, wave=1) for step in made.steps)
    left = Plan(steps=steps, waves=1 if steps else 0)
    # Nor does it matter whether their values are known.
    found = msgspec.structs.replace(found, said=())
    return await _of_cluster(
        places, target, cluster.metadata, found, found.chunks.values(), made=left, warnings=(_UNMANAGED,)
    )


async def _of_karmada(places: Places, cluster: karmada.Cluster) -> Foreseen:
    target = targets.of_karmada(cluster)
    listed = await places.client.list(karmada.WORKS, namespace=cluster.execution_namespace)
    works = msgspec.convert(listed, list[karmada.Work])
    found = await gather(places.inventories, target, [steps_of(cluster, works)])
    said = {work.metadata.uid: work.metadata.annotations for work in works}
    return await _of_cluster(places, target, cluster.metadata, found, found.chunks.values(), said=said)


async def _of_cluster(
    places: Places,
    target: ClusterTarget,
    metadata: ObjectMeta,
    found: Gathered,
    chunks: Iterable[Inventory],
    *,
    made: Plan | None = None,
    along: Sequence[Content] = (),
    said: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    paused: Mapping[str, StepPause] = MappingProxyType({}),
    blocked: tuple[Told, ...] = (),
    warnings: tuple[str, ...] = (),
    others: CompanionPreview = NOTHING,
    costs: tuple[Cost, ...] = (),
    selected: bool = False,
    unknown: tuple[str, ...] = (),
) -> Foreseen:
    """`made`: the plan to show; None for the one of `found`, even if a value is unknown and no plan would be written: a
    refusal reports that. `said`: the annotations of profiles and Works, by the uid of the owner of their objects.
    `paused`: by the same uid, the pause of a profile. `blocked`, `selected`, `unknown`: as for `_foreseen`."""
    made = made or found.drafted(decided=True).plan or Plan()
    chunks = list(chunks)
    # Nothing waits for a step that is only tried, so its objects are left.
    tried = {step.object.uid for step in made.steps if step.effort == Effort.TRY}
    left = {uid: left_while(pause) for uid, pause in paused.items() if uid in tried}
    waiting = {step.object.uid for step in made.steps if step.effort != Effort.LEAVE} - tried
    takers = {uid for uid, its in said.items() if its.get(TAKE_ALONG_ANNOTATION) == "true" and uid not in left}
    policies = {uid: volume_policy(its) for uid, its in said.items()}
    told = await with_what_goes_along(
        places.fleet,
        target,
        Drafted(plan=made),
        chunks,
        takes_along=lambda step: step.object.uid in takers,
    )
    made = told.plan or made
    # What other deployers delete does not go through the chain of deleters.
    owned = {chunk.spec.owner.uid for chunk in others.chunks} - others.by_unwind
    planned = [chunk for chunk in chunks if chunk.spec.owner.uid not in owned]
    seen = await _look(places, target, _planned(made, planned, takers, policies, left=left))
    # An unknown value holds the whole plan.
    held = [Told(target.ref, item.message) for item in found.said if item.type is ConditionType.UNKNOWN_VALUE]
    held += [
        Told(step.object, _unknown_volumes(policy))
        for step in made.steps
        if isinstance(policy := policies.get(step.object.uid), Unknown) and step.effort != Effort.LEAVE
    ]
    return _foreseen(
        target.ref,
        made,
        chunks,
        seen,
        along=along,
        refusals=[*await _by_label(places.here, target.ref, metadata), *held],
        blocked=(*blocked, *(Told(it.object, _PROFILE_PAUSED) for uid, it in paused.items() if uid in waiting)),
        paused=left,
        others=others,
        costs=costs,
        selected=selected,
        unknown=unknown,
        warnings=(
            *warnings,
            *unknown,
            *(item.message for item in found.said if item.type is not ConditionType.UNKNOWN_VALUE),
        ),
    )


def _unknown_volumes(policy: Unknown) -> str:
    return f"nothing is deleted: annotation {VOLUMES_ANNOTATION}: {policy}"


async def _profiles(places: Places, drafts: Iterable[Draft]) -> dict[str, tuple[str, ObjectMeta]]:
    """The kinds and metadata of profiles, by the uid of the ClusterSummary."""
    resources = {profile.kind: profile for profile in removal_forecast.PROFILES}
    found: dict[str, tuple[str, ObjectMeta]] = {}
    for draft in drafts:
        if draft.kind in resources:
            with suppress(NotFoundError):
                read = await places.client.get(
                    resources[draft.kind],
                    draft.declared,
                    namespace=draft.namespace or None,
                    type=sveltos.ClusterProfile,
                )
                found[draft.object.uid] = draft.kind, read.metadata
    return found


def _paused(profiles: Mapping[str, tuple[str, ObjectMeta]]) -> dict[str, StepPause]:
    """The pauses of these profiles (pure)."""
    return {uid: pause for uid, read in profiles.items() if (pause := pause_of_profile(*read))}


def _blocked_by_pause(target: AddonTarget) -> tuple[Told, ...]:
    """What a paused cluster blocks: every removal on it (pure)."""
    return (Told(target.ref, _CLUSTER_PAUSED),) if target.paused else ()


async def _of_profile(places: Places, resource: Resource, profile: sveltos.ClusterProfile) -> Foreseen:
    """The preview of a profile's deletion: it is withdrawn from every cluster."""
    meta = profile.metadata
    key = ProfileKey(resource.kind, meta.namespace, meta.name)
    listed = await places.client.list(CLUSTER_SUMMARIES, namespace=meta.namespace or None)
    summaries = msgspec.convert(listed, list[ClusterSummary])
    its = [summary for summary in summaries if cluster_summaries.profile_of(summary) == key]
    withdraws = stop_matching_behavior.withdraws(profile.spec)
    ref = ref_of(resource, meta)
    refusals = await _by_label(places.here, ref, meta)
    if isinstance(withdraws, Unknown):
        refusals.append(Told(ref, f"stopMatchingBehavior: {withdraws}, so nothing is removed until it is corrected"))
    volumes = volume_policy(meta.annotations)
    if isinstance(volumes, Unknown) and withdraws is True:
        refusals.append(Told(ref, _unknown_volumes(volumes)))
    effort = Effort.ENFORCE if withdraws is True else Effort.LEAVE
    chunks = await places.inventories.owned(item.metadata.uid for item in its) if its else []
    counts = _counted(chunks)
    made = plan(
        Draft(
            name=_place(item),
            object=ref_of(CLUSTER_SUMMARIES, item.metadata),
            kind=CLUSTER_SUMMARIES.kind,
            declared=_place(item),
            effort=effort,
            objects=counts.get(item.metadata.uid, 0),
        )
        for item in its
    )
    pause = pause_of_profile(key.kind, meta)
    blocked = [Told(pause.object, _PROFILE_PAUSED)] if pause and its else []
    seen = []
    if effort is not Effort.LEAVE:
        along = meta.annotations.get(TAKE_ALONG_ANNOTATION) == "true"
        for item in its[:LOOKED_AT]:
            uid = item.metadata.uid
            policy = VolumePolicy.DELETE if volumes is VolumePolicy.DELETE else VolumePolicy.RETAIN
            steps = [step for step in made.steps if step.object.uid == uid]
            alone = msgspec.structs.replace(made, steps=tuple(steps))
            try:
                target = await _target_of(places, item)
            except NotFoundError as error:
                seen.append(MemberPreview(unseen=str(error)))
                continue
            blocked += _blocked_by_pause(target)
            seen += await _look(places, target, _planned(alone, chunks, {uid} if along else (), {uid: policy}))
    unseen = len(its) - LOOKED_AT
    warnings = needed_by(key, its, summaries)
    if unseen > 0:
        warnings += (f"{unseen} of {len(its)} clusters were not read: custom resources there are not counted",)
    return _foreseen(ref, made, chunks, seen, refusals=refusals, blocked=blocked, warnings=warnings)


def _place(summary: ClusterSummary) -> str:
    """The step name of a profile on a cluster."""
    return "/".join(cluster_summaries.cluster_of(summary))


def _counted(chunks: Iterable[Inventory]) -> Counter[str]:
    """The number of objects of each owner, by its uid."""
    return Counter(chunk.spec.owner.uid for chunk in chunks for _ in chunk.spec.entries)


async def _target_of(places: Places, summary: ClusterSummary) -> AddonTarget:
    """The cluster of a summary. Raises NotFoundError."""
    type_, namespace, name = cluster_summaries.cluster_of(summary)
    if type_ == ClusterType.CAPI:
        return targets.of_capi(await places.client.get(capi.CLUSTERS, name, namespace=namespace, type=capi.Cluster))
    registered = await places.client.get(
        sveltos.SVELTOS_CLUSTERS, name, namespace=namespace, type=sveltos.SveltosCluster
    )
    return targets.of_sveltos(registered)


class _PlannedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that remove objects, by where these are."""

    member: tuple[PlannedStep, ...]
    local: tuple[PlannedStep, ...]
    """On the management cluster."""


def _planned(
    made: Plan,
    chunks: Iterable[Inventory],
    takers: Collection[str],
    policies: Mapping[str, VolumePolicy | Unknown],
    *,
    left: Collection[str] = (),
) -> _PlannedSteps:
    """`takers`: the owners that take foreign content along. `policies`: the volume policies, by owner. `left`: owners
    whose objects are left whatever the effort."""
    below, owners = dependencies(made), {step.name: step.object.uid for step in made.steps}
    entries: dict[tuple[str, bool], list[Entry]] = {}
    for chunk in chunks:
        local = chunk.spec.member.object.kind == NAMESPACES.kind
        todo = [item.entry for item in items([chunk]) if not item.done]
        entries.setdefault((chunk.spec.owner.uid, local), []).extend(todo)

    def steps(*, local: bool) -> tuple[PlannedStep, ...]:
        return tuple(
            PlannedStep(
                owner=(uid := step.object.uid),
                entries=tuple(entries.get((uid, local), ())),
                wave=step.wave,
                later=frozenset(owners[name] for name in below[step.name]) - {uid},
                take_along=uid in takers,
                tried=step.effort == Effort.TRY,
                volumes=VolumePolicy.DELETE if policies.get(uid) is VolumePolicy.DELETE else VolumePolicy.RETAIN,
            )
            for step in made.steps
            if step.effort != Effort.LEAVE and step.object.uid not in left
        )

    return _PlannedSteps(member=steps(local=False), local=steps(local=True))


async def _look(places: Places, target: ClusterTarget, steps: _PlannedSteps) -> list[MemberPreview]:
    return [
        await preview_member(places.fleet, target, steps.member),
        await preview_member(places.fleet, None, steps.local),
    ]


def needed_by(key: ProfileKey, its: Iterable[ClusterSummary], summaries: Iterable[ClusterSummary]) -> tuple[str, ...]:
    """A warning for each profile on the same clusters that depends on the deleted one and blocks it (pure)."""
    places = {cluster_summaries.cluster_of(summary) for summary in its}
    return tuple(
        f"{cluster_summaries.profile_of(summary)} on {cluster_summaries.cluster_of(summary)} depends on it and stays,"
        " which blocks the removal: delete that first"
        for summary in summaries
        if cluster_summaries.cluster_of(summary) in places and key in cluster_summaries.needs(summary)
    )


def _by_step(made: Plan, chunks: Iterable[Inventory]) -> dict[str, tuple[Step, list[Entry]]]:
    """The steps by name, with their remaining objects."""
    owners: dict[str, list[Entry]] = {}
    for chunk in chunks:
        todo = [item.entry for item in items([chunk]) if not item.done]
        owners.setdefault(chunk.spec.owner.uid, []).extend(todo)
    return {step.name: (step, owners.get(step.object.uid, [])) for step in made.steps}


async def _by_label(here: Member, ref: ObjectRef, metadata: ObjectMeta) -> list[Told]:
    """The refusal if the object on the management cluster is protected itself."""
    resource = await here.discovery.resource(ref.kind, group=ref.group)
    seen = Metadata(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        labels=metadata.labels,
        deletion_timestamp=str(metadata.deletion_timestamp) if metadata.terminating else None,
    )
    return [Told(it.object, it.why) for it in await removal_forecast.protected_objects(here, [Content(resource, seen)])]


def _foreseen(
    ref: ObjectRef,
    made: Plan,
    chunks: Iterable[Inventory],
    seen: Sequence[MemberPreview],
    *,
    along: Sequence[Content] = (),
    refusals: Iterable[Told] = (),
    blocked: Iterable[Told] = (),
    paused: Mapping[str, str] = MappingProxyType({}),
    warnings: Iterable[str] = (),
    others: CompanionPreview = NOTHING,
    costs: tuple[Cost, ...] = (),
    selected: bool = False,
    unknown: Iterable[str] = (),
) -> Foreseen:
    """The preview (pure). `blocked`: what the deletion waits for besides protected objects. `paused`: why the objects
    of a step are left because its profile is paused, by the uid of its owner. `selected`: whether a policy selects the
    cluster: then what costs money is left behind if no policy decides about it. `unknown`: what could not be read.
    """
    left = {step.name for step in made.steps if step.effort == Effort.LEAVE}
    taken = [foreign for preview in seen for foreign in preview.forecast.along]
    objects = {
        name: others.forecast(step, entries)
        or _forecast(step, entries, seen, {foreign.uid for foreign in taken}, paused=paused.get(step.object.uid, ""))
        for name, (step, entries) in _by_step(made, chunks).items()
    }
    going = {name: tuple(it.entry for it in some if it.fate is ForecastFate.GOES) for name, some in objects.items()}
    gone = {entry.object.uid for some in going.values() for entry in some}
    staying = {
        # A drain may delete the claims that a deployer leaves.
        name: tuple(it for it in some if it.fate is ForecastFate.STAYS and it.entry.object.uid not in gone)
        for name, some in objects.items()
    }
    # Removed objects are not counted, and claims of StatefulSets are only known now.
    shown = {name: going[name] or (tuple(it.entry for it in staying[name]) if name in left else ()) for name in objects}
    steps = tuple(msgspec.structs.replace(step, objects=len(shown[step.name])) for step in made.steps)
    every = [entry for some in going.values() for entry in some]
    every += [msgspec.structs.replace(it.entry, kept=True) for some in staying.values() for it in some]
    balancers = {
        (entry.object.namespace, entry.object.name)
        for entry in every
        if any(entry.object.uid in preview.cloud.balancers for preview in seen)
    }
    resources: dict[str, int] = {}
    for preview in seen:
        for name, count in preview.resources.items():
            resources[name] = resources.get(name, 0) + count
    unseen = [
        f"cannot read a member, so dependents there are unknown: {preview.unseen}" for preview in seen if preview.unseen
    ]
    protection = [found for preview in seen for found in preview.protected]
    enforced = [step.object for step in made.steps if step.effort == Effort.ENFORCE]
    protection += others.protected([*enforced, *(entry.object for some in going.values() for entry in some)])
    doubts = [warning for preview in seen for warning in preview.forecast.warnings]
    # What a Namespace or CRD contains changes during the deletion.
    emptied_first = [f"{it.message}, unless its contents are removed first" for it in protection if it.by_contents]
    # Profiles and Works decide themselves what they keep. A drain that does not mention a kind decides nothing.
    deployed = {item.draft.object.uid for item in others.steps.steps}
    own = {step.name for step in made.steps if step.object.uid not in deployed and not rules.is_drain(step.object)}
    removed = {entry.object.uid for some in going.values() for entry in some if entry.object.uid}
    kept = {it.entry.object.uid for name in staying if name in own for it in staying[name]}
    leaking = [told for step in made.steps for told in others.leaks(step, objects[step.name])]
    # What a policy leaves on purpose, or a volume that stays by its reclaim policy.
    chosen = {cost.object.uid for cost in costs if cost.left_by and cost.left_by not in objects}
    leaking = [told for told in (*leaking, *others.elsewhere) if told.object.uid not in chosen]
    leaking += [told for told in leaks.of_costs(costs) if told.object.uid not in kept] if selected else []
    lost = leaks.distinct(leaking, removed=removed, known=[entry.object for entry in every])
    # A claim that stays after its StatefulSet may be deleted by the drain.
    unshown = removed | {told.object.uid for told in lost}
    warned = tuple(dict.fromkeys((*made.warnings, *warnings, *unseen, *doubts, *emptied_first)))
    return Foreseen(
        title=str(ref),
        target=ref,
        requested=False,
        plan=msgspec.structs.replace(made, steps=steps, objects=sum(map(len, going.values())), warnings=warned),
        objects={name: tuple(entry.object for entry in some) for name, some in shown.items()},
        along=(*(ref_to(content) for content in along), *taken),
        radius=blast_radius(every, custom_resources=resources, load_balancers=balancers),
        volumes=tuple(volume for preview in seen for volume in preview.cloud.volumes),
        refusals=tuple(refusals),
        blocked=(*blocked, *(Told(it.object, it.why) for it in protection if not it.by_contents)),
        staying=tuple(
            Told(it.entry.object, it.why)
            for some in staying.values()
            for it in some
            if it.entry.object.uid not in unshown
        ),
        leaks=(*lost, *(Told(ref, why) for why in unknown)),
        warnings=warned,
        critical_path=critical_path(made),
        by_unwind=tuple(step.name for step in steps if step.object.uid in others.by_unwind),
        costs=costs,
    )


def _forecast(
    step: Step, entries: Iterable[Entry], seen: Sequence[MemberPreview], taken: Collection[str], *, paused: str = ""
) -> list[ObjectForecast]:
    """What happens to the objects of a step. If its cluster could not be read, by the Inventories alone. `taken`: the
    uids of objects that are deleted with their Namespace. `paused`: why its objects are left."""
    if paused or step.effort == Effort.LEAVE:
        why = paused or f"{step.name} is left in place"
        return [
            ObjectForecast(entry, ForecastFate.ABSENT)
            if entry.object.uid in taken
            else ObjectForecast(entry, ForecastFate.STAYS, why)
            for entry in entries
        ]
    found = [item for preview in seen for item in preview.forecast.steps.get(step.object.uid, ())]
    known = {_key(item.entry) for item in found}
    return [_with_reason(item) for item in found] + [
        ObjectForecast(entry, ForecastFate.STAYS, why_kept(entry))
        if entry.adopted or entry.kept
        else ObjectForecast(entry, ForecastFate.GOES)
        for entry in entries
        if _key(entry) not in known
    ]


def _with_reason(item: ObjectForecast) -> ObjectForecast:
    """The forecast with the reason why a deployer keeps the object, which its entry names."""
    kept = item.fate is ForecastFate.STAYS and item.entry.kept and ": " in item.entry.source
    return msgspec.structs.replace(item, why=snapshots.why_kept(item.entry)) if kept else item


def _key(entry: Entry) -> tuple[str, str, str, str]:
    # Without the uid: that of an intended object is only known on the member.
    it = entry.object
    return it.group, it.kind, it.namespace, it.name
