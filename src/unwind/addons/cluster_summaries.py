"""The desired ClusterSummary of a profile on a cluster, its fields, and whether a profile backs it (pure).

A ClusterSummary tells the manager what to deploy, and where. The manager deploys only what a profile says: the profile
must exist, own the summary by uid, and select the cluster. A summary without such a profile deploys nothing. It is
removed, and it holds its cluster, only if the manager wrote an Inventory for its uid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unwind.addons import matching
from unwind.addons.matching import ProfileKey, Selection
from unwind.api import names
from unwind.api.meta import LabelSelector, ObjectMeta, ObjectRef, OwnerReference, find, manifest
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    CONFIG_GROUP,
    PROFILES,
    SVELTOS_CLUSTERS,
    ClusterSummary,
    ClusterSummarySpec,
    ClusterType,
    FeatureID,
    FeatureStatus,
    SyncMode,
    summary_name,
)
from unwind.members.targets import AddonTarget, ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from unwind.addons.caches import SeenProfile
    from unwind.api.sveltos import ProfileSpec

# Maximum length of a label value.
_LONGEST_LABEL = 63
_RESOURCES = {PROFILES.kind: PROFILES, CLUSTER_PROFILES.kind: CLUSTER_PROFILES}


def name_of(profile: ProfileKey, target: AddonTarget) -> str:
    return summary_name(
        profile_kind=profile.kind, profile=profile.name, cluster_type=target.type, cluster=target.ref.name
    )


def new(profile: ProfileKey, uid: str, spec: ProfileSpec, target: AddonTarget) -> dict[str, Any]:
    """The body of a new ClusterSummary."""
    resource = _RESOURCES[profile.kind]
    owner = OwnerReference(api_version=resource.api_version, kind=profile.kind, name=profile.name, uid=uid)
    metadata = ObjectMeta(
        name=name_of(profile, target),
        namespace=target.ref.namespace,
        labels=labels(profile, target),
        annotations=remembered_annotations(spec, target),
        owner_references=(owner,),
        # Set at creation: nothing is deployed for a summary without a finalizer.
        finalizers=(Finalizer.SUMMARY.value,),
    )
    wanted = ClusterSummarySpec(
        cluster_namespace=target.ref.namespace,
        cluster_name=target.ref.name,
        cluster_type=target.type.value,
        cluster_profile_spec=at_home(profile, spec),
    )
    return manifest(CLUSTER_SUMMARIES, ClusterSummary(metadata=metadata, spec=wanted))


def labels(profile: ProfileKey, target: AddonTarget) -> dict[str, str]:
    """Sveltos' labels of a summary. A name too long for a label is only in the spec."""
    whose = names.SVELTOS_PROFILE_LABEL if profile.kind == PROFILES.kind else names.SVELTOS_CLUSTER_PROFILE_LABEL
    wanted = {
        whose: profile.name,
        names.SVELTOS_CLUSTER_NAME_LABEL: target.ref.name,
        names.SVELTOS_CLUSTER_TYPE_LABEL: target.type.value,
    }
    return {label: value for label, value in wanted.items() if len(value) <= _LONGEST_LABEL}


def remembered_annotations(spec: ProfileSpec, target: AddonTarget) -> dict[str, str]:
    """The annotations of a summary. A clusterDeletionBehavior that the API server does not serve keeps its last
    value."""
    said = (
        {names.DELETION_BEHAVIOR_ANNOTATION: spec.cluster_deletion_behavior} if spec.cluster_deletion_behavior else {}
    )
    return {names.CLUSTER_UID_ANNOTATION: target.ref.uid, names.CREDENTIALS_ANNOTATION: target.secret, **said}


def at_home(profile: ProfileKey, spec: ProfileSpec) -> ProfileSpec:
    """The profile's spec, where references of a Profile stay in its own namespace: its author may have no access to
    others.

    An invalid selector is left out: the API server refuses a new object with it, and the rest of the profile selects
    the cluster.
    """
    replace = msgspec.structs.replace
    if matching.misread(spec.cluster_selector):
        spec = replace(spec, cluster_selector=LabelSelector())
    if profile.kind != PROFILES.kind:
        return spec
    charts = tuple(
        replace(chart, values_from=tuple(replace(item, namespace=profile.namespace) for item in chart.values_from))
        for chart in spec.helm_charts
    )
    references = tuple(replace(ref, namespace=profile.namespace) for ref in spec.policy_refs)
    return replace(spec, policy_refs=references, helm_charts=charts)


