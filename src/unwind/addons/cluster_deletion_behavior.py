"""What clusterDeletionBehavior means for the add-ons of a cluster that is deleted: leave, try or enforce (pure).

Only of a Cluster of Cluster API. The deletion of a SveltosCluster is decided in `addons/stop_matching_behavior.py`
(`manner_of`): the cluster is merely no longer managed, and its add-ons stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.addons.cluster_summaries import profile_or_self
from unwind.api.fields import Unknown
from unwind.api.names import DELETION_BEHAVIOR_ANNOTATION, ConditionType, Reason
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Effort
from unwind.teardown.drafts import TeardownNotice

if TYPE_CHECKING:
    from unwind.api.sveltos import ClusterSummary

_EFFORTS = {
    ClusterDeletionBehavior.LEAVE: Effort.LEAVE,
    ClusterDeletionBehavior.REMOVE: Effort.TRY,
    ClusterDeletionBehavior.ENFORCE: Effort.ENFORCE,
}


def behaviour(summary: ClusterSummary) -> ClusterDeletionBehavior | Unknown:
    """The clusterDeletionBehavior of a summary: the current value, or the last one while the API server served the
    field."""
    spec = summary.spec.cluster_profile_spec
    remembered = summary.metadata.annotations.get(DELETION_BEHAVIOR_ANNOTATION)
    if spec.cluster_deletion_behavior is not None or remembered is None:
        return spec.deletion
    # Not the default: it would remove add-ons that were to be left, or not block where it must.
    return ClusterDeletionBehavior.read(remembered)


def effort(summary: ClusterSummary) -> Effort:
    """The effort for the Inventories of a summary. They outlast it, so an unknown value counts as Enforce."""
    behaves = behaviour(summary)
    return Effort.ENFORCE if isinstance(behaves, Unknown) else _EFFORTS[behaves]


def planned_effort(summary: ClusterSummary) -> Effort:
    """The effort of a summary's step in a plan. With an unknown value nothing is removed; `said_of` holds the plan."""
    behaves = behaviour(summary)
    return Effort.LEAVE if isinstance(behaves, Unknown) else _EFFORTS[behaves]


def said_of(summary: ClusterSummary) -> tuple[TeardownNotice, ...]:
    """The notices of a Teardown about a summary's clusterDeletionBehavior (pure)."""
    profile, behaves = profile_or_self(summary), behaviour(summary)
    if isinstance(behaves, Unknown):
        message = (
            f"clusterDeletionBehavior of {profile}: {behaves}; nothing is removed from this cluster until it is"
            " corrected"
        )
        return (TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message),)
    if (
        summary.spec.cluster_profile_spec.cluster_deletion_behavior is None
        and DELETION_BEHAVIOR_ANNOTATION in summary.metadata.annotations
    ):
        message = (
            f"the API server does not serve clusterDeletionBehavior of {profile}, so its last value {behaves.value}"
            " applies;"
            " run `unwind install` to add the field"
        )
        return (TeardownNotice(ConditionType.FIELD_NOT_SERVED, Reason.FIELD_NOT_SERVED, message),)
    return ()
