"""Whether a profile backs a ClusterSummary (pure).

A ClusterSummary tells the manager what to deploy, and where. The manager deploys only what a profile says: the profile
must exist, own the summary by uid, and select the cluster. A summary without such a profile deploys nothing. It is
removed, and it holds its cluster, only if the manager wrote an Inventory for its uid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.addons import cluster_summaries, matching
from unwind.addons.cluster_summaries import cluster_of, kept_in_step, owner_uid, profile_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from unwind.addons.caches import SeenProfile
    from unwind.addons.matching import ProfileKey
    from unwind.api.sveltos import ClusterSummary
    from unwind.members.targets import AddonTarget


def unbacked(summary: ClusterSummary, profile: SeenProfile | None, target: AddonTarget | None) -> str:
    """Why no profile backs a summary; empty if one does.

    `profile`: the profile that the summary's ownerReference names. `target`: the cluster that its spec names.
    """
    key, cluster = profile_of(summary), cluster_of(summary)
    if cluster_summaries.misplaced(summary):
        return f"the ClusterSummary is in namespace {summary.metadata.namespace}, but {cluster} is not"
    if key is None:
        return "the ClusterSummary is not owned by a profile"
    if profile is None:
        return f"{key} does not exist"
    if profile.metadata.uid != owner_uid(summary):
        return f"{key} does not own the ClusterSummary: its uid is another one"
    if target is None:
        return f"{cluster} does not exist"
    if not matching.matches(key, profile.spec, target):
        return f"{key} does not select {cluster}"
    return ""


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