def kept_in_step(profile: ProfileKey, spec: ProfileSpec, summary: ClusterSummary) -> ProfileSpec:
    """The desired spec of the summary. After a OneTime deployment only modes and dependencies change."""
    wanted = at_home(profile, spec)
    if spec.sync_mode == SyncMode.ONE_TIME and provisioned(summary):
        return msgspec.structs.replace(
            settings_in_step(spec, summary), sync_mode=spec.sync_mode, depends_on=spec.depends_on
        )
    return wanted


def settings_in_step(spec: ProfileSpec, summary: ClusterSummary) -> ProfileSpec:
    """The spec of the summary with what the profile says about removal."""
    return msgspec.structs.replace(
        summary.spec.cluster_profile_spec,
        stop_matching_behavior=spec.stop_matching_behavior,
        cluster_deletion_behavior=spec.cluster_deletion_behavior,
    )


def cluster_of(summary: ClusterSummary) -> ClusterKey:
    return ClusterKey(summary.spec.cluster_type, summary.spec.cluster_namespace, summary.spec.cluster_name)


class ProfileOnCluster(NamedTuple):
    """A profile on a cluster."""

    cluster: ClusterKey
    profile: ProfileKey | None


def cluster_gone(summary: ClusterSummary) -> AddonTarget:
    """A placeholder target for a deleted cluster, to unmark its credentials."""
    key = cluster_of(summary)
    secret = summary.metadata.annotations.get(names.CREDENTIALS_ANNOTATION, f"{key.name}-sveltos-kubeconfig")
    ref = ObjectRef(kind=SVELTOS_CLUSTERS.kind, namespace=key.namespace, name=key.name)
    return AddonTarget(type=ClusterType.SVELTOS, ref=ref, secret=secret)


def misplaced(summary: ClusterSummary) -> bool:
    """Whether a summary is in another namespace than its cluster. The manager creates none like that."""
    return summary.metadata.namespace != summary.spec.cluster_namespace


def profile_of(summary: ClusterSummary) -> ProfileKey | None:
    """The profile that owns the summary."""
    if owner := _owner(summary):
        namespace = summary.metadata.namespace if owner.kind == PROFILES.kind else ""
        return ProfileKey(owner.kind, namespace, owner.name)
    return None


def profile_or_self(summary: ClusterSummary) -> ProfileKey:
    """The profile of a summary; for a summary without an owner, the summary itself."""
    return profile_of(summary) or ProfileKey(CLUSTER_SUMMARIES.kind, "", summary.metadata.name)


def owner_uid(summary: ClusterSummary) -> str:
    """The uid of the owning profile; empty if there is none."""
    owner = _owner(summary)
    return owner.uid if owner else ""


def profile_ref(summary: ClusterSummary) -> ObjectRef:
    """The owning profile; for a summary without one, the summary itself is named."""
    key = profile_of(summary)
    return ObjectRef(
        group=CONFIG_GROUP,
        version=CLUSTER_SUMMARIES.version,
        kind=key.kind if key else CLUSTER_SUMMARIES.kind,
        namespace=key.namespace if key else "",
        name=key.name if key else summary.metadata.name,
        uid=owner_uid(summary),
    )


def _owner(summary: ClusterSummary) -> OwnerReference | None:
    for owner in summary.metadata.owner_references:
        if owner.api_version.partition("/")[0] == CONFIG_GROUP and owner.kind in _RESOURCES:
            return owner
    return None


def sources(spec: ClusterSummarySpec) -> Iterator[tuple[str, str, str]]:
    """The ConfigMaps and Secrets that a summary references, as (kind, namespace, name)."""
    wanted = spec.cluster_profile_spec
    for ref in wanted.policy_refs:
        yield ref.kind, ref.namespace or spec.cluster_namespace, ref.name
    for chart in wanted.helm_charts:
        for values in chart.values_from:
            yield values.kind, values.namespace or spec.cluster_namespace, values.name


def features(spec: ProfileSpec) -> tuple[FeatureID, ...]:
    """The features that the spec uses."""
    wanted = (FeatureID.RESOURCES, spec.policy_refs), (FeatureID.HELM, spec.helm_charts)
    return tuple(feature for feature, some in wanted if some)


def cluster_paused(summary: ClusterSummary) -> bool:
    """Whether its cluster was paused when the summary was last reconciled."""
    blocked = find(summary.status.conditions, ConditionType.BLOCKED)
    return blocked is not None and blocked.reason == Reason.CLUSTER_PAUSED


