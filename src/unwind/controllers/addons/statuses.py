"""What is said on a ClusterSummary: how far each feature is, what is waited for (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.conditions import with_condition, without_condition
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos_status import FeatureID, FeatureStatus, FeatureSummary
from unwind.controllers.addons import summarizing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.api.sveltos import ClusterSummary
    from unwind.api.sveltos_status import ClusterSummaryStatus, DeployedKinds, HelmReleaseSummary

# A status is no log: what is longer is cut where people stop reading.
_LONGEST = 4096


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one feature."""

    feature: FeatureID
    status: FeatureStatus
    hash: str = ""
    message: str = ""


def with_results(status: ClusterSummaryStatus, results: Iterable[Result], *, now: datetime) -> ClusterSummaryStatus:
    """The status with what became of features; one that fails again counts on."""
    before = {one.feature_id: one for one in status.feature_summaries}
    after = dict(before)
    for result in results:
        old = before.get(result.feature, FeatureSummary())
        failed = result.status is FeatureStatus.FAILED
        finished = result.status is FeatureStatus.PROVISIONED
        # While it is tried again it is still known how often it failed.
        failures = old.consecutive_failures + 1 if failed else 0 if finished else old.consecutive_failures
        after[result.feature] = FeatureSummary(
            feature_id=result.feature.value,
            status=result.status.value,
            hash=result.hash or old.hash,
            failure_message=result.message[:_LONGEST] or None,
            consecutive_failures=failures,
            last_applied_time=now.replace(microsecond=0) if finished else old.last_applied_time,
        )
    return msgspec.structs.replace(status, feature_summaries=tuple(after.values()))


def all_of(summary: ClusterSummary, status: FeatureStatus, message: str = "") -> list[Result]:
    """The same of every feature that it has or had."""
    had = [FeatureID.read(one.feature_id) for one in summary.status.feature_summaries]
    known = [
        *summarizing.features(summary.spec.cluster_profile_spec),
        *(one for one in had if isinstance(one, FeatureID)),
    ]
    return [Result(feature=feature, status=status, message=message) for feature in dict.fromkeys(known)]


def waiting(
    status: ClusterSummaryStatus, reason: Reason | None, message: str = "", *, now: datetime
) -> ClusterSummaryStatus:
    """The status with what is waited for before anything is done; None for nothing."""
    conditions = status.conditions
    if reason is None:
        conditions = without_condition(conditions, ConditionType.BLOCKED)
    else:
        conditions = with_condition(
            conditions, type=ConditionType.BLOCKED, status=True, reason=reason, message=message, now=now
        )
    return msgspec.structs.replace(status, dependencies=message or None, conditions=conditions)


def previewed(status: ClusterSummaryStatus, report: str | None, *, now: datetime) -> ClusterSummaryStatus:
    """The status with what would be done (DryRun); None where that is over."""
    conditions = status.conditions
    if report is None:
        conditions = without_condition(conditions, ConditionType.DRY_RUN)
    else:
        conditions = with_condition(
            conditions,
            type=ConditionType.DRY_RUN,
            status=True,
            reason=Reason.WOULD_CHANGE,
            message=report[:_LONGEST],
            now=now,
        )
    return msgspec.structs.replace(status, conditions=conditions)


def with_deployed(
    status: ClusterSummaryStatus, kinds: Iterable[DeployedKinds], releases: Iterable[HelmReleaseSummary]
) -> ClusterSummaryStatus:
    return msgspec.structs.replace(status, deployed_gvks=tuple(kinds), helm_release_summaries=tuple(releases))


def patch(before: ClusterSummaryStatus, after: ClusterSummaryStatus) -> dict[str, Any]:
    """What has to be written: the fields that differ, null for those that are no more. Empty for nothing."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
