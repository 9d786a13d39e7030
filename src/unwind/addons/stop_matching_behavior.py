"""What stopMatchingBehavior means for the add-ons of a cluster that no longer matches: remove or leave (pure).

It is also what happens if the profile is deleted. If the cluster is deleted, `cluster_deletion_behavior` counts. A
SveltosCluster that is deleted is merely no longer managed: its add-ons stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.addons.cluster_summaries import cluster_of
from unwind.api.fields import Unknown
from unwind.api.sveltos import ClusterType
from unwind.teardown.withdrawal import Manner

if TYPE_CHECKING:
    from unwind.api.sveltos import ClusterSummary, ProfileSpec
    from unwind.members.targets import AddonTarget


def withdraws(spec: ProfileSpec) -> bool | Unknown:
    """Whether add-ons are removed when the cluster no longer matches; Unknown blocks."""
    behaviour = spec.stop_matching
    return behaviour if isinstance(behaviour, Unknown) else behaviour.withdraws


def manner_of(summary: ClusterSummary, target: AddonTarget | None) -> Manner | Unknown | None:
    """How the add-ons of a deleted ClusterSummary are withdrawn; None if they are left to the Teardown of the cluster.
    Unknown: the value of stopMatchingBehavior is not known, and nothing is removed.

    `target`: the cluster that the summary was made for, None if it is gone. Read fresh, if it is gone or being deleted.
    """
    if target is None or target.terminating:
        return None if cluster_of(summary).type == ClusterType.CAPI else Manner.FORGET
    behaviour = withdraws(summary.spec.cluster_profile_spec)
    if isinstance(behaviour, Unknown):
        return behaviour
    return Manner.REMOVE if behaviour else Manner.RELEASE