def provisioned(summary: ClusterSummary) -> bool:
    """Whether every feature is Provisioned. True if there is none."""
    there = {item.feature_id for item in summary.status.feature_summaries if item.status == FeatureStatus.PROVISIONED}
    return all(feature in there for feature in features(summary.spec.cluster_profile_spec))


def needs(summary: ClusterSummary) -> list[ProfileKey]:
    """The profiles it depends on: of the same kind, and for a Profile in its own namespace."""
    profile = profile_of(summary)
    if profile is None:
        return []
    return [
        ProfileKey(profile.kind, profile.namespace, name)
        for name in dict.fromkeys(summary.spec.cluster_profile_spec.depends_on)
        if name != profile.name
    ]


def place_of(summary: ClusterSummary) -> ProfileOnCluster:
    """Its profile and cluster, which identify at most one summary."""
    return ProfileOnCluster(cluster_of(summary), profile_of(summary))


def needed_places(summary: ClusterSummary) -> list[ProfileOnCluster]:
    """The profile and cluster of each dependency."""
    cluster = cluster_of(summary)
    return [ProfileOnCluster(cluster, profile) for profile in needs(summary)]


def waited_for(summary: ClusterSummary, needed: Iterable[ClusterSummary], landed: Collection[str] = ()) -> list[str]:
    """The dependencies that are not deployed yet, for people.

    `needed`: the summaries of its dependencies on its cluster. `landed`: the uids of summaries that are deployed but
    whose status is not written yet.
    """
    there = {profile_of(summary): summary for summary in needed}
    told: list[str] = []
    for need in needs(summary):
        one = there.get(need)
        if one is None:
            told.append(f"{need} is not on this cluster: check that it exists and selects the cluster")
        elif one.metadata.terminating:
            told.append(f"{need} is being removed from this cluster: make it select the cluster again")
        elif not provisioned(one) and one.metadata.uid not in landed:
            told.append(f"{need} is not Provisioned: see its ClusterSummary")
    return told


def same_cluster(summary: ClusterSummary, target: AddonTarget | None) -> AddonTarget | None:
    """The cluster, if the summary was made for its uid, not for an earlier one of the same name."""
    made_for = summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION)
    return target if target and made_for in (None, target.ref.uid) else None


def unbacked(summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget | None) -> str:
    """Why no profile backs a summary; empty if one does. While it is not known whether the profile selects the cluster,
    it does: the summary holds its cluster.

    `profile`: the profile that the summary's ownerReference names. `target`: the cluster that its spec names.
    """
    key, cluster = profile_of(summary), cluster_of(summary)
    if misplaced(summary):
        return f"the ClusterSummary is in namespace {summary.metadata.namespace}, but {cluster} is not; delete it"
    if key is None:
        return "the ClusterSummary is not owned by a profile; delete it, because a profile creates its own"
    if profile is None:
        return f"{key} does not exist"
    if profile.metadata.uid != owner_uid(summary):
        return f"{key} does not own the ClusterSummary: it was created again, with another uid"
    if target is None:
        return f"{cluster} does not exist"
    if matching.selection(key, profile.spec, target, profile.unread) is Selection.NO:
        return f"{key} does not select {cluster}"
    return ""


def not_understood(summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget | None) -> list[str]:
    """Why it is not known whether the profile of a summary selects its cluster; empty if it is known."""
    key = profile_of(summary)
    if key is None or profile is None or target is None:
        return []
    if matching.selection(key, profile.spec, target, profile.unread) is not Selection.UNKNOWN:
        return []
    return matching.not_understood(key, profile.spec, profile.unread)


def in_step(summary: ClusterSummary, key: ProfileKey, profile: SeenProfile) -> bool:
    """Whether a summary says what its profile says."""
    said, wanted = summary.spec.cluster_profile_spec, kept_in_step(key, profile.spec, summary)
    if said.cluster_deletion_behavior is None:
        # The API server may not serve this field in ClusterSummaries. It does not decide what is deployed.
        wanted = msgspec.structs.replace(wanted, cluster_deletion_behavior=None)
    return said == wanted


def that_hold(
    summaries: Iterable[ClusterSummary],
    accounted: Collection[str],
    backed: Callable[[ClusterSummary], bool],
) -> list[ClusterSummary]:
    """The summaries that count in the plan and at the gate of their cluster.

    `accounted`: the uids that the manager wrote an Inventory for. `backed`: whether a profile backs a summary.
    """
    return [summary for summary in summaries if summary.metadata.uid in accounted or backed(summary)]
